"""From sources to an index. `python -m mmapds.index` is the command line."""
