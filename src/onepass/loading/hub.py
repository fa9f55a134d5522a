"""A model's folder from the Hugging Face hub, through huggingface_hub and its cache: `hub_folder`.

Only configuration, tokenizer, templates and safetensors are ever fetched: no pickles, no code. Every failure becomes
one of our errors and says what the user can do. Choosing between sources is left to `source`, reading to `safetensors`.
"""

from pathlib import Path
from typing import Any

from onepass.errors import DownloadFailed, ModelError, ModelNotFound, UnsupportedModel
from onepass.loading.tensor_reader import Progress, silent

# model.safetensors.index.json says which of several safetensors files holds which tensor.
WANTED_FILES = (
    "config.json",
    "generation_config.json",
    "model.safetensors.index.json",
    "*.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.*",
    "additional_chat_templates/*.jinja",
    # How sentence-transformers reads the model: its modules, each with a folder such as 1_LogitScore.
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
    "[0-9]*_*/config.json",
)
ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")
# Other formats of the same weights, adapters, originals: the model is at the top. `*` matches slashes, too.
UNWANTED_FILES = ("*/*.safetensors",)
PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
LOG_IN = "log in with `hf auth login` (and accept its terms on the hub, if it has any)"


def hub_folder(
    name: str,
    *,
    revision: str | None = None,
    offline: bool = False,
    cache_dir: Path | None = None,
    endpoint: str | None = None,
    progress: Progress = silent,
    weights: bool = True,
    files: tuple[str, ...] = WANTED_FILES,
) -> Path:
    """The folder of `org/name`: `config.json`, weights and tokenizer (or other `files`) as they are at `revision`
    (default: main); without `weights`, the first of `files` is all that is fetched."""
    import huggingface_hub
    from huggingface_hub import errors

    try:
        folder = huggingface_hub.snapshot_download(
            name,
            revision=revision,
            cache_dir=cache_dir,
            endpoint=endpoint,
            local_files_only=offline,
            allow_patterns=list(files if weights else files[:1]),
            ignore_patterns=list(UNWANTED_FILES),
            tqdm_class=_progress_class(progress),
        )
    # errors.HTTPError is the HTTP library's own root: a connection that breaks while a file is on its way.
    except (OSError, errors.HTTPError, errors.HFValidationError) as error:
        raise _explain(error, name, revision) from error
    if weights and not list(Path(folder).glob("*.safetensors")):
        raise UnsupportedModel(_without_safetensors(name, revision, offline, endpoint))
    return Path(folder)


def _explain(error: Exception, name: str, revision: str | None) -> ModelError:
    """Our error for one of huggingface_hub's; the order matters, since gated is a kind of not found there."""
    from huggingface_hub import errors

    at = f"{name}@{revision}" if revision else name
    if isinstance(error, errors.RevisionNotFoundError):
        return ModelNotFound(f"the hub has {name}, but not its revision {revision!r}")
    if isinstance(error, errors.GatedRepoError):
        return DownloadFailed(f"{name} is gated: {LOG_IN}; the hub said: {_reason(error)}")
    if isinstance(error, errors.RepositoryNotFoundError):
        # The hub answers 401 both for a repository that does not exist and for a private one.
        return ModelNotFound(f"the hub has no repository {name!r} that you may read; if it is private, {LOG_IN}")
    if isinstance(error, errors.HfHubHTTPError) and error.response.status_code in (401, 403):
        return DownloadFailed(f"the hub refused to give {name}: {LOG_IN}; it said: {_reason(error)}")
    if isinstance(error, errors.HFValidationError):
        return ModelNotFound(f"{name!r} cannot be a name on the hub: {_reason(error)}")
    # Not in the cache either; the cause says why the hub was not asked or did not answer.
    cause = error.__cause__ if isinstance(error, errors.LocalEntryNotFoundError) else error
    if cause is None or isinstance(cause, errors.OfflineModeIsEnabled):
        return DownloadFailed(f"{at} is not (completely) in the cache, and offline mode forbids fetching it")
    return DownloadFailed(f"the hub did not give {at}: {type(cause).__name__}: {_reason(cause)}")


def _reason(error: BaseException | None) -> str:
    """The last line with anything in it: huggingface_hub puts the server's own words there."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else "no reason given"


def _without_safetensors(name: str, revision: str | None, offline: bool, endpoint: str | None) -> str:
    message = f"{name} has no safetensors weights; onepass reads only safetensors and GGUF, never pickled weights"
    if offline:
        return message
    from huggingface_hub import HfApi, errors

    try:
        files = HfApi(endpoint=endpoint).list_repo_files(name, revision=revision)
    except (OSError, errors.HTTPError):  # the folder came from the cache; what else there is stays unsaid
        return message
    gguf = [file for file in files if file.endswith(".gguf")]
    if gguf:
        return f"{message}; it has {gguf[0]}: download that file and give its path"
    pickled = [file for file in files if file.endswith(PICKLED)]
    return f"{message}; it has {', '.join(pickled[:4]) or 'no weights at all'}"


def _progress_class(progress: Progress) -> type[Any]:
    """A tqdm that draws nothing and reports bytes. snapshot_download adds up all files in bars counted in "B"; there
    may be several of those (network, disk), and the one that is furthest is the truth."""
    from tqdm import tqdm  # type: ignore[import-untyped, unused-ignore]

    byte_bars: list[Any] = []

    class Reporting(tqdm):  # type: ignore[misc, type-arg, unused-ignore]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            kwargs |= {"file": _Nowhere(), "disable": False}
            kwargs.pop("name", None)
            super().__init__(*args, **kwargs)
            if kwargs.get("unit") == "B":
                byte_bars.append(self)

        def update(self, n: float | None = 1) -> bool | None:
            drawn: bool | None = super().update(n)
            if self in byte_bars:
                done, total = max(int(bar.n) for bar in byte_bars), max(int(bar.total or 0) for bar in byte_bars)
                progress("download", min(done, total), total)
            return drawn

    return Reporting


class _Nowhere:
    """A file for tqdm to write to."""

    def write(self, text: str) -> int:
        return len(text)

    def flush(self) -> None:
        pass
