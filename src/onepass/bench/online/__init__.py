"""Benchmarks of a server over HTTP."""
