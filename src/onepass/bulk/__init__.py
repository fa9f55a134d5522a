"""`onepass run`: files of any length scored row by row, in order, and resumed where they were stopped."""
