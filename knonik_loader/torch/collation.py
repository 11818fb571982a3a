"""Samples that know the batch they were made in, so that collating them again copies nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from knonik_loader.torch.need import collate, default_collate_fn_map
from knonik_loader.torch.shared_memory import SharedBatch

__all__ = ["Sample", "split_batch"]

_OF_BATCHES = {"_dataset_name", "_dataset_names", "_stream_names"}


class Sample(dict[str, Any]):
    """One sample: a dictionary of views of its batch."""

    __slots__ = ("at", "columns", "made")

    def __init__(self, columns: Mapping[str, Any], made: dict[str, Any], at: int) -> None:
        super().__init__(made)
        self.columns = columns
        """Of the whole batch."""
        self.made = made
        """What the sample held when it was made."""
        self.at = at

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy, or what another process gets, is a dictionary without the batch."""
        return (dict, (dict(self),))

    def stands_at(self, columns: Mapping[str, Any], at: int) -> bool:
        """Whether this is sample ``at`` of that batch, with nothing exchanged, added or taken away since."""
        same = self.columns is columns and self.at == at and len(self) == len(self.made)
        return same and all(self.get(key) is value for key, value in self.made.items())


def split_batch(batch: Mapping[str, Any], size: int) -> list[dict[str, Any]]:
    """Samples of a batch: views of its tensors; numbers of its metadata as PyTorch's collation wants them."""
    columns = {key: value for key, value in batch.items() if key not in _OF_BATCHES}
    if isinstance(batch, SharedBatch):
        columns = SharedBatch(columns, batch.pool)
    values = {
        key: value.tolist() if key.startswith("_") and not isinstance(value, list) else value
        for key, value in columns.items()
    }
    return [Sample(columns, {key: value[at] for key, value in values.items()}, at) for at in range(size)]


def _collate(samples: Sequence[Sample], *, collate_fn_map: Any = None) -> Any:  # noqa: ANN401 - PyTorch's types
    """A whole batch in its order is there already; anything else is stacked as usual."""
    columns = samples[0].columns
    size = len(next(iter(columns.values())))
    if len(samples) == size and all(sample.stands_at(columns, at) for at, sample in enumerate(samples)):
        return columns.copy() if isinstance(columns, SharedBatch) else dict(columns)
    return collate([dict(sample) for sample in samples], collate_fn_map=collate_fn_map)


default_collate_fn_map[Sample] = _collate
