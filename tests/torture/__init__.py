"""What `make torture` runs. Each module has `run(seconds, seed)`; see tests.support.torture."""
