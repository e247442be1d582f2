"""What trainers of others need to be exact, one file for each of them."""
