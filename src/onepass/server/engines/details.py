"""What an engine tells about itself when it is ready, as JSON, and the front's reading of it.

The front has no model of its own: tokenizer, limits and templates come from the engine that loaded them. No JAX here.
"""

import platform
import time
from dataclasses import asdict
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from onepass.decisions.calibration import calibration_from
from onepass.loading.chat.template import ChatTemplates
from onepass.loading.rerankers.readouts import ClassHead
from onepass.loading.rerankers.templates import ranker_from_dict, ranker_to_dict
from onepass.loading.tokenizer import TextTokenizer
from onepass.server.engines.service import Served
from onepass.version import VERSION

if TYPE_CHECKING:
    from onepass.scorer import Scorer


def details_of(scorer: "Scorer") -> dict[str, Any]:
    """For the `ready` frame."""
    from onepass.evidence.provenance import array_bytes, hardware  # here, for it brings JAX; the front does without it

    model, config = scorer.model, scorer.engine.config
    device = scorer.engine.device
    return {
        "model": model.name,
        "tokenizer": model.tokenizer.to_json() if model.tokenizer else None,
        "vocab_size": model.config.vocab_size,
        "max_position": model.config.max_position,
        "chat": {"sources": dict(model.chat.sources), "special_tokens": dict(model.chat.special_tokens)},
        "class_head": None if model.class_head is None else asdict(model.class_head),
        "calibration": scorer.decider.calibration and scorer.decider.calibration.to_dict(),
        "created": int(time.time()),
        "details": {
            "onepass": VERSION,
            "ranker": ranker_to_dict(model.ranker),
            "model": {
                "name": model.name,
                "licence": model.licence,
                "quantization": model.stored_quantization,
                "adapter": None if model.adapter is None else _plain(asdict(model.adapter)),
                "config": _plain(asdict(model.config)),
            },
            "engine": _plain(asdict(config)),
            "device": _plain(asdict(device)),
            "parallel": _plain(asdict(scorer.arrangement)),
            "programs": [str(program) for program in scorer.engine.runner.builder.programs()],
            "attention": {name: problem or "available" for name, problem in scorer.kernels.problems.items()},
            "backends": scorer.kernels.report(scorer.engines[0].runner.builder.network.config, scorer.weights.layers),
            "hardware": _plain(hardware()),
            "dtype": str(scorer.weights.embed.dtype),
            "memory": {
                "weights_bytes": array_bytes(scorer.weights),
                "contexts_bytes": scorer.engine.contexts.budget,
            },
            "versions": {"python": platform.python_version(), "jax": version("jax"), "numpy": version("numpy")},
        },
    }


def served_from(ready: dict[str, Any]) -> Served:
    return Served(
        model=ready["model"],
        tokenizer=TextTokenizer.from_json(ready["tokenizer"]) if ready["tokenizer"] else None,
        vocab_size=ready["vocab_size"],
        max_position=ready["max_position"],
        ranker=ranker_from_dict(ready["details"]["ranker"]),
        created=ready["created"],
        details=ready["details"],
        chat=ChatTemplates(**ready["chat"]),
        calibration=ready["calibration"] and calibration_from(ready["calibration"], "the engine's calibration"),
        class_head=_class_head(ready["class_head"]),
    )


def _class_head(ready: dict[str, Any] | None) -> ClassHead | None:
    return None if ready is None else ClassHead(tuple(ready["labels"]), ready["activation"], ready["problem_type"])


def _plain(value: Any) -> Any:
    """Only what JSON knows; anything else by its name."""
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)
