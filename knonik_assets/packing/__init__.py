"""From ingested episodes to KHLP: plan, transcode, publish."""
