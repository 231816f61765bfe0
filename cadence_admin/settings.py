"""Settings: from the environment only. The README has the table; combinations that are unsafe refuse to start."""

import ipaddress
import os
import re
import secrets
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import environ
from csp.constants import NONE, SELF
from django.core.exceptions import ImproperlyConfigured

env = environ.Env()

BASE_DIR = Path(__file__).resolve().parent.parent
VAR_DIR = Path(env.str("CADENCE_VAR_DIR", default=str(BASE_DIR / "var"))).absolute()


def _is_loopback(bind: str) -> bool:
    host = bind.rpartition(":")[0].strip("[]") or bind
    if host == "localhost" or bind.startswith("unix:"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _secret_key() -> str:
    """The key from the environment, or the one in the var directory: made on first use, readable by its owner only."""
    given: str = env.str("CADENCE_SECRET_KEY", default="")
    if given:
        if len(given) < 32:
            raise ImproperlyConfigured(
                "CADENCE_SECRET_KEY is shorter than 32 characters; give it at least 50 random ones."
            )
        return given
    path = VAR_DIR / "secret-key"
    if not path.exists():
        VAR_DIR.mkdir(parents=True, exist_ok=True)
        draft = VAR_DIR / f".secret-key.{os.getpid()}"
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_urlsafe(50))
        try:
            os.link(draft, path)  # whole or not at all, and never over a key that another process just made
        except FileExistsError:
            pass
        finally:
            draft.unlink()
    if path.stat().st_mode & 0o077:
        raise ImproperlyConfigured(f"{path} can be read by others; take that away with: chmod 600 {path}")
    return path.read_text().strip()


DEBUG = env.bool("CADENCE_DEBUG", default=False)
BIND = env.str("CADENCE_BIND", default="127.0.0.1:8000")
LOCAL_ACCOUNTS = env.bool("CADENCE_LOCAL_ACCOUNTS", default=False)
HTTPS = env.bool("CADENCE_HTTPS", default=False)
ALLOWED_HOSTS = env.list(
    "CADENCE_ALLOWED_HOSTS", default=["localhost", "127.0.0.1", "[::1]"] if _is_loopback(BIND) else []
)
CSRF_TRUSTED_ORIGINS = env.list("CADENCE_CSRF_TRUSTED_ORIGINS", default=[])

if not DEBUG and not ALLOWED_HOSTS:
    raise ImproperlyConfigured(
        "CADENCE_ALLOWED_HOSTS is empty: name the hosts that this console answers to, separated by commas."
    )
if not DEBUG and "*" in ALLOWED_HOSTS:
    raise ImproperlyConfigured("CADENCE_ALLOWED_HOSTS is *: name the hosts that this console answers to.")
if not _is_loopback(BIND):
    if DEBUG:
        raise ImproperlyConfigured(
            f"CADENCE_DEBUG is on while CADENCE_BIND is {BIND}: debugging is for a loopback address only."
        )
    if LOCAL_ACCOUNTS:
        raise ImproperlyConfigured(
            f"CADENCE_LOCAL_ACCOUNTS is on while CADENCE_BIND is {BIND}: the local accounts share one printed password "
            "and are for a loopback address only."
        )

SECRET_KEY = _secret_key()

INSTALLED_APPS = [
    "cadence_admin.apps.ConsoleAdminConfig",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "axes",
    "csp",
    "django_htmx",
    "runs",
    "approvals",
    "cadence_admin.apps.CadenceAdminConfig",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "csp.middleware.CSPMiddleware",
    "cadence_admin.deadline.DeadlineMiddleware",
    "cadence_admin.middleware.TextMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
    "cadence_admin.middleware.SessionEndMiddleware",
    "cadence_admin.middleware.OriginMiddleware",
    "cadence_admin.middleware.SignInMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "axes.middleware.AxesMiddleware",
    "cadence_admin.throttle.ThrottleMiddleware",
]

ROOT_URLCONF = "cadence_admin.urls"
WSGI_APPLICATION = "cadence_admin.wsgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
            "builtins": ["cadence_admin.templatetags.console"],
        },
    }
]


def _database(variable: str, url: str) -> dict[str, Any]:
    config: dict[str, Any] = dict(environ.Env.db_url_config(url))
    options = config.setdefault("OPTIONS", {})
    match config["ENGINE"]:
        case "django.db.backends.sqlite3":
            # IMMEDIATE: a read that turns into a write would fail at once, whatever the timeout. The timeout is set
            # when the connection opens, so it already holds while WAL is switched on.
            options |= {
                "transaction_mode": "IMMEDIATE",
                "timeout": 10,
                "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;",
            }
        case "django.db.backends.postgresql":
            # Nothing that lives longer than a transaction on the server, so that PgBouncer in transaction mode works,
            # unless somebody says that there is none: planning a statement once saves a third of its time.
            prepare = env.bool("CADENCE_DATABASE_PREPARE", default=False)
            options |= {
                "pool": {"min_size": 1, "max_size": env.int("CADENCE_DATABASE_POOL", default=8), "timeout": 5},
                "prepare_threshold": 5 if prepare else None,
                "server_side_binding": prepare,
            }
            config["DISABLE_SERVER_SIDE_CURSORS"] = True
            # A connection that died with the server isn't handed to a request.
            config["CONN_HEALTH_CHECKS"] = True
            options["connect_timeout"] = 5
        case engine:
            raise ImproperlyConfigured(
                f"{variable} names {engine}; Cadence Admin runs on postgres:// and sqlite:// only."
            )
    return config


def _databases() -> dict[str, dict[str, Any]]:
    url = env.str("DATABASE_URL", default="")
    if not url:
        VAR_DIR.mkdir(parents=True, exist_ok=True)
        url = f"sqlite:///{VAR_DIR / 'cadence.sqlite3'}"
    databases = {"default": _database("DATABASE_URL", url)}
    nifra = env.str("CADENCE_NIFRA_DATABASE_URL", default="")
    if nifra:
        databases["nifra"] = _database("CADENCE_NIFRA_DATABASE_URL", nifra)
    return databases


DATABASES = _databases()
DATABASE_ROUTERS = ["approvals.routers.NifraRouter"]
# The names of nifra's tables start with it. PostgreSQL cuts names at 63 bytes, so a longer one could meet another's.
NIFRA_TABLE_PREFIX = env.str("CADENCE_NIFRA_TABLE_PREFIX", default="nifra_durable")
if not re.fullmatch(r"[a-z_][a-z0-9_]{0,44}", NIFRA_TABLE_PREFIX):
    raise ImproperlyConfigured(
        "CADENCE_NIFRA_TABLE_PREFIX is no prefix: use up to 45 of a-z, 0-9 and _, no digit first."
    )
# Approving one of these takes typing what it is about: shell-style patterns of capabilities.
CONFIRM_CAPABILITIES = env.list("CADENCE_CONFIRM_CAPABILITIES", default=["*.delete"])
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# Axes counts failed sign-ins by name and address, for all processes; the audit log has each of them.
AUTHENTICATION_BACKENDS = ["axes.backends.AxesStandaloneBackend", "cadence_admin.accounts.AccountBackend"]
AXES_FAILURE_LIMIT = 5
AXES_COOLOFF_TIME = timedelta(minutes=15)
AXES_LOCKOUT_PARAMETERS = [["username", "ip_address"]]
AXES_RESET_ON_SUCCESS = True
AXES_LOCKOUT_TEMPLATE = "locked_out.html"
AXES_CLIENT_IP_CALLABLE = "cadence_admin.requests.client_ip"
AXES_DISABLE_ACCESS_LOG = True
AXES_ENABLE_ADMIN = False
AXES_VERBOSE = False
PASSWORD_HASHERS = [
    "django.contrib.auth.hashers.Argon2PasswordHasher",
    "django.contrib.auth.hashers.PBKDF2PasswordHasher",  # of accounts from before; the next sign-in renews it
]
# So long a request may take: then what it asks of a database is cancelled. 0 is without an end.
REQUEST_SECONDS = env.float("CADENCE_REQUEST_SECONDS", default=20)
# So many of these a minute (`cadence_admin.throttle`). 0 is without a limit.
LIMITS = {"sign-in": 30, "provider": 60, "search": 60, "verify": 12, "bulk": 30}
_limits = env.json("CADENCE_LIMITS", default={})
if not isinstance(_limits, dict) or not all(
    name in LIMITS and type(most) is int and most >= 0 for name, most in _limits.items()
):
    raise ImproperlyConfigured(f'CADENCE_LIMITS has to be such as {{"search": 120}}, of: {", ".join(LIMITS)}.')
LIMITS |= _limits
SESSION_IDLE_MINUTES = env.int("CADENCE_SESSION_IDLE_MINUTES", default=60)
SESSION_HOURS = env.int("CADENCE_SESSION_HOURS", default=12)
SESSION_COOKIE_AGE = SESSION_HOURS * 3_600
PROOF_MINUTES = env.int("CADENCE_PROOF_MINUTES", default=15)
# More approvals at once than this take the password again.
PROOF_OVER = env.int("CADENCE_PROOF_OVER", default=10)
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 12}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
    {"NAME": "django.contrib.auth.password_validation.NumericPasswordValidator"},
]
# Sign-in at an OpenID Connect provider, beside that with a password: off without an issuer.
OIDC_ISSUER = env.str("CADENCE_OIDC_ISSUER", default="")
OIDC_CLIENT_ID = env.str("CADENCE_OIDC_CLIENT_ID", default="")
OIDC_CLIENT_SECRET = env.str("CADENCE_OIDC_CLIENT_SECRET", default="")
OIDC_NAME = env.str("CADENCE_OIDC_NAME", default="single sign-on")
OIDC_SCOPES = env.str("CADENCE_OIDC_SCOPES", default="openid profile email")
OIDC_NAME_CLAIM = env.str("CADENCE_OIDC_NAME_CLAIM", default="preferred_username")
OIDC_GROUPS_CLAIM = env.str("CADENCE_OIDC_GROUPS_CLAIM", default="groups")
# {"group at the provider": "group here"}
OIDC_GROUPS = env.json("CADENCE_OIDC_GROUPS", default={})
if OIDC_ISSUER:
    _issuer = urlsplit(OIDC_ISSUER)
    if _issuer.scheme != "https" and not (_issuer.scheme == "http" and _is_loopback(_issuer.netloc)):
        raise ImproperlyConfigured("CADENCE_OIDC_ISSUER has to begin with https://.")
    if not OIDC_CLIENT_ID or not OIDC_CLIENT_SECRET:
        raise ImproperlyConfigured(
            "CADENCE_OIDC_ISSUER is set: CADENCE_OIDC_CLIENT_ID and CADENCE_OIDC_CLIENT_SECRET are needed too."
        )
if not isinstance(OIDC_GROUPS, dict) or not all(isinstance(name, str) for name in OIDC_GROUPS.values()):
    raise ImproperlyConfigured('CADENCE_OIDC_GROUPS has to be such as {"group at the provider": "operator"}.')
LOGIN_URL = "sign-in"
LOGIN_REDIRECT_URL = "/"
LOGOUT_REDIRECT_URL = "sign-in"

LANGUAGE_CODE = "en"
TIME_ZONE = "UTC"
USE_I18N = False
USE_TZ = True

STATIC_URL = "static/"
STATIC_ROOT = VAR_DIR / "static"
STATICFILES_DIRS = [BASE_DIR / "static"]
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {
        "BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"
        if DEBUG
        else "whitenoise.storage.CompressedManifestStaticFilesStorage"
    },
}

CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [NONE],
        "script-src": [SELF],
        "style-src": [SELF],
        "img-src": [SELF, "data:"],
        "font-src": [SELF],
        "connect-src": [SELF],
        "form-action": [SELF],
        "base-uri": [NONE],
        "frame-ancestors": [NONE],
    }
}
X_FRAME_OPTIONS = "DENY"
SECURE_REFERRER_POLICY = "same-origin"
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = SECURE_SSL_REDIRECT = HTTPS
SECURE_HSTS_SECONDS = 31_536_000 if HTTPS else 0
SECURE_HSTS_INCLUDE_SUBDOMAINS = SECURE_HSTS_PRELOAD = HTTPS
# Nothing here takes files: what is sent as one is not read.
FILE_UPLOAD_HANDLERS: list[str] = []
BEHIND_PROXY = env.bool("CADENCE_BEHIND_PROXY", default=False)
if BEHIND_PROXY:
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "{asctime} {levelname} {name} {message}", "style": "{"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["console"], "level": env.str("CADENCE_LOG_LEVEL", default="WARNING")},
    # Only what the console itself logs: Django's own handlers would mail and print twice.
    "loggers": {"django": {"handlers": [], "propagate": True}},
}

SAMPLE_STATE_HOME = BASE_DIR / "tests" / "data" / "cadence" / "state-home"
SAMPLE_RECORDS = BASE_DIR / "tests" / "data" / "nifra" / "records.sqlite3"
# Where Cadence keeps its state roots: CADENCE_STATE_HOME, else XDG_STATE_HOME, else ~/.local/state.
STATE_HOME = Path(
    env.str("CADENCE_STATE_HOME", default="")
    or env.str("XDG_STATE_HOME", default="")
    or Path.home() / ".local" / "state"
)
