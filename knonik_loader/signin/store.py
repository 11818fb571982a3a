"""Where a login is kept: the keyring of the operating system or, where that was allowed, a private file."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from knonik_loader.errors import LoginRequired
from knonik_loader.signin.settings import Product, Settings
from knonik_loader.signin.tokens import Tokens

__all__ = ["alone", "forget", "key_file", "load", "save"]

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_SERVICE = "knonik"


def key_file() -> Path:
    """The private file: ``$XDG_CONFIG_HOME/knonik/tokens.json``, by default below ``~/.config``."""
    home = os.environ.get("XDG_CONFIG_HOME", "").strip()
    return (Path(home) if home else Path.home() / ".config") / "knonik" / "tokens.json"


def save(settings: Settings, product: Product, tokens: Tokens, *, allow_file: bool) -> str:
    """Keep a login, and say where.

    Raises:
        LoginRequired: there is no keyring, and a file was not allowed or cannot be written.
    """
    text = json.dumps(asdict(tokens))
    problem = _into_keyring(_name(settings, product), text)
    if problem is None:
        _file_without(_name(settings, product))
        return "the keyring"
    if not allow_file:
        raise LoginRequired(
            f"the login cannot be kept: {problem}; say --allow-file-key-store to keep it in {key_file()}, "
            "readable by you alone."
        )
    _write({**_read(), _name(settings, product): text})
    return str(key_file())


def load(settings: Settings, product: Product) -> tuple[Tokens, bool] | None:
    """A kept login and whether it is in the file, or None.

    Raises:
        LoginRequired: others can read the file, or what is kept is damaged.
    """
    name = _name(settings, product)
    text, in_file = _from_keyring(name), False
    if text is None:
        text, in_file = _read().get(name), True
    if text is None:
        return None
    try:
        return Tokens(**json.loads(text)), in_file
    except (ValueError, TypeError) as error:
        raise LoginRequired(
            f"the login that is kept for {product!r} is damaged; run 'knonik login --product {product}' again."
        ) from error


def forget(settings: Settings, product: Product) -> bool:
    """Remove a login; returns whether there was one.

    Raises:
        LoginRequired: the keyring refuses, or the file cannot be read.
    """
    name = _name(settings, product)
    found = _from_keyring(name) is not None
    if found:
        import keyring
        from keyring.errors import KeyringError

        try:
            keyring.delete_password(_SERVICE, name)
        except (KeyringError, OSError, RuntimeError) as error:
            raise LoginRequired(
                f"the keyring keeps the login of {product!r} ({type(error).__name__}); unlock it, or remove "
                f"{_SERVICE!r} there."
            ) from error
    return _file_without(name) or found


@contextmanager
def alone() -> Iterator[None]:
    """Held while a login is renewed: one process of this user at a time, where the disk knows locks."""
    path = key_file().with_name("renewal.lock")
    with ExitStack() as stack:
        if fcntl is not None:
            with suppress(OSError):
                path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                file = stack.enter_context(path.open("a"))
                fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _name(settings: Settings, product: Product) -> str:
    return f"{product} {settings.client_id} {settings.issuer}"


def _into_keyring(name: str, text: str) -> str | None:
    """None, or why it could not be put there."""
    try:
        import keyring
        from keyring.errors import KeyringError
    except ImportError:
        return "there is no package 'keyring' (install 'knonik[login]')"
    try:
        keyring.set_password(_SERVICE, name, text)
    except (KeyringError, OSError, RuntimeError) as error:
        return f"this machine has no keyring that takes it ({type(error).__name__})"
    return None


def _from_keyring(name: str) -> str | None:
    try:
        import keyring
        from keyring.errors import KeyringError
    except ImportError:
        return None
    try:
        found: str | None = keyring.get_password(_SERVICE, name)
    except (KeyringError, OSError, RuntimeError):
        return None
    return found


def _read() -> dict[str, str]:
    path = key_file()
    try:
        mode = path.stat().st_mode
        if os.name == "posix" and stat.S_IMODE(mode) & 0o077:
            raise LoginRequired(
                f"{path} can be read by others (mode {stat.S_IMODE(mode):o}), so its login counts no more; "
                "remove it and run 'knonik login' again."
            )
        found: Any = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        if isinstance(error, LoginRequired):
            raise
        raise LoginRequired(f"{path} cannot be read ({error}); remove it and run 'knonik login' again.") from error
    if not isinstance(found, dict) or not all(isinstance(text, str) for text in found.values()):
        raise LoginRequired(f"{path} holds no logins; remove it and run 'knonik login' again.")
    return found


def _write(logins: dict[str, str]) -> None:
    path = key_file()
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        partial.unlink(missing_ok=True)
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            json.dump(logins, file)
        partial.replace(path)
    except OSError as error:
        raise LoginRequired(f"the login cannot be kept in {path}: {error.strerror or error}; correct that.") from error


def _file_without(name: str) -> bool:
    if not key_file().exists():
        return False
    logins = _read()
    if logins.pop(name, None) is None:
        return False
    if logins:
        _write(logins)
    else:
        key_file().unlink()
    return True
