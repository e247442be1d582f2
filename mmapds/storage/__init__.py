"""Files: sources, files of sections, numbers on disk; locks and threads. No module here knows what a record is."""
