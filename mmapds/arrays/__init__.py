"""Records of named arrays: their schema, their bytes, and the .mma file around them."""
