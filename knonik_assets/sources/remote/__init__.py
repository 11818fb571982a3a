"""Raw datasets in an object store: listed there, staged into scratch space, read by the readers of local files."""
