"""What an ingest run is made of: lock, numbers, fingerprints, one episode's work, report and progress."""
