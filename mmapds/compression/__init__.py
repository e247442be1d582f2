"""Decode compressed files. No module here knows what a record is."""
