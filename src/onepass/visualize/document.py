"""The run of a mode as JSON: its figures, its trace, and the tiles of its first steps, ready to be drawn.

The view Modes of the server's page draws from this; `onepass visualize --json` prints it.
"""

from typing import Any

from onepass.visualize.drawing import tile_rows
from onepass.visualize.mode_run import ModeRun

DRAWN_STEPS = 4  # of a mode


def mode_document(run: ModeRun) -> dict[str, Any]:
    return {
        "mode": run.name,
        "reason": run.reason,
        "attention": run.attention,
        "steps": len(run.steps),
        "prompt_tokens": run.prompt_tokens,
        "computed_tokens": run.computed_tokens,
        "tokens_computed_twice": run.repeated_tokens,
        "tile": {"tokens": run.steps[0].visited.block, "page": run.steps[0].visited.page},
        "tiles": run.tiles,
        "tiles_needed": run.visible_tiles,
        "pairs": run.pairs,
        "pairs_seen": run.visible_pairs,
        "end_ms": run.end_ms,
        "total_ms": run.total_ms,
        "times_ms": list(run.times_ms),
        "drawn": [
            {"rung": shape.tokens, "tiles": step.visited.count, **tile_rows(step)}
            for step, shape in zip(run.steps[:DRAWN_STEPS], run.shapes, strict=False)
        ],
        "trace": run.trace.to_dict(),
    }
