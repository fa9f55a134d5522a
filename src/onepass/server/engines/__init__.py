"""Engine processes and the front's side of them: start, restart, admission, the protocol between."""
