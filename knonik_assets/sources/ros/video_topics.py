"""Video topics of a recording: in which order their messages are decoded, and what of them is lost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt

from knonik_assets.sources.ros.clock import Stamped, header_fault
from knonik_assets.sources.ros.gather import Gathered, read_message
from knonik_assets.sources.ros.h264 import H264Look
from knonik_assets.sources.ros.recording import Recording
from knonik_assets.sources.ros.topics import Topic
from knonik_assets.sources.ros.types import as_bytes
from knonik_assets.sources.ros.video import CODECS, DamagedVideoError, VideoOrder, decoded, find_order
from knonik_loader.errors import EpisodeError

__all__ = ["look_at_video", "packets"]

_HOLE = 1.75
"""Usual steps of a video's times behind which a message may be missing."""


def look_at_video(
    recording: Recording, topic: Topic, found: Gathered, form: str
) -> tuple[str, VideoOrder, tuple[int, int, int]]:
    """Decoder, order and shape of the pictures of a video topic; warns of what is lost.

    Args:
        recording: holds the messages.
        topic: the topic.
        found: what the recording holds; is told the warnings.
        form: the format that the first message names.

    Raises:
        DamagedVideoError: it begins well and cannot be decoded later.
        EpisodeError: an unknown format, or no picture can be decoded.
    """
    codec = CODECS.get(form.lower())
    if codec is None:
        raise EpisodeError(f"video of format {form!r} is not understood; known are {', '.join(CODECS)}")
    look = found.looks.get((topic.name, topic.kind)) if codec == "h264" else None
    if look is not None and len(look.kinds) != len(topic):
        raise DamagedVideoError(
            f"{recording.ref.name}: {topic.name}: {len(look.kinds)} of its {len(topic)} messages are h264, the others "
            "of another format; a topic holds one video."
        )
    order = _order(recording, topic, codec, look)
    first = next(decoded(codec, packets(recording, topic, codec, order.sequence), topic.name), None)
    if first is None:
        raise EpisodeError(
            f"no picture of the {codec} video can be decoded; it has no parameter sets before a keyframe"
        )
    frame = first[1]
    if look is not None:
        order = _without_spoilt(look, order, topic, found)
    elif codec not in ("h264", "hevc"):
        _tell_holes(order, topic, form, found)
    if order.late:
        found.warnings.append(
            f"{topic.name}: {order.late} of {len(topic)} messages behind the first keyframe hold no picture that can "
            "be decoded: they are empty, or a message before them is missing or damaged"
        )
    if order.early:
        found.warnings.append(
            f"{topic.name}: {order.early} of {len(topic)} messages hold no picture that can be decoded: a video is "
            "read from its first keyframe on"
        )
    return codec, order, (frame.height, frame.width, 3)


def _order(recording: Recording, topic: Topic, codec: str, look: H264Look | None) -> VideoOrder:
    """The order of decoding and of presentation.

    Where pictures don't change places, the time of recording is the order in which they were sent. Where they do, it
    may be that of presentation, and the order of storing the one that was sent: whichever gives more pictures.
    """
    recorded = np.argsort(topic.log_ns, kind="stable").astype(np.int64)
    sequences = [np.arange(len(topic)), recorded]
    if look is not None:
        known = look.order(recorded)
        if known is not None:
            return VideoOrder(*known, recorded)
        sequences = [min(sequences, key=lambda one: look.gaps(one)[0])]
    elif codec not in ("h264", "hevc") or (sequences[0] == recorded).all():
        sequences = [recorded]
    found: list[VideoOrder] = []
    fault: EpisodeError | None = None
    for one in sequences:
        try:
            found.append(find_order(codec, partial(packets, recording, topic, codec, one), one, topic.name))
        except EpisodeError as error:
            fault = error
    if not found:
        assert fault is not None
        raise fault
    return max(found, key=lambda one: len(one.messages))


def _without_spoilt(look: H264Look, order: VideoOrder, topic: Topic, found: Gathered) -> VideoOrder:
    """Leave out what decoders make up behind a missing message."""
    gaps, spoilt = look.gaps(order.sequence)
    kept = order.messages[~np.isin(order.messages, spoilt)]
    if gaps:
        found.warnings.append(
            f"{topic.name}: in {gaps} place{'' if gaps == 1 else 's'} a message is missing; from there to the next "
            f"keyframe pictures would be damaged, and {len(order.messages) - len(kept)} are left out"
        )
    return replace(order, messages=kept)


def _tell_holes(order: VideoOrder, topic: Topic, form: str, found: Gathered) -> None:
    """Say where a message may be missing, of codecs that don't count their pictures."""
    log, header = topic.log_ns[order.messages], topic.stamp_ns[order.messages]
    steps = np.diff(log if header_fault(Stamped(log, header)) is not None else header)
    holes = int((steps > _HOLE * np.median(steps)).sum()) if len(steps) else 0
    if holes:
        found.warnings.append(
            f"{topic.name}: its times have {holes} hole{'' if holes == 1 else 's'}; if a message is missing there, "
            f"which {form} doesn't say, the pictures from there to the next keyframe are damaged"
        )


def packets(
    recording: Recording, topic: Topic, codec: str, sequence: npt.NDArray[np.int64]
) -> Iterator[bytes | memoryview]:
    """The coded pictures of messages, in the order of their numbers in ``sequence``.

    Raises:
        DamagedVideoError: a message is of another format.
        EpisodeError: a message cannot be read.
    """
    for number in sequence.tolist():
        message = read_message(recording, topic, number)
        if CODECS.get(str(message.format).lower()) != codec:
            raise DamagedVideoError(
                f"{recording.ref.name}: {topic.name}, message {number}: its format is {message.format!r}, those before "
                f"it are {codec}; a topic holds one video."
            )
        yield as_bytes(message.data)
