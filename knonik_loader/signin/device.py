"""The OAuth 2.0 device flow (RFC 8628): a code to type on another machine's browser, then tokens.

Only form posts and JSON over HTTPS: the standard library does both.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

from knonik_loader.errors import ConfigError, LoginRequired
from knonik_loader.signin.settings import ISSUER, Settings, check_address
from knonik_loader.signin.tokens import Tokens

__all__ = ["renew", "sign_in"]

_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
_SCOPE = "openid offline_access"
_TIMEOUT_S = 30
_MOST_BYTES = 1 << 20
_INTERVAL_S, _SLOWER_S = 5, 5
_DEFAULT_LIFE_S = 600
_ENDPOINTS = ("device_authorization_endpoint", "token_endpoint", "jwks_uri")


def sign_in(
    settings: Settings, show: Callable[[str, str], None], sleep: Callable[[float], object] = time.sleep
) -> Tokens:
    """Run the flow.

    Args:
        settings: of the environment.
        show: is given the address to open and the code to type.
        sleep: waits between two questions.

    Raises:
        LoginRequired: the issuer cannot be asked, knows no device flow or refused, or the code was not typed in time.
        ConfigError: an address of the issuer is none that tokens may be sent to.
    """
    found = _discover(settings)
    asked = {"client_id": settings.client_id, "scope": _SCOPE}
    status, begun = _post(found["device_authorization_endpoint"], asked, settings)
    if status != 200:
        raise _refused(settings, begun)
    code, shown = begun.get("device_code"), begun.get("user_code")
    where = begun.get("verification_uri_complete") or begun.get("verification_uri")
    if not (isinstance(code, str) and isinstance(shown, str) and isinstance(where, str)):
        raise LoginRequired(f"{settings.issuer} answered without a code to type; its device flow is not RFC 8628's.")
    show(where, shown)
    granted = _poll(found["token_endpoint"], code, begun, settings, sleep)
    return _tokens(granted, found["token_endpoint"], found["jwks_uri"], None, settings)


def renew(tokens: Tokens, settings: Settings) -> Tokens:
    """New tokens for a login that has expired.

    Raises:
        LoginRequired: the issuer gave none that could be used, or refuses.
    """
    if tokens.refresh_token is None:
        raise LoginRequired(f"{settings.issuer} gave no token to renew the login with.")
    asked = {"grant_type": "refresh_token", "refresh_token": tokens.refresh_token, "client_id": settings.client_id}
    status, granted = _post(tokens.token_endpoint, asked, settings)
    if status != 200:
        raise _refused(settings, granted)
    return _tokens(granted, tokens.token_endpoint, tokens.jwks_uri, tokens.refresh_token, settings)


def _discover(settings: Settings) -> Mapping[str, str]:
    """The issuer's addresses (OpenID Connect Discovery 1.0)."""
    url = f"{settings.issuer}/.well-known/openid-configuration"
    status, said = _send(Request(url, headers={"Accept": "application/json"}), settings)
    if status != 200 or str(said.get("issuer", "")).rstrip("/") != settings.issuer:
        raise LoginRequired(
            f"{url} does not describe the issuer {settings.issuer} (status {status}); correct {ISSUER}."
        )
    for name in _ENDPOINTS:
        if not isinstance(said.get(name), str):
            raise LoginRequired(f"{settings.issuer} has no {name}; its device flow must be switched on.")
        check_address(said[name], f"{name} of {settings.issuer}")
    return {name: said[name] for name in _ENDPOINTS}


def _poll(
    url: str, code: str, begun: Mapping[str, Any], settings: Settings, sleep: Callable[[float], object]
) -> Mapping[str, Any]:
    interval = _seconds(begun.get("interval"), _INTERVAL_S)
    left = _seconds(begun.get("expires_in"), _DEFAULT_LIFE_S)
    while left > 0:
        sleep(interval)
        left -= max(interval, 0.1)
        asked = {"grant_type": _GRANT, "device_code": code, "client_id": settings.client_id}
        status, answer = _post(url, asked, settings)
        if status == 200:
            return answer
        error = answer.get("error")
        if error == "slow_down":
            interval += _SLOWER_S
        elif error == "expired_token":
            break
        elif error != "authorization_pending":
            raise _refused(settings, answer)
    raise LoginRequired(f"the code was not typed in at {settings.issuer} in time; run 'knonik login' again.")


def _seconds(value: Any, default: float) -> float:  # noqa: ANN401 - whatever an issuer says
    good = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 86_400
    return float(value) if good else float(default)


def _tokens(
    granted: Mapping[str, Any], token_endpoint: str, jwks_uri: str, refresh: str | None, settings: Settings
) -> Tokens:
    id_token, again = granted.get("id_token"), granted.get("refresh_token", refresh)
    if not isinstance(id_token, str):
        raise LoginRequired(
            f"{settings.issuer} gave no ID token; the client {settings.client_id!r} must have scope openid."
        )
    check_address(jwks_uri, f"jwks_uri of {settings.issuer}")
    status, keys = _send(Request(jwks_uri, headers={"Accept": "application/json"}), settings)
    if status != 200 or not isinstance(keys.get("keys"), list):
        raise LoginRequired(
            f"{jwks_uri} holds no keys (status {status}), so no token of {settings.issuer} can be checked."
        )
    return Tokens(id_token, again if isinstance(again, str) else None, dict(keys), token_endpoint, jwks_uri)


def _refused(settings: Settings, answer: Mapping[str, Any]) -> LoginRequired:
    reason = answer.get("error_description") or answer.get("error") or "no reason given"
    return LoginRequired(f"{settings.issuer} refuses the login of client {settings.client_id!r}: {reason}.")


def _post(url: str, fields: Mapping[str, str], settings: Settings) -> tuple[int, Mapping[str, Any]]:
    check_address(url, f"token_endpoint of {settings.issuer}")
    headers = {"Accept": "application/json", "Content-Type": "application/x-www-form-urlencoded"}
    return _send(Request(url, urlencode(fields).encode(), headers), settings)


def _send(request: Request, settings: Settings) -> tuple[int, Mapping[str, Any]]:
    """(status, JSON object) of an answer; an object without keys where there is none."""
    try:
        with urlopen(request, timeout=_TIMEOUT_S) as answer:
            status, data = int(answer.status), answer.read(_MOST_BYTES)
    except HTTPError as error:
        with error:
            status, data = error.code, error.read(_MOST_BYTES)
    except (URLError, HTTPException, OSError) as error:
        reason = getattr(error, "reason", None) or error
        raise LoginRequired(f"{settings.issuer} cannot be asked ({reason}); check {ISSUER} and the network.") from error
    except ValueError as error:
        raise ConfigError(f"{request.full_url} is no address: {error}.") from error
    try:
        said = json.loads(data)
    except (ValueError, RecursionError):
        said = {}
    return status, said if isinstance(said, dict) else {}
