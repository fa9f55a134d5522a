"""The hub source against a stand-in: a local HTTP server with the few routes that huggingface_hub really asks for."""

import hashlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from onepass.errors import DownloadFailed, ModelNotFound, UnsupportedModel
from onepass.loading.hub import hub_folder

FIRST, SECOND = "1" * 40, "2" * 40
MODEL_FILES = {
    "config.json": b'{"model_type": "llama"}',
    "generation_config.json": b'{"from": "generation_config"}',
    "model-00001-of-00002.safetensors": b"first" * 1000,
    "model-00002-of-00002.safetensors": b"second" * 1000,
    "model.safetensors.index.json": b'{"from": "model-index"}',
    "tokenizer.json": b'{"from": "tokenizer"}',
    "tokenizer_config.json": b'{"from": "tokenizer_config"}',
    "chat_template.jinja": b"{{ messages }}",
    "special_tokens_map.json": b"{}",
    "additional_chat_templates/rerank.jinja": b"rerank",
    "modules.json": b"[]",
    "sentence_bert_config.json": b'{"from": "sentence_bert_config"}',
    "config_sentence_transformers.json": b'{"from": "sentence_transformers"}',
    "1_LogitScore/config.json": b'{"true_token_id": 1}',
}
UNWANTED_FILES = {
    "README.md": b"# read me",
    "pytorch_model.bin": b"pickle",
    "modeling_custom.py": b"raise SystemExit",
    "original/model.safetensors": b"another format",
    "original/config.json": b"another format",
    "onnx/tokenizer.json": b"another format",
    "1_LogitScore/model.safetensors": b"weights of a module",
}


@dataclass
class StandIn:
    """Repositories by name and revision (a branch or a commit) -> (commit, files); `refusals` answer by name."""

    repositories: dict[str, dict[str, tuple[str, dict[str, bytes]]]] = field(default_factory=dict)
    refusals: dict[str, tuple[int, dict[str, str]]] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    endpoint: str = ""


class Handler(BaseHTTPRequestHandler):
    stand_in: StandIn

    def do_HEAD(self) -> None:
        self.answer(with_body=False)

    def do_GET(self) -> None:
        self.answer(with_body=True)

    def answer(self, with_body: bool) -> None:
        path = unquote(urlsplit(self.path).path)
        self.stand_in.requests.append(f"{self.command} {path}")
        status, headers, body = self.route(path.strip("/").split("/"))
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def route(self, parts: list[str]) -> tuple[int, dict[str, str], bytes]:
        api = parts[:2] == ["api", "models"]
        name, kind, *rest = ("/".join(parts[2:4]), *parts[4:]) if api else ("/".join(parts[:2]), *parts[2:])
        if name in self.stand_in.refusals:
            status, headers = self.stand_in.refusals[name]
            return status, headers, b"{}"
        if name not in self.stand_in.repositories:
            return 404, {"X-Error-Code": "RepoNotFound"}, b"{}"
        revisions = self.stand_in.repositories[name]
        if rest[0] not in revisions:
            return 404, {"X-Error-Code": "RevisionNotFound"}, b"{}"
        commit, files = revisions[rest[0]]
        if kind == "revision":
            info = {"id": name, "sha": commit, "siblings": [{"rfilename": file} for file in files]}
            return 200, {}, json.dumps(info).encode()
        if kind == "tree":
            tree = [{"type": "file", "path": f, "size": len(b), "oid": etag(b)} for f, b in files.items()]
            return 200, {}, json.dumps(tree).encode()
        body = files["/".join(rest[1:])]
        return 200, {"ETag": f'"{etag(body)}"', "X-Repo-Commit": commit}, body

    def log_message(self, format: str, *args: object) -> None:
        pass


def etag(body: bytes) -> str:
    return hashlib.sha1(body).hexdigest()


@pytest.fixture
def hub() -> Iterator[StandIn]:
    stand_in = StandIn()
    handler = type("Bound", (Handler,), {"stand_in": stand_in})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    stand_in.endpoint = f"http://127.0.0.1:{server.server_port}"
    older = {**MODEL_FILES, "config.json": b'{"model_type": "qwen3"}'}
    stand_in.repositories["acme/ranker"] = {
        "main": (SECOND, {**MODEL_FILES, **UNWANTED_FILES}),
        SECOND: (SECOND, {**MODEL_FILES, **UNWANTED_FILES}),
        "v1": (FIRST, older),
        FIRST: (FIRST, older),
    }
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield stand_in
    server.shutdown()
    thread.join()
    server.server_close()


def files_of(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def test_a_model_is_fetched_without_pickles_code_or_other_formats(hub: StandIn, tmp_path: Path) -> None:
    folder = hub_folder("acme/ranker", cache_dir=tmp_path, endpoint=hub.endpoint)
    assert files_of(folder) == MODEL_FILES
    fetched = {request.rsplit("/", 1)[1] for request in hub.requests if "/resolve/" in request}
    assert not fetched & {"README.md", "pytorch_model.bin", "modeling_custom.py"}
    assert not any("original/" in request for request in hub.requests)


def test_without_weights_only_the_configuration_is_fetched(hub: StandIn, tmp_path: Path) -> None:
    folder = hub_folder("acme/ranker", cache_dir=tmp_path, endpoint=hub.endpoint, weights=False)
    assert {path.name for path in folder.iterdir()} == {"config.json"}
    assert not any("safetensors" in request for request in hub.requests)
    whole = hub_folder("acme/ranker", cache_dir=tmp_path, endpoint=hub.endpoint)
    assert files_of(whole) == MODEL_FILES, "and the rest when it is wanted"


def test_a_revision_gives_the_files_of_that_revision(hub: StandIn, tmp_path: Path) -> None:
    for revision in ("v1", FIRST):
        folder = hub_folder("acme/ranker", revision=revision, cache_dir=tmp_path, endpoint=hub.endpoint)
        assert (folder.name, (folder / "config.json").read_text()) == (FIRST, '{"model_type": "qwen3"}')
    assert hub_folder("acme/ranker", cache_dir=tmp_path, endpoint=hub.endpoint).name == SECOND


def test_progress_counts_the_bytes_of_all_files(hub: StandIn, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    hub_folder("acme/ranker", cache_dir=tmp_path, endpoint=hub.endpoint, progress=lambda *step: seen.append(step))
    size = sum(len(body) for body in MODEL_FILES.values())
    _, done, total = seen[-1]
    assert done == total
    assert 0.9 * size <= done <= size  # huggingface_hub's threads add to the total without a lock
    assert all(stage == "download" and done <= total for stage, done, total in seen)


def test_what_was_fetched_once_is_there_offline_without_any_request(hub: StandIn, tmp_path: Path) -> None:
    online = hub_folder("acme/ranker", cache_dir=tmp_path, endpoint=hub.endpoint)
    hub.requests.clear()
    assert hub_folder("acme/ranker", offline=True, cache_dir=tmp_path, endpoint=hub.endpoint) == online
    assert hub.requests == []


def test_offline_and_not_cached_says_so(hub: StandIn, tmp_path: Path) -> None:
    with pytest.raises(DownloadFailed, match=r"acme/ranker is not .*in the cache, and offline mode"):
        hub_folder("acme/ranker", offline=True, cache_dir=tmp_path, endpoint=hub.endpoint)
    assert hub.requests == []


def test_a_half_fetched_model_is_not_taken_for_a_whole_one(hub: StandIn, tmp_path: Path) -> None:
    folder = hub_folder("acme/ranker", cache_dir=tmp_path, endpoint=hub.endpoint)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(DownloadFailed, match="offline mode"):
        hub_folder("acme/ranker", offline=True, cache_dir=tmp_path, endpoint=hub.endpoint)
    again = hub_folder("acme/ranker", cache_dir=tmp_path, endpoint=hub.endpoint)
    assert (again / "model-00002-of-00002.safetensors").read_bytes() == b"second" * 1000


def test_a_missing_repository_is_named(hub: StandIn, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="no repository 'acme/nothing'"):
        hub_folder("acme/nothing", cache_dir=tmp_path, endpoint=hub.endpoint)


def test_a_missing_revision_is_named(hub: StandIn, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="has acme/ranker, but not its revision 'v9'"):
        hub_folder("acme/ranker", revision="v9", cache_dir=tmp_path, endpoint=hub.endpoint)


def test_a_name_the_hub_cannot_have_is_not_found(hub: StandIn, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="cannot be a name"):
        hub_folder("acme/ranker--", cache_dir=tmp_path, endpoint=hub.endpoint)


@pytest.mark.parametrize("status", [401, 403])
def test_a_gated_model_says_to_log_in(hub: StandIn, tmp_path: Path, status: int) -> None:
    hub.refusals["acme/gated"] = (status, {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted."})
    with pytest.raises(DownloadFailed, match=r"acme/gated is gated: log in with `hf auth login`.*Access is restricted"):
        hub_folder("acme/gated", cache_dir=tmp_path, endpoint=hub.endpoint)


def test_wrong_credentials_say_to_log_in(hub: StandIn, tmp_path: Path) -> None:
    hub.refusals["acme/mine"] = (401, {"X-Error-Message": "Invalid credentials in Authorization header"})
    with pytest.raises(DownloadFailed, match="refused to give acme/mine: log in"):
        hub_folder("acme/mine", cache_dir=tmp_path, endpoint=hub.endpoint)


def test_a_401_may_mean_missing_or_private_and_says_both(hub: StandIn, tmp_path: Path) -> None:
    hub.refusals["acme/hidden"] = (401, {"X-Error-Code": "RepoNotFound"})
    with pytest.raises(ModelNotFound, match=r"no repository 'acme/hidden' that you may read; if it is private, log in"):
        hub_folder("acme/hidden", cache_dir=tmp_path, endpoint=hub.endpoint)


def test_a_broken_hub_is_a_failed_download(hub: StandIn, tmp_path: Path) -> None:
    hub.refusals["acme/ranker"] = (418, {"X-Error-Message": "short and stout"})
    with pytest.raises(DownloadFailed, match="short and stout"):
        hub_folder("acme/ranker", cache_dir=tmp_path, endpoint=hub.endpoint)


def test_a_server_that_is_down_is_a_failed_download(tmp_path: Path) -> None:
    with pytest.raises(DownloadFailed, match="the hub did not give acme/ranker: ConnectError"):
        hub_folder("acme/ranker", cache_dir=tmp_path, endpoint="http://127.0.0.1:9")


def test_a_repository_of_pickles_says_what_is_read(hub: StandIn, tmp_path: Path) -> None:
    files = {"config.json": b"{}", "pytorch_model.bin": b"pickle"}
    hub.repositories["acme/old"] = {"main": (FIRST, files), FIRST: (FIRST, files)}
    with pytest.raises(UnsupportedModel, match=r"only safetensors and GGUF.*it has pytorch_model\.bin"):
        hub_folder("acme/old", cache_dir=tmp_path, endpoint=hub.endpoint)
    assert not any("GET" in request and "pytorch_model.bin" in request for request in hub.requests)


def test_a_repository_of_gguf_says_to_give_the_file(hub: StandIn, tmp_path: Path) -> None:
    files = {"config.json": b"{}", "small.Q4_0.gguf": b"GGUF"}
    hub.repositories["acme/gguf"] = {"main": (FIRST, files), FIRST: (FIRST, files)}
    with pytest.raises(UnsupportedModel, match=r"it has small\.Q4_0\.gguf: download that file and give its path"):
        hub_folder("acme/gguf", cache_dir=tmp_path, endpoint=hub.endpoint)
