"""Samples of LeRobot's shape: its keys, channel-first pictures, `*_is_pad` masks, one step without a time axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from knonik_loader.config import resolve_stream
from knonik_loader.engine.memory import BatchMemory
from knonik_loader.errors import ConfigError
from knonik_loader.khlp.index import DatasetIndex
from knonik_loader.khlp.types import StreamInfo
from knonik_loader.torch.need import torch
from knonik_loader.torch.shared_memory import empty_in
from knonik_loader.validation import nearest

__all__ = ["LerobotShape"]


_STATES = ("state", "qpos")
_CHANNELS = (1, 3, 4)
_POOLED = {getattr(torch, name): name for name in ("uint8", "float16", "float32", "float64")}
"""Types that streams are converted to while they are loaded."""
_FACTS = ("episode_index", "frame_index", "index", "timestamp", "task", "task_index")


class LerobotShape:
    """How a dataset's samples look there.

    Args:
        index: of the dataset.
        streams: of the dataset.
        options: of the dataset's maker.
        given: keys of a ``loader_cfg``.

    Raises:
        ConfigError: an option that can't be meant.
    """

    def __init__(
        self,
        index: DatasetIndex,
        streams: Sequence[StreamInfo],
        options: Mapping[str, Any],
        given: Mapping[str, Any],
    ) -> None:
        if given["chunk_len"] != 1:
            raise ConfigError(
                f"chunk_len={given['chunk_len']} has no meaning with keys='lerobot', where windows are offsets; give "
                "delta_timestamps, {'action': [0.0, 0.02, 0.04]} for example"
            )
        dtype = options.get("image_dtype", "float32")
        if dtype not in ("float32", "uint8"):
            raise ConfigError(f"image_dtype={dtype!r} is not 'float32' or 'uint8'")
        self._as_float = dtype == "float32"
        self.names: dict[str, str] = _names(streams, options.get("state_key"))
        """Batch key → LeRobot's."""
        if len(set(self.names.values())) < len(self.names):
            raise ConfigError(
                f"streams have one name in LeRobot's words: {', '.join(self.names.values())}; "
                "rename one of them when packing"
            )
        self._timed = {self._key_of(name, streams) for name in given.get("delta_timestamps") or {}}
        self._own = {*_FACTS, *self.names.values(), *(f"{name}_is_pad" for name in self.names.values())}
        self._t0 = index.episodes.t0
        self._first = np.cumsum(index.episodes.length) - index.episodes.length
        self._language = index.episodes.language
        self.tasks: dict[str, int] = {text: number for number, text in enumerate(dict.fromkeys(self._language))}
        """Instruction → ``task_index``, in the order of the first episodes that have them."""

    def loader_keys(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The keys of a ``loader_cfg`` with streams by their own names, and padding as LeRobot has it."""
        keys = {"pad_missing": True, **given}
        back = {name: key for key, name in self.names.items()}
        if given.get("delta_timestamps"):
            keys["delta_timestamps"] = {
                back.get(name, name): list(offsets) for name, offsets in given["delta_timestamps"].items()
            }
        if given.get("image_key") is not None:
            images = given["image_key"]
            images = [images] if isinstance(images, str) else images
            keys["image_key"] = [back.get(name, name) for name in images]
        return keys

    def convert(
        self, batch: Mapping[str, Any], rows: npt.NDArray[np.int64], memory: BatchMemory | None = None
    ) -> dict[str, Any]:
        """A batch of the loaders' → the same with LeRobot's keys; every tensor has B as its first axis.

        Args:
            batch: tensors by the loaders' keys.
            rows: (B,) episode rows.
            memory: for the pictures; None: fresh memory.
        """
        result: dict[str, Any] = {}
        for key in batch["_stream_names"]:
            if key not in self.names:
                result[key] = batch[key]  # an augmentation added it, and knows what it is for
                continue
            name, timed, value = self.names[key], key in self._timed, batch[key]
            if key.startswith("rgb_"):
                value = self._pictures(value, key, memory)
            elif key.startswith("depth_"):
                value = _depths(value, key)
            elif not timed and (value.ndim < 2 or value.shape[1] != 1):
                raise _odd(key, value, "(1, ...), as it came: it has no delta_timestamps, and its one step is taken")
            result[name] = value if timed else value[:, 0]
            mask = batch.get(f"{key}_valid_mask")
            if timed and mask is not None:
                result[f"{name}_is_pad"] = ~mask
        clash = [key for key in batch["_stream_names"] if key not in self.names and key in self._own]
        if clash:
            raise ConfigError(f"augment_fn returned a stream {clash[0]!r}, a name of LeRobot's; call it otherwise.")
        frames = batch["_frame_indices"]
        result["episode_index"] = torch.from_numpy(rows)
        result["frame_index"] = frames
        result["index"] = torch.from_numpy(self._first[rows]) + frames
        # From the episode's beginning, as there: float32 can't hold milliseconds of a time of day.
        result["timestamp"] = (batch["_timestamps"] - torch.from_numpy(self._t0[rows])).float()
        result["task"] = [self._language[row] for row in rows.tolist()]
        result["task_index"] = torch.tensor([self.tasks[text] for text in result["task"]])
        return result

    def _pictures(self, value: Any, key: str, memory: BatchMemory | None) -> Any:  # noqa: ANN401 - tensors
        """(B, T, H, W, 3) uint8 → (B, T, 3, H, W); what an augmentation made of other types stays of that type.

        It may have put the channels first already.
        """
        if value.ndim != 5:
            raise _odd(key, value, "(T, H, W, C) or (T, C, H, W)")
        first = value.shape[-1] not in _CHANNELS and value.shape[2] in _CHANNELS
        moved = value if first else value.permute(0, 1, 4, 2, 3)
        scaled = self._as_float and value.dtype == torch.uint8
        kind = "float32" if scaled else _POOLED.get(value.dtype)
        if kind is None:
            return moved.contiguous()  # an augmentation's
        out = empty_in(memory, key, moved.shape, kind)
        # Picture by picture: both passes over one find it in the processor's cache.
        for picture, place in zip(moved.flatten(0, 1), out.flatten(0, 1), strict=True):
            place.copy_(picture)
            if scaled:
                place.div_(255)
        return out

    def _key_of(self, name: str, streams: Sequence[StreamInfo]) -> str:
        for key, other in self.names.items():
            if other == name:
                return key
        if "." in name:
            raise ConfigError(
                f"delta_timestamps: the dataset has no {name!r}{nearest(name, self.names.values())}; it has "
                f"{', '.join(self.names.values())}"
            )
        return resolve_stream(name, streams, where="delta_timestamps")


def _depths(value: Any, key: str) -> Any:  # noqa: ANN401 - tensors
    """(B, T, H, W) → (B, T, 1, H, W); an augmentation may have done it."""
    if value.ndim == 5 and value.shape[2] == 1:
        return value
    if value.ndim != 4:
        raise _odd(key, value, "(T, H, W) or (T, 1, H, W)")
    return value.unsqueeze(2)


def _odd(key: str, value: Any, wanted: str) -> ConfigError:  # noqa: ANN401 - tensors
    return ConfigError(
        f"augment_fn made {key!r} {tuple(value.shape[1:])} in each sample; with keys='lerobot' it must be {wanted}. "
        "Give what has another shape a name of its own."
    )


def _names(streams: Sequence[StreamInfo], state_key: str | None) -> dict[str, str]:
    numeric = [stream.key for stream in streams if stream.kind == "numeric"]
    if state_key is not None:
        state: str | None = resolve_stream(state_key, streams, where="state_key", kind="numeric")
    else:
        state = next((name for name in _STATES if name in numeric), None)
    return {stream.key: _name(stream, state) for stream in streams}


def _name(stream: StreamInfo, state: str | None) -> str:
    if stream.kind == "rgb":
        return f"observation.images.{stream.name}"
    if stream.kind == "depth":
        return f"observation.depths.{stream.name}"
    if stream.key == state:
        return "observation.state"
    return stream.name if stream.name == "action" or "." in stream.name else f"observation.{stream.name}"
