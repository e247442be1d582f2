"""Text, compressed or not, into zstd that can be read from any record on: `mmapds.seekable()`, `mmapds seekable`."""
