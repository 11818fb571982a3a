"""The fixed structures of a container: header, directory entry, footer, and the tail that they frame.

`FORMAT.md` beside this file is the specification. Two kinds of file share these structures and differ in their magic
numbers and sections: KHLP files, which hold frames, and the KHLI sidecar, which holds a dataset's tables.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from crc32c import crc32c

from knonik_loader.errors import (
    BadMagicError,
    ChecksumError,
    FormatError,
    TruncatedError,
    UnsupportedFeatureError,
)

__all__ = [
    "ALIGN",
    "FOOTER_SIZE",
    "HEADER_SIZE",
    "KHLI",
    "KHLP",
    "SHARED",
    "FileKind",
    "Section",
    "Tail",
    "align",
    "build_header",
    "build_tail",
    "check_header",
    "check_known",
    "parse_footer",
    "parse_tail",
]

MAJOR, MINOR = 1, 0
ALIGN = 8
HEADER_SIZE = FOOTER_SIZE = 64
ENTRY_SIZE = 48
MAX_SECTIONS = 65_536
SHARED = 0xFFFF_FFFF
"""Stream number of a section that belongs to the whole file."""

MUST_UNDERSTAND = 1
ENCODING_MASK = 0b11110

# Bits of incompat_features that have a name; this version can read none of them, and writes none.
FEATURE_NAMES = {0: "REORDERED", 1: "ENCRYPTED", 2: "EXTERNAL_BLOBS", 3: "COMPRESSED_SECTIONS"}
KNOWN_INCOMPAT = 0

_HEADER = struct.Struct("<8sHHIQQ16s12sI")
_FOOTER = struct.Struct("<QQQQ8sIIHHI8s")
_ENTRY = struct.Struct("<4sHHIIQQQII")


@dataclass(frozen=True, slots=True)
class FileKind:
    """What tells one kind of file from another."""

    name: str
    magic: bytes
    end_magic: bytes


KHLP = FileKind("KHLP", b"\x89KHLP\r\n\x1a", b"KHLPEND\n")
KHLI = FileKind("KHLI", b"\x89KHLI\r\n\x1a", b"KHLIEND\n")


@dataclass(frozen=True, slots=True)
class Section:
    """One section of a tail: its bytes, and how many rows its columns have."""

    kind: bytes
    data: bytes | memoryview
    rows: int
    stream_id: int = SHARED
    must_understand: bool = True


@dataclass(frozen=True, slots=True)
class Footer:
    """The last 64 bytes of a file."""

    metadata_offset: int
    directory_offset: int
    file_length: int
    incompat: int
    id_prefix: bytes
    num_sections: int
    directory_crc: int


@dataclass(frozen=True, slots=True)
class Tail:
    """Everything behind the data: checked, not interpreted."""

    footer: Footer
    sections: dict[tuple[bytes, int], Section]

    def take(self, kind: bytes, where: str, stream_id: int = SHARED) -> Section:
        """The section of that kind.

        Raises:
            FormatError: the file has none.
        """
        try:
            return self.sections[kind, stream_id]
        except KeyError:
            of = "" if stream_id == SHARED else f" of stream {stream_id}"
            raise FormatError(f"{where}: the directory lists no {kind.decode()} section{of}; pack it again") from None


def align(offset: int, to: int = ALIGN) -> int:
    """The next multiple of ``to`` that is not below ``offset``."""
    return -(-offset // to) * to


def build_header(kind: FileKind, file_id: bytes) -> bytes:
    """The 64 bytes that a file begins with; ``file_id`` has 16 bytes."""
    head = _HEADER.pack(kind.magic, MAJOR, MINOR, HEADER_SIZE, KNOWN_INCOMPAT, 0, file_id, bytes(12), 0)[:-4]
    return head + struct.pack("<I", crc32c(head))


def check_header(kind: FileKind, data: bytes | memoryview, where: str) -> bytes:
    """Check a header and return the file id (16 bytes).

    Raises:
        FormatError: of the fitting kind, naming ``where``.
    """
    if len(data) < HEADER_SIZE:
        raise TruncatedError(f"{where}: {len(data)} bytes are too few for a {kind.name} header of {HEADER_SIZE}")
    head = bytes(data[:HEADER_SIZE])
    magic, major, _, header_len, incompat, _, file_id, zero, crc = _HEADER.unpack(head)
    if magic != kind.magic:
        raise BadMagicError(f"{where}: begins with {magic.hex(' ')}, not as a {kind.name} file ({kind.magic.hex(' ')})")
    if crc32c(head[:-4]) != crc:
        raise ChecksumError(f"{where}: the header (bytes 0 to {HEADER_SIZE}) is damaged: its crc32c is wrong")
    _check_version(major, incompat, where)
    if header_len != HEADER_SIZE or any(zero):
        raise FormatError(f"{where}: the header has a length of {header_len} or reserved bytes that are not zero")
    return bytes(file_id)


def parse_footer(kind: FileKind, data: bytes | memoryview, file_length: int, where: str) -> Footer:
    """Check and parse the last 64 bytes of a file of ``file_length`` bytes.

    Raises:
        FormatError: of the fitting kind, naming ``where``.
    """
    if file_length < HEADER_SIZE + FOOTER_SIZE or len(data) < FOOTER_SIZE:
        raise TruncatedError(f"{where}: {file_length} bytes are too few for a {kind.name} file")
    raw = bytes(data[-FOOTER_SIZE:])
    metadata, directory, length, incompat, prefix, sections, directory_crc, major, _, crc, magic = _FOOTER.unpack(raw)
    if magic != kind.end_magic:
        raise BadMagicError(f"{where}: does not end as a {kind.name} file: cut off, or not one at all")
    if crc32c(raw[:52]) != crc:
        raise ChecksumError(f"{where}: the footer (last {FOOTER_SIZE} bytes) is damaged: its crc32c is wrong")
    _check_version(major, incompat, where)
    if length != file_length:
        raise TruncatedError(f"{where}: has {file_length} bytes, but was written with {length}; copy it again")
    ends_at = file_length - FOOTER_SIZE
    in_order = HEADER_SIZE <= metadata <= directory <= ends_at
    if sections > MAX_SECTIONS or not in_order or directory + sections * ENTRY_SIZE != ends_at:
        raise FormatError(
            f"{where}: the footer places {sections} sections at {metadata} and their directory at {directory}, "
            f"which does not fit {file_length} bytes"
        )
    return Footer(metadata, directory, length, incompat, prefix, sections, directory_crc)


def build_tail(kind: FileKind, sections: Sequence[Section], offset: int, file_id: bytes) -> bytes:
    """Sections, directory and footer of a file whose data ends at ``offset`` (a multiple of 8)."""
    parts: list[bytes | memoryview] = []
    entries: list[bytes] = []
    at = offset
    for section in sections:
        size = len(section.data)
        flags = MUST_UNDERSTAND if section.must_understand else 0
        entries.append(
            _ENTRY.pack(
                section.kind, 1, flags, section.stream_id, section.rows, at, size, size, crc32c(section.data), 0
            )
        )
        padding = align(size) - size
        parts += [section.data, bytes(padding)]
        at += size + padding
    directory = b"".join(entries)
    length = at + len(directory) + FOOTER_SIZE
    foot = _FOOTER.pack(
        offset, at, length, KNOWN_INCOMPAT, file_id[:8], len(sections), crc32c(directory), MAJOR, MINOR, 0, b""
    )[:52]
    return b"".join([*parts, directory, foot, struct.pack("<I", crc32c(foot)), kind.end_magic])


def parse_tail(kind: FileKind, tail: bytes | memoryview, tail_offset: int, file_length: int, where: str) -> Tail:
    """Check a tail and slice it into sections, without copying.

    Args:
        kind: the kind of file.
        tail: the bytes from ``tail_offset`` to the end of the file; may begin before the metadata does.
        tail_offset: where in the file ``tail`` begins.
        file_length: bytes of the file.
        where: name of the file for messages.

    Raises:
        FormatError: of the fitting kind, naming ``where`` and the place.
    """
    view = memoryview(tail).cast("B") if not isinstance(tail, bytes) else memoryview(tail)
    if tail_offset < 0 or tail_offset + len(view) != file_length:
        raise TruncatedError(
            f"{where}: {len(view)} bytes from {tail_offset} on were read, but the file should have {file_length}"
        )
    footer = parse_footer(kind, view, file_length, where)
    if footer.metadata_offset < tail_offset:
        raise FormatError(
            f"{where}: its metadata begins at byte {footer.metadata_offset}, not at {tail_offset} as the manifest says"
        )
    if tail_offset == 0:
        file_id = check_header(kind, view, where)
        if file_id[:8] != footer.id_prefix:
            raise FormatError(f"{where}: header and footer belong to different files; pack or copy it again")
    directory = view[footer.directory_offset - tail_offset : len(view) - FOOTER_SIZE]
    if crc32c(directory) != footer.directory_crc:
        raise ChecksumError(f"{where}: the directory at byte {footer.directory_offset} is damaged: its crc32c is wrong")
    return Tail(footer, _slice_sections(view, tail_offset, directory, footer, where))


def _slice_sections(
    view: memoryview, tail_offset: int, directory: memoryview, footer: Footer, where: str
) -> dict[tuple[bytes, int], Section]:
    """The sections that a directory lists; they must fill the metadata without gaps, in the directory's order."""
    sections: dict[tuple[bytes, int], Section] = {}
    at = footer.metadata_offset
    for kind, version, flags, stream_id, rows, offset, stored, raw, crc, zero in _ENTRY.iter_unpack(directory):
        name = kind.decode("latin-1")
        end = offset + stored
        if offset != at or end > footer.directory_offset or zero:
            raise FormatError(f"{where}: section {name!r} claims bytes {offset} to {end}, which is not its place")
        data = view[offset - tail_offset : end - tail_offset]
        if crc32c(data) != crc:
            raise ChecksumError(f"{where}: section {name!r} at byte {offset} is damaged: its crc32c is wrong")
        at = align(end)
        if at > footer.directory_offset or any(view[end - tail_offset : at - tail_offset]):
            raise FormatError(f"{where}: the padding at byte {end} behind section {name!r} is damaged")
        must = bool(flags & MUST_UNDERSTAND)
        if version != 1 or flags & ~MUST_UNDERSTAND or raw != stored:
            if not must:
                continue
            encoding = (flags & ENCODING_MASK) >> 1
            raise UnsupportedFeatureError(
                f"{where}: section {name!r} has version {version} and encoding {encoding}, which this version of "
                f"knonik cannot read; upgrade it"
            )
        if (kind, stream_id) in sections:
            raise FormatError(f"{where}: section {name!r} is listed twice")
        sections[kind, stream_id] = Section(kind, data, rows, stream_id, must)
    if at != footer.directory_offset:
        raise FormatError(f"{where}: bytes {at} to {footer.directory_offset} belong to no section")
    return sections


def check_known(tail: Tail, known: set[bytes], where: str) -> None:
    """Refuse a tail with a section that has to be understood and is not in ``known``.

    Raises:
        UnsupportedFeatureError: naming the sections.
    """
    strange = sorted(
        {s.kind.decode("latin-1") for s in tail.sections.values() if s.must_understand and s.kind not in known}
    )
    if strange:
        raise UnsupportedFeatureError(f"{where}: needs section(s) {', '.join(strange)}; upgrade knonik to read it")


def _check_version(major: int, incompat: int, where: str) -> None:
    if major != MAJOR:
        raise UnsupportedFeatureError(
            f"{where}: has format version {major}, this version of knonik reads {MAJOR}; upgrade it, or pack again"
        )
    unknown = incompat & ~KNOWN_INCOMPAT
    if unknown:
        bits = [bit for bit in range(64) if unknown >> bit & 1]
        names = ", ".join(f"{FEATURE_NAMES.get(bit, 'unknown')} (bit {bit})" for bit in bits)
        raise UnsupportedFeatureError(f"{where}: needs {names}, which this version of knonik cannot read; upgrade it")
