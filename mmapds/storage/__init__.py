"""Files: sources, files of sections, numbers on disk; locks and threads. Nothing here knows what a record is."""
