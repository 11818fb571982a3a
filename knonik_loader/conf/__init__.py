"""Configuration groups for Hydra: ``knonik: shdr | kdelta | kimg``, at the search path ``pkg://knonik_loader.conf``."""
