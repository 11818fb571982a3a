"""Tokens of an issuer: whether one is genuine, current and for a product.

An ID token is a signed JSON object (JWT, RFC 7519): the issuer's public keys prove who wrote it. The claim
``knonik_products`` of it names what its holder may run, as a list or a text with spaces.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from knonik_loader.errors import LoginRequired
from knonik_loader.signin.settings import Product, Settings

__all__ = ["CLAIM", "ExpiredToken", "Tokens", "check_token"]

CLAIM = "knonik_products"
_ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
"""Signatures that only the holder of a private key can make."""
_NO_TIME = 1e11
"""Seconds since 1970 that are none any more: of the year 5138."""
_SKEW_S = 60
"""What clocks of two machines may differ by."""


class ExpiredToken(LoginRequired):
    """The token was good once."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """What is kept of a login."""

    id_token: str = field(repr=False)
    refresh_token: str | None = field(repr=False)
    keys: Mapping[str, Any]
    """The issuer's public keys, a JSON Web Key Set, as of the login or its latest renewal."""
    token_endpoint: str
    """Where it is renewed."""
    jwks_uri: str
    """Where the keys are."""


def check_token(tokens: Tokens, settings: Settings, product: Product) -> Mapping[str, Any]:
    """The claims of a token that is genuine, current, for this client and for this product.

    Raises:
        ExpiredToken: it was so until lately.
        LoginRequired: it is not.
    """
    claims = _signed_claims(tokens, settings)
    again = f"run 'knonik login --product {product}' again"
    if str(claims.get("iss", "")).rstrip("/") != settings.issuer:
        raise LoginRequired(f"the login is one of {claims.get('iss')!r}, not of {settings.issuer}; {again}.")
    audience = claims.get("aud")
    if settings.client_id not in (audience if isinstance(audience, list) else [audience]):
        raise LoginRequired(f"the login is for the client {audience!r}, not for {settings.client_id!r}; {again}.")
    now, until, begins = time.time(), _time(claims.get("exp")), _time(claims.get("nbf", 0))
    if until is None or begins is None or begins > now + _SKEW_S:
        raise LoginRequired(f"the login at {settings.issuer} does not say that it is valid now; {again}.")
    if until < now - _SKEW_S:
        raise ExpiredToken(f"the login at {settings.issuer} has expired; {again}.")
    said = claims.get(CLAIM)
    products = said.split() if isinstance(said, str) else said if isinstance(said, list) else []
    if product not in products:
        holds = f"it names {', '.join(map(str, products))}" if products else f"it has no claim {CLAIM!r}"
        raise LoginRequired(
            f"the login at {settings.issuer} is not for {product!r}: {holds}; ask whoever runs the issuer for it."
        )
    return claims


def _time(value: Any) -> float | None:  # noqa: ANN401 - whatever an issuer says
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) < _NO_TIME:
        return None
    return float(value)


def _signed_claims(tokens: Tokens, settings: Settings) -> Mapping[str, Any]:
    try:
        from joserfc import jwt
        from joserfc.errors import JoseError
        from joserfc.jwk import KeySet
    except ImportError as error:
        raise LoginRequired(
            f"{settings.issuer} is configured, and checking its tokens needs a package that is not here: install "
            "'knonik[login]'."
        ) from error
    try:
        keys = KeySet.import_key_set({"keys": [key for key in tokens.keys.get("keys", []) if key.get("kty") != "oct"]})
        claims: Mapping[str, Any] = jwt.decode(tokens.id_token, keys, algorithms=_ALGORITHMS).claims
    except (JoseError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise LoginRequired(
            f"the login at {settings.issuer} holds a token whose signature is none of the issuer's ({error}); "
            "sign in again with 'knonik login'."
        ) from error
    return claims
