"""`onepass bench`."""
