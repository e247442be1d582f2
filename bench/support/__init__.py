"""What several benchmarks need: data made once, ways to time and to measure memory, and the tables of results."""
