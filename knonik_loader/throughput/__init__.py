"""How fast a configured loader is on this machine, what limits it, and what to change: ``knonik bench``."""
