"""Read packed robot datasets: the KHLP format and the loaders. Imports neither Dagster nor ``knonik_assets``."""
