"""How a model is read as a reranker: its prompt, its read-out, its words."""
