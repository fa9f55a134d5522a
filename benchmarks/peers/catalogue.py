"""Which peers there are: the script, the environment and the device of each, and what it stands for.

How an environment is found or built is `environments`; running a peer is `run`.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class PeerEntry:
    """`devices` are those that a peer is worth running on; `needs_gguf` peers cannot read a Hugging Face folder."""

    name: str
    script: str
    environment: str
    about: str
    devices: tuple[str, ...] = ("cpu",)
    needs_gguf: bool = False


REFERENCE = "reference"
BOTH = ("cpu", "cuda")

PEERS = {
    entry.name: entry
    for entry in (
        PeerEntry("transformers-serial", "transformers_peer.py", REFERENCE, "one full sequence a forward", BOTH),
        PeerEntry("transformers-batched", "transformers_peer.py", REFERENCE, "batches of full sequences", BOTH),
        PeerEntry("transformers-prefix", "transformers_peer.py", REFERENCE, "query KV once, repeated over items", BOTH),
        PeerEntry("transformers-packed", "transformers_peer.py", REFERENCE, "query KV once, items under a mask", BOTH),
        PeerEntry("transformers-flex", "flex_peer.py", REFERENCE, "one row, FlexAttention, layers compiled", ("cuda",)),
        PeerEntry("llama.cpp", "llama_cpp_peer.py", REFERENCE, "query cells shared by all sequences", needs_gguf=True),
        PeerEntry("openvino", "openvino_peer.py", "openvino", "query state once, repeated over items", needs_gguf=True),
        PeerEntry("ctranslate2", "ctranslate2_peer.py", "ctranslate2", "query as its static prompt"),
        PeerEntry("vllm", "vllm_peer.py", "vllm", "query in its prefix cache, items in its batches"),
    )
}
