"""The loader of one manifest."""

from knonik_loader.sharded import ShardedDataLoader

__all__ = ["ShardedDataLoader"]
