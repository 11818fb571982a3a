"""The public name of Knonik; everything is defined in ``knonik_assets`` and ``knonik_loader``."""
