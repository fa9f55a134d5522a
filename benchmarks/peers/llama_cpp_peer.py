"""llama.cpp: the query decoded once, its cells shared with one sequence per item, all items in one batch.

Calls the C functions that xllamacpp's library exports, as its Python part has no call for sequence copy or for logits.
The layout of `llama_context_params` belongs to the pinned version and is checked against that version's defaults.
"""

import ctypes
import platform
from ctypes import POINTER, Structure, c_bool, c_char_p, c_float, c_int8, c_int32, c_uint32, c_void_p
from importlib.metadata import version
from typing import Any

import numpy as np
import xllamacpp
from job import Ids, Job, Scores, groups, serve

# llama.cpp's own limit is 256 sequences; 0 holds the query.
BATCH_ITEMS = 64
MICRO_BATCH = 512


class ContextParams(Structure):
    _fields_ = (
        ("n_ctx", c_uint32),
        ("n_batch", c_uint32),
        ("n_ubatch", c_uint32),
        ("n_seq_max", c_uint32),
        ("unused_1", c_uint32 * 3),
        ("n_threads", c_int32),
        ("n_threads_batch", c_int32),
        ("unused_2", c_int32 * 25),
        ("switches", c_bool * 5),
        ("kv_unified", c_bool),
        ("unused_3", c_int8 * 114),
    )


DEFAULTS = {"n_ctx": 512, "n_batch": 2048, "n_ubatch": 512, "n_seq_max": 1, "n_threads": 4, "n_threads_batch": 4}


class ModelParams(Structure):
    """Passed on as it came; larger than the real one, which is harmless for a structure passed in memory."""

    _fields_ = (("bytes", c_int8 * 256),)


class Batch(Structure):
    _fields_ = (
        ("n_tokens", c_int32),
        ("token", POINTER(c_int32)),
        ("embd", POINTER(c_float)),
        ("pos", POINTER(c_int32)),
        ("n_seq_id", POINTER(c_int32)),
        ("seq_id", POINTER(POINTER(c_int32))),
        ("logits", POINTER(c_int8)),
    )


def library() -> Any:
    """The loaded library with the signatures of the functions used here."""
    lib = ctypes.CDLL(xllamacpp.xllamacpp.__file__)
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "llama_model_default_params": (ModelParams, []),
        "llama_context_default_params": (ContextParams, []),
        "llama_model_load_from_file": (c_void_p, [c_char_p, ModelParams]),
        "llama_init_from_model": (c_void_p, [c_void_p, ContextParams]),
        "llama_get_memory": (c_void_p, [c_void_p]),
        "llama_memory_clear": (None, [c_void_p, c_bool]),
        "llama_memory_seq_cp": (None, [c_void_p, c_int32, c_int32, c_int32, c_int32]),
        "llama_memory_seq_rm": (c_bool, [c_void_p, c_int32, c_int32, c_int32]),
        "llama_decode": (c_int32, [c_void_p, Batch]),
        "llama_get_logits_ith": (POINTER(c_float), [c_void_p, c_int32]),
        "llama_model_get_vocab": (c_void_p, [c_void_p]),
        "llama_vocab_n_tokens": (c_int32, [c_void_p]),
        "llama_log_set": (None, [c_void_p, c_void_p]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib


class LlamaCpp:
    serial = False
    notes = (
        "the GGUF file's quantised weights times activations quantised to 8 bits, whatever the job's dtype: scores "
        "differ slightly; the prebuilt library uses AVX2 at most, a build for this machine may be faster"
    )

    def __init__(self, name: str, job: Job) -> None:
        if job.gguf is None:
            raise ValueError("llama.cpp reads GGUF files; the job should have one under `gguf`")
        self.job, self.lib = job, library()
        self.size = int(job.settings.get("batch_items", BATCH_ITEMS))
        self.micro_batch = int(job.settings.get("micro_batch", MICRO_BATCH))
        self.silence = ctypes.CFUNCTYPE(None, c_int32, c_char_p, c_void_p)(lambda level, text, data: None)
        self.lib.llama_log_set(ctypes.cast(self.silence, c_void_p), None)
        self.model = self._model()
        self.vocabulary = self.lib.llama_vocab_n_tokens(self.lib.llama_model_get_vocab(self.model))
        self.context = self._context()
        self.memory = self.lib.llama_get_memory(self.context)
        self.versions = {"xllamacpp": version("xllamacpp"), "python": platform.python_version()}
        self.settings = {
            "weights": job.gguf.name,
            "threads": job.threads,
            "batch_items": self.size,
            "micro_batch": self.micro_batch,
            "kv": "unified, float16; query cells shared by sequence copy",
            "system": xllamacpp.get_system_info().strip(" |\n"),
        }

    def _model(self) -> int:
        model = self.lib.llama_model_load_from_file(str(self.job.gguf).encode(), self.lib.llama_model_default_params())
        if not model:
            raise RuntimeError(f"llama.cpp could not load {self.job.gguf}")
        return int(model)

    def _context(self) -> int:
        params = self.lib.llama_context_default_params()
        found = {name: getattr(params, name) for name in DEFAULTS}
        if found != DEFAULTS or params.kv_unified:
            raise RuntimeError(f"the context parameters of another llama.cpp: wanted defaults {DEFAULTS}, got {found}")
        longest = max(map(len, self.job.items))
        params.n_ctx = len(self.job.query) + self.size * longest + self.micro_batch
        params.n_batch = params.n_ctx
        params.n_ubatch = self.micro_batch
        params.n_seq_max = self.size + 1
        params.n_threads = params.n_threads_batch = self.job.threads
        params.kv_unified = True
        context = self.lib.llama_init_from_model(self.model, params)
        if not context:
            raise RuntimeError(f"llama.cpp made no context of {params.n_ctx} tokens, {params.n_seq_max} sequences")
        return int(context)

    def prepare(self, items: list[Ids]) -> list[list[Ids]]:
        return [[items[number] for number in group] for group in groups(range(len(items)), self.size)]

    def reset(self) -> None:
        self.lib.llama_memory_clear(self.memory, False)

    def score(self, prepared: list[list[Ids]]) -> Scores:
        self._decode([(token, place, 0, False) for place, token in enumerate(self.job.query)])
        return [row for group in prepared for row in self._score_group(group)]

    def _score_group(self, group: list[Ids]) -> Scores:
        start = len(self.job.query)
        tokens, rows = [], []
        for sequence, item in enumerate(group, start=1):
            self.lib.llama_memory_seq_cp(self.memory, 0, sequence, -1, -1)
            last = len(item) - 1
            tokens += [(token, start + place, sequence, place == last) for place, token in enumerate(item)]
            rows.append(len(tokens) - 1)
        self._decode(tokens)
        scores = [self._probabilities(row) for row in rows]
        for sequence in range(1, len(group) + 1):
            self.lib.llama_memory_seq_rm(self.memory, sequence, -1, -1)
        return scores

    def _decode(self, tokens: list[tuple[int, int, int, bool]]) -> None:
        count = len(tokens)
        ids, places, sequences, wanted = zip(*tokens, strict=True)
        own = [(c_int32 * 1)(sequence) for sequence in sequences]
        pointers = (POINTER(c_int32) * count)(*(ctypes.cast(one, POINTER(c_int32)) for one in own))
        batch = Batch(count, (c_int32 * count)(*ids), None, (c_int32 * count)(*places), (c_int32 * count)(*[1] * count))
        batch.seq_id, batch.logits = pointers, (c_int8 * count)(*wanted)
        code = self.lib.llama_decode(self.context, batch)
        if code != 0:
            raise RuntimeError(f"llama_decode answered {code} to a batch of {count} tokens")

    def _probabilities(self, row: int) -> list[float]:
        logits = np.ctypeslib.as_array(self.lib.llama_get_logits_ith(self.context, row), (self.vocabulary,))
        top = logits.max()
        chosen = np.exp(logits[self.job.labels] - top) / np.exp(logits - top).sum(dtype=np.float64)
        return [float(value) for value in chosen]


if __name__ == "__main__":
    serve(LlamaCpp)
