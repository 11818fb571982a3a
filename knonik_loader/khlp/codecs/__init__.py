"""The codecs of KHLP: how the frames of one stream of one shard become records and come back.

A codec is named by `StreamInfo.codec`. Modules are imported when their codec is made, so that a reader of plain
pictures never loads a video library.
"""

from __future__ import annotations

from importlib import import_module

from knonik_loader.errors import UnsupportedFeatureError
from knonik_loader.khlp.types import Codec, Dependency, StreamInfo

__all__ = ["CODECS", "dependency_of", "make_codec"]

CODECS: dict[str, tuple[str, Dependency]] = {
    "numeric": ("numeric:NumericCodec", "none"),
    "depth": ("depth:DepthCodec", "none"),
    "kimg": ("kimg:KimgCodec", "none"),
    "kdlt": ("kdlt:KdltCodec", "key"),
    "shdr": ("shdr:ShdrCodec", "chain"),
}
"""Name → where the class is, and what its records need besides themselves."""


def dependency_of(codec: str) -> Dependency:
    """What records of a codec need besides themselves.

    Raises:
        UnsupportedFeatureError: this version does not have the codec.
    """
    return _entry(codec)[1]


def make_codec(info: StreamInfo) -> Codec:
    """A codec for one stream; cheap, for use by one thread at a time.

    Raises:
        UnsupportedFeatureError: this version does not have the codec.
        ConfigError: a parameter is out of its range.
        FormatError: the stream's shape does not suit the codec.
    """
    module, name = _entry(info.codec)[0].split(":")
    codec: Codec = getattr(import_module(f"{__name__}.{module}"), name)(info)
    return codec


def _entry(codec: str) -> tuple[str, Dependency]:
    try:
        return CODECS[codec]
    except KeyError:
        raise UnsupportedFeatureError(
            f"codec {codec!r} is not one of {', '.join(CODECS)}; upgrade knonik to read it"
        ) from None
