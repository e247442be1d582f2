"""Fuzz targets of the core, their corpus, and `make fuzz`."""
