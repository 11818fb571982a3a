"""PyTorch, or one clear error where it isn't installed."""

from __future__ import annotations

from knonik_loader.engine.batch import import_torch

torch = import_torch()

from torch.utils.data import Dataset, IterableDataset, Sampler, get_worker_info  # noqa: E402 - the check comes first

__all__ = ["Dataset", "IterableDataset", "Sampler", "get_worker_info", "torch"]
