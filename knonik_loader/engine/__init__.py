"""The one engine that turns plans into batches: storage, fetch, decode, slots, ordered queue, statistics."""
