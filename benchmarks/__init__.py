"""Benchmarks: each as a ratio to the matrix products that cannot be avoided, measured in the same run."""
