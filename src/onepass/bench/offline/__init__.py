"""Benchmarks of the library in this process, and of peers."""
