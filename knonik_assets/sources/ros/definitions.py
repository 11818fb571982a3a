"""Message definitions are looked at before code is made of them: anybody may have written them.

rosbags writes a line for every element of an array of messages or texts, and makes an object for every message that a
sequence's length promises, even of messages that take no byte.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rosbags.interfaces import Nodetype

from knonik_loader.errors import EpisodeError

__all__ = ["check_definitions", "check_idl"]

_MOST_PARTS = 4096
"""Fields of a message with all that is in it, an array of numbers as one."""
_DEEPEST = 32
_NOT_CODE = re.compile(r'"(?:\\.|[^"\\])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)


def check_idl(text: str) -> None:
    """Refuse what a reader of IDL would compute at length: shifts in its constants.

    Raises:
        EpisodeError: it has some.
    """
    code = _NOT_CODE.sub(" ", text)
    if "<<" in code:
        raise EpisodeError("its definition computes constants by shifting bits; write the numbers themselves.")


def check_definitions(types: Mapping[str, Any], root: str) -> None:
    """Refuse a type that contains itself, has absurdly many parts, or has a sequence of messages without content.

    Args:
        types: (constants, fields) by name, as rosbags parses them; names that aren't in it are known otherwise.
        root: the type to be read.

    Raises:
        EpisodeError: names the type and what is wrong with it.
    """
    _Check(types).parts(root, ())


class _Check:
    def __init__(self, types: Mapping[str, Any]) -> None:
        self._types = types
        self._known: dict[str, tuple[int, int]] = {}

    def parts(self, name: str, above: tuple[str, ...]) -> tuple[int, int]:
        """(parts, least bytes) of a message."""
        if name in self._known:
            return self._known[name]
        if name in above:
            raise EpisodeError(f"its definition is a circle: {' in '.join((*above[above.index(name) :], name))}.")
        if len(above) >= _DEEPEST:
            raise EpisodeError(f"its definition nests messages more than {_DEEPEST} deep.")
        if name not in self._types:
            return 1, 1
        total, least = 1, 0
        for field, kind in self._types[name][1]:
            count, size = self._field(kind, f"{name}.{field}", (*above, name))
            total, least = total + count, least + size
            if total > _MOST_PARTS:
                raise EpisodeError(f"its definition has more than {_MOST_PARTS} parts, with {name}.{field}.")
        self._known[name] = total, least
        return total, least

    def _field(self, kind: Any, where: str, above: tuple[str, ...]) -> tuple[int, int]:  # noqa: ANN401 - rosbags' own
        node, detail = kind
        if node == Nodetype.BASE:
            return 1, 1
        if node == Nodetype.NAME:
            return self.parts(detail, above)
        inner, length = detail
        count, size = self._field(inner, where, above)
        if node == Nodetype.ARRAY:
            numbers = inner[0] == Nodetype.BASE and inner[1][0] not in ("string", "wstring")
            return (1, length) if numbers else (count * length, size * length)
        if size == 0:
            raise EpisodeError(f"its definition has a sequence of messages without content, {where}.")
        return count, 1
