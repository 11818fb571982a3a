"""The loaders under their public name; defined in ``knonik_loader``."""
