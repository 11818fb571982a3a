"""What is told of a file or folder, as plain values: facts, streams with their sizes, samples and damage."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from knonik_assets.packing.sampling import JPEG_QUALITY, Originals, Samples, lowest
from knonik_assets.storage.files import Location
from knonik_loader.khlp.types import StreamKind, batch_key

__all__ = ["Report", "measured", "report", "stream"]

Report = dict[str, Any]
"""``path``, ``kind`` (khlp, manifest, index, episode, episodes, raw), ``facts``, ``streams``, ``samples``, ``damage``
(in words); of a raw dataset ``detection`` instead of facts, streams and samples. JSON values only."""

_VALUE_BYTES: Mapping[str, int] = {"rgb": 1, "depth": 4, "numeric": 4}
"""Bytes of one value as a batch has it: what compression is measured against."""


def report(
    path: Location,
    kind: str,
    facts: Mapping[str, Any],
    streams: Sequence[Mapping[str, Any]],
    damage: Iterable[str],
    samples: Mapping[str, Any] | None = None,
) -> Report:
    """A report's values in their places."""
    return {
        "path": str(path),
        "kind": kind,
        "facts": dict(facts),
        "streams": [dict(one) for one in streams],
        "samples": dict(samples or {}),
        "damage": list(damage),
    }


def stream(
    kind: StreamKind, name: str, codec: str, shape: Sequence[int], frames: int, size: int, params: Mapping[str, Any]
) -> dict[str, Any]:
    """What is told of a stream before its pictures are looked at.

    Args:
        kind: of the stream.
        name: without the prefix of batch keys.
        codec: how it is stored.
        shape: of one frame, as decoded.
        frames: how many there are.
        size: bytes that they take together.
        params: what the codec was told.
    """
    raw = frames * math.prod(shape) * _VALUE_BYTES[kind]
    return {
        "key": batch_key(kind, name),
        "kind": kind,
        "codec": codec,
        "shape": list(shape),
        "frames": frames,
        "bytes": size,
        "of_raw": round(size / raw, 5) if raw else None,
        "of_jpeg": None,
        "psnr_y": None,
        "psnr_y_mean": None,
        "equal": False,
        "params": dict(params),
    }


def measured(
    streams: Iterable[dict[str, Any]], samples: Samples, originals: Originals | None, *, manifest: bool = False
) -> dict[str, Any]:
    """Fill in what the samples show, and say what it was measured against.

    Args:
        streams: made by `stream`; ``psnr_y`` may be filled in from the manifest.
        samples: of all of them.
        originals: what ``samples`` were compared with.
        manifest: whether ``psnr_y`` comes from the manifest where nothing was compared.
    """
    moments = 0
    for one in streams:
        size = samples.jpeg_bytes.get((one["key"], tuple(one["shape"])))
        if size and one["frames"]:
            one["of_jpeg"] = round(one["bytes"] / one["frames"] / size, 4)
            moments = samples.moments
        found = samples.psnr.get(one["key"])
        if found:
            one["psnr_y"] = lowest(found)
            one["equal"] = one["psnr_y"] is None
            finite = [value for value in found if math.isfinite(value)]
            one["psnr_y_mean"] = round(sum(finite) / len(finite), 2) if finite else None
    compared = samples.compared and originals is not None
    return {
        "moments": moments,
        "jpeg": f"quality {JPEG_QUALITY}, 4:2:0",
        "psnr_y": f"{samples.compared} frames of {originals.folder}"
        if compared and originals is not None
        else "measured when it was packed"
        if manifest
        else "",
    }
