"""PyTorch transformers, four ways to share or not to share the query, on the CPU or on one NVIDIA GPU.

The fifth way, packed with FlexAttention, is `flex_peer`. All of them run the model's own decoder, and its head at the
read-out rows only. Ids, positions and masks are made outside the timed passes.
"""

import platform
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from job import Ids, Job, Scores, groups, serve
from torch import Tensor
from torch.ao.quantization import per_channel_dynamic_qconfig, quantize_dynamic
from transformers import AutoModelForCausalLM, DynamicCache

# Items per forward, found by trial: on two cores with AMX, and for the contract workload on an H200 (figures.md).
BATCH_ITEMS = {
    "cpu": {"batched": 4, "prefix": 16, "packed": 32},
    "cuda": {"batched": 50, "prefix": 125, "packed": 128},
}
READ_OUT_ROWS = 512


@dataclass
class Torch:
    """A loaded model and what all arrangements do with it."""

    job: Job
    attention: str = "sdpa"
    device: str = field(default_factory=lambda: "cuda" if torch.cuda.is_available() else "cpu")

    def __post_init__(self) -> None:
        torch.set_num_threads(self.job.threads)
        torch.set_float32_matmul_precision("highest" if self.job.dtype == "float32" else "medium")
        self.model = AutoModelForCausalLM.from_pretrained(
            self.job.weights, dtype=getattr(torch, self.dtype), attn_implementation=self.attention
        )
        self.model.eval().to(self.device)
        if self.job.quantize is not None:
            self.quantize()
        self.labels = torch.tensor(self.job.labels, device=self.device)
        self.settings: dict[str, Any] = {
            "device": torch.cuda.get_device_name() if self.device == "cuda" else "cpu",
            "dtype": self.dtype,
            "quantize": self.job.quantize and f"dynamic int8, {torch.backends.quantized.engine}",
            "attention": self.attention,
            "threads": torch.get_num_threads(),
            "untimed": "tensors of ids, positions and masks",
            **self.job.settings,
        }
        if self.settings.get("compile"):
            self.compile_layers()

    @property
    def dtype(self) -> str:
        """PyTorch's dynamic quantisation takes float32 alone."""
        return "float32" if self.job.quantize else self.job.dtype

    def quantize(self) -> None:
        """PyTorch's dynamic quantisation of every linear layer, the head among them."""
        if self.device != "cpu":
            raise ValueError("PyTorch's dynamic quantisation runs on CPUs")
        if platform.machine() == "aarch64":  # where PyTorch lists its default, x86, and then does not know the CPU
            torch.backends.quantized.engine = "qnnpack"
        linear = {torch.nn.Linear: per_channel_dynamic_qconfig}
        quantize_dynamic(self.model, linear, inplace=True)

    def compile_layers(self) -> None:
        self.settings["compile"] = "every decoder layer"
        for layer in self.model.model.layers:
            layer.compile()

    def versions(self) -> dict[str, str]:
        own = {"torch": torch.__version__, "transformers": transformers.__version__}
        return {**own, "python": platform.python_version(), "mkldnn": str(torch.backends.mkldnn.is_available())}

    def take(self, job: Job) -> None:
        self.job, self.labels = job, torch.tensor(job.labels, device=self.device)

    def batch_items(self, arrangement: str) -> int:
        return int(self.settings.setdefault("batch_items", BATCH_ITEMS[self.device][arrangement]))

    def ids(self, rows: list[Ids]) -> Tensor:
        """[rows, longest]; zeros follow the shorter ones, and nothing that is read out sees what follows it."""
        longest = max(map(len, rows))
        return torch.tensor([row + [0] * (longest - len(row)) for row in rows], device=self.device)

    def hidden(self, ids: Tensor, **arguments: Any) -> Tensor:
        return self.model.model(input_ids=ids, **arguments).last_hidden_state

    def probabilities(self, rows: Tensor) -> Tensor:
        """[rows, labels] from hidden states; the head runs on a few hundred rows at a time."""
        parts = []
        for part in rows.split(READ_OUT_ROWS):
            logits = self.model.lm_head(part).float()
            parts.append((logits[:, self.labels] - logits.logsumexp(-1, keepdim=True)).exp())
        return torch.cat(parts)

    def logprobs(self, rows: Tensor, places: Tensor, tokens: Tensor) -> Tensor:
        """Of these tokens, each after the hidden state at its place among the rows."""
        logits = torch.cat([self.model.lm_head(part).float() for part in rows.split(READ_OUT_ROWS)])
        return logits[places, tokens] - logits.logsumexp(-1)[places]

    def prefill(self) -> list[tuple[Tensor, Tensor]]:
        """The query's keys and values, per layer."""
        ids = torch.tensor([self.job.query], device=self.device)
        cache = self.model.model(input_ids=ids, use_cache=True).past_key_values
        return [(layer.keys, layer.values) for layer in cache.layers]

    def cache_of(self, prefix: list[tuple[Tensor, Tensor]], rows: int) -> DynamicCache:
        """The prefix for `rows` rows, as views: the one copy is made when the rows' own keys join it."""
        cache = DynamicCache(config=self.model.config)
        for layer, (keys, values) in zip(cache.layers, prefix, strict=True):
            layer.lazy_initialization(keys, values)
            layer.keys, layer.values = (part.expand(rows, -1, -1, -1) for part in (keys, values))
        return cache


@dataclass(frozen=True)
class Batch:
    """One forward: ids, what goes with them, where to read out, and which items these are."""

    ids: Tensor
    rows: Tensor
    items: list[int]
    arguments: dict[str, Tensor]


class Placement:
    """A way to turn items into forwards; `serial` ones may be sampled."""

    serial = False
    notes = ""

    def __init__(self, torch_model: Torch) -> None:
        self.torch = torch_model
        self.settings = torch_model.settings
        self.versions = torch_model.versions()

    def prepare(self, items: list[Ids]) -> list[Batch]:
        raise NotImplementedError

    def reset(self) -> None:
        """Nothing is kept between passes; on a GPU nothing may still run when the clock starts."""
        if self.torch.device == "cuda":
            torch.cuda.synchronize()

    def run(self, batches: list[Batch]) -> list[Tensor]:
        """Hidden states of the read-out rows, one tensor a batch."""
        raise NotImplementedError

    @torch.inference_mode()
    def score(self, batches: list[Batch]) -> Scores:
        found = self.torch.probabilities(torch.cat(self.run(batches)))
        rows = found.tolist()
        self.reset()
        order = [item for batch in batches for item in batch.items]
        return [row for _, row in sorted(zip(order, rows, strict=True), key=lambda pair: pair[0])]


class Batched(Placement):
    """Full sequences `query + item`, a few a forward, shortest first so that padding is small."""

    name = "batched"

    def prepare(self, items: list[Ids]) -> list[Batch]:
        size = 1 if self.serial else self.torch.batch_items(self.name)
        order = sorted(range(len(items)), key=lambda number: len(items[number]))
        return [self._batch(items, group) for group in groups(order, size)]

    def _batch(self, items: list[Ids], group: list[int]) -> Batch:
        rows = [self.torch.job.query + items[number] for number in group]
        last = torch.tensor([len(row) - 1 for row in rows], device=self.torch.device)
        return Batch(self.torch.ids(rows), last, group, {})

    def run(self, batches: list[Batch]) -> list[Tensor]:
        return [self._read(batch, self.torch.hidden(batch.ids, use_cache=False)) for batch in batches]

    @staticmethod
    def _read(batch: Batch, hidden: Tensor) -> Tensor:
        return hidden[torch.arange(len(batch.items), device=hidden.device), batch.rows]


class OneAtATime(Batched):
    """The baseline of everybody: one full sequence a forward."""

    serial = True


class PrefixRepeated(Batched):
    """The query's KV computed once and repeated over batches of items."""

    name = "prefix"

    def _batch(self, items: list[Ids], group: list[int]) -> Batch:
        rows = [items[number] for number in group]
        ids = self.torch.ids(rows)
        last = torch.tensor([len(row) - 1 for row in rows], device=self.torch.device)
        start = len(self.torch.job.query)
        positions = torch.arange(start, start + ids.shape[1], device=self.torch.device)[None]
        return Batch(ids, last, group, {"position_ids": positions})

    def run(self, batches: list[Batch]) -> list[Tensor]:
        prefix = self.torch.prefill()
        found = []
        for batch in batches:
            cache = self.torch.cache_of(prefix, len(batch.items))
            hidden = self.torch.hidden(batch.ids, past_key_values=cache, use_cache=True, **batch.arguments)
            found.append(self._read(batch, hidden))
        return found


class Packed(PrefixRepeated):
    """The query's KV computed once; many items as one row after it, isolated by a 4D mask."""

    name = "packed"

    def _batch(self, items: list[Ids], group: list[int]) -> Batch:
        device, start = self.torch.device, len(self.torch.job.query)
        lengths = [len(items[number]) for number in group]
        ids = torch.tensor([[token for number in group for token in items[number]]], device=device)
        positions = torch.tensor([[start + place for length in lengths for place in range(length)]], device=device)
        segments = torch.arange(len(group)).repeat_interleave(torch.tensor(lengths))
        own = (segments[:, None] == segments[None, :]).tril()
        seen = torch.cat([torch.ones(len(segments), start, dtype=torch.bool), own], dim=1)
        added = torch.zeros(seen.shape, dtype=self.torch.model.dtype).masked_fill_(~seen, float("-inf"))
        rows = torch.tensor(lengths, device=device).cumsum(0) - 1
        return Batch(ids, rows, group, {"position_ids": positions, "attention_mask": added[None, None].to(device)})

    def run(self, batches: list[Batch]) -> list[Tensor]:
        prefix = self.torch.prefill()
        found = []
        for batch in batches:
            cache = self.torch.cache_of(prefix, 1)
            hidden = self.torch.hidden(batch.ids, past_key_values=cache, use_cache=True, **batch.arguments)
            found.append(hidden[0, batch.rows])
        return found


@dataclass(frozen=True)
class Branches:
    """Continuations to be read out of a batch: the place of each token among its rows, and whose token it is."""

    batch: Batch
    places: Tensor
    tokens: Tensor
    owners: Tensor  # item x continuation, counted through


class PackedTraffic(Packed):
    """Packed, for requests that differ. A continuation follows its item as a branch that sees query, item and itself;
    its last token is read out before it would be computed."""

    branches = True

    def take(self, job: Job) -> None:
        self.torch.take(job)

    def prepare_branches(self, items: list[Ids], continuations: list[Ids]) -> list[Branches]:
        size = self.torch.batch_items(self.name)
        return [self._branches(items, group, continuations) for group in groups(list(range(len(items))), size)]

    def _branches(self, items: list[Ids], group: list[int], continuations: list[Ids]) -> Branches:
        device, start = self.torch.device, len(self.torch.job.query)
        ids, positions, segments, branches = [], [], [], []  # a token each; branch 0 is the item itself
        rows, places, tokens, owners = [], [], [], []
        for n, number in enumerate(group):
            item = items[number]
            for branch, part in enumerate([item, *(one[:-1] for one in continuations)]):
                begin = start + (len(item) if branch else 0)
                positions += range(begin, begin + len(part))
                ids += part
                segments += [n] * len(part)
                branches += [branch] * len(part)
                if not branch:
                    rows.append(len(ids) - 1)
                    item_place = len(rows) - 1
                    continue
                own = list(range(len(rows), len(rows) + len(part)))
                rows += range(len(ids) - len(part), len(ids))
                places += [item_place, *own]
                tokens += continuations[branch - 1]
                owners += [n * len(continuations) + branch - 1] * (len(part) + 1)
        segment, branch_of = torch.tensor(segments), torch.tensor(branches)
        own_branch = (branch_of[None, :] == 0) | (branch_of[:, None] == branch_of[None, :])
        own_seen = ((segment[:, None] == segment[None, :]) & own_branch).tril()
        seen = torch.cat([torch.ones(len(ids), start, dtype=torch.bool), own_seen], dim=1)
        added = torch.zeros(seen.shape, dtype=self.torch.model.dtype).masked_fill_(~seen, float("-inf"))
        arguments = {
            "position_ids": torch.tensor([positions], device=device),
            "attention_mask": added[None, None].to(device),
        }
        batch = Batch(torch.tensor([ids], device=device), torch.tensor(rows, device=device), group, arguments)
        return Branches(batch, *(torch.tensor(part, device=device) for part in (places, tokens, owners)))

    @torch.inference_mode()
    def score_branches(self, prepared: list[Branches]) -> Scores:
        found: Scores = []
        for one, rows in zip(prepared, self.run([one.batch for one in prepared]), strict=True):
            logprobs = self.torch.logprobs(rows, one.places, one.tokens)
            count = int(one.owners.max()) + 1
            sums = torch.zeros(count, device=logprobs.device).index_add_(0, one.owners, logprobs)
            lengths = torch.bincount(one.owners, minlength=count)
            found += (sums / lengths).exp().reshape(len(one.batch.items), -1).tolist()
        self.reset()
        return found


ARRANGEMENTS: dict[str, type[Placement]] = {
    "transformers-serial": OneAtATime,
    "transformers-batched": Batched,
    "transformers-prefix": PrefixRepeated,
    "transformers-packed": PackedTraffic,
}


def make(name: str, job: Job) -> Placement:
    return ARRANGEMENTS[name](Torch(job))


if __name__ == "__main__":
    serve(make)
