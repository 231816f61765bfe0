"""Resume tokens: `v1.<payload>.<signature>`, and the hash by which the store knows one.

Plain functions over plain data: the clock and the nonce are the caller's. Source: nifra's approval tokens. The secret is
never in the store, and the store never sees a token.
"""

import base64
import binascii
import hashlib
import hmac
import re
from dataclasses import dataclass
from typing import Final

from cadence_admin.javascript import JsonError, is_safe_integer, parse_json, stringify

MIN_SECRET_BYTES: Final = 32
NONCE_BYTES: Final = 18
MAX_TOKEN: Final = 2_048
MAX_ID: Final = 128

_BASE64URL = re.compile(r"[A-Za-z0-9_-]+")
_PRINTABLE = re.compile(r"[!-~]+")


class TokenError(ValueError):
    """A token that opens nothing. `code` is `approval-token-invalid`, `approval-token-malformed` (rightly signed over an
    id or nonce that can't be one) or `approval-token-expired`."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Claims:
    """What a token says. `expires_at` is in milliseconds."""

    approval_id: str
    nonce: str
    expires_at: int


def _invalid() -> TokenError:
    return TokenError("approval-token-invalid", "approval resume token is invalid")


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    if not _BASE64URL.fullmatch(text):
        raise _invalid()
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except binascii.Error:
        raise _invalid() from None


def require_secret(secret: bytes) -> None:
    """Raises `ValueError` for a secret shorter than 32 bytes."""
    if len(secret) < MIN_SECRET_BYTES:
        raise ValueError(f"approval secret must contain at least {MIN_SECRET_BYTES} random bytes")


def _signature(payload: str, secret: bytes) -> bytes:
    require_secret(secret)
    return hmac.digest(secret, payload.encode(), "sha256")


def sign(claims: Claims, secret: bytes) -> str:
    """The token of some claims."""
    body = stringify({"v": 1, "id": claims.approval_id, "nonce": claims.nonce, "exp": claims.expires_at})
    payload = _encode(body.encode())
    return f"v1.{payload}.{_encode(_signature(payload, secret))}"


def verify(token: str, secret: bytes, now: int) -> Claims:
    """What a token says, if it was signed with `secret` and has not expired at `now` (ms). Raises `TokenError`."""
    if not isinstance(token, str) or len(token) > MAX_TOKEN:
        raise _invalid()
    parts = token.split(".")
    if len(parts) != 3 or parts[0] != "v1":
        raise _invalid()
    _, payload, signature = parts
    given = _decode(signature)
    if not payload.isascii() or not hmac.compare_digest(given, _signature(payload, secret)):
        raise _invalid()
    try:
        claims = parse_json(_decode(payload).decode("utf-8", "replace"))
    except JsonError:
        raise _invalid() from None
    if (
        not isinstance(claims, dict)
        or claims.get("v") != 1
        or isinstance(claims["v"], bool)
        or not isinstance(claims.get("id"), str)
        or not isinstance(claims.get("nonce"), str)
        or not is_safe_integer(claims.get("exp"))
    ):
        raise _invalid()
    for name in ("id", "nonce"):
        if len(claims[name]) > MAX_ID or not _PRINTABLE.fullmatch(claims[name]):
            raise TokenError("approval-token-malformed", f"approval {name} must be a bounded printable token")
    if claims["exp"] <= now:
        raise TokenError("approval-token-expired", "approval resume token has expired")
    return Claims(claims["id"], claims["nonce"], claims["exp"])


def hash_token(token: str) -> str:
    """The hash under which the store knows a token: base64url, without padding, of its sha256."""
    return _encode(hashlib.sha256(token.encode()).digest())


def new_nonce(random: bytes) -> str:
    """A nonce from `NONCE_BYTES` random bytes."""
    return _encode(random)


def same_secret(left: str | None, right: str | None) -> bool:
    """Whether two secrets are equal, in a time that doesn't tell how much of them is."""
    if left is None or right is None:
        return left is right
    return hmac.compare_digest(left.encode("utf-8", "surrogatepass"), right.encode("utf-8", "surrogatepass"))
