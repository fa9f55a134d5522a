"""The attention implementations by name, chosen at load time. A name that cannot run here is an error, not a fallback.

reference   the definition, in blocks of asking rows; mode `serial`
dense       the definition with the whole T×T mask; mode `packed` with mask `dense`
cascade     blocks, triangle and band; every other mode. On a TPU a kernel of its own takes this place (`pallas-tpu`)
"""

from typing import Literal

from onepass.attention.base import Attention
from onepass.attention.cascade import Cascade
from onepass.attention.pallas_tpu import PallasTpu
from onepass.attention.places import plain_causal
from onepass.attention.reference import Reference


def attentions(
    dense: Literal["xla", "cudnn"],
    band: Literal["xla", "triton"],
    whole: Literal["cascade", "pallas-tpu"] = "cascade",
) -> dict[str, Attention]:
    """`dense` says who computes the cascade's maskless blocks, `band` who computes the items' own, unless `whole` gives
    both to one kernel."""
    return {
        "reference": Reference(),
        "dense": Reference(block_bytes=None, name="dense"),
        "cascade": PallasTpu() if whole == "pallas-tpu" else Cascade(dense=dense, band=band),
    }


def without_isolation() -> dict[str, Attention]:
    """Every name computed with a plain causal mask: what an isolation check must catch."""
    leaking = Reference(rule=plain_causal, name="plain-causal")
    return {"reference": Reference(), "dense": leaking, "cascade": leaking}
