"""Stores that others serve, each in a server of its own; `make test-doors` runs them."""
