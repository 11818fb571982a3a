"""The episode directory: its writer, its reader, and one module a kind of stream."""
