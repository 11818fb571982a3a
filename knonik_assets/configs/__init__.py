"""Validated models of every file that a user writes: ingest config, presets, dataset config, dataset card."""
