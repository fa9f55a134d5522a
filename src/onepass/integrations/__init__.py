"""onepass inside other people's programs: evaluation harnesses."""
