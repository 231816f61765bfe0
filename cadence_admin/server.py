"""Configuration of gunicorn, the web server: `gunicorn --config python:cadence_admin.server cadence_admin.wsgi`."""

import os
import tempfile

bind = os.environ.get("CADENCE_BIND", "127.0.0.1:8000")
workers = int(os.environ.get("CADENCE_WORKERS", "2"))
threads = int(os.environ.get("CADENCE_THREADS", "4"))
worker_class = "gthread"
# Its heartbeat file on a disk that stalls would get a healthy worker killed.
worker_tmp_dir = "/dev/shm" if os.path.isdir("/dev/shm") else tempfile.gettempdir()
loglevel = "warning"
