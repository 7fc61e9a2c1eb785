"""Benchmarks: each module has `measure(args) -> Report`."""
