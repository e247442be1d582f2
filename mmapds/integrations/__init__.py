"""What trainers and loaders of others need to be exact, one file for each of them."""
