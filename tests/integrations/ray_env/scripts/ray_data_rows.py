"""Ray Data over two actors: rows with their results, and which processes scored them."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import ray.data
from cluster import connected

from onepass.integrations.ray_data import ScoreRows, actor_pool


class WithProcess(ScoreRows):
    def __call__(self, batch: Any) -> Any:
        import pyarrow

        out = super().__call__(batch)
        return out.append_column("process", pyarrow.array([os.getpid()] * len(out)))


def main() -> None:
    task = json.load(sys.stdin)
    with connected():
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        context.wait_for_min_actors_s = 300  # or the first to be ready may score everything
        options = task["options"] | {"programs_dir": Path(task["options"]["programs_dir"])}
        pool = actor_pool(task["model"], actors=2, batch_rows=4, set=task["set"], options=options)
        rows = ray.data.from_items(task["rows"], override_num_blocks=8)
        scored = rows.map_batches(WithProcess, **pool).take_all()
    print(json.dumps(sorted_rows(scored)))


def sorted_rows(rows: list[dict[str, Any]]) -> dict[str, Any]:
    plain = [
        {name: value.tolist() if hasattr(value, "tolist") else value for name, value in row.items()} for row in rows
    ]
    return {"rows": sorted(plain, key=lambda row: row["id"])}


if __name__ == "__main__":
    main()
