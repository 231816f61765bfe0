"""Settings as a deployment sees them: a fresh process, its environment, and a refusal in one sentence."""

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

CODE = """
from django.conf import settings
print(settings.SECRET_KEY, settings.DATABASES['default']['ENGINE'], settings.SESSION_COOKIE_SECURE, sep='|')
"""

OIDC = {
    "CADENCE_OIDC_ISSUER": "https://login.example",
    "CADENCE_OIDC_CLIENT_ID": "console",
    "CADENCE_OIDC_CLIENT_SECRET": "x",
}


def start(var: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("CADENCE_", "DATABASE_URL"))}
    clean |= {"CADENCE_VAR_DIR": str(var), "DJANGO_SETTINGS_MODULE": "cadence_admin.settings"} | environment
    return subprocess.run([sys.executable, "-c", CODE], env=clean, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("environment", "word"),
    [
        ({"CADENCE_BIND": "0.0.0.0:8000"}, "CADENCE_ALLOWED_HOSTS is empty"),
        ({"CADENCE_BIND": "0.0.0.0:8000", "CADENCE_ALLOWED_HOSTS": "*"}, "CADENCE_ALLOWED_HOSTS is *"),
        (
            {"CADENCE_BIND": "192.0.2.7:80", "CADENCE_ALLOWED_HOSTS": "a.example", "CADENCE_LOCAL_ACCOUNTS": "1"},
            "CADENCE_LOCAL_ACCOUNTS is on",
        ),
        (
            {"CADENCE_BIND": "[::]:80", "CADENCE_ALLOWED_HOSTS": "a.example", "CADENCE_DEBUG": "1"},
            "CADENCE_DEBUG is on",
        ),
        ({"CADENCE_SECRET_KEY": "short"}, "CADENCE_SECRET_KEY is shorter"),
        ({"DATABASE_URL": "mysql://localhost/x"}, "postgres:// and sqlite:// only"),
        ({"CADENCE_NIFRA_DATABASE_URL": "mysql://localhost/x"}, "CADENCE_NIFRA_DATABASE_URL names"),
        ({"CADENCE_NIFRA_TABLE_PREFIX": "x" * 46}, "CADENCE_NIFRA_TABLE_PREFIX is no prefix"),
        ({"CADENCE_NIFRA_TABLE_PREFIX": "a; DROP TABLE b"}, "CADENCE_NIFRA_TABLE_PREFIX is no prefix"),
        ({"CADENCE_NIFRA_TABLE_PREFIX": "a\n"}, "CADENCE_NIFRA_TABLE_PREFIX is no prefix"),
        (OIDC | {"CADENCE_OIDC_ISSUER": "http://login.example"}, "CADENCE_OIDC_ISSUER has to begin with https://"),
        (OIDC | {"CADENCE_OIDC_CLIENT_SECRET": ""}, "CADENCE_OIDC_CLIENT_SECRET are needed too"),
        (OIDC | {"CADENCE_OIDC_GROUPS": '{"staff": 1}'}, "CADENCE_OIDC_GROUPS has to be such as"),
        ({"CADENCE_LIMITS": '{"searches": 1}'}, "CADENCE_LIMITS has to be such as"),
        ({"CADENCE_LIMITS": '{"search": true}'}, "CADENCE_LIMITS has to be such as"),
    ],
)
def test_unsafe_combinations_refuse_to_start(tmp_path: Path, environment: dict[str, str], word: str) -> None:
    done = start(tmp_path, **environment)
    assert done.returncode != 0
    assert word in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("bind", ["127.0.0.1:8000", "localhost:80", "[::1]:8000", "127.0.0.2:1", "unix:/run/x.sock"])
def test_a_loopback_address_may_have_local_accounts(tmp_path: Path, bind: str) -> None:
    assert start(tmp_path, CADENCE_BIND=bind, CADENCE_LOCAL_ACCOUNTS="1").returncode == 0


def test_the_command_line_says_it_in_one_sentence(tmp_path: Path) -> None:
    environment = os.environ | {"CADENCE_BIND": "0.0.0.0:1", "DJANGO_SETTINGS_MODULE": "cadence_admin.settings"}
    environment["CADENCE_VAR_DIR"] = str(tmp_path)
    done = subprocess.run(
        [sys.executable, "manage.py", "check"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith("Cadence Admin can't start: ")
    assert done.stderr.count("\n") == 1


def test_the_secret_key_is_made_once_and_kept_from_others(tmp_path: Path) -> None:
    keys = set()
    threads = [
        threading.Thread(target=lambda: keys.add(start(tmp_path / "var").stdout.split("|")[0])) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(keys) == 1
    assert len(keys.pop()) > 50
    path = tmp_path / "var" / "secret-key"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [found.name for found in path.parent.iterdir()] == ["secret-key"]
    path.chmod(0o644)
    assert "chmod 600" in start(tmp_path / "var").stderr


def test_https_makes_cookies_secure(tmp_path: Path) -> None:
    assert start(tmp_path, CADENCE_HTTPS="1").stdout.strip().endswith("|True")
    assert start(tmp_path).stdout.strip().endswith("|False")
