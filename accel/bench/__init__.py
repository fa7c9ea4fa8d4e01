"""Benchmarks: each runs real work through the library's interfaces and writes one `accel.records` record a run."""
