"""The KHLP format: layout, reader, writer, manifest and codecs. FORMAT.md beside this file is its specification."""
