"""Carrying an error from where it happens to where it is raised."""

from __future__ import annotations

from types import TracebackType

__all__ = ["Caught"]


class Caught:
    """Keeps whatever a block raises instead of letting it out.

    Only for what has to cross a border: a thread that died in silence would leave its consumer waiting for ever, and a
    user's function may raise anything.

    Attributes:
        error: what the block raised, or None.
    """

    def __init__(self) -> None:
        self.error: BaseException | None = None

    def __enter__(self) -> Caught:
        """Begin the block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """End it, keeping the error."""
        self.error = error
        return error is not None
