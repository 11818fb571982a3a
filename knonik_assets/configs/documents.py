"""Reading JSON and YAML files that people write: every mistake is a `ConfigError` with its file and line."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

from knonik_loader.errors import ConfigError, StorageError, refusal

__all__ = [
    "json_bytes",
    "load_document",
    "load_yaml",
    "local_path",
    "parse_json",
    "parse_yaml",
    "plain",
    "write_json",
    "write_whole",
]

_DEEPEST = 64
_MOST_ENTRIES = 100_000

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

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:  # noqa: ANN401 - any document
        try:
            return super().construct_object(node, deep=deep)
        except (ValueError, KeyError, TypeError, AttributeError) as error:  # what its constructors let through
            raise yaml.constructor.ConstructorError(
                None, None, f"{_short(node.value)} cannot be read as {node.tag.rpartition(':')[2]}", node.start_mark
            ) from error


def _short(value: object) -> str:
    text = repr(value) if isinstance(value, str) else "this"
    return text if len(text) <= 60 else text[:57] + "..."


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
    except RecursionError as error:
        raise ConfigError(f"{where} is nested too deeply for a config.") from error
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
    except ConfigError:
        raise
    except ValueError as error:  # a number of thousands of digits
        raise ConfigError(f"{where} holds a number that is too long: {error}.") from error
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


def local_path(given: str | Path, what: str) -> Path:
    """A path that somebody typed, its ``~`` filled in.

    Args:
        given: the path.
        what: what to call it in messages.

    Raises:
        ConfigError: no path can look like this, or its ``~user`` has no home.
    """
    if not str(given):
        raise ConfigError(f"{what} is empty; name a path (an unset variable of the shell?).")
    if "\0" in str(given):
        raise ConfigError(f"{what} {str(given)!r} holds a zero byte, which no path can; correct it.")
    try:
        return Path(given).expanduser()
    except RuntimeError as error:
        raise ConfigError(f"{what} {str(given)!r}: there is no such user with a home; write the path out.") from error


def load_document(path: str | Path) -> Any:  # noqa: ANN401 - any document
    """The document in a file: JSON when it is called ``.json``, else YAML.

    Raises:
        ConfigError: the file is missing, unreadable or unparsable; with the line.
    """
    path = local_path(path, "config")
    with _readable(path):
        text = path.read_text(encoding="utf-8-sig")
    return parse_json(text, str(path)) if path.suffix.lower() == ".json" else parse_yaml(text, str(path))


def load_yaml(path: str | Path) -> Any:  # noqa: ANN401 - any document
    """The document in a YAML file, whatever the file is called.

    Raises:
        ConfigError: the file is missing, unreadable or unparsable; with the line.
    """
    path = local_path(path, "config")
    with _readable(path):
        text = path.read_text(encoding="utf-8-sig")
    return parse_yaml(text, str(path))


def plain(value: Any, where: str) -> Any:  # noqa: ANN401 - any document
    """A copy made of dicts with text keys, lists and scalars only; paths become text.

    Raises:
        ConfigError: something in it cannot stand in a JSON document, or it is nested or repeated (by YAML's anchors)
            beyond what a config can mean; with its place.
    """
    return _Copy(where).of(value, "", 0)


class _Copy:
    """One copying of a document. It counts: a few lines of YAML anchors can stand for billions of entries."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.left = _MOST_ENTRIES

    def of(self, value: Any, place: str, depth: int) -> Any:  # noqa: ANN401 - any document
        self.left -= 1
        if depth > _DEEPEST or self.left < 0:
            what = "is nested too deeply" if depth > _DEEPEST else f"holds more than {_MOST_ENTRIES} entries"
            raise ConfigError(f"{self.where} {what} for a config; look for anchors (&, *) that repeat themselves.")
        if isinstance(value, Mapping):
            for key in value:
                if not isinstance(key, str):
                    raise self._mistake(place, f"the key {key!r} is no text; put it in quotes.")
            return {
                self._text(key, place): self.of(entry, f"{place}.{key}" if place else key, depth + 1)
                for key, entry in value.items()
            }
        if isinstance(value, str | Path):
            return self._text(str(value), place)
        if isinstance(value, float) and not math.isfinite(value):
            raise self._mistake(place, f"{value} is no number that a config can hold; give a finite one.")
        if value is None or isinstance(value, bool | int | float):
            return value
        if hasattr(value, "tolist"):  # NumPy scalars and arrays
            return self.of(value.tolist(), place, depth + 1)
        if isinstance(value, Sequence) and not isinstance(value, bytes):
            return [self.of(entry, f"{place}[{index}]", depth + 1) for index, entry in enumerate(value)]
        raise self._mistake(place, f"a {type(value).__name__} cannot stand in a config; use text, numbers or lists.")

    def _text(self, text: str, place: str) -> str:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise self._mistake(place, f"{text!r} holds half a character (a lone surrogate); correct it.") from error
        return text

    def _mistake(self, place: str, what: str) -> ConfigError:
        return ConfigError(f"{self.where}: {f'{place}: ' if place else ''}{what}")


def write_json(path: Path, value: Any) -> Path:  # noqa: ANN401 - any document
    """Write a JSON document whole or not at all.

    Raises:
        StorageError: the disk refuses; what stood there before still does.
    """
    return write_whole(path, json_bytes(value))


def json_bytes(value: Any) -> bytes:  # noqa: ANN401 - any document
    """A JSON document as it is written to a file."""
    return (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def write_whole(path: Path, data: bytes) -> Path:
    """Write a file beside its place, sync it, and rename it over what is there: a reader sees the old or the new one.

    Raises:
        StorageError: the disk refuses; what stood there before still does.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            file.write(data)
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
        raise StorageError(f"cannot write {path}: {refusal(error)}") from error
    return path
