"""The paths of the server and what each does: operations by group, and pages that ask nothing of the engine."""
