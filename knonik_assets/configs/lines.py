"""From a message about a key to the line of the file where that key stands."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

__all__ = ["with_line"]

_QUOTED = re.compile(r"unknown \w+ '([^']+)'")


def with_line(message: str, path: Path) -> str:
    """``file: ingest: layout: unknown key 'x'`` → ``file, line 7: ingest: …``; unchanged where no key is found.

    Args:
        message: begins with the file and names keys one in the other, between colons or dots.
        path: the YAML file, which parses.
    """
    where = str(path)
    if not message.startswith(f"{where}: "):
        return message
    rest = message[len(where) + 2 :]
    node: yaml.Node | None = yaml.compose(path.read_text(encoding="utf-8-sig"), Loader=yaml.SafeLoader)
    line = None
    quoted = _QUOTED.search(rest)
    wanted = [key for part in rest.split(": ")[:-1] for key in re.split(r"[.\[\]]+", part.partition(" (")[0]) if key]
    for key in [*wanted, *([quoted.group(1)] if quoted else [])]:
        found = _child(node, key)
        if found is not None:
            line, node = found
    return f"{where}, line {line}: {rest}" if line is not None else message


def _child(node: yaml.Node | None, key: str) -> tuple[int, yaml.Node] | None:
    """(line, value) of a key of a block, or of a place in a list."""
    if isinstance(node, yaml.MappingNode):
        for name, value in node.value:
            if name.value == key:
                return name.start_mark.line + 1, value
    if isinstance(node, yaml.SequenceNode) and key.isdigit() and int(key) < len(node.value):
        value = node.value[int(key)]
        return value.start_mark.line + 1, value
    return None
