"""The attention implementations by name, chosen at load time. A name that cannot run here is an error, not a fallback.

reference   the definition, in blocks of asking rows; mode `serial`
dense       the definition with the whole T×T mask; mode `packed` with mask `dense`
cascade     blocks, triangle and band; every other mode. On a TPU or a Hopper GPU one kernel takes this place
            (`pallas-tpu`, `hopper`), on a CPU with AMX C++ (`amx`)
"""

from typing import Any, Literal

from onepass.attention.amx import Amx
from onepass.attention.base import Attention
from onepass.attention.cascade import Cascade
from onepass.attention.hopper import Hopper
from onepass.attention.pallas_tpu import PallasTpu
from onepass.attention.places import plain_causal
from onepass.attention.reference import Reference


def attentions(
    dense: Literal["xla", "cudnn"],
    band: Literal["xla", "triton"],
    whole: Literal["cascade", "amx", "hopper", "pallas-tpu"] = "cascade",
    multiprocessors: int = 0,
    group: int = 1,
    narrow: Any = None,
) -> dict[str, Attention]:
    """`dense` says who computes the cascade's maskless blocks, `band` who computes the items' own, unless `whole` gives
    both to one kernel, whose results are `narrow` where that can be had."""
    kernels: dict[str, Attention] = {
        "cascade": Cascade(dense=dense, band=band),
        "amx": Amx(),
        "hopper": Hopper(multiprocessors, group, narrow),
        "pallas-tpu": PallasTpu(),
    }
    return {
        "reference": Reference(),
        "dense": Reference(block_bytes=None, name="dense"),
        "cascade": kernels[whole],
    }


def without_isolation() -> dict[str, Attention]:
    """Every name computed with a plain causal mask: what an isolation check must catch."""
    leaking = Reference(rule=plain_causal, name="plain-causal")
    return {"reference": Reference(), "dense": leaking, "cascade": leaking}
