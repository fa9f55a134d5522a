"""Pallas kernels for TPUs: attention over a flat step and its pool of pages, and the writing of pages."""
