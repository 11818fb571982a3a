"""Seeded mutations of good files and payloads, and what may come of reading them.

Every input is a function of (target, seed, number), so that one that fails can be run again by itself. ``outcome``
answers "refused" or "read"; whatever else happens (another exception, a wrong frame) is a bug and is raised.
"""

import random
import struct
from collections.abc import Callable
from functools import cache

import numpy as np
from crc32c import crc32c

from knonik_loader.errors import DecodeError, FormatError
from knonik_loader.khlp.codecs import dependency_of, make_codec
from knonik_loader.khlp.index import DatasetIndex
from knonik_loader.khlp.manifest import content_digest, load_manifest
from knonik_loader.khlp.reader import open_index
from knonik_loader.khlp.types import StreamInfo
from knonik_loader.khlp.verify import verify_hlp
from tests.loader.khlp.make_golden import index_sample
from tests.loader.khlp.samples import PROFILES, Sample, build, decode_all, episode, manifest, reader
from tests.support.stamps import stamp

INTERESTING = (0, 1, 2, 7, 8, 63, 64, 127, 128, 255, 256, 2**15, 2**16 - 1, 2**16, 2**24, 2**31 - 1, 2**31, 2**32 - 1)
VERY_LARGE = (2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 8, 2**64 - 1)
FOOTER, ENTRY = 64, 48


def mutate(rng: random.Random, data: bytes, others: list[bytes], first: int = 0) -> bytes:
    """One to four changes at and behind ``first``: bits, numbers, cuts, insertions, pieces of other inputs."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.randrange(first, len(out)) if len(out) > first else len(out)
        kind = rng.randrange(8)
        if kind == 0 and at < len(out):
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 1 and at < len(out):
            out[at] = rng.randrange(256)
        elif kind == 2:
            width, order = rng.choice((1, 2, 4, 8)), rng.choice(("little", "big"))
            number = rng.choice(INTERESTING + VERY_LARGE) % (1 << 8 * width)
            out[at : at + width] = number.to_bytes(width, order)[: len(out) - at]
        elif kind == 3:
            del out[at:]
        elif kind == 4:
            del out[at : at + rng.choice((1, 2, 4, 8, 64))]
        elif kind == 5:
            out[at:at] = rng.randbytes(rng.choice((1, 2, 4, 8, 64)))
        elif kind == 6:
            other = rng.choice(others)
            begin = rng.randrange(len(other))
            piece = other[begin : begin + rng.choice((4, 16, 64, 256))]
            out[at : at + len(piece)] = piece
        else:
            out[at : at + 16] = bytes([rng.choice((0, 255))]) * len(out[at : at + 16])
    return bytes(out)


def resign(data: bytes) -> bytes:
    """The same bytes with every checksum of header, directory and footer made right, as far as they can be found."""
    out = bytearray(data)
    if len(out) < 2 * FOOTER:
        return data
    _, directory, *_, count, _ = struct.unpack("<QQQQ8sII", out[-FOOTER:-16])
    if directory + ENTRY * count + FOOTER == len(out):
        for at in range(directory, len(out) - FOOTER, ENTRY):
            offset, stored = struct.unpack_from("<QQ", out, at + 16)
            if offset + stored <= len(out):
                struct.pack_into("<I", out, at + 40, crc32c(out[offset : offset + stored]))
        struct.pack_into("<I", out, len(out) - 20, crc32c(out[directory:-FOOTER]))
    struct.pack_into("<Q", out, len(out) - 48, len(out))
    struct.pack_into("<I", out, len(out) - 12, crc32c(out[-FOOTER:-12]))
    struct.pack_into("<I", out, 60, crc32c(out[:60]))
    return bytes(out)


@cache
def sample(profile: str) -> Sample:
    return build(profile)  # type: ignore[arg-type]


@cache
def frames_of(profile: str) -> dict[tuple[str, str], np.ndarray]:
    return decode_all(sample(profile).index(), sample(profile).data)


def must_name(error: Exception, *words: str) -> None:
    if not any(word in str(error) for word in words):
        raise AssertionError(f"the error names none of {words}: {error}") from error


def whole_file(rng: random.Random) -> str:
    """A damaged file: what still opens and passes its checksums holds the frames that were packed."""
    profile = rng.choice(PROFILES)
    good = sample(profile)
    meta = good.summary.metadata_offset
    # the interesting bytes are few: half of the inputs are hurt there
    first = meta if rng.random() < 0.5 else 0
    data = mutate(rng, good.data, [sample(other).data for other in PROFILES], first)
    found = verify_hlp(reader(data), len(data), meta, "the file")
    assert all(damage.message.startswith("the file") for damage in found)
    assert found or data == good.data
    for offset in (meta, None):
        try:
            index = open_index(reader(data), len(data), offset, "the file")
            frames = decode_all(index, data)
        except FormatError as error:
            must_name(error, "the file", "sample")
            continue
        for key, stack in frames_of(profile).items():
            np.testing.assert_array_equal(frames[key], stack)
        return "read"
    return "refused"


def forged_file(rng: random.Random) -> str:
    """A tail with right checksums and wrong content: what opens can be walked, and every record lies in the data."""
    good = sample(rng.choice(PROFILES))
    meta = good.summary.metadata_offset
    data = resign(mutate(rng, good.data, [good.data], meta))
    try:
        index = open_index(reader(data), len(data), rng.choice((meta, None)), "the file")
    except FormatError as error:
        must_name(error, "the file")
        return "refused"
    for shard in range(index.num_shards):
        index.shard(shard)
        index.times(shard)
        for stream in index.streams:
            table = index.records(shard, stream.stream_id)
            assert (table.offsets >= 64).all()
            assert (table.offsets + table.sizes <= index.metadata_offset).all()
    return "read"


@cache
def sidecar() -> bytes:
    return index_sample().to_bytes()


def forged_index(rng: random.Random) -> str:
    """A sidecar, its checksums made right or not."""
    data = mutate(rng, sidecar(), [sidecar()])
    if rng.random() < 0.7:
        data = resign(data)
    try:
        index = DatasetIndex.from_bytes(data, "the index")
    except FormatError as error:
        must_name(error, "the index")
        return "refused"
    assert index.num_frames == int(index.shards.frames.sum())
    for row in range(len(index.episodes)):
        assert len(index.frame_times(row)) == index.episodes.length[row]
    return "read"


def forged_manifest(rng: random.Random) -> str:
    """A manifest with damaged text: nothing but the same content is ever believed."""
    text = manifest().to_json().encode()
    data = mutate(rng, text, [text, b'"fps": 1e999, NaN [[[[ {"a": {', b"\\ud800\xff\x00"])
    try:
        found = load_manifest(data, "m.json")
    except FormatError as error:
        must_name(error, "m.json")
        return "refused"
    assert content_digest(found.model_dump(mode="json")) == manifest().digest()
    return "read"


STREAMS = {
    "kimg": StreamInfo(0, "rgb", "cam", "kimg", (80, 96, 3), "uint8", 30.0, params={"quality": 80}),
    "kdlt": StreamInfo(0, "rgb", "cam", "kdlt", (80, 96, 3), "uint8", 30.0, params={"gop": 4, "quality": 80}),
    "depth": StreamInfo(0, "depth", "front", "depth", (12, 17), "float32", 30.0, params={"quantization_mm": 1.0}),
    "numeric": StreamInfo(0, "numeric", "state", "numeric", (3,), "float32", 30.0),
    **{
        f"shdr_{codec}": StreamInfo(
            0, "rgb", "cam", "shdr", (80, 96, 3), "uint8", 30.0, params={"codec": codec, "gop": 4, "quality": 30}
        )
        for codec in ("h264", "vp9", "av1")
    },
}


@cache
def payloads(name: str) -> list[bytes]:
    """The records of six frames of which a part moves."""
    info = STREAMS[name]
    if info.kind == "numeric":
        frames = list(episode("episode_0")["state"])
    elif info.kind == "depth":
        frames = [(np.arange(204).reshape(12, 17) * 3 + t).astype(np.uint16) for t in range(6)]
    else:
        frames = []
        for t in range(6):
            image = np.full(info.shape, 90, np.uint8) + (np.arange(96, dtype=np.uint8) // 3)[:, None]
            image[40 : 40 + 16, 8 * t : 8 * t + 32] = np.arange(32, dtype=np.uint8)[:, None] * 7
            stamp(image, 1, 2, t)
            frames.append(image)
    return [bytes(record.data) for record in make_codec(info).encode(frames)]


def damaged_payloads(name: str) -> Callable[[random.Random], str]:
    """Records that no checksum has looked at: an error of the codec, or frames of the right shape."""

    def outcome(rng: random.Random) -> str:
        info, records = STREAMS[name], list(payloads(name))
        numeric, chain = info.kind == "numeric", dependency_of(info.codec)
        # one group, as the engine hands it over: a key and a frame behind it, or a few packets
        rows = [0] if numeric or chain == "none" else [0, rng.randrange(1, 4)]
        if chain == "chain":
            rows = list(range(rows[-1] + 1))
        hurt = rng.choice(rows)
        records[hurt] = mutate(rng, records[hurt], records)
        wanted = [0, 3] if numeric else [rows[-1]]
        out = {row: np.empty(info.shape, info.dtype) for row in wanted}
        try:
            make_codec(info).decode({row: memoryview(records[row]) for row in rows}, wanted, out)
        except DecodeError as error:
            must_name(error, info.key, "numeric block")
            return "refused"
        return "read"

    return outcome


TARGETS: dict[str, Callable[[random.Random], str]] = {
    "whole_file": whole_file,
    "forged_file": forged_file,
    "forged_index": forged_index,
    "forged_manifest": forged_manifest,
    **{name: damaged_payloads(name) for name in STREAMS},
}


def outcome(target: str, seed: int, number: int) -> str:
    return TARGETS[target](random.Random(f"{target} {seed} {number}"))
