"""From an index to samples, and from samples to batches."""
