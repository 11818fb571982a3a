"""Which issuer signs in, as whom, and what its addresses may look like."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from knonik_loader.errors import ConfigError, LoginRequired

__all__ = ["CLIENT_ID", "ISSUER", "Product", "Settings", "check_address", "issuer", "settings"]

Product = Literal["ingest", "multidataloader"]
ISSUER, CLIENT_ID = "KNONIK_ISSUER", "KNONIK_CLIENT_ID"
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True)
class Settings:
    """What the environment configures."""

    issuer: str
    """Without a last slash."""
    client_id: str


def issuer() -> str | None:
    """The issuer that ``KNONIK_ISSUER`` names, or None where nothing needs a login."""
    return os.environ.get(ISSUER, "").strip() or None


def settings(product: Product) -> Settings:
    """What the environment says of an issuer that is configured.

    Raises:
        LoginRequired: ``KNONIK_CLIENT_ID`` is missing.
        ConfigError: the issuer is no address that tokens may be asked of.
    """
    named = issuer() or ""
    check_address(named, ISSUER)
    client_id = os.environ.get(CLIENT_ID, "").strip()
    if not client_id:
        raise LoginRequired(
            f"{ISSUER} is set to {named!r} and {CLIENT_ID} is not, so {product!r} refuses to run; "
            f"set {CLIENT_ID} to what the issuer calls this program, or unset {ISSUER} to run without a login."
        )
    return Settings(named.rstrip("/"), client_id)


def check_address(url: str, what: str) -> None:
    """Refuse addresses over which a token could be read by others.

    Raises:
        ConfigError: neither ``https://`` nor ``http://`` of this machine.
    """
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        host, parts = None, urlsplit("")
    if host and (parts.scheme == "https" or (parts.scheme == "http" and host in _LOOPBACK)):
        return
    raise ConfigError(f"{what} is {url!r}; an address that begins with https:// is needed.")
