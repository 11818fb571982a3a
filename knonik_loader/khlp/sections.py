"""What stands in the sections of a KHLP file, as bytes and as numpy columns.

Columns are little-endian and stored one after another, widest first, so that every column is aligned and a reader
looks at them in place. Row counts come from the directory and are checked against the section's length before
anything is allocated.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from knonik_loader.errors import FormatError, UnsupportedFeatureError
from knonik_loader.khlp.layout import Section
from knonik_loader.khlp.types import StorageProfile, StreamInfo, StreamKind

__all__ = [
    "EPIS",
    "FIDX",
    "FLAG_INTRA",
    "SCHM",
    "SHRD",
    "TIME",
    "EpisodeRow",
    "Schema",
    "canonical_json",
    "check_stream",
    "decode_episodes",
    "decode_schema",
    "decode_strings",
    "encode_columns",
    "encode_episodes",
    "encode_schema",
    "encode_strings",
    "plain_numbers",
    "split_columns",
]

SCHM, EPIS, SHRD, TIME, FIDX = b"SCHM", b"EPIS", b"SHRD", b"TIME", b"FIDX"

FLAG_INTRA = 1
"""Bit of FIDX flags: the record decodes alone although its codec usually refers to a key."""

SHRD_COLUMNS = (
    ("data_offset", "<u8"),
    ("data_length", "<u8"),
    ("episode", "<u4"),
    ("first_frame", "<u4"),
    ("frames", "<u4"),
)
FIDX_COLUMNS = (("size", "<u4"), ("crc", "<u4"), ("key_back", "<u2"), ("flags", "<u2"))

MAX_STREAMS = 1024
MAX_SIDE = 65_500
MAX_PIXELS = 2**28
MAX_DIM = 2**20
NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,127}")

Columns = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Schema:
    """What the SCHM section says."""

    profile: StorageProfile
    streams: tuple[StreamInfo, ...]
    hlp_id: bytes


@dataclass(frozen=True, slots=True)
class EpisodeRow:
    """One episode that has shards in a file."""

    episode_id: str
    source_id: str
    digest: bytes
    """Of the episode as ingested; 32 bytes."""


def canonical_json(value: object) -> bytes:
    """The one spelling of a JSON value: sorted keys, no spaces, UTF-8, whole numbers without a fraction."""
    text = json.dumps(plain_numbers(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode()


def plain_numbers(value: object) -> object:
    """The same value with whole numbers that are stored as floats made integers, so that they have one spelling."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, Mapping):
        return {str(key): plain_numbers(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_numbers(item) for item in value]
    return value


def encode_columns(columns: Sequence[tuple[str, str]], values: Mapping[str, Any]) -> bytes:
    """The columns' bytes one after another; ``columns`` are (name, dtype)."""
    return b"".join(np.ascontiguousarray(values[name], dtype).tobytes() for name, dtype in columns)


def split_columns(section: Section, columns: Sequence[tuple[str, str]], where: str, skip: int = 0) -> Columns:
    """Views of a section's columns, behind ``skip`` bytes; the columns must fill the section.

    Raises:
        FormatError: the section's length does not fit its row count.
    """
    width = sum(np.dtype(dtype).itemsize for _, dtype in columns)
    if len(section.data) != skip + section.rows * width:
        raise FormatError(
            f"{where}: section {section.kind.decode()} has {len(section.data)} bytes for {section.rows} rows of {width}"
        )
    out: Columns = {}
    at = skip
    for name, dtype in columns:
        out[name] = np.frombuffer(section.data, dtype, section.rows, at)
        at += out[name].nbytes
    return out


def encode_strings(values: Sequence[str]) -> bytes:
    """A table of strings: where each ends (u32 each), then all of them as UTF-8.

    Raises:
        FormatError: they are longer than the table can count.
    """
    texts = [value.encode() for value in values]
    if sum(map(len, texts)) >= 2**32:
        raise FormatError("a table of strings of 4 GiB and more does not fit the format")
    ends = np.cumsum([len(text) for text in texts], dtype="<u8").astype("<u4")
    return ends.tobytes() + b"".join(texts)


def decode_strings(data: memoryview, rows: int, where: str) -> list[str]:
    """Read `encode_strings` back; ``data`` must hold exactly ``rows`` strings.

    Raises:
        FormatError: the ends do not fit the bytes, or these are not UTF-8.
    """
    if len(data) < 4 * rows:
        raise FormatError(f"{where}: {len(data)} bytes are too few for a table of {rows} strings")
    ends = [0, *np.frombuffer(data, "<u4", rows).tolist()]
    text = data[4 * rows :]
    if ends[-1] != len(text) or any(a > b for a, b in pairwise(ends)):
        raise FormatError(f"{where}: a table of {rows} strings does not fit its {len(text)} bytes")
    try:
        return [str(text[a:b], "utf-8") for a, b in pairwise(ends)]
    except UnicodeDecodeError as error:
        raise FormatError(f"{where}: a table of strings is not UTF-8") from error


def encode_schema(schema: Schema) -> Section:
    """The SCHM section: canonical JSON, readable with ``strings``."""
    streams = [
        {
            "stream_id": stream.stream_id,
            "kind": stream.kind,
            "name": stream.name,
            "codec": stream.codec,
            "shape": list(stream.shape),
            "dtype": stream.dtype,
            "fps": stream.fps,
            "channel_names": None if stream.channel_names is None else list(stream.channel_names),
            "params": dict(stream.params),
        }
        for stream in schema.streams
    ]
    data = canonical_json({"hlp_id": schema.hlp_id.hex(), "profile": schema.profile, "streams": streams})
    return Section(SCHM, data, len(streams))


def decode_schema(section: Section, where: str) -> Schema:
    """Read SCHM back.

    Raises:
        FormatError: not the JSON that it should be.
        UnsupportedFeatureError: a profile or a kind of stream that this version does not have.
    """
    try:
        data = json.loads(bytes(section.data))
        hlp_id = bytes.fromhex(data["hlp_id"])
        profile, streams = data["profile"], [_stream(item) for item in data["streams"]]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FormatError(f"{where}: section SCHM is not a schema: {error!r}") from error
    if profile not in get_args(StorageProfile):
        raise UnsupportedFeatureError(f"{where}: has the unknown storage profile {profile!r}; upgrade knonik")
    if len(hlp_id) != 16 or len(streams) != section.rows or len(streams) > MAX_STREAMS:
        raise FormatError(f"{where}: section SCHM has {len(streams)} streams for {section.rows} rows, or a wrong id")
    for position, stream in enumerate(streams):
        check_stream(stream, position, where)
    if len({stream.key for stream in streams}) != len(streams):
        raise FormatError(f"{where}: section SCHM names a stream twice")
    return Schema(profile, tuple(streams), hlp_id)


def _stream(item: dict[str, Any]) -> StreamInfo:
    names = item["channel_names"]
    texts = [item["kind"], item["name"], item["codec"], item["dtype"], *(names or ())]
    if not all(isinstance(text, str) for text in texts):
        raise TypeError(f"kind, name, codec, dtype and channel names must be strings: {texts}")
    return StreamInfo(
        stream_id=item["stream_id"],
        kind=item["kind"],
        name=item["name"],
        codec=item["codec"],
        shape=tuple(item["shape"]),
        dtype=item["dtype"],
        fps=float(item["fps"]),
        channel_names=None if names is None else tuple(names),
        params=dict(item["params"]),
    )


def check_stream(stream: StreamInfo, position: int, where: str) -> None:
    """Check that a stream's description makes sense and stays within the format's limits.

    Raises:
        FormatError: naming ``where`` and the stream.
        UnsupportedFeatureError: a kind of stream that this version does not have.
    """
    label = f"{where}: stream {position} ({stream.name!r})"
    if stream.kind not in get_args(StreamKind):
        raise UnsupportedFeatureError(f"{label} is of the unknown kind {stream.kind!r}; upgrade knonik")
    if stream.stream_id != position:
        raise FormatError(f"{label} has the number {stream.stream_id!r}; streams are numbered from 0 in order")
    if not NAME.fullmatch(stream.name):
        raise FormatError(f"{label}: a name has 1 to 128 of A-Z a-z 0-9 _ . - and no leading dot")
    if not 0 < stream.fps < 1e6:
        raise FormatError(f"{label}: fps {stream.fps!r} makes no sense")
    shape = stream.shape
    if any(type(side) is not int or side < 1 for side in shape):
        raise FormatError(f"{label}: shape {shape} must be whole positive numbers")
    sides, dtype = {"rgb": (3, "uint8"), "depth": (2, "float32"), "numeric": (1, "float32")}[stream.kind]
    limit = MAX_DIM if stream.kind == "numeric" else MAX_SIDE
    channels = stream.kind != "rgb" or shape[-1:] == (3,)
    pixels = shape[0] * shape[1] if len(shape) > 1 else 0
    if len(shape) != sides or max(shape, default=0) > limit or not channels or pixels > MAX_PIXELS:
        raise FormatError(f"{label}: shape {shape} is not one of {stream.kind} frames within the format's limits")
    if stream.dtype != dtype:
        raise FormatError(f"{label}: {stream.kind} frames are {dtype}, not {stream.dtype!r}")
    names = stream.channel_names
    if names is not None and (stream.kind != "numeric" or len(names) != shape[0]):
        raise FormatError(f"{label}: {len(names)} channel names for shape {shape}")


def encode_episodes(episodes: Sequence[EpisodeRow]) -> Section:
    """The EPIS section: digests, then the table of episode ids followed by source ids."""
    texts = [row.episode_id for row in episodes] + [row.source_id for row in episodes]
    return Section(EPIS, b"".join(row.digest for row in episodes) + encode_strings(texts), len(episodes))


def decode_episodes(section: Section, where: str) -> tuple[EpisodeRow, ...]:
    """Read EPIS back.

    Raises:
        FormatError: its length does not fit its row count, or an episode stands twice.
    """
    rows, data = section.rows, memoryview(section.data)
    if len(data) < 40 * rows:
        raise FormatError(f"{where}: section EPIS has {len(data)} bytes for {rows} rows")
    texts = decode_strings(data[32 * rows :], 2 * rows, f"{where}: section EPIS")
    if len(set(texts[:rows])) != rows:
        raise FormatError(f"{where}: section EPIS lists an episode twice")
    return tuple(EpisodeRow(texts[i], texts[rows + i], bytes(data[32 * i : 32 * i + 32])) for i in range(rows))
