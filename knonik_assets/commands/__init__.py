"""The commands of the command line, a module a subject; ``knonik_assets.cli`` puts them together."""
