"""The command for people: `mmapds index`, `info`, `verify`, `convert`, `show` and `head`."""
