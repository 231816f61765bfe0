"""A small OpenID Connect provider on this machine: real requests, real signatures, and one person who always agrees."""

import base64
import hashlib
import json
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from joserfc import jwt
from joserfc.jwk import RSAKey

CLIENT_ID = "cadence-console"
CLIENT_SECRET = "the-secret-of-the-console"
KEY = RSAKey.generate_key(2048, {"kid": "1", "use": "sig"})


class Provider(ThreadingHTTPServer):
    """`person` are the claims that it gives; `changes` what is wrong with the next token; `answer_error` what it says
    in place of a code."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.issuer = f"http://127.0.0.1:{self.server_port}"
        self.person: dict[str, Any] = {"sub": "8d1f", "preferred_username": "dana", "groups": ["ops"]}
        self.changes: dict[str, Any] = {}
        self.answer_error = ""
        self.key: Any = KEY
        self.algorithm = "RS256"
        self.told_by_userinfo: dict[str, Any] | None = None
        self.asked: list[dict[str, str]] = []
        self._codes: dict[str, dict[str, str]] = {}

    def authorize(self, asked: dict[str, str]) -> str:
        self.asked.append(asked)
        if self.answer_error:
            return f"{asked['redirect_uri']}?{urlencode({'error': self.answer_error, 'state': asked['state']})}"
        code = secrets.token_urlsafe()
        self._codes[code] = asked
        return f"{asked['redirect_uri']}?{urlencode({'code': code, 'state': asked['state']})}"

    def token(self, form: dict[str, str], authorization: str) -> dict[str, Any] | None:
        expected = base64.b64encode(f"{CLIENT_ID}:{CLIENT_SECRET}".encode()).decode()
        asked = self._codes.pop(form.get("code", ""), None)
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        if asked is None or authorization != f"Basic {expected}" or asked.get("code_challenge") != challenge:
            return None
        now = int(time.time())
        claims = {"iss": self.issuer, "aud": CLIENT_ID, "iat": now, "exp": now + 300, "auth_time": now}
        claims |= self.person | {"nonce": asked["nonce"]} | self.changes
        header = {"alg": self.algorithm, "kid": "1"}
        token = jwt.encode(header, {name: value for name, value in claims.items() if value is not None}, self.key)
        return {"access_token": "opaque", "token_type": "Bearer", "expires_in": 300, "id_token": token}


class _Handler(BaseHTTPRequestHandler):
    server: Provider

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        provider = self.server
        if parts.path == "/.well-known/openid-configuration":
            endpoints = {
                f"{name}_endpoint": f"{provider.issuer}/{name}" for name in ("authorization", "token", "userinfo")
            }
            offered = {"id_token_signing_alg_values_supported": ["RS256", "HS256", "none"]}
            self._json({"issuer": provider.issuer, "jwks_uri": f"{provider.issuer}/keys"} | endpoints | offered)
        elif parts.path == "/keys":
            self._json({"keys": [KEY.as_dict(private=False)]})
        elif parts.path == "/authorization":
            self.send_response(302)
            self.send_header("Location", provider.authorize({k: v[0] for k, v in parse_qs(parts.query).items()}))
            self.end_headers()
        elif parts.path == "/userinfo":
            self._json(provider.told_by_userinfo or provider.person)
        else:
            self._json({"error": "not_found"}, 404)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        form = {name: values[0] for name, values in parse_qs(body).items()}
        answer = self.server.token(form, self.headers.get("Authorization", ""))
        self._json(answer or {"error": "invalid_grant"}, 200 if answer else 400)

    def _json(self, value: Any, status: int = 200) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""


@contextmanager
def running() -> Iterator[Provider]:
    with Provider() as provider:
        thread = threading.Thread(target=provider.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        yield provider
        provider.shutdown()
        thread.join()
