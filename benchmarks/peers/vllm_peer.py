"""vLLM's CPU build: all items in one call, one prompt each; its prefix cache lets them share the query's blocks.

A label is read as the log-probability of a chosen token at the one token that every prompt generates. The prefix cache is
emptied before every pass, so that nothing of an earlier pass is found in it.
"""

import math
import os
import platform
from typing import Any

from job import Ids, Job, Scores, serve

# Found by trial on two cores with AMX: blocks that share most of a query, steps that no forward of one token is left for.
BLOCK_TOKENS = 32
STEP_TOKENS = 4096
STEP_ITEMS = 256
CACHE_BYTES = 4 << 30


def environment_for(threads: int) -> dict[str, str]:
    """vLLM reads these when it is imported and when it starts its worker; its own choice leaves a core idle."""
    cores = sorted(os.sched_getaffinity(0))[:threads]
    return {
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
    }


class Vllm:
    serial = False
    notes = ""

    def __init__(self, name: str, job: Job) -> None:
        bound = environment_for(job.threads)
        os.environ.update(bound)
        import torch
        import vllm

        self.job = job
        chosen = {
            "block_size": BLOCK_TOKENS,
            "max_num_batched_tokens": STEP_TOKENS,
            "max_num_seqs": int(job.settings.get("batch_items", STEP_ITEMS)),
            "max_model_len": len(job.query) + max(map(len, job.items)) + 1,
            "kv_cache_memory_bytes": CACHE_BYTES,
            "enforce_eager": not job.settings.get("compile", True),
            **job.settings.get("engine", {}),
        }
        self.engine = vllm.LLM(
            str(job.weights), dtype=job.dtype, skip_tokenizer_init=True, enable_prefix_caching=True, **chosen
        )
        self.asked = vllm.SamplingParams(
            max_tokens=1, temperature=0.0, logprob_token_ids=list(job.labels), detokenize=False
        )
        self.versions = {"vllm": vllm.__version__, "torch": torch.__version__, "python": platform.python_version()}
        self.settings: dict[str, Any] = {"dtype": job.dtype, "bound_to": bound["VLLM_CPU_OMP_THREADS_BIND"], **chosen}

    def prepare(self, items: list[Ids]) -> list[dict[str, Ids]]:
        return [{"prompt_token_ids": self.job.query + item} for item in items]

    def reset(self) -> None:
        if not self.engine.reset_prefix_cache():
            raise RuntimeError("vLLM's prefix cache should be empty before every pass; vLLM did not empty it")

    def score(self, prepared: list[dict[str, Ids]]) -> Scores:
        answers = self.engine.generate(prepared, self.asked, use_tqdm=False)
        self._note_work(answers)
        return [[math.exp(answer.outputs[0].logprobs[0][label].logprob) for label in self.job.labels] for answer in answers]

    def _note_work(self, answers: list[Any]) -> None:
        """How many tokens this pass computed; a first prompt that finds anything is no cold query."""
        if answers[0].num_cached_tokens:
            raise RuntimeError(f"a pass should start cold; {answers[0].num_cached_tokens} tokens of the query were kept")
        self.settings["computed_tokens"] = sum(
            len(answer.prompt_token_ids) - answer.num_cached_tokens for answer in answers
        )


if __name__ == "__main__":
    serve(Vllm)
