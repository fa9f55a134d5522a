"""Which models there are to choose from: bundled, on this machine from the hub, and known shapes: `catalogue()`; and a
public model for each task: `SUGGESTIONS`.

Nothing is fetched and no weights are read. Printing the list is left to the command line.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from onepass.errors import UnsupportedModel
from onepass.loading.bundled import BUNDLED, Bundled, cached_path, default_cache_dir
from onepass.loading.source import RANDOM
from onepass.models.hf_config import from_hf
from onepass.models.known import KNOWN


@dataclass(frozen=True)
class CatalogueEntry:
    """One model. `size_bytes` is what it takes on disk and None while it is not there; `note` is a word of warning."""

    name: str
    kind: Literal["bundled", "hub", "random"]
    parameters: int | None
    cached: bool
    size_bytes: int | None
    licence: str | None
    note: str | None = None

    @property
    def use(self) -> str | None:
        """The command; None where onepass cannot compute the model. Random shapes have no tokenizer: ids only."""
        if self.note:
            return None
        return f"onepass score {self.name}" + (" --requests IDS.jsonl" if self.kind == "random" else "")

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "use": self.use}


@dataclass(frozen=True)
class Suggestion:
    """A public model that a task can begin with; `how` is what to give it."""

    task: str
    name: str
    parameters: int
    licence: str
    how: str


SUGGESTIONS = (
    Suggestion("classify, judge", "Qwen/Qwen3-4B-Instruct-2507", 4_022_468_096, "Apache-2.0", "labels of one token"),
    Suggestion("rerank", "Qwen/Qwen3-Reranker-0.6B", 595_776_512, "Apache-2.0", "query and documents"),
    Suggestion("multiple choice", "Qwen/Qwen3-8B-Base", 8_190_735_360, "Apache-2.0", "continuations"),
    Suggestion("guard", "Qwen/Qwen3Guard-Gen-0.6B", 596_049_920, "Apache-2.0", 'labels " Safe" " Unsafe"'),
)


def catalogue(cache_dir: Path | None = None) -> list[CatalogueEntry]:
    """Everything known by name. `cache_dir` holds bundled and hub models alike; None is the user's caches."""
    return [
        *(_bundled(bundled, cache_dir or default_cache_dir()) for bundled in BUNDLED.values()),
        *_hub_cache(cache_dir),
        *(CatalogueEntry(RANDOM + n, "random", c.num_parameters, False, None, None) for n, c in KNOWN.items()),
    ]


def _bundled(bundled: Bundled, cache_dir: Path) -> CatalogueEntry:
    path = cached_path(bundled, cache_dir)
    whole = path.is_file() and path.stat().st_size == bundled.gguf_bytes
    return CatalogueEntry(
        name=bundled.name,
        kind="bundled",
        parameters=KNOWN[bundled.name].num_parameters,
        cached=whole,
        size_bytes=bundled.gguf_bytes if whole else None,
        licence=bundled.licence,
    )


def _hub_cache(cache_dir: Path | None) -> Iterable[CatalogueEntry]:
    """Models in huggingface_hub's cache, in the order of their names."""
    from huggingface_hub import CacheNotFound, scan_cache_dir

    try:
        cache = scan_cache_dir(cache_dir)
    except (CacheNotFound, ValueError):  # no cache yet, or a file in its place
        return
    for repository in sorted(cache.repos, key=lambda repository: repository.repo_id):
        if repository.repo_type != "model" or not repository.revisions:
            continue
        newest = max(repository.revisions, key=lambda revision: revision.last_modified)
        parameters, note = _describe(newest.snapshot_path)
        yield CatalogueEntry(repository.repo_id, "hub", parameters, True, repository.size_on_disk, None, note)


def _describe(folder: Path) -> tuple[int | None, str | None]:
    """The number of parameters, and why onepass cannot use the model, if it cannot."""
    if not list(folder.glob("*.safetensors")):
        return None, "no safetensors in the cache"
    try:
        return from_hf(json.loads((folder / "config.json").read_text(encoding="utf-8"))).num_parameters, None
    except UnsupportedModel as error:
        return None, str(error).split(";")[0]
    except (OSError, ValueError):
        return None, "no readable config.json"
