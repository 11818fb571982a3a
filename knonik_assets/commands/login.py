"""``knonik login``, ``status`` and ``logout``."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated

import typer

from knonik_assets.commands.console import out

__all__ = ["login_command", "logout_command", "status_command"]


class ProductName(StrEnum):
    """What a login is for."""

    ingest = "ingest"
    multidataloader = "multidataloader"


ProductOption = Annotated[ProductName, typer.Option("--product", help="What the login is for.")]


def login_command(
    product: ProductOption,
    allow_file_key_store: Annotated[
        bool, typer.Option("--allow-file-key-store", help="Keep tokens in a private file where no keyring is.")
    ] = False,
) -> None:
    """Sign in, where an organisation asks for it."""
    if _free(product):
        return
    from knonik_loader.signin import store
    from knonik_loader.signin.device import sign_in
    from knonik_loader.signin.settings import settings
    from knonik_loader.signin.tokens import check_token

    configured = settings(product.value)

    def show(where: str, code: str) -> None:
        _say(f"Open {where} on any machine and type the code {code}; waiting.")

    tokens = sign_in(configured, show)
    claims = check_token(tokens, configured, product.value)
    place = store.save(configured, product.value, tokens, allow_file=allow_file_key_store)
    _say(f"Signed in for {product.value}{_who(claims)}; kept in {place}.")


def status_command(product: ProductOption) -> None:
    """Say whether a login is needed and at hand."""
    if _free(product):
        return
    from knonik_loader.access import holder
    from knonik_loader.signin.settings import settings

    configured = settings(product.value)
    claims = holder(configured, product.value)
    _say(f"Signed in for {product.value} at {configured.issuer}{_who(claims)}.")


def logout_command(product: ProductOption) -> None:
    """Forget the login."""
    if _free(product):
        return
    from knonik_loader.signin import store
    from knonik_loader.signin.settings import settings

    configured = settings(product.value)
    gone = store.forget(configured, product.value)
    _say(f"Signed out of {product.value}." if gone else f"There was no login for {product.value}.")


def _free(product: ProductName) -> bool:
    from knonik_loader.access import issuer

    if issuer() is not None:
        return False
    _say(f"No issuer is configured (KNONIK_ISSUER), so {product.value} needs no login.")
    return True


def _who(claims: Mapping[str, object]) -> str:
    name = claims.get("email") or claims.get("preferred_username") or claims.get("sub")
    until = datetime.fromtimestamp(float(str(claims["exp"])), UTC)
    return f"{f' as {name}' if name else ''}, until {until:%Y-%m-%d %H:%M} UTC"


def _say(text: str) -> None:
    out.print(text, highlight=False, soft_wrap=True)
