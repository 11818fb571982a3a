"""What a user gets: one dictionary a batch, numpy or torch, with everything that says where each sample comes from."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from knonik_loader.engine.dataset import Source
from knonik_loader.engine.work import BatchWork
from knonik_loader.errors import ConfigError
from knonik_loader.khlp.types import StreamInfo

__all__ = ["Assembler", "import_torch"]

Framework = Literal["numpy", "torch"]


def import_torch() -> Any:  # noqa: ANN401 - the module
    """The torch module.

    Raises:
        ConfigError: it isn't installed.
    """
    try:
        import torch
    except ImportError as error:
        raise ConfigError(
            "framework='torch' needs PyTorch, which is not installed; run pip install 'knonik[torch]', or use "
            "framework='numpy'."
        ) from error
    return torch


class Assembler:
    """Turns finished work into batches, and into samples for augmentation.

    Args:
        sources: the datasets of the loader; the first one's name is the batch's where there is only one.
        streams: of the batch, in order.
        framework: of its arrays.
        masks: streams whose `<key>_valid_mask` is given.
        name: of the loader, what ``_dataset_name`` says.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        streams: Sequence[StreamInfo],
        framework: Framework,
        masks: Collection[str],
        name: str,
    ) -> None:
        self._sources = sources
        self._streams = streams
        self._masks = [stream.key for stream in streams if stream.key in masks]
        self._name = name
        self._torch = import_torch() if framework == "torch" else None
        self._language = any(source.dataset.has_language for source in sources)
        self._stream_names = [stream.key for stream in streams]

    def batch(self, work: BatchWork) -> dict[str, Any]:
        """The whole batch; arrays are those of the work, or tensors that share their memory."""
        plan = work.plan
        batch: dict[str, Any] = {key: self._array(array) for key, array in work.arrays.items()}
        for key in self._masks:
            batch[f"{key}_valid_mask"] = self._array(plan.windows[key].valid)
        return batch | self._metadata(work)

    def samples(self, work: BatchWork) -> list[dict[str, Any]]:
        """One dictionary a sample: views of the batch's arrays under ``streams``, masks and metadata beside."""
        whole = self.batch(work)
        plan = work.plan
        names = self._stream_names
        return [
            {
                "streams": {key: whole[key][at] for key in names},
                "valid_masks": {key: whole[f"{key}_valid_mask"][at] for key in self._masks},
                "rng_seed": int(plan.sample_seeds[at]),
                "dataset_name": whole["_sample_dataset_names"][at],
                "episode_id": whole["_episode_ids"][at],
                "frame_index": int(plan.anchors[at]),
                "timestamp": float(work.timestamps[at]),
                "hlp_id": int(work.places[0, at]),
                "shard_idx": int(work.places[1, at]),
                "chunk_start": int(work.places[2, at]),
                "language": whole["_language"][at] if self._language else "",
            }
            for at in range(len(plan))
        ]

    def collate(self, work: BatchWork, samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """A batch of augmented samples.

        Raises:
            ConfigError: samples differ in streams, shape or type, so that they don't stack; something is no array; a
                stream is called like what the batch says of itself.
        """
        batch = self._columns([sample["streams"] for sample in samples])
        streams = list(batch)
        # Whoever returns the streams alone has not said that frames which aren't there now are.
        before = {key: self._array(work.plan.windows[key].valid) for key in self._masks}
        masks = [
            sample.get("valid_masks", {key: mask[at] for key, mask in before.items()})
            for at, sample in enumerate(samples)
        ]
        rest = self._columns(masks, "_valid_mask") | self._metadata(work) | {"_stream_names": streams}
        for key in streams:
            if key in rest:
                raise ConfigError(
                    f"augment_fn returned a stream {key!r}, a name of the batch's own; call it otherwise."
                )
        return batch | rest

    def _columns(self, samples: Sequence[Mapping[str, Any]], suffix: str = "") -> dict[str, Any]:
        """What is called alike in all samples, stacked."""
        for at, sample in enumerate(samples):
            extra = [key for key in sample if key not in samples[0]]
            if extra:
                raise ConfigError(
                    f"augment_fn gave sample {at} {extra[0] + suffix!r}, which sample 0 does not have; return the same "
                    "streams for every sample."
                )
        return {
            f"{key}{suffix}": self._stack(f"{key}{suffix}", [sample.get(key) for sample in samples])
            for key in samples[0]
        }

    def _stack(self, key: str, values: list[Any]) -> Any:  # noqa: ANN401 - array or tensor
        for at, value in enumerate(values):
            if value is None:
                raise ConfigError(f"augment_fn gave sample {at} no {key!r}; return the same streams for every sample.")
        stacked, other = None, None
        try:
            other = next((at for at, value in enumerate(values) if _kind(value) != _kind(values[0])), None)
            if other is None and self._torch is not None:
                # A batch is data: it takes no part in what made it, and could not be sent from a worker if it did.
                return self._torch.stack([self._torch.as_tensor(_plain(value)).detach() for value in values])
            if other is None:
                stacked = np.stack(values)
        except (TypeError, ValueError, RuntimeError) as error:  # whichever of them numpy and torch choose
            raise _not_stackable(key, values[0], str(error)) from error
        if other is not None:
            one, another = _facts(values[0]), _facts(values[other])
            raise ConfigError(
                f"augment_fn: {key!r} is {one} in sample 0 and {another} in sample {other}; "
                "samples of one batch must have equal shapes and types."
            )
        if stacked is not None and stacked.dtype.hasobject:
            raise _not_stackable(key, values[0], "numpy would keep objects")
        return stacked

    def _metadata(self, work: BatchWork) -> dict[str, Any]:
        plan = work.plan
        names = [self._sources[number].name for number in plan.dataset.tolist()]
        rows = list(zip(plan.dataset.tolist(), plan.episodes.tolist(), strict=True))
        tables = [source.dataset.index.episodes for source in self._sources]
        metadata = {
            "_dataset_name": self._name,
            "_dataset_names": list(dict.fromkeys(names)),
            "_sample_dataset_names": names,
            "_hlp_ids": self._array(work.places[0]),
            "_shard_idxs": self._array(work.places[1]),
            "_chunk_starts": self._array(work.places[2]),
            "_episode_ids": [tables[number].episode_id[row] for number, row in rows],
            "_frame_indices": self._array(plan.anchors),
            "_timestamps": self._array(work.timestamps),
            "_stream_names": list(self._stream_names),
        }
        if self._language:
            metadata["_language"] = [tables[number].language[row] for number, row in rows]
        return metadata

    def _array(self, array: npt.NDArray[Any]) -> Any:  # noqa: ANN401 - array or tensor
        if self._torch is None:
            return array
        # Pinned memory came as a tensor: only that one keeps the storage by which PyTorch tracks copies to a device.
        return array.base if isinstance(array.base, self._torch.Tensor) else self._torch.from_numpy(array)


def _kind(value: Any) -> tuple[Any, tuple[int, ...]]:  # noqa: ANN401 - whatever a user's function gave
    return getattr(value, "dtype", None), tuple(np.shape(value))


def _facts(value: Any) -> str:  # noqa: ANN401 - whatever a user's function gave
    return f"{getattr(value, 'dtype', type(value).__name__)} {tuple(np.shape(value))}"


def _not_stackable(key: str, value: Any, why: str) -> ConfigError:  # noqa: ANN401 - whatever a user's function gave
    what = f"{type(value).__name__} of {value.dtype}" if hasattr(value, "dtype") else type(value).__name__
    return ConfigError(
        f"augment_fn: {key!r} is a {what}, which makes no batch ({why.rstrip('.')}); return arrays, tensors or numbers."
    )


def _plain(value: Any) -> Any:  # noqa: ANN401 - whatever a user's function gave
    """An array as torch takes it: in the machine's byte order, forwards along every axis, and its own to write."""
    if not isinstance(value, np.ndarray):
        return value
    native = value.dtype.newbyteorder("=")
    if value.dtype == native and value.flags.writeable and min(value.strides, default=0) >= 0:
        return value
    return value.astype(native, order="C")
