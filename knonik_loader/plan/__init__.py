"""Pure functions from a dataset's index and a config to the order of an epoch and the reads that it needs."""
