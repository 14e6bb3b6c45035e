"""What a simulation answers: timelines, metrics, capacity, provenance."""
