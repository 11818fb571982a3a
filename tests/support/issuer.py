"""An OpenID Connect issuer on loopback, with the device flow, renewal and signed tokens."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

from joserfc import jwt
from joserfc.jwk import RSAKey

CLIENT = "knonik-cli"


class Issuer:
    """Answers as its attributes say; ``asked`` are the forms that were posted."""

    def __init__(self) -> None:
        self.key = RSAKey.generate_key(2048, {"kid": "one", "use": "sig"}, private=True)
        self.products: object = ["ingest"]
        self.lifetime = 3600
        self.claims: dict[str, object] = {}
        self.polls = ["authorization_pending"]
        self.renewals = 1
        self.without: set[str] = set()
        self.asked: list[tuple[str, dict[str, str]]] = []
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path == "/.well-known/openid-configuration":
                    self._say(200, owner.described())
                elif self.path == "/keys":
                    self._say(200, {"keys": [owner.key.as_dict(private=False)]})
                else:
                    self._say(404, {})

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                form = {name: values[0] for name, values in parse_qs(body).items()}
                owner.asked.append((self.path, form))
                self._say(*owner.answer(self.path, form))

            def _say(self, status: int, value: object) -> None:
                data = json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def described(self) -> dict[str, str]:
        """What discovery says."""
        places = {"device_authorization_endpoint": "device", "token_endpoint": "token", "jwks_uri": "keys"}
        return {"issuer": self.url} | {n: f"{self.url}/{p}" for n, p in places.items() if n not in self.without}

    def answer(self, path: str, form: dict[str, str]) -> tuple[int, object]:
        """Status and body for a form."""
        if form.get("client_id") != CLIENT:
            return 401, {"error": "invalid_client", "error_description": "nobody knows this client"}
        if path == "/device":
            shown = {"user_code": "ABCD-EFGH", "verification_uri": f"{self.url}/activate"}
            return 200, shown | {"device_code": "secret", "interval": 0, "expires_in": 30}
        if form.get("grant_type") == "refresh_token":
            if self.renewals <= 0 or form.get("refresh_token") != "again":
                return 400, {"error": "invalid_grant"}
            self.renewals -= 1
            self.lifetime = 3600
        elif form.get("device_code") != "secret":
            return 400, {"error": "invalid_grant"}
        elif self.polls:
            return 400, {"error": self.polls.pop(0)}
        return 200, {"id_token": self.token(), "refresh_token": "again", "token_type": "Bearer"}

    def token(self) -> str:
        """A signed ID token."""
        claims = {"iss": self.url, "aud": CLIENT, "sub": "u1", "email": "ada@example.org"}
        claims |= {"exp": int(time.time()) + self.lifetime, "knonik_products": self.products}
        return jwt.encode({"alg": "RS256", "kid": "one"}, {**claims, **self.claims}, self.key)

    def __enter__(self) -> Issuer:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
