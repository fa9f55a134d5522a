"""From the name a user typed to where the model is: `resolve("Qwen/Qwen3-0.6B@main", options) -> Source`.

    random:qwen3-0.6b?layers=2&seed=1    a known shape with random weights, optionally with fewer layers
    smollm2-135m                         a bundled model (a folder of that name is written ./smollm2-135m)
    path/to/folder, path/to/file.gguf    what is on this machine
    org/name, org/name@revision          a repository of the Hugging Face hub

Fetching is `bundled` and `hub`; opening what was found is `model`.
"""

import dataclasses
import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from onepass.errors import BadCheckpoint, ConfigError, ModelNotFound, UnsupportedModel
from onepass.loading.bundled import BUNDLED, bundled_path
from onepass.loading.hub import ADAPTER_FILES, hub_folder
from onepass.loading.tensor_reader import Progress, silent
from onepass.models.config import ModelConfig
from onepass.models.known import KNOWN, known_config

RANDOM = "random:"
GGUF_PART = re.compile(r"(?P<name>.+)-\d{5}-of-\d{5}")
HUB_NAME = re.compile(r"(?P<name>[\w.-]+/[\w.-]+)(?:@(?P<revision>\S+))?")


@dataclass(frozen=True)
class SourceOptions:
    """How a model may be had. `cache_dir` None is the user's cache; `endpoint` None is the hub itself; without
    `weights` only the configuration is fetched from it."""

    revision: str | None = None
    offline: bool = False
    cache_dir: Path | None = None
    endpoint: str | None = None
    progress: Progress = silent
    weights: bool = True
    adapter: str | None = None  # a PEFT folder or a name on the hub, merged into the weights


@dataclass(frozen=True)
class Source:
    """Where a model is: a folder or a GGUF file at `path`, or a shape (`config`) with weights drawn from `seed`."""

    kind: Literal["random", "folder", "gguf"]
    name: str
    path: Path | None = None
    config: ModelConfig | None = None
    seed: int = 0


def resolve(name: str, options: SourceOptions) -> Source:
    """Finds the model, fetching it where that is needed and allowed."""
    hub_name = HUB_NAME.fullmatch(name)
    path = Path(name).expanduser()
    on_hub = hub_name and name not in BUNDLED and not path.exists() and not _is_path(name)
    if options.revision is not None and not on_hub:
        raise ConfigError(f"a revision is for names on the hub (org/name); the model is {name!r}")
    if name.startswith(RANDOM):
        return _random(name)
    if name in BUNDLED:
        found = bundled_path(name, cache_dir=options.cache_dir, offline=options.offline, progress=options.progress)
        return Source("gguf", name, path=found)
    if name and path.exists():
        return _local(path)
    if hub_name and on_hub:
        return _hub(hub_name, options)
    raise ModelNotFound(_not_found(name))


def _random(name: str) -> Source:
    """`random:SHAPE?layers=N&seed=N`"""
    shape, _, query = name.removeprefix(RANDOM).partition("?")
    if shape not in KNOWN:
        raise ModelNotFound(f"no shape is known as {shape!r}; {_suggestion(shape, KNOWN)}known: {', '.join(KNOWN)}")
    config, seed = known_config(shape), 0
    for option in query.split("&") if query else ():
        key, _, value = option.partition("=")
        if key not in ("layers", "seed") or not value.isascii() or not value.isdigit():
            raise ConfigError(f"{name!r} takes ?layers=N and ?seed=N, joined by &; got {option!r}")
        if key == "seed":
            seed = int(value)
        elif 1 <= int(value) <= config.num_layers:
            config = dataclasses.replace(config, num_layers=int(value))
        else:
            raise ConfigError(f"{shape} has {known_config(shape).num_layers} layers; got layers={value}")
    return Source("random", name, config=config, seed=seed)


def _local(path: Path) -> Source:
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise UnsupportedModel(f"{path} is a file, and the only model files are *.gguf; or give a folder")
        part = GGUF_PART.fullmatch(path.stem)
        return Source("gguf", part["name"] if part else path.stem, path=path)
    if not (path / "config.json").is_file():
        if (path / ADAPTER_FILES[0]).is_file():
            raise UnsupportedModel(f"{path} is an adapter: give its base model as MODEL, and --adapter {path}")
        inside = sorted(file.name for file in path.glob("*.gguf"))
        hint = f"; it holds {inside[0]}: give {path / inside[0]}" if inside else ""
        raise BadCheckpoint(f"the folder {path} must hold config.json, tokenizer.json and safetensors{hint}")
    return Source("folder", path.resolve().name, path=path)


def _hub(match: re.Match[str], options: SourceOptions) -> Source:
    name, revision = match["name"], match["revision"] or options.revision
    if match["revision"] and options.revision not in (None, match["revision"]):
        raise ConfigError(f"two revisions for {name}: {match['revision']!r} in its name and {options.revision!r}")
    folder = hub_folder(
        name,
        revision=revision,
        offline=options.offline,
        cache_dir=options.cache_dir,
        endpoint=options.endpoint,
        progress=options.progress,
        weights=options.weights,
    )
    return Source("folder", match[0], path=folder)


def adapter_name(name: str, folder: Path) -> str:
    """What an adapter is called: its folder, or its name on the hub."""
    return folder.resolve().name if Path(name).expanduser().exists() else name


def adapter_folder(name: str, options: SourceOptions) -> Path:
    """The folder of an adapter, fetched where that is needed and allowed. The options' revision is the model's."""
    path = Path(name).expanduser()
    if name and path.exists():
        if not (path / ADAPTER_FILES[0]).is_file():
            raise BadCheckpoint(f"the adapter {path} must be a folder with {' and '.join(ADAPTER_FILES)}")
        return path
    match = HUB_NAME.fullmatch(name)
    if match is None or _is_path(name):
        raise ModelNotFound(f"no adapter {name!r}: it is no folder and no name on the hub (org/name)")
    return hub_folder(
        match["name"],
        revision=match["revision"],
        offline=options.offline,
        cache_dir=options.cache_dir,
        endpoint=options.endpoint,
        progress=options.progress,
        files=ADAPTER_FILES,
    )


def _is_path(name: str) -> bool:
    """Meant as a path, whether or not it exists."""
    return name.startswith((".", "/", "~")) or name.lower().endswith(".gguf")


def _not_found(name: str) -> str:
    if _is_path(name) or Path(name).is_absolute():
        return f"there is no file or folder {name!r}"
    names = [*BUNDLED, *(RANDOM + shape for shape in KNOWN)]
    return (
        f"no model is called {name!r}: it is no bundled model ({', '.join(BUNDLED)}), no folder or .gguf file, "
        f"no name on the hub (org/name) and no random shape (random:NAME)"
        f"; {_suggestion(name, names)}`onepass models` lists what is known"
    )


def _suggestion(name: str, names: Iterable[str]) -> str:
    """`did you mean a or b? `, or nothing."""
    close = difflib.get_close_matches(name.lower(), list(names), n=3, cutoff=0.5)
    return f"did you mean {' or '.join(close)}? " if close else ""
