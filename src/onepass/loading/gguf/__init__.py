"""GGUF files: metadata, tensors, tokenizer."""
