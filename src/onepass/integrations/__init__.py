"""onepass inside other people's programs: evaluation harnesses and Ray."""
