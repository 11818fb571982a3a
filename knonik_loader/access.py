"""Who may run this: free unless an organisation configures an issuer, then closed unless a token proves otherwise."""

from __future__ import annotations

from knonik_loader.signin.settings import Product, Settings, issuer, settings

__all__ = ["Product", "holder", "issuer", "require"]


def require(product: Product) -> None:
    """Return where no issuer is configured, or where its valid token for the product is at hand; else fail closed.

    A token that has expired is renewed, where the issuer allows that.

    Raises:
        LoginRequired: there is none; the message says what to run.
        ConfigError: ``KNONIK_ISSUER`` is no address that tokens may be asked of.
    """
    if issuer() is not None:
        holder(settings(product), product)


def holder(configured: Settings, product: Product) -> dict[str, object]:
    """The claims of the login at hand, renewed where it has expired.

    Raises:
        LoginRequired: there is no valid one.
    """
    from knonik_loader.errors import LoginRequired
    from knonik_loader.signin import store
    from knonik_loader.signin.device import renew
    from knonik_loader.signin.tokens import ExpiredToken, check_token

    found = store.load(configured, product)
    if found is None:
        raise LoginRequired(
            f"{configured.issuer} (KNONIK_ISSUER) asks for a login before {product!r} may run; "
            f"run 'knonik login --product {product}'."
        )
    tokens, in_file = found
    try:
        return dict(check_token(tokens, configured, product))
    except ExpiredToken as expired:
        if tokens.refresh_token is None:
            raise
        with store.alone():  # many issuers take a refresh token once: the ranks of a job must not all spend it
            now = store.load(configured, product)
            if now is not None and now[0] != tokens:
                return dict(check_token(now[0], configured, product))
            try:
                renewed = renew(tokens, configured)
            except LoginRequired as refused:
                raise LoginRequired(f"{expired} It could not be renewed: {refused}") from refused
            claims = check_token(renewed, configured, product)
            store.save(configured, product, renewed, allow_file=in_file)
    return dict(claims)
