"""Which peers there are: the script, the environment and the device of each, and what it stands for.

How an environment is found or built is `environments`; running a peer is `run`.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class PeerEntry:
    """`devices` are those that a peer is worth running on; `needs_gguf` peers cannot read a Hugging Face folder. `int8`
    says in words what the peer's own products of 8-bit integers are; it is empty where a peer has none."""

    name: str
    script: str
    environment: str
    about: str
    devices: tuple[str, ...] = ("cpu",)
    needs_gguf: bool = False
    int8: str = ""


REFERENCE = "reference"
TRANSFORMERS = "transformers_peer.py"
BOTH = ("cpu", "cuda")
TORCH_INT8 = "weights per channel, activations per tensor"

PEERS = {
    entry.name: entry
    for entry in (
        PeerEntry("transformers-serial", TRANSFORMERS, REFERENCE, "one full sequence a forward", BOTH, int8=TORCH_INT8),
        PeerEntry("transformers-batched", TRANSFORMERS, REFERENCE, "batches of full sequences", BOTH, int8=TORCH_INT8),
        PeerEntry(
            "transformers-prefix", TRANSFORMERS, REFERENCE, "query KV once, repeated over items", BOTH, int8=TORCH_INT8
        ),
        PeerEntry(
            "transformers-packed", TRANSFORMERS, REFERENCE, "query KV once, items under a mask", BOTH, int8=TORCH_INT8
        ),
        PeerEntry("transformers-flex", "flex_peer.py", REFERENCE, "one row, FlexAttention, layers compiled", ("cuda",)),
        PeerEntry(
            "llama.cpp",
            "llama_cpp_peer.py",
            REFERENCE,
            "query cells shared by all sequences",
            needs_gguf=True,
            int8="the file's blocks, activations in blocks of 8 bits",
        ),
        PeerEntry(
            "openvino",
            "openvino_peer.py",
            "openvino",
            "query state once, repeated over items",
            needs_gguf=True,
            int8="the file's blocks, activations in groups of 32",
        ),
        PeerEntry(
            "ctranslate2",
            "ctranslate2_peer.py",
            "ctranslate2",
            "query as its static prompt",
            int8="weights per channel, activations per token",
        ),
        PeerEntry("vllm", "vllm_peer.py", "vllm", "query in its prefix cache, items in its batches"),
    )
}
