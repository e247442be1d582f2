"""Orders dealt out to ranks, step by step, and batches under a budget; made for torch."""
