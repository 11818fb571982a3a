"""Reading JSON and YAML files that people write: every mistake is a `ConfigError` with its file and line."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

from knonik_loader.errors import ConfigError, StorageError

__all__ = ["load_document", "load_yaml", "parse_json", "parse_yaml", "plain", "write_json"]

_EXPONENT = re.compile(r"^[-+]?[0-9]+(?:\.[0-9]*)?[eE][-+]?[0-9]+$")


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader without its surprises: no repeated keys, dates stay text, ``1e-3`` is a number."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if isinstance(key_node, yaml.ScalarNode) and key_node.tag != "tag:yaml.org,2002:merge":
                if key_node.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key {key_node.value!r} stands twice in one block", key_node.start_mark
                    )
                seen.add(key_node.value)
        return super().construct_mapping(node, deep=deep)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+0123456789"))


def parse_yaml(text: str, where: str) -> Any:  # noqa: ANN401 - any document
    """The document in a YAML text.

    Args:
        text: one YAML document.
        where: what to call the text in messages, such as its path.

    Raises:
        ConfigError: the text is no YAML, holds a key twice or a key that is no text; with the line.
    """
    try:
        document = yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f", line {mark.line + 1}" if mark is not None else ""
        raise ConfigError(f"{where}{line}: {error.problem or error.context}; correct the YAML there.") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{where} is no YAML: {' '.join(str(error).split())}") from error
    return plain(document, where)


def parse_json(text: str, where: str) -> Any:  # noqa: ANN401 - any document
    """The document in a JSON text.

    Raises:
        ConfigError: the text is no JSON (with the line), holds a key twice in one object, or NaN or Infinity.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise ConfigError(f"{where}{_line_of_second(text, key)}: the key {key!r} stands twice in one block.")
            found[key] = value
        return found

    def refuse(word: str) -> None:
        raise ConfigError(f"{where}: {word} is no JSON number; give a finite one.")

    try:
        return json.loads(text, object_pairs_hook=unique, parse_constant=refuse)
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"{where}, line {error.lineno}, column {error.colno}: {error.msg[0].lower()}{error.msg[1:]}; "
            "correct the JSON there."
        ) from error
    except RecursionError as error:
        raise ConfigError(f"{where} is nested too deeply for a config.") from error


def _line_of_second(text: str, key: str) -> str:
    """The line of a key's second use, where it is plain which one that is."""
    uses = [match.start() for match in re.finditer(re.escape(json.dumps(key, ensure_ascii=False)) + r"\s*:", text)]
    return f", line {text.count(chr(10), 0, uses[1]) + 1}" if len(uses) == 2 else ""


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise ConfigError(f"there is no file {path}; check the path.") from error
    except IsADirectoryError as error:
        raise ConfigError(f"{path} is a folder; name the file in it.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is no UTF-8 text (byte {error.start}); save it as UTF-8.") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror or error}.") from error


def load_document(path: str | Path) -> Any:  # noqa: ANN401 - any document
    """The document in a file: JSON when it is called ``.json``, else YAML.

    Raises:
        ConfigError: the file is missing, unreadable or unparsable; with the line.
    """
    path = Path(path).expanduser()
    with _readable(path):
        text = path.read_text(encoding="utf-8-sig")
    return parse_json(text, str(path)) if path.suffix.lower() == ".json" else parse_yaml(text, str(path))


def load_yaml(path: str | Path) -> Any:  # noqa: ANN401 - any document
    """The document in a YAML file, whatever the file is called.

    Raises:
        ConfigError: the file is missing, unreadable or unparsable; with the line.
    """
    path = Path(path).expanduser()
    with _readable(path):
        text = path.read_text(encoding="utf-8-sig")
    return parse_yaml(text, str(path))


def plain(value: Any, where: str, place: str = "") -> Any:  # noqa: ANN401 - any document
    """A copy made of dicts with text keys, lists and scalars only; paths become text.

    Raises:
        ConfigError: something in it cannot stand in a JSON document; with its place.
    """
    at = f"{place}: " if place else ""
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ConfigError(f"{where}: {at}the key {key!r} is no text; put it in quotes.")
        return {key: plain(entry, where, f"{place}.{key}" if place else key) for key, entry in value.items()}
    if isinstance(value, Path):
        return str(value)
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if hasattr(value, "tolist"):  # NumPy scalars and arrays
        return plain(value.tolist(), where, place)
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [plain(entry, where, f"{place}[{index}]") for index, entry in enumerate(value)]
    raise ConfigError(f"{where}: {at}a {type(value).__name__} cannot stand in a config; use text, numbers or lists.")


def write_json(path: Path, value: Any) -> Path:  # noqa: ANN401 - any document
    """Write a JSON document whole or not at all: beside its place, synced, then renamed over it.

    Raises:
        StorageError: the disk refuses; what stood there before still does.
    """
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        with suppress(OSError):
            partial.unlink()
        raise StorageError(f"cannot write {path}: {error.strerror or error}.") from error
    return path
