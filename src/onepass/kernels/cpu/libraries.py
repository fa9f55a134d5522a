"""The table of C++ libraries: which sources of csrc/ make which shared object, and the FFI targets in it.

`build` compiles them on the user's machine, `release/build_wheels.py` for wheels, and `prebuilt` finds those of a
wheel. All of them read this table, so a new source needs a row here and nothing else. The folders of csrc/:

    attention/  over pages of keys and values    products/  a layer's matrix products, of every kind of weights
    amx/        both with AMX's tiles            gguf/      quantised blocks of GGUF files
    common/     vectors, numbers, threads: headers that the others include, by their paths from csrc/
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

SOURCES = Path(__file__).parent / "csrc"
COMMON_FLAGS = ("-std=c++20", "-O3", "-ffp-contract=fast", "-w", "-fPIC")
# Sums of products are not fused where blocks are widened: scores must not depend on whether this could be built.
OWN_FLAGS = dict.fromkeys(("gguf/gguf_dequantize.cc", "amx/gguf_bf16.cc"), ("-ffp-contract=off",))
AMX_FEATURES = (
    "avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512vbmi", "avx512_bf16", "amx_tile", "amx_bf16", "amx_int8",
)  # fmt: skip


@dataclass(frozen=True)
class Library:
    """A shared object: its sources, the FFI targets in it, and the flags that are its own. Without such flags it is
    compiled for the CPU that this is or, for a wheel, once per instruction set."""

    name: str
    sources: tuple[str, ...]
    operations: tuple[str, ...]
    flags: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ("bf16", "f32")  # of the network
    weights: str = ""  # what the targets' names say of weights, or keys, that are not in the network's own numbers

    @property
    def targets(self) -> tuple[str, ...]:
        dtypes = [self.weights + dtype for dtype in self.dtypes]
        return tuple(f"onepass_{self.name}_{what}_{dtype}" for what in self.operations for dtype in dtypes)

    @property
    def multiplies(self) -> str | None:
        """The numbers that its products may multiply without widening them to float32; None: there are none."""
        if self.weights.endswith("_dot_"):
            return "int8"
        return "bf16" if self.operations == NETWORK_PRODUCTS and self.dtypes == ("bf16",) else None

    @property
    def file_stem(self) -> str:
        """Several libraries share a name; their first sources differ."""
        return Path(self.sources[0]).stem

    def texts(self, folder: Path) -> list[str]:
        """Everything that the compiler reads of csrc/: every header, and the library's sources."""
        paths = [*sorted(folder.rglob("*.h")), *(folder / name for name in self.sources)]
        return [path.read_text(encoding="utf-8") for path in paths]


PRODUCTS = ("qkv", "add", "add_lines", "gate_up")  # of a layer
NETWORK_PRODUCTS = (*PRODUCTS, "vocabulary")
ATTENTION = Library(
    "cpu",
    ("attention/cpu_attention.cc", "attention/cpu_panels.cc"),
    ("attend", "write", "zeros"),
)
# Keys, values and queries in half precision, for ARM64 CPUs with that arithmetic: with quantised activations only.
HALF_ATTENTION = Library(
    "cpu",
    ("attention/half_attention.cc", "attention/half_panels.cc"),
    ("attend",),
    dtypes=("f32",),
    weights="half_",
)
HALF_FEATURES = ("asimd", "asimdhp")
# The same as integers of 16 bits, for x86-64 CPUs with AVX-512's VNNI.
SHORT_ATTENTION = Library(
    "cpu",
    ("attention/short_attention.cc", "attention/short_panels.cc"),
    ("attend",),
    dtypes=("f32",),
    weights="short_",
)
SHORT_FEATURES = ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni")
# The products of each dtype of the network apart: each is a quarter of a minute of a compiler.
PRODUCTS_BF16 = Library("cpu", ("products/cpu_products_bf16.cc",), NETWORK_PRODUCTS, dtypes=("bf16",))
PRODUCTS_F32 = Library("cpu", ("products/cpu_products_f32.cc",), NETWORK_PRODUCTS, dtypes=("f32",))
# The products of 8-bit weights and of GGUF's blocks apart: loaded with a model that has them.
PRODUCTS_INT8_BF16 = Library(
    "cpu", ("products/cpu_products_int8_bf16.cc",), PRODUCTS, dtypes=("bf16",), weights="int8_"
)
PRODUCTS_INT8_F32 = Library("cpu", ("products/cpu_products_int8_f32.cc",), PRODUCTS, dtypes=("f32",), weights="int8_")
PRODUCTS_GGUF = Library(
    "cpu",
    ("products/cpu_products_gguf.cc", "gguf/gguf_dequantize.cc"),
    (*NETWORK_PRODUCTS, "rows"),
    dtypes=("f32",),
    weights="gguf_",
)
# The same with activations in 8 bits, so that integers are multiplied.
PRODUCTS_INT8_DOT_BF16 = Library(
    "cpu", ("products/cpu_products_int8_dot_bf16.cc",), PRODUCTS, dtypes=("bf16",), weights="int8_dot_"
)
PRODUCTS_INT8_DOT_F32 = Library(
    "cpu", ("products/cpu_products_int8_dot_f32.cc",), PRODUCTS, dtypes=("f32",), weights="int8_dot_"
)
INT8_DOTS = (PRODUCTS_INT8_DOT_BF16, PRODUCTS_INT8_DOT_F32)
PRODUCTS_GGUF_DOT = Library(
    "cpu",
    ("products/cpu_products_gguf_dot.cc", "gguf/gguf_dequantize.cc"),
    PRODUCTS,
    dtypes=("f32",),
    weights="gguf_dot_",
)
# Widens the blocks of GGUF files while they are read. Its source includes nothing of XLA's.
GGUF = Library("gguf", ("gguf/gguf_dequantize.cc",), ())
AMX_FLAGS = ("-mfma", *(f"-m{name.replace('amx_', 'amx-').replace('_', '')}" for name in AMX_FEATURES))
AMX_PRODUCTS = ("qkv", "add", "add_tiled", "gate_up")
AMX = Library(
    "amx",
    ("amx/amx_attention.cc", "amx/amx_products.cc", "amx/amx_ready.cc"),
    ("attend", *AMX_PRODUCTS),
    AMX_FLAGS,
)
# Weights in GGUF's blocks, widened to the network's numbers: loaded with a model that has them.
AMX_GGUF = Library(
    "amx",
    ("amx/amx_products_gguf.cc", "amx/gguf_bf16.cc", "gguf/gguf_dequantize.cc"),
    (*AMX_PRODUCTS, "vocabulary"),
    AMX_FLAGS,
    weights="gguf_",
)
# Weights in int8 widened to the network's numbers, and multiplied as integers: loaded with a model that has them.
AMX_INT8 = Library("amx", ("amx/amx_products_int8.cc",), AMX_PRODUCTS, AMX_FLAGS, weights="int8_")
AMX_INT8_DOT = Library(
    "amx", ("amx/amx_products_int8_dot.cc",), ("add", "add_tiled", "gate_up"), AMX_FLAGS, weights="int8_dot_"
)

GENERAL = (
    ATTENTION,
    PRODUCTS_BF16,
    PRODUCTS_F32,
    PRODUCTS_INT8_BF16,
    PRODUCTS_INT8_F32,
    PRODUCTS_GGUF,
    *INT8_DOTS,
    PRODUCTS_GGUF_DOT,
    GGUF,
)
LIBRARIES = (*GENERAL, HALF_ATTENTION, SHORT_ATTENTION, AMX, AMX_GGUF, AMX_INT8, AMX_INT8_DOT)
DTYPES = ("bf16", "f32")  # of networks
Weights = Literal["", "int8", "int8_dot", "gguf", "gguf_dot"]  # dot: activations are quantised, integers multiplied
PRODUCTS_OF: dict[Weights, tuple[Library, ...]] = {
    "": (PRODUCTS_BF16, PRODUCTS_F32),
    "int8": (PRODUCTS_BF16, PRODUCTS_F32, PRODUCTS_INT8_BF16, PRODUCTS_INT8_F32),
    "int8_dot": (PRODUCTS_BF16, PRODUCTS_F32, *INT8_DOTS),
    "gguf": (PRODUCTS_GGUF,),
    "gguf_dot": (PRODUCTS_GGUF, PRODUCTS_GGUF_DOT),
}


def general_code(weights: Weights = "", dtypes: tuple[str, ...] = DTYPES) -> tuple[Library, ...]:
    """What a model's attention and products need on any CPU, for networks in these dtypes. All matrices of a model in
    GGUF's blocks are in blocks, in networks in float32; with quantised activations embedding rows and logits stay
    float32. Others have an LM head in the network's own numbers."""
    products = (library for library in PRODUCTS_OF[weights] if set(library.dtypes) & set(dtypes))
    return (ATTENTION, *products)


def amx_code(weights: Weights = "") -> tuple[Library, ...]:
    """The same in AMX's tiles; the general attention's writes pages for them. Weights in int8 are widened or multiplied
    as integers; embedding rows in GGUF's blocks, and odd sizes of vocabulary, are the general products'."""
    blocks = (PRODUCTS_GGUF, AMX_GGUF) if weights == "gguf" else ()
    return (ATTENTION, AMX, *((AMX_INT8, AMX_INT8_DOT) if weights in ("int8", "int8_dot") else blocks))
