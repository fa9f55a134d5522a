"""LoRA adapters in PEFT's format, merged into a model's weights when they are read."""
