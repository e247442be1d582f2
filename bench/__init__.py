"""The benchmarks, and what they share in `bench.support`."""
