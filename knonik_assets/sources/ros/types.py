"""Messages from bytes: ROS 1 and CDR by rosbags' types, JSON and protobuf by their own schemas.

Definitions come from files that anybody may have written, and rosbags makes Python code of them; so names are checked
before anything is made of them.
"""

from __future__ import annotations

import base64
import json
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError
from rosbags.serde import SerdeError
from rosbags.typesys import Stores, TypesysError, get_types_from_idl, get_types_from_msg, get_typestore
from rosbags.typesys.store import Typestore

from knonik_assets.sources.ros.definitions import check_definitions, check_idl
from knonik_assets.sources.ros.files import Channel
from knonik_loader.errors import ConfigError, EpisodeError

__all__ = ["DECODE_FAULTS", "Decoder", "Types", "canonical_type", "get", "stamp_ns"]

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*(/[A-Za-z][A-Za-z0-9_]*){1,2}")
_FIELD = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_LONGEST_JSON = 1 << 27
_LONGEST_DEFINITION = 1 << 20
DECODE_FAULTS = (
    SerdeError,
    TypesysError,
    DecodeError,
    struct.error,
    ValueError,  # also UnicodeDecodeError and JSONDecodeError
    LookupError,
    TypeError,
    AttributeError,
    AssertionError,
    OverflowError,
    RecursionError,
)
"""What the libraries raise on bytes that don't fit their type."""
_IDL_MARK = "=" * 80 + "\nIDL: "

Typesdict = Mapping[str, Any]


def canonical_type(name: str) -> str:
    """``sensor_msgs/Image`` → ``sensor_msgs/msg/Image``; ``foxglove.X``, ``foxglove_msgs/msg/X`` → ``foxglove/X``."""
    if name.startswith(("foxglove.", "foxglove_msgs/")):
        return "foxglove/" + re.split(r"[./]", name)[-1]
    parts = name.replace(".", "/").split("/")
    return "/".join((parts[0], "msg", parts[1])) if len(parts) == 2 else "/".join(parts)


class Record(dict[str, Any]):
    """A JSON object whose members are read like those of other messages."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any JSON value
        try:
            return self[name]
        except KeyError as error:
            raise AttributeError(name) from error


def get(message: Any, *names: str) -> Any:  # noqa: ANN401 - any message
    """A member of a message under the first of several names that it has.

    Raises:
        AttributeError: it has none of them.
    """
    for name in names:
        found = getattr(message, name, None)
        if found is not None:
            return found
    raise AttributeError(f"no member {' or '.join(names)}")


def as_bytes(value: Any) -> bytes | memoryview:  # noqa: ANN401 - whatever holds bytes
    """The content of a field of bytes: an array, bytes, or base64 text in JSON."""
    if isinstance(value, str):
        return base64.b64decode(value, validate=True)
    if isinstance(value, list):
        return bytes(value)
    return memoryview(value)


def stamp_ns(stamp: Any) -> int:  # noqa: ANN401 - of any encoding
    """Nanoseconds of a time in any of its spellings."""
    seconds = int(get(stamp, "sec", "seconds", "secs"))
    return seconds * 1_000_000_000 + int(get(stamp, "nanosec", "nsec", "nanos", "nsecs"))


@dataclass(frozen=True, slots=True)
class Decoder:
    """Reads the messages of one channel."""

    decode: Callable[[memoryview], Any]
    stamp: Callable[[memoryview], int] | None
    """Nanoseconds of the message's own stamp, out of its beginning or the whole; None where its type has none."""
    whole: bool
    """Whether `stamp` needs the whole message."""
    cdr: bool = False


class Types:
    """Decoders of all channels of one recording.

    Args:
        msg_path: folder of ``.msg`` files for types that the recording doesn't define.
        distro: ROS 2 distribution that recorded it, where it says so.

    Raises:
        ConfigError: ``msg_path`` is no folder, or a file in it cannot be understood.
    """

    def __init__(self, msg_path: Path | None = None, distro: str | None = None) -> None:
        self._given = _read_msg_path(msg_path) if msg_path is not None else {}
        self._distro = distro
        self._decoders: dict[tuple[str, str, str, bytes], Decoder] = {}
        self._default: dict[str, Typestore] = {}
        self.assumed: set[str] = set()
        """Types taken from this version's own definitions, as the recording has none."""

    @property
    def store(self) -> str:
        """Whose definitions are taken where a ROS 2 recording has none."""
        return f"ros2_{self._distro}" if f"ros2_{self._distro}" in {one.value for one in Stores} else "ros2_humble"

    def decoder(self, channel: Channel) -> Decoder:
        """The decoder of a channel.

        Raises:
            EpisodeError: its type or encoding is unknown, or its definition is damaged.
        """
        key = (channel.type, channel.encoding, channel.schema_encoding, channel.definition)
        if key not in self._decoders:
            try:
                self._decoders[key] = self._make(channel)
            except EpisodeError:
                raise
            except DECODE_FAULTS as error:
                raise EpisodeError(f"the definition of {channel.type} is damaged: {str(error)[:200]}.") from error
        return self._decoders[key]

    def _make(self, channel: Channel) -> Decoder:
        if channel.encoding == "json":
            return Decoder(_json, lambda data: _own_stamp(_json(data)), whole=True)
        if channel.encoding == "protobuf":
            read = _protobuf(channel)
            return Decoder(read, lambda data: _own_stamp(read(data)), whole=True)
        if channel.encoding not in ("ros1", "cdr"):
            raise EpisodeError(f"messages in {channel.encoding or 'no encoding'!r} are not understood.")
        name = channel.type if channel.type.count("/") != 1 else channel.type.replace("/", "/msg/")
        if len(channel.definition) > _LONGEST_DEFINITION:
            raise EpisodeError(f"its definition has {len(channel.definition):,} bytes.")
        store = self._store(channel, name)
        if name not in store.fielddefs:
            raise EpisodeError(f"no definition of {name} is known; give its .msg file in msg_path.")
        first = next(iter(store.fielddefs[name][1]), None)
        kind = first[1][1] if first is not None else None
        if channel.encoding == "ros1":
            at = {"std_msgs/msg/Header": 4, "builtin_interfaces/msg/Time": 0}.get(str(kind))
            stamp = None if at is None else _ros1_stamp(at)
            return Decoder(lambda data: store.deserialize_ros1(data, name), stamp, whole=False)
        has = kind in ("std_msgs/msg/Header", "builtin_interfaces/msg/Time")
        stamp = _cdr_stamp if has else None
        return Decoder(lambda data: store.deserialize_cdr(data, name), stamp, whole=False, cdr=True)

    def _store(self, channel: Channel, name: str) -> Typestore:
        if channel.definition:
            if not _NAME.fullmatch(name):
                raise EpisodeError(f"{name!r} is no name of a type.")
            return _defined(name, channel.schema_encoding, channel.definition)
        base = "ros1_noetic" if channel.encoding == "ros1" else self.store
        if name not in self._given:
            self.assumed.add(name)
        if base not in self._default:
            known = get_typestore(Stores(base))
            self._default[base] = _registered({**known.fielddefs, **self._given}) if self._given else known
        return self._default[base]


@lru_cache(maxsize=256)
def _defined(name: str, how: str, definition: bytes) -> Typestore:
    """A store of one definition and what it needs: types of one name may differ between recordings, and within one."""
    types = _parsed(name, how, definition.decode())
    check_definitions(types, name)
    return _registered(types)


def _parsed(name: str, how: str, text: str) -> Typesdict:
    if how in ("ros2idl", "omgidl"):
        check_idl(text)
        if not text.startswith(_IDL_MARK):
            return get_types_from_idl(text)
        found: dict[str, Any] = {}
        for part in text.split("=" * 80 + "\n")[1:]:
            found.update(get_types_from_idl(part.split("\n", 1)[1]))
        return found
    if how not in ("ros1msg", "ros2msg"):
        raise EpisodeError(f"definitions in {how!r} are not understood.")
    return get_types_from_msg(text, name)


def _registered(types: Typesdict) -> Typestore:
    for name, (constants, fields) in types.items():
        if not _NAME.fullmatch(name) or not all(_FIELD.fullmatch(field[0]) for field in (*constants, *fields)):
            raise EpisodeError(f"{name!r} is no name of a type, or one of its fields has no proper name.")
    store = get_typestore(Stores.EMPTY)
    ours = {name: entry for name, entry in types.items() if name not in store.fielddefs}
    store.register(ours)
    return store


def _read_msg_path(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        raise ConfigError(f"msg_path {folder} is no folder of .msg files.")
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*.msg")):
        package = path.parent.parent.name if path.parent.name == "msg" else path.parent.name
        name = f"{package}/msg/{path.stem}"
        if not _NAME.fullmatch(name):
            raise ConfigError(f"{path}: {name!r} is no name of a ROS type; .msg files lie in PACKAGE/msg/NAME.msg.")
        try:
            types = get_types_from_msg(path.read_text("utf-8"), name)
            check_definitions(types, name)
            found.update(types)
        except (OSError, EpisodeError, *DECODE_FAULTS) as error:
            raise ConfigError(f"{path}: cannot be understood: {str(error)[:200]}.") from error
    if not found:
        raise ConfigError(f"msg_path {folder} holds no .msg file.")
    return found


def _ros1_stamp(at: int) -> Callable[[memoryview], int]:
    def stamp(data: memoryview) -> int:
        seconds, nanoseconds = struct.unpack_from("<II", data, at)
        return int(seconds) * 1_000_000_000 + int(nanoseconds)

    return stamp


def _cdr_stamp(data: memoryview) -> int:
    seconds, nanoseconds = struct.unpack_from("<iI" if data[1] & 1 else ">iI", data, 4)
    return int(seconds) * 1_000_000_000 + int(nanoseconds)


def _own_stamp(message: Any) -> int:  # noqa: ANN401 - any message
    """Nanoseconds of whichever member says when a message was made; 0 where none does."""
    header = getattr(message, "header", None)
    for holder, name in ((header, "stamp"), (message, "timestamp"), (message, "stamp")):
        stamp = getattr(holder, name, None)
        if stamp is not None:
            return stamp_ns(stamp)
    return 0


def _json(data: memoryview) -> Record:
    if len(data) > _LONGEST_JSON:
        raise ValueError(f"a JSON message of {len(data):,} bytes; up to {_LONGEST_JSON:,} are read")
    found = json.loads(bytes(data), object_hook=Record)
    if not isinstance(found, Record):
        raise TypeError("the message is no JSON object")
    return found


def _protobuf(channel: Channel) -> Callable[[memoryview], Any]:
    files = descriptor_pb2.FileDescriptorSet.FromString(channel.definition)
    waiting = {file.name: file for file in files.file}
    pool = descriptor_pool.DescriptorPool()

    def add(name: str) -> None:
        file = waiting.pop(name, None)
        if file is not None:
            for needed in file.dependency:
                add(needed)
            pool.Add(file)

    for name in list(waiting):
        add(name)
    kind = message_factory.GetMessageClass(pool.FindMessageTypeByName(channel.type))
    return lambda data: kind.FromString(bytes(data))
