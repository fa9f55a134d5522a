"""Quantised safetensors checkpoints (FP8, GPTQ, AWQ, compressed-tensors), dequantised when they are read."""
