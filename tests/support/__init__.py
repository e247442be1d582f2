"""What several test files need: makers of files, the oracle, and ways to run commands."""
