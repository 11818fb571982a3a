"""Packed datasets in PyTorch's own terms: datasets for its DataLoader, samplers, splits, statistics.

The engine behind them is that of the loaders; here PyTorch's workers do the prefetching. Needs PyTorch (extra
``torch``).
"""

from knonik_loader.dataset_stats import normalization_stats, split_episodes
from knonik_loader.normalize import Normalize, Unnormalize
from knonik_loader.torch.dataset import KhlpDataset
from knonik_loader.torch.iterable import KhlpIterableDataset
from knonik_loader.torch.sampling import EpisodeDistributedSampler, worker_init_fn

__all__ = [
    "EpisodeDistributedSampler",
    "KhlpDataset",
    "KhlpIterableDataset",
    "Normalize",
    "Unnormalize",
    "normalization_stats",
    "split_episodes",
    "worker_init_fn",
]
