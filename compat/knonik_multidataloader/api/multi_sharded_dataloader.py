"""The loader of a weighted mix of manifests."""

from knonik_loader.multi import MultiShardedDataLoader

__all__ = ["MultiShardedDataLoader"]
