"""Which streams a packed dataset has: episodes must agree, and where they don't, say how to make them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from knonik_assets.configs.pack import PackOptions
from knonik_assets.configs.validation import unknown
from knonik_assets.packing.facts import EpisodeFacts, StreamFacts
from knonik_assets.packing.packets import may_pass
from knonik_loader.errors import ConfigError, PackError
from knonik_loader.khlp.codecs import make_codec
from knonik_loader.khlp.types import StorageProfile, StreamInfo

__all__ = ["choose_streams", "reencodes"]

_ORDER = {"rgb": 0, "depth": 1, "numeric": 2}
_RGB_CODEC: Mapping[StorageProfile, str] = {
    "compact_video": "shdr",
    "training_fast": "kimg",
    "training_compressed": "kdlt",
}
_CRF: Mapping[str, int] = {"h264": 22, "vp9": 24, "av1": 30}
"""Constant rate factors that keep frames above 35 dB of luma PSNR with room to spare; less is better."""
_CEILING_DB = 46.5
"""Luma PSNR that H.264 need not exceed where nobody asked for a quality: clean renderings cost a third less."""
_MOST_NAMED = 3


def choose_streams(episodes: Sequence[EpisodeFacts], options: PackOptions, fps: float) -> tuple[StreamInfo, ...]:
    """The streams of the packed dataset: colour, depth, numeric, each in the order of their names.

    Raises:
        ConfigError: an option names a stream that no episode has, or resizes one that is no picture.
        PackError: the episodes do not agree on streams, shapes, widths, labels or depth steps.
    """
    known = {key: stream for episode in episodes for key, stream in episode.streams.items()}
    wanted = _wanted(episodes, options, known)
    resize = _resize(options, known, wanted)
    chosen = sorted((known[key] for key in wanted), key=lambda stream: (_ORDER[stream.kind], stream.name))
    infos: list[StreamInfo] = []
    for number, stream in enumerate(chosen):
        facts = [(episode.episode_id, episode.streams[stream.key]) for episode in episodes]
        if stream.key not in resize:
            hint = f" or --resize {stream.name}=HxW" if stream.kind == "rgb" else ""
            _agree(facts, lambda fact: "x".join(map(str, fact.shape)), stream.key, "frames of shape", hint)
        _agree(facts, lambda fact: fact.quantization_mm, stream.key, "depth steps (mm) of", "")
        labelled = [(name, fact) for name, fact in facts if fact.channel_names]
        _agree(labelled, lambda fact: ",".join(fact.channel_names or ()), stream.key, "channels", "")
        labels = labelled[0][1].channel_names if labelled else None
        shape = (*resize[stream.key], 3) if stream.key in resize else stream.shape
        sizes = sorted({fact.shape[:2] for _, fact in facts}) if stream.key in resize else []
        params = {**_params(stream, options), **_resized(shape, sizes)}
        pictures = [fact.stored for _, fact in facts if fact.stored and options.storage_profile == "compact_video"]
        if not reencodes(options) and any(may_pass(stored, shape, params) for stored in pictures):
            params["passes"] = True
        infos.append(_info(number, stream, shape, labels, params, options.storage_profile, fps))
    return tuple(infos)


def _info(
    number: int,
    stream: StreamFacts,
    shape: tuple[int, ...],
    labels: tuple[str, ...] | None,
    params: Mapping[str, Any],
    profile: StorageProfile,
    fps: float,
) -> StreamInfo:
    info = StreamInfo(
        stream_id=number,
        kind=stream.kind,
        name=stream.name,
        codec=_RGB_CODEC[profile] if stream.kind == "rgb" else stream.kind,
        shape=shape,
        dtype="uint8" if stream.kind == "rgb" else "float32",
        fps=fps,
        channel_names=labels,
        params=params,
    )
    make_codec(info)  # refuses what the codec cannot do, before anything is read or written
    return info


def reencodes(options: PackOptions) -> bool:
    """Whether stored pictures are made anew although they could pass: when something is asked for that they may not be.

    A video codec may be asked for: packets of another one never pass.
    """
    other = options.gop if options.storage_profile == "compact_video" else options.chroma
    return (options.quality, other) != (None, None)


def _params(stream: StreamFacts, options: PackOptions) -> dict[str, Any]:
    """What the codec is told. Defaults are said aloud, so that the manifest records them and a changed one shows."""
    if stream.kind == "numeric":
        return {}
    if stream.kind == "depth":
        return {"quantization_mm": stream.quantization_mm, "level": 3}
    chroma = options.chroma or "420"
    if options.storage_profile == "compact_video":
        codec = options.codec or "h264"
        video = {"codec": codec, "gop": options.gop or 10, "chroma": chroma}
        if options.quality is not None:
            return {**video, "quality": options.quality}
        return {**video, "quality": _CRF[codec], **({"ceiling": _CEILING_DB} if codec == "h264" else {})}
    jpeg: dict[str, Any] = {"quality": options.quality or 95, "chroma": chroma}
    if options.storage_profile == "training_fast":
        return jpeg
    return {**jpeg, "delta_quality": max(1, jpeg["quality"] - 5), "gop": options.gop or 10, "threshold": 6}


def _resized(shape: tuple[int, ...], sizes: Sequence[tuple[int, ...]]) -> dict[str, Any]:
    """What is recorded of a stream whose pictures are stored as ``sizes`` and packed as ``shape``."""
    if all(size == shape[:2] for size in sizes):
        return {}
    return {"resize": {"filter": "area", "from": [list(size) for size in sizes]}}


def _wanted(
    episodes: Sequence[EpisodeFacts], options: PackOptions, known: Mapping[str, StreamFacts]
) -> tuple[str, ...]:
    """Batch keys to pack, each in every episode."""
    wanted = tuple(known)
    if options.streams is not None:
        wanted = tuple(dict.fromkeys(_find_key(name, known, "streams") for name in options.streams))
    for key in wanted:
        lacking = [episode.episode_id for episode in episodes if key not in episode.streams]
        if lacking:
            everywhere = [other for other in known if all(other in episode.streams for episode in episodes)]
            streams = f"--streams {','.join(everywhere)}" if everywhere else "--streams"
            raise PackError(
                f"Stream {key!r} is missing in {_names(lacking)} of {len(episodes)} episodes; pack without it "
                f"({streams}) or without them (--exclude)."
            )
    if not wanted:
        raise PackError("The episodes have no stream to pack; ingest them with a layout that finds some.")
    return wanted


def _find_key(name: str, known: Mapping[str, StreamFacts], option: str, what: str = "stream") -> str:
    """The batch key of a stream named with or without its prefix.

    Raises:
        ConfigError: there is no such stream, or a bare name means several.
    """
    if name in known:
        return name
    matches = [key for key, stream in known.items() if stream.name == name]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise ConfigError(f"{option}: {name!r} could mean {' or '.join(sorted(matches))}; say which.")
    raise ConfigError(f"{option}: {unknown(name, known, what)}")


def _resize(
    options: PackOptions, known: Mapping[str, StreamFacts], wanted: Sequence[str]
) -> dict[str, tuple[int, int]]:
    """Batch key → (height, width) of the colour streams that are to have another size.

    Raises:
        ConfigError: no such colour stream is packed, or one is named twice.
    """
    pictures = {key: stream for key, stream in known.items() if stream.kind == "rgb" and key in wanted}
    found: dict[str, tuple[int, int]] = {}
    for name, size in options.resize.items():
        key = _find_key(name, pictures, "resize", "RGB stream")
        if key in found:
            raise ConfigError(f"resize names the stream {key!r} twice; keep one.")
        found[key] = size
    return found


def _agree(
    facts: Iterable[tuple[str, StreamFacts]],
    value: Callable[[StreamFacts], object],
    key: str,
    what: str,
    hint: str,
) -> None:
    """All episodes have one value, or an error names the ones that differ from most of the others."""
    having: dict[object, list[str]] = {}
    for name, fact in facts:
        having.setdefault(value(fact), []).append(name)
    if len(having) <= 1:
        return
    counts = Counter({common: len(names) for common, names in having.items()})
    usual = counts.most_common(1)[0][0]
    odd = "; ".join(f"{other} in {_names(names)}" for other, names in having.items() if other != usual)
    raise PackError(
        f"Stream {key!r} has {what} {usual} in {counts[usual]} episodes, but {odd}. Leave those episodes out "
        f"(--exclude), or the stream (--streams){hint}."
    )


def _names(episodes: Sequence[str]) -> str:
    more = len(episodes) - _MOST_NAMED
    return ", ".join(episodes[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
