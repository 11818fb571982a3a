"""A second reader of KHLP, written from FORMAT.md alone: it keeps the page honest.

It uses ``struct`` and ``json``, zstd and a JPEG decoder where the page names them, and nothing of the product.
"""

import hashlib
import json
import struct

import numpy as np
import simplejpeg
import zstandard

TABLE = []
for byte in range(256):
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    TABLE.append(byte)


def crc(data):
    value = 0xFFFFFFFF
    for byte in data:
        value = value >> 8 ^ TABLE[(value ^ byte) & 255]
    return value ^ 0xFFFFFFFF


def align8(n):
    return (n + 7) // 8 * 8


def column(data, at, code, count):
    """(values, offset behind them) of ``count`` values of one struct code."""
    size = struct.calcsize("<" + code) * count
    return list(struct.unpack_from(f"<{count}{code}", data, at)), at + size


def strings(data, at, count):
    ends, at = column(data, at, "I", count)
    text = data[at:]
    assert (ends[-1] if ends else 0) == len(text)
    return [text[a:b].decode() for a, b in zip([0, *ends], ends, strict=False)]


def container(data, letter):
    """(file id, kind and stream → (rows, bytes)) of a KHLP or KHLI file."""
    magic, major, minor, size, incompat, compat, file_id, zero, check = struct.unpack("<8sHHIQQ16s12sI", data[:64])
    assert magic == b"\x89KHL" + letter + b"\r\n\x1a"
    assert (major, minor, size, incompat, compat, zero) == (1, 0, 64, 0, 0, bytes(12))
    assert crc(data[:60]) == check
    foot = data[-64:]
    meta, directory, length, incompat, half, count, directory_crc = struct.unpack("<QQQQ8sII", foot[:48])
    major, minor, check, end_magic = struct.unpack("<HHI8s", foot[48:])
    assert end_magic == b"KHL" + letter + b"END\n"
    assert (length, incompat, half, major, minor) == (len(data), 0, file_id[:8], 1, 0)
    assert crc(foot[:52]) == check
    entries = data[directory:-64]
    assert len(entries) == 48 * count
    assert crc(entries) == directory_crc
    sections, at = {}, meta
    for kind, version, flags, stream, rows, offset, stored, raw, check, zero in struct.iter_unpack(
        "<4sHHIIQQQII", entries
    ):
        assert (version, flags, offset, raw, zero) == (1, 1, at, stored, 0)
        section = data[offset : offset + stored]
        assert crc(section) == check
        at = align8(offset + stored)
        assert not any(data[offset + stored : at])
        sections[kind.decode(), stream] = rows, section
    assert at == directory
    return file_id, sections


def read_khlp(data):
    """{"profile", "streams", "shards": [{"episode", "source", "digest", "first", "times", "records": {key: [...]}}]}.

    A record is (bytes, key_back, flags).
    """
    file_id, sections = container(data, b"P")
    whole = 0xFFFFFFFF
    schema = json.loads(sections["SCHM", whole][1])
    assert schema["hlp_id"] == file_id.hex()
    episodes, section = sections["EPIS", whole]
    digests = [section[32 * i : 32 * i + 32] for i in range(episodes)]
    texts = strings(section, 32 * episodes, 2 * episodes)
    count, section = sections["SHRD", whole]
    columns, at = [], 0
    for code in "QQIII":
        values, at = column(section, at, code, count)
        columns.append(values)
    shards = []
    times, _ = column(sections["TIME", whole][1], 0, "d", sections["TIME", whole][0])
    for _offset, _length, episode, first, frames in zip(*columns, strict=True):
        shards.append(
            {
                "episode": texts[episode],
                "source": texts[episodes + episode],
                "digest": digests[episode],
                "first": first,
                "times": times[:frames],
                "records": {},
            }
        )
        times = times[frames:]
    for stream in schema["streams"]:
        rows, section = sections["FIDX", stream["stream_id"]]
        bases, at = column(section, 0, "Q", count)
        index = []
        for code in "IIHH":
            values, at = column(section, at, code, rows)
            index.append(values)
        index = list(zip(*index, strict=True))
        key = stream["name"] if stream["kind"] == "numeric" else f"{stream['kind']}_{stream['name']}"
        for shard, base, frames in zip(shards, bases, columns[4], strict=True):
            number = 1 if stream["kind"] == "numeric" else frames
            records = shard["records"][key] = []
            for size, check, back, flags in index[:number]:
                record = data[base : base + size]
                assert crc(record) == check
                records.append((record, back, flags))
                base += align8(size)
            index = index[number:]
        assert not index
    return {"profile": schema["profile"], "streams": schema["streams"], "shards": shards}


def read_khli(data):
    """{"episodes": [(id, source, length, t0, fps, split, language, regular, digest)], "clocks", "shards"}."""
    _, sections = container(data, b"I")
    whole = 0xFFFFFFFF
    count, section = sections["EPSD", whole]
    columns, at = [], 0
    for code in "qddIII":
        values, at = column(section, at, code, count)
        columns.append(values)
    length, t0, fps, split, language, regular = columns
    digests = [section[at + 32 * i : at + 32 * i + 32] for i in range(count)]
    texts = strings(sections["STRS", whole][1], 0, sections["STRS", whole][0])
    ids, sources, names = texts[:count], texts[count : 2 * count], texts[2 * count :]
    split, language = [names[i] for i in split], [names[i] for i in language]
    times, _ = column(sections["CLKS", whole][1], 0, "d", sections["CLKS", whole][0])
    clocks = {}
    for row in range(count):
        if not regular[row]:
            clocks[row], times = times[: length[row]], times[length[row] :]
    shards = list(struct.unpack(f"<{5 * sections['SHTB', whole][0]}I", sections["SHTB", whole][1]))
    rows = sections["SHTB", whole][0]
    shards = [tuple(shards[i::rows]) for i in range(rows)]
    episodes = list(zip(ids, sources, length, t0, fps, split, language, regular, digests, strict=True))
    return {"episodes": episodes, "clocks": clocks, "shards": shards}


def read_manifest(text):
    """A manifest, after its digest was found right."""
    data = json.loads(text)
    stated = data.pop("sha256")
    assert hashlib.sha256(canonical(data).encode()).hexdigest() == stated
    return data


def canonical(value):
    if isinstance(value, dict):
        return "{" + ",".join(f"{canonical(key)}:{canonical(value[key])}" for key in sorted(value)) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(canonical, value)) + "]"
    if isinstance(value, float):
        return str(int(value)) if value == int(value) and abs(value) < 2**53 else repr(value)
    return json.dumps(value, ensure_ascii=False)


def depth(record, height, width, step_mm):
    """Metres, as f32, row by row."""
    assert record[:4] == b"\x5a\x01\x00\x00"
    raw = zstandard.ZstdDecompressor().decompress(record[4:])
    count = height * width
    assert len(raw) == 2 * count
    step, value, out = np.float32(step_mm / 1000), 0, []
    for low, high in zip(raw[:count], raw[count:], strict=True):
        value = (value + low + 256 * high) % 65536
        out.append(np.float32(value) * step)
    return out


def kdlt(record, key, height, width):
    """Pixels of a frame, row by row as bytes, from its record and the pixels of its decoded key."""
    if record[:2] == b"\xff\xd8":
        return simplejpeg.decode_jpeg(record, "RGB", fastdct=False, fastupsample=False).tobytes()
    assert record[:2] == b"\x44\x02"
    gain, offset = struct.unpack("<hh", record[2:6])
    out = bytearray(min(255, max(0, v + (v * gain + 32 * offset + 1024) // 2048)) for v in key)
    down, across = -(-height // 16), -(-width // 16)
    size = -(-down * across // 8)
    bitmap, strip = record[6 : 6 + size], record[6 + size :]
    changed = [block for block in range(8 * size) if bitmap[block // 8] >> (7 - block % 8) & 1]
    assert all(block < down * across for block in changed)
    if not changed:
        assert not strip
        return bytes(out)
    wide = min(len(changed), 4093)
    blocks = simplejpeg.decode_jpeg(strip, "RGB", fastdct=False, fastupsample=True)
    assert blocks.shape == (16 * -(-len(changed) // wide), 16 * wide, 3)
    for place, block in enumerate(changed):
        for y in range(16):
            top, left = block // across * 16 + y, block % across * 16
            pixels = min(16, width - left)
            if top < height:
                row = blocks[place // wide * 16 + y, place % wide * 16 : place % wide * 16 + pixels]
                at = 3 * (top * width + left)
                out[at : at + 3 * pixels] = row.tobytes()
    return bytes(out)
