"""`onepass evaluate`: its options, the systems that it compares, and the command."""
