"""What a CPU is called. Linux says it on x86-64; on ARM64 it says who made the CPU and the number of its design."""

import platform
from pathlib import Path

MAKERS = {"0x41": "ARM", "0x46": "Fujitsu", "0x48": "HiSilicon", "0x4e": "NVIDIA", "0x51": "Qualcomm", "0x61": "Apple",
          "0xc0": "Ampere"}  # fmt: skip
# ARM's own designs, as clouds and small computers have them.
DESIGNS = {
    "0xd03": "Cortex-A53", "0xd05": "Cortex-A55", "0xd07": "Cortex-A57", "0xd08": "Cortex-A72", "0xd0b": "Cortex-A76",
    "0xd41": "Cortex-A78", "0xd0c": "Neoverse-N1", "0xd40": "Neoverse-V1", "0xd49": "Neoverse-N2",
    "0xd4f": "Neoverse-V2", "0xd83": "Neoverse-V3", "0xd8e": "Neoverse-N3",
}  # fmt: skip


def cpu_name() -> str:
    try:
        return name_in(Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    except OSError:
        return platform.processor()


def name_in(cpuinfo: str) -> str:
    """Of the first CPU."""
    lines = [line.partition(":") for line in cpuinfo.partition("\n\n")[0].splitlines()]
    values = {key.strip(): value.strip() for key, _, value in lines}
    if "model name" in values:
        return values["model name"]
    maker, design = values.get("CPU implementer"), values.get("CPU part")
    if maker is None or design is None:
        return "cpu"
    if maker == "0x41" and design in DESIGNS:
        return DESIGNS[design]
    return f"{MAKERS.get(maker, maker)} CPU part {design}"
