"""The models of `onepass validate --matrix`: shapes with random weights, and one real model.

Random weights prove that shapes, head counts and biases are computed right; layers are all alike, so two stand for all
on a machine where the whole model would not fit or would take an hour.
"""

from onepass.limits import usable_memory

RANDOM_SHAPES = ("qwen3-0.6b", "qwen3-1.7b", "qwen3-4b", "qwen2.5-1.5b", "qwen2.5-3b")
REAL_MODEL = "smollm2-135m"
WHOLE_MODEL_BYTES = 64 << 30
FEW_LAYERS = 2


def default_layers() -> int | None:
    """Two on machines with less than 64 GiB; None, for all, on larger ones."""
    return FEW_LAYERS if usable_memory() < WHOLE_MODEL_BYTES else None


def matrix_models(layers: int | None) -> list[str]:
    reduced = "" if layers is None else f"?layers={layers}"
    return [*(f"random:{shape}{reduced}" for shape in RANDOM_SHAPES), REAL_MODEL]
