"""What lies between a compressed file and its text; nothing here knows what a record is."""
