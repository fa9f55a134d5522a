"""OpenVINO: GenAI turns the GGUF file into an OpenVINO model; the runtime computes the query's state once, then items.

GenAI's own `generate` gives no probabilities of chosen tokens, so its model is run directly: the state is repeated over
a batch of items through `beam_idx`, and the head is moved behind a gather of the read-out rows.
"""

import contextlib
import platform
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import openvino_genai
from job import Ids, Job, Scores, groups, serve
from openvino import opset13 as ops
from openvino.passes import ConstantFolding, Manager

BATCH_ITEMS = 16
ON_ARM = platform.machine() == "aarch64"


def read_gguf(gguf: Path) -> openvino.Model:
    """GenAI writes what it made of a GGUF file beside the file; so the file is linked into a folder of our own. It
    compiles what it has written, which fails on ARM64."""
    folder = Path(tempfile.mkdtemp())
    try:
        link = folder / gguf.name
        link.symlink_to(gguf.resolve())
        with contextlib.suppress(RuntimeError) if ON_ARM else contextlib.nullcontext():
            openvino_genai.LLMPipeline(link, "CPU", enable_save_ov_model=True)
        core = openvino.Core()
        core.set_property({"ENABLE_MMAP": False})
        return core.read_model(folder / "openvino_model.xml")
    finally:
        shutil.rmtree(folder)


def widen_weights(model: openvino.Model) -> None:
    """To float32, once: the CPU plugin has no products with 4-bit weights on ARM64."""
    passes = Manager()
    passes.register_pass(ConstantFolding())
    passes.run_passes(model)


def gather_before_head(model: openvino.Model) -> None:
    """A new input `rows` picks rows of [batch * length, hidden] before the product with the head."""
    (result,) = model.get_results()
    head = result.input_value(0).get_node()
    hidden = head.input_value(0)
    size = hidden.get_partial_shape()[2].get_length()
    rows = ops.parameter([-1], np.int64, name="rows")
    rows.output(0).set_names({"rows"})
    flat = ops.reshape(hidden, ops.constant(np.array([-1, size], np.int64)), False)
    head.input(0).replace_source_output(ops.gather(flat, rows, ops.constant(np.int64(0))).output(0))
    model.add_parameters([rows])
    model.validate_nodes_and_infer_types()


class OpenVino:
    serial = False

    def __init__(self, name: str, job: Job) -> None:
        if job.gguf is None:
            raise ValueError("OpenVINO GenAI reads GGUF files; the job should have one under `gguf`")
        self.job = job
        self.notes = "the GGUF file's weights, " + (
            "opened to the job's dtype by the CPU plugin inside each product"
            if job.quantize is None
            else "times activations that the CPU plugin quantises to 8 bits; keys and values are in the job's dtype"
        )
        self.size = int(job.settings.get("batch_items", BATCH_ITEMS))
        model = read_gguf(job.gguf)
        if ON_ARM and job.quantize is None:
            widen_weights(model)
            self.notes = "the GGUF file's weights, widened to float32 at load"
        gather_before_head(model)
        properties = {
            "INFERENCE_PRECISION_HINT": "f32" if job.dtype == "float32" else "bf16",
            "INFERENCE_NUM_THREADS": job.threads,
            "NUM_STREAMS": 1,
            "PERFORMANCE_HINT": "LATENCY",
            "KV_CACHE_PRECISION": "f32" if job.dtype == "float32" else "bf16",
            # 0: activations are not quantised, which would be another precision class; 32 is the plugin's own.
            "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0 if job.quantize is None else 32,
            **job.settings.get("properties", {}),
        }
        self.request = openvino.Core().compile_model(model, "CPU", properties).create_infer_request()
        self.versions = {"openvino": openvino.__version__, "openvino_genai": openvino_genai.__version__}
        self.versions["python"] = platform.python_version()
        self.settings = {"weights": job.gguf.name, "batch_items": self.size, **properties}

    def prepare(self, items: list[Ids]) -> list[tuple[list[int], list[Ids]]]:
        order = sorted(range(len(items)), key=lambda number: len(items[number]))
        return [(group, [items[number] for number in group]) for group in groups(order, self.size)]

    def reset(self) -> None:
        self.request.reset_state()

    def score(self, prepared: list[tuple[list[int], list[Ids]]]) -> Scores:
        scores: dict[int, list[float]] = {}
        states = self._prefill()
        for group, items in prepared:
            for state, value in zip(self.request.query_state(), states, strict=True):
                state.state = value
            scores |= dict(zip(group, self._items(items), strict=True))
        return [scores[number] for number in sorted(scores)]

    def _prefill(self) -> list[openvino.Tensor]:
        """The query's state, kept apart, as the items' forward adds to it."""
        query = np.array([self.job.query])
        self._infer(query, np.arange(query.shape[1])[None], np.zeros(1, np.int32), [0], query.shape[1])
        return [openvino.Tensor(np.array(state.state.data)) for state in self.request.query_state()]

    def _items(self, items: list[Ids]) -> Scores:
        start, longest = len(self.job.query), max(map(len, items))
        ids = np.array([item + [0] * (longest - len(item)) for item in items])
        positions = np.tile(np.arange(start, start + longest), (len(items), 1))
        rows = [number * longest + len(item) - 1 for number, item in enumerate(items)]
        logits = self._infer(ids, positions, np.zeros(len(items), np.int32), rows, start + longest)
        top = logits.max(axis=-1, keepdims=True)
        chosen = np.exp(logits[:, self.job.labels] - top) / np.exp(logits - top).sum(axis=-1, keepdims=True)
        found: Scores = chosen.tolist()
        return found

    def _infer(self, ids: Any, positions: Any, beams: Any, rows: list[int], seen: int) -> Any:
        mask = np.ones((ids.shape[0], seen), np.int64)
        named = {"input_ids": ids, "attention_mask": mask, "position_ids": positions, "beam_idx": beams}
        self.request.infer({**named, "rows": np.array(rows, np.int64)}, share_inputs=True)
        return self.request.get_output_tensor(0).data


if __name__ == "__main__":
    serve(OpenVino)
