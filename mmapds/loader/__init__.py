"""A DataLoader: from a sampler's indices to the batches that a trainer waits for."""
