"""Who computes on this device: the decided config, the attention by name, and the products that go with it.

Chosen once, when a model is loaded. Where our own C++ was chosen and cannot be built, XLA's code takes its place, and
the log says why; where it was asked for by name, that is an error.
"""

import logging
from dataclasses import dataclass, replace

from onepass.attention.base import Attention
from onepass.attention.registry import attentions
from onepass.engine.config import Device, EngineConfig, for_device
from onepass.errors import ConfigError
from onepass.models.amx_products import AmxProducts
from onepass.models.config import ModelConfig
from onepass.models.hopper_products import HopperProducts
from onepass.models.products import Products, XlaProducts
from onepass.models.quantize import EIGHT_BIT
from onepass.native import build as native

log = logging.getLogger("onepass")


@dataclass(frozen=True)
class Kernels:
    config: EngineConfig
    attentions: dict[str, Attention]
    products: Products
    no_amx: str | None = None  # why a CPU does it without our own code

    def __str__(self) -> str:
        if self.config.attention != "cascade":
            return f"attention {self.config.attention}"
        why = f"; without amx: {self.no_amx}" if self.no_amx else ""
        return f"attention cascade (blocks: {self.config.dense}, band: {self.config.band}{why})"


def kernels_for(
    asked: EngineConfig, device: Device, share: ModelConfig, sixteen_bit: bool, eight_bit: bool = False
) -> Kernels:
    """`share` is one device's part of the model; `eight_bit`: its layers' weights are quantized."""
    decided = for_device(asked, device, sixteen_bit, share.head_dim)
    no_amx = device.no_amx if device.platform == "cpu" else None
    if decided.attention == "amx":
        try:
            native.load()
        except native.NotBuilt as why:
            if asked.attention == "amx":
                raise ConfigError(f"attention='amx' cannot be used here: {why}") from why
            log.warning("attention amx was not built, cascade takes its place: %s", why)
            decided = replace(decided, attention="cascade")
    assert decided.dense is not None
    assert decided.band is not None
    assert decided.attention is not None
    narrow = EIGHT_BIT if eight_bit else None
    chosen = attentions(decided.dense, decided.band, decided.attention, device.multiprocessors, share.group, narrow)
    return Kernels(decided, chosen, _products(decided, device), no_amx)


def _products(decided: EngineConfig, device: Device) -> Products:
    if decided.attention == "hopper":
        return HopperProducts(device.multiprocessors)
    return AmxProducts() if decided.attention == "amx" else XlaProducts()
