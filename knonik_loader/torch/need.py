"""PyTorch, or one clear error where it isn't installed."""

from __future__ import annotations

from knonik_loader.engine.batch import import_torch

torch = import_torch()

from torch.utils.data import Dataset, IterableDataset, Sampler, get_worker_info  # noqa: E402 - the check comes first
from torch.utils.data._utils.collate import collate, default_collate_fn_map  # noqa: E402 - PyTorch's place to extend it

__all__ = [
    "Dataset",
    "IterableDataset",
    "Sampler",
    "collate",
    "default_collate_fn_map",
    "get_worker_info",
    "torch",
]
