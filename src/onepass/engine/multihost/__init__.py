"""A model that spans processes: process 0 leads, the others run what it says."""
