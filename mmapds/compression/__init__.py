"""What lies between a compressed file and its text: the codec, the frames of zstd, seek tables. Nothing here knows what
a record is."""
