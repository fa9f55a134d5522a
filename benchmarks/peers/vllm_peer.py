"""vLLM's CPU build: all items in one call, one prompt each; its prefix cache lets them share the query's blocks.

Labels are read as log-probabilities of chosen tokens at the one token that every prompt generates. The prefix cache is
emptied before every pass, so that nothing of an earlier pass is found in it.
"""

import math
import os
import platform
from typing import Any

from job import Ids, Job, Scores, serve

# Only full blocks are shared, and its CPU attention wants multiples of 32 tokens. One step takes all of `small`.
BLOCK_TOKENS = 32
STEP_TOKENS = 4096
STEP_ITEMS = 256
CACHE_BYTES = 4 << 30


def environment_for(threads: int) -> dict[str, str]:
    """Read as PyTorch and vLLM are imported. In one process all items wait before the first step, which takes them all;
    vLLM's own engine process starts on the first few, and by itself leaves a core to its scheduler."""
    return {
        "OMP_NUM_THREADS": str(threads),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
    }


class Vllm:
    serial = False
    branches = False  # it tells log-probabilities of a prompt's tokens only where it does not use its prefix cache
    notes = ""

    def __init__(self, name: str, job: Job) -> None:
        os.environ.update(environment_for(job.threads))
        import torch
        import vllm

        self.job = job
        chosen = {
            "block_size": BLOCK_TOKENS,
            "max_num_batched_tokens": STEP_TOKENS,
            "max_num_seqs": int(job.settings.get("batch_items", STEP_ITEMS)),
            "max_model_len": len(job.query) + max(map(len, job.items)) + 1,
            "max_logprobs": max(20, len(job.labels)),
            "kv_cache_memory_bytes": CACHE_BYTES,
            "enforce_eager": not job.settings.get("compile", True),
            **job.settings.get("engine", {}),
        }
        self.engine = vllm.LLM(
            str(job.weights), dtype=job.dtype, skip_tokenizer_init=True, enable_prefix_caching=True, **chosen
        )
        self.vllm = vllm
        self.take(job)
        self.versions = {"vllm": vllm.__version__, "torch": torch.__version__, "python": platform.python_version()}
        self.settings: dict[str, Any] = {"dtype": job.dtype, "threads": torch.get_num_threads(), **chosen}

    def take(self, job: Job) -> None:
        self.job = job
        self.asked = self.vllm.SamplingParams(
            max_tokens=1, temperature=0.0, logprob_token_ids=list(job.labels), detokenize=False
        )

    def prepare_branches(self, items: list[Ids], continuations: list[Ids]) -> Any:
        raise NotImplementedError

    def score_branches(self, prepared: Any) -> Scores:
        raise NotImplementedError

    def prepare(self, items: list[Ids]) -> list[dict[str, Ids]]:
        return [{"prompt_token_ids": self.job.query + item} for item in items]

    def reset(self) -> None:
        if not self.engine.reset_prefix_cache():
            raise RuntimeError("vLLM's prefix cache should be empty before every pass; vLLM did not empty it")

    def score(self, prepared: list[dict[str, Ids]]) -> Scores:
        answers = self.engine.generate(prepared, self.asked, use_tqdm=False)
        self._note_work(answers)
        found = [answer.outputs[0].logprobs[0] for answer in answers]
        return [[math.exp(logprobs[label].logprob) for label in self.job.labels] for logprobs in found]

    def _note_work(self, answers: list[Any]) -> None:
        """How many tokens this pass computed; a first prompt that finds anything is no cold query."""
        kept = [answer.num_cached_tokens for answer in answers]
        if kept[0]:
            raise RuntimeError(
                f"a pass should start with an empty prefix cache; {kept[0]} tokens of the query were there"
            )
        self.settings["computed_tokens"] = sum(len(answer.prompt_token_ids) for answer in answers) - sum(kept)


if __name__ == "__main__":
    serve(Vllm)
