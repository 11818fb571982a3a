"""Readers of raw datasets: one module a format, all behind `knonik_assets.sources.base.Source`."""
