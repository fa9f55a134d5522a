"""PyTorch transformers with FlexAttention: query and all items as one row under a block mask, every layer compiled.

The strongest PyTorch arrangement known on an H200. The other arrangements are `transformers_peer`.
"""

import torch
from job import Ids, Job, serve
from torch import Tensor
from torch.nn.attention import flex_attention
from torch.nn.attention.flex_attention import BlockMask, create_block_mask
from transformers_peer import Batch, Placement, Torch

# FlexAttention's own block; a row that is a multiple of it has no ragged last block.
BLOCK = 128
CONTEXT, PADDING = 0, -1


class PackedFlex(Placement):
    notes = "the block mask depends on lengths alone and is made once, outside the timed passes"

    def prepare(self, items: list[Ids]) -> list[Batch]:
        query, device = self.torch.job.query, self.torch.device
        tokens, positions, segments = list(query), list(range(len(query))), [CONTEXT] * len(query)
        rows = []
        for number, item in enumerate(items, start=1):
            tokens += item
            positions += range(len(query), len(query) + len(item))
            segments += [number] * len(item)
            rows.append(len(tokens) - 1)
        pad = -len(tokens) % BLOCK
        mask = block_mask(torch.tensor(segments + [PADDING] * pad, device=device))
        arguments = {"position_ids": torch.tensor([positions + [0] * pad], device=device), "attention_mask": mask}
        ids = torch.tensor([tokens + [0] * pad], device=device)
        return [Batch(ids, torch.tensor(rows, device=device), list(range(len(items))), arguments)]

    def run(self, batches: list[Batch]) -> list[Tensor]:
        (batch,) = batches
        return [self.torch.hidden(batch.ids, use_cache=False, **batch.arguments)[0, batch.rows]]


def block_mask(segments: Tensor) -> BlockMask:
    """A key is seen when it is not later and belongs to the context or to the asking token's own segment.

    `create_block_mask` is called uncompiled: compiling that call hung for minutes on an H200.
    """

    def seen(batch: Tensor, head: Tensor, asking: Tensor, key: Tensor) -> Tensor:
        own = (segments[key] == CONTEXT) | (segments[key] == segments[asking])
        return (key <= asking) & own

    length = segments.shape[0]
    return create_block_mask(seen, None, None, length, length, device=str(segments.device), BLOCK_SIZE=BLOCK)


def make(name: str, job: Job) -> Placement:
    """Compiled unless the job's settings say `compile: false`, which is for checking scores without a compiler."""
    model = Torch(job, attention="flex_attention")
    if job.settings.get("compile", True):
        model.compile_layers()
    else:
        torch.compiler.set_stance("force_eager")
        flex_attention._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True
    return PackedFlex(model)


if __name__ == "__main__":
    serve(make)
