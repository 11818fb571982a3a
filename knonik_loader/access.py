"""Who may run this: free unless an organisation configures an issuer, then closed unless a token proves otherwise."""

from __future__ import annotations

import os
from typing import Literal

from knonik_loader.errors import LoginRequired

__all__ = ["Product", "issuer", "require"]

Product = Literal["ingest", "multidataloader"]


def issuer() -> str | None:
    """The OpenID Connect issuer that ``KNONIK_ISSUER`` configures, or None where nothing needs a login."""
    return os.environ.get("KNONIK_ISSUER", "").strip() or None


def require(product: Product) -> None:
    """Return where no issuer is configured; otherwise fail closed.

    Raises:
        LoginRequired: an issuer is configured; signing in with one is not part of this version, so everything refuses.
    """
    configured = issuer()
    if configured is not None:
        raise LoginRequired(
            f"KNONIK_ISSUER is set to {configured!r}, but this version cannot sign in with an issuer, so "
            f"'{product}' refuses to run; unset KNONIK_ISSUER to run without a login."
        )
