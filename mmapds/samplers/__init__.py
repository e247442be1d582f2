"""Samplers for torch: how ranks share an epoch of an order, and batches under a budget."""
