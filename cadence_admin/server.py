"""Configuration of gunicorn, the web server: `gunicorn --config python:cadence_admin.server cadence_admin.wsgi`."""

import os
import tempfile
from pathlib import Path

bind = os.environ.get("CADENCE_BIND", "127.0.0.1:8000")
workers = int(os.environ.get("CADENCE_WORKERS", "2"))
threads = int(os.environ.get("CADENCE_THREADS", "4"))
worker_class = "gthread"
# Its heartbeat file on a disk that stalls would get a healthy worker killed.
_MEMORY = Path("/dev/shm")  # noqa: S108 - gunicorn makes its file there with a name of its own
worker_tmp_dir = str(_MEMORY) if _MEMORY.is_dir() else tempfile.gettempdir()
loglevel = "warning"
