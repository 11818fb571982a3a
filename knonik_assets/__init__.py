"""From raw recordings to packed datasets: sources, episodes, packing, quality, and the Dagster definitions."""
