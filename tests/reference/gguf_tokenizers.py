"""Tokenises lines with independent readers of GGUF files: transformers' own loader and llama.cpp (from xllamacpp).

Runs in the reference environment, not in onepass's; knows nothing of onepass. The files in `values` come from

    PYTHONPATH=tests python -m loading.gguf.files FOLDER     (in onepass's environment)
    cd tests/reference
    python gguf_tokenizers.py FOLDER/lines.json values/gguf_tokenizer.json.gz SMOLLM2.gguf
    python gguf_tokenizers.py FOLDER/sample.json values/gguf_splitting.json.gz FOLDER/*.gguf --only llama.cpp

The lines are a JSON list of strings; the result has versions, a checksum of the lines and, for each model and reader,
a list of ids per line, special-token strings parsed and no BOS added.
"""

import argparse
import gzip
import hashlib
import http.client
import json
from importlib.metadata import version
from pathlib import Path
from urllib.parse import urlsplit


def transformers_ids(model: Path, lines: list[str]) -> list[list[int]]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(model.parent), gguf_file=model.name)
    return [tokenizer.encode(line, add_special_tokens=False) for line in lines]


def llama_cpp_ids(model: Path, lines: list[str]) -> list[list[int]]:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(model)
    params.n_ctx = 64
    params.n_parallel = 1
    params.warmup = False
    server = xllamacpp.Server(params)
    address = urlsplit(server.listening_address)
    connection = http.client.HTTPConnection(address.hostname or "127.0.0.1", address.port, timeout=60)
    return [_tokenize(connection, line) for line in lines]


def _tokenize(connection: http.client.HTTPConnection, line: str) -> list[int]:
    body = json.dumps({"content": line, "add_special": False, "parse_special": True})
    connection.request("POST", "/tokenize", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    text = answer.read()
    if answer.status != 200:
        raise RuntimeError(f"/tokenize answered {answer.status} to {line!r}: {text[:200]!r}")
    return list(json.loads(text)["tokens"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lines", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--only", choices=["transformers", "llama.cpp"])
    asked = parser.parse_args()
    lines = json.loads(asked.lines.read_text("utf-8"))
    readers = {"transformers": transformers_ids, "llama.cpp": llama_cpp_ids}
    chosen = {name: read for name, read in readers.items() if asked.only in (None, name)}
    result = {
        "versions": {name: version(name) for name in ("transformers", "tokenizers", "xllamacpp")},
        "corpus_sha256": hashlib.sha256(json.dumps(lines).encode()).hexdigest(),
        "models": {m.stem: {name: read(m, lines) for name, read in chosen.items()} for m in asked.models},
    }
    text = json.dumps(result, separators=(",", ":")).encode()
    asked.out.write_bytes(gzip.compress(text, mtime=0) if asked.out.suffix == ".gz" else text)


if __name__ == "__main__":
    main()
