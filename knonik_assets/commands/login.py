"""``knonik login``, ``status`` and ``logout``."""

from __future__ import annotations

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
    del allow_file_key_store  # nothing is stored as long as no issuer can be signed in with
    _free_or_closed(product)


def status_command(product: ProductOption) -> None:
    """Say whether a login is needed and at hand."""
    _free_or_closed(product)


def logout_command(product: ProductOption) -> None:
    """Forget the login."""
    _free_or_closed(product)


def _free_or_closed(product: ProductName) -> None:
    from knonik_loader.access import require

    require(product.value)
    out.print(f"No issuer is configured (KNONIK_ISSUER), so {product.value} needs no login.", highlight=False)
