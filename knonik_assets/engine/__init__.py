"""A function over many items: inline, in worker processes or on Ray."""

from knonik_assets.engine.mapping import Engine, EngineName, Outcome, check_call, map_tasks
from knonik_assets.engine.work import default_workers

__all__ = ["Engine", "EngineName", "Outcome", "check_call", "default_workers", "map_tasks"]
