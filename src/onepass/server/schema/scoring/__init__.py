"""Our own scoring dialect: the request, its answer and trace, and the run in every mode."""
