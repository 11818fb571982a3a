"""What is odd about a pack: refused where it can only be a mistake, said where it may be meant."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

from knonik_assets.configs.pack import PackOptions
from knonik_assets.packing.facts import EpisodeFacts
from knonik_loader.errors import ConfigError, PackError
from knonik_loader.khlp.types import StreamInfo

__all__ = ["copies", "idle_options", "stretched"]

_ASPECT_TOLERANCE = 0.01


def copies(episodes: Sequence[EpisodeFacts]) -> Iterator[str]:
    """Warnings of recordings that may be in the dataset twice.

    Raises:
        PackError: one certainly is: two directories hold the same recording of the same name.
    """
    first: dict[tuple[str, Hashable], EpisodeFacts] = {}
    doubted: dict[str, list[tuple[str, str]]] = {}
    for episode in episodes:
        same = {
            "files": first.setdefault(("files", episode.content or episode.episode_id), episode),
            "recording": first.setdefault(("recording", episode.source_fingerprint or episode.episode_id), episode),
            "name": first.setdefault(("name", episode.source_id), episode),
        }
        for what in ("files", "recording"):
            other = same[what]
            if other is not episode and other.source_id == episode.source_id:
                how = "a copy of" if what == "files" else "made from the same recording as"
                raise PackError(
                    f"{episode.episode_id} is {how} {other.episode_id} (source {episode.source_id!r}) and would count "
                    f"twice: remove one of them, or leave it out with --exclude {episode.episode_id}."
                )
        for what, other in same.items():
            if other is not episode:
                doubted.setdefault("files" if what == "recording" else what, []).append(
                    (episode.episode_id, other.episode_id)
                )
    for what, found in doubted.items():
        pairs = list(dict.fromkeys(found))
        second, earlier = pairs[0]
        why = (
            "hold the same recording under two names, so that it counts twice and may be in two splits"
            if what == "files"
            else "have one source_id, though other content, and fall into one split"
        )
        more = f" ({len(pairs)} such pairs)" if len(pairs) > 1 else ""
        yield f"{earlier} and {second} {why}{more}; leave one out with --exclude if that is not meant."


def idle_options(options: PackOptions, streams: Sequence[StreamInfo], shard_size: int) -> Iterator[str]:
    """Warnings of options that change less than their values say.

    Raises:
        ConfigError: an option of colour streams, and none is packed.
    """
    if not any(stream.kind == "rgb" for stream in streams):
        for name in ("codec", "quality", "gop", "chroma"):
            if getattr(options, name) is not None:
                raise ConfigError(f"{name} means nothing here: no colour stream is packed; leave it out.")
    if options.gop is not None and options.gop > shard_size:
        yield (
            f"gop {options.gop} is longer than a shard of {shard_size} frames, and every shard begins with a keyframe: "
            f"{shard_size} counts."
        )
    if options.seed and options.pack_mode == "episode" and not options.split:
        yield f"seed {options.seed} changes nothing: pack_mode 'episode' keeps the order, and there are no splits."


def stretched(episodes: Sequence[EpisodeFacts], streams: Sequence[StreamInfo]) -> Iterator[str]:
    """Warnings of pictures that another size distorts or enlarges."""
    for stream in streams:
        if "resize" not in stream.params:
            continue
        height, width = stream.shape[:2]
        sizes = sorted({episode.streams[stream.key].shape[:2] for episode in episodes})
        odd = [size for size in sizes if abs(height * size[1] / (width * size[0]) - 1) > _ASPECT_TOLERANCE]
        if odd:
            down, across = odd[0]
            yield (
                f"resize {stream.name}={height}x{width} changes the shape of its pictures, which are {down}x{across}: "
                f"things get {'narrower' if width * down < height * across else 'wider'}; "
                f"{height}x{max(1, round(height * across / down))} would keep it."
            )
        small = [size for size in sizes if height > size[0] or width > size[1]]
        if small:
            yield (
                f"resize {stream.name}={height}x{width} enlarges pictures of {small[0][0]}x{small[0][1]}: that adds "
                "bytes and no detail."
            )
