"""`onepass visualize`: one workload in every mode, the tiles that each computes and its steps on a time axis."""
