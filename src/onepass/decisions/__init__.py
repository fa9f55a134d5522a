"""Typed decisions: several questions about one state, answered with probabilities in one pass of the model."""
