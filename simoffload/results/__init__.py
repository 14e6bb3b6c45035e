"""Results of a simulation: timelines, metrics, capacity, provenance."""
