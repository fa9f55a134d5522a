"""A GGUF file of llama.cpp means the same decoder and weights as the Hugging Face checkpoint it was made from."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loading.gguf.files import model_metadata, model_tensors, stored, write_gguf
from onepass.errors import BadCheckpoint, UnsupportedModel
from onepass.loading.gguf.config import config_from_gguf, labels_from_gguf
from onepass.loading.gguf.file import GgufFile
from onepass.loading.gguf.reader import GgufReader
from onepass.models.config import ModelConfig
from onepass.models.known import KNOWN
from onepass.models.rope import Rope, rope_from_hf

Written = Callable[..., GgufFile]


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """Writes a model and opens it. `changes` to its metadata have two underscores for a dot."""

    def write(architecture: str = "llama", tensors: dict[str, Any] | None = None, **changes: Any) -> GgufFile:
        metadata = model_metadata(architecture, **{key.replace("__", "."): value for key, value in changes.items()})
        made = model_tensors(architecture) if tensors is None else tensors
        return GgufFile.open(write_gguf(tmp_path / "model.gguf", metadata, made))

    return write


def test_a_llama_file_gives_its_configuration(written: Written) -> None:
    assert config_from_gguf(written()) == ModelConfig(
        architecture="llama",
        vocab_size=40,
        hidden_size=32,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        mlp_size=64,
        max_position=256,
        rms_eps=1e-5,
        rope=Rope(10000.0),
        tied=False,
    )


def test_each_architecture_brings_its_own_norms_and_biases(written: Written) -> None:
    qwen2, qwen3 = config_from_gguf(written("qwen2")), config_from_gguf(written("qwen3"))
    assert (qwen2.architecture, qwen2.qkv_bias, qwen2.qk_norm, qwen2.out_bias) == ("qwen2", True, False, False)
    assert (qwen3.architecture, qwen3.qkv_bias, qwen3.qk_norm, qwen3.mlp_bias) == ("qwen3", False, True, False)
    every = config_from_gguf(
        written(tensors=model_tensors(bias=["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate"]))
    )
    assert (every.qkv_bias, every.out_bias, every.mlp_bias) == (True, True, True)


def test_smollm2_is_the_configuration_known_by_its_name(smollm2_gguf: Path) -> None:
    assert config_from_gguf(GgufFile.open(smollm2_gguf)) == KNOWN["smollm2-135m"]


def test_no_output_tensor_means_tied_embeddings(written: Written) -> None:
    file = written(tensors=model_tensors(tied=True))
    assert config_from_gguf(file).tied
    assert "lm_head.weight" not in GgufReader(file).tensors()


def test_an_explicit_head_size_wins(written: Written) -> None:
    assert config_from_gguf(written(attention__key_length=16, attention__value_length=16)).head_dim == 16
    with pytest.raises(UnsupportedModel, match=r"value_length must equal the head size 16; got 8"):
        config_from_gguf(written(attention__key_length=16, attention__value_length=8))
    with pytest.raises(UnsupportedModel, match=r"rope\.dimension_count must equal the head size 8; got 4"):
        config_from_gguf(written(rope__dimension_count=4))


def test_all_heads_are_key_heads_unless_the_file_says_otherwise(tmp_path: Path) -> None:
    metadata = model_metadata()
    del metadata["llama.attention.head_count_kv"]
    assert config_from_gguf(GgufFile.open(write_gguf(tmp_path / "m.gguf", metadata, model_tensors()))).num_kv_heads == 4


def test_head_counts_that_differ_between_layers_are_not_supported(written: Written) -> None:
    assert config_from_gguf(written(attention__head_count_kv=[2, 2])).num_kv_heads == 2
    with pytest.raises(UnsupportedModel, match=r"head_count_kv must be one number for all layers; got \[2, 4\]"):
        config_from_gguf(written(attention__head_count_kv=[2, 4]))


def test_a_sliding_window_limits_the_positions(written: Written) -> None:
    assert config_from_gguf(written(attention__sliding_window=100)).max_position == 100
    assert config_from_gguf(written(attention__sliding_window=1000)).max_position == 256
    assert config_from_gguf(written(attention__sliding_window=0)).max_position == 256


def test_linear_rope_scaling_is_read(written: Written) -> None:
    scaled = written(rope__scaling__type="linear", rope__scaling__factor=4.0, rope__freq_base=5e5)
    assert config_from_gguf(scaled).rope == Rope(5e5, "linear", 4.0)
    assert config_from_gguf(written(rope__scale_linear=2.0)).rope == Rope(1e4, "linear", 2.0)
    assert config_from_gguf(written(rope__scaling__type="none", rope__scaling__factor=4.0)).rope == Rope(1e4)


def llama3_frequency_factors(theta: float, head_dim: int, factor: float, original: int = 8192) -> np.ndarray:
    """Written out one frequency at a time from Llama 3's definition: low 1, high 4."""
    factors = []
    for pair in range(head_dim // 2):
        wavelength = 2 * math.pi * theta ** (2 * pair / head_dim)
        if wavelength < original / 4:
            factors.append(1.0)
        elif wavelength > original / 1:
            factors.append(factor)
        else:
            smooth = (original / wavelength - 1) / (4 - 1)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(factors, np.float32)


def test_yarn_is_read_as_from_a_hugging_face_config(written: Written) -> None:
    """What llama.cpp's converter writes of it: type, factor and original length."""
    keys = {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0, "context_length": 256}
    file = written(rope__scaling__original_context_length=64, **keys)
    scaling = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
    assert config_from_gguf(file).rope == rope_from_hf({"rope_theta": 10000.0, "rope_scaling": scaling})
    assert config_from_gguf(written(**keys)).rope.original_max_position == 256


@pytest.mark.parametrize(("head_dim", "factor"), [(128, 8.0), (64, 32.0), (128, 32.0)])
def test_published_llama3_scaling_is_recognised_by_its_factors(head_dim: int, factor: float, written: Written) -> None:
    factors = llama3_frequency_factors(5e5, head_dim, factor)
    assert 1 < len(set(factors)) < head_dim // 2  # short waves, long waves and some between
    sizes = {"attention__key_length": head_dim, "attention__value_length": head_dim, "rope__freq_base": 5e5}
    file = written(tensors=model_tensors() | {"rope_freqs.weight": factors}, **sizes)
    assert config_from_gguf(file).rope == Rope(5e5, "llama3", factor, 1.0, 4.0, 8192)
    assert not [name for name in GgufReader(file).tensors() if "rope" in name]


def test_other_rope_factors_are_not_supported(written: Written) -> None:
    strange = {"rope_freqs.weight": llama3_frequency_factors(1e4, 8, 16.0)}
    with pytest.raises(
        UnsupportedModel, match="no llama3 scaling known for head size 8 and rope base 10000; supported: factor 8"
    ):
        config_from_gguf(written(tensors=model_tensors() | strange))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"rope__scaling__type": "longrope"},
            "rope.scaling.type 'longrope' is not supported; supported: none, linear, yarn",
        ),
        ({"rope__scaling__type": "yarn", "rope__scaling__yarn_beta_fast": 8.0}, "ignore: rope.scaling.yarn_beta_fast"),
        ({"expert_count": 8}, "mixture-of-experts models are not supported; this one has 8 experts"),
        ({"attention__scale": 0.5}, "will not ignore: attention.scale; supported after 'llama.': attention.head_count"),
    ],
)
def test_what_is_not_computed_is_refused(changes: dict[str, Any], message: str, written: Written) -> None:
    with pytest.raises(UnsupportedModel) as caught:
        config_from_gguf(written(**changes))
    assert message in str(caught.value)


def test_an_unknown_architecture_lists_those_supported(tmp_path: Path) -> None:
    file = GgufFile.open(write_gguf(tmp_path / "m.gguf", model_metadata("gemma3"), {}))
    with pytest.raises(UnsupportedModel, match="'gemma3' is not supported; supported: llama, qwen2, qwen3"):
        config_from_gguf(file)


def test_metadata_that_is_missing_or_contradicts_the_tensors_is_named(tmp_path: Path, written: Written) -> None:
    metadata = model_metadata()
    del metadata["llama.feed_forward_length"]
    with pytest.raises(BadCheckpoint, match=r"must have 'llama\.feed_forward_length'"):
        config_from_gguf(GgufFile.open(write_gguf(tmp_path / "m.gguf", metadata, model_tensors())))
    with pytest.raises(BadCheckpoint, match="vocab_size is 41, but there are 40 embeddings"):
        config_from_gguf(written(vocab_size=41))


def test_a_tensor_that_nothing_uses_is_named(written: Written) -> None:
    extra = {"blk.0.attn_sinks.weight": np.zeros(4, np.float32), "cls.weight": np.zeros((2, 32), np.float32)}
    with pytest.raises(UnsupportedModel, match=r"uses: blk\.0\.attn_sinks\.weight, cls\.weight"):
        GgufReader(written(tensors=model_tensors() | extra))
    with pytest.raises(UnsupportedModel, match=r"blk\.0\.attn_q_norm\.weight"):
        GgufReader(written(tensors=model_tensors("qwen3")))


def test_a_rerankers_head_has_a_row_per_label(written: Written) -> None:
    tensors = model_tensors("qwen3") | {"cls.output.weight": np.ones((2, 32), np.float32)}
    labels = {"pooling_type": 4, "classifier__output_labels": ["yes", "no"]}
    file = written("qwen3", tensors=tensors, **labels)
    assert labels_from_gguf(file) == ("yes", "no")
    config = config_from_gguf(file)
    assert (config.num_labels, config.tied, config.head_bias) == (2, False, False)
    assert GgufReader(file).tensors()["score.weight"].shape == (2, 32)
    with pytest.raises(BadCheckpoint, match="has 2 rows, but there are 3"):
        labels_from_gguf(written("qwen3", tensors=tensors, **{**labels, "classifier__output_labels": list("abc")}))
    with pytest.raises(UnsupportedModel, match="pooling_type 1 is not supported"):
        config_from_gguf(written("qwen3", tensors=tensors, **{**labels, "pooling_type": 1}))
    assert labels_from_gguf(written("qwen3", tensors=model_tensors("qwen3"))) == ()


def test_tensors_have_hugging_face_names(written: Written) -> None:
    layer = {f"self_attn.{p}_proj.weight" for p in "qkvo"} | {f"mlp.{p}_proj.weight" for p in ("gate", "up", "down")}
    layer |= {"input_layernorm.weight", "post_attention_layernorm.weight"}
    extra = {
        "llama": set(),
        "qwen2": {f"self_attn.{p}_proj.bias" for p in "qkv"},
        "qwen3": {"self_attn.q_norm.weight", "self_attn.k_norm.weight"},
    }
    for architecture, names in extra.items():
        tensors = GgufReader(written(architecture)).tensors()
        inside = {f"model.layers.{n}.{name}" for n in range(2) for name in layer | names}
        assert set(tensors) == inside | {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"}
        assert tensors["model.layers.1.mlp.down_proj.weight"].shape == (32, 64)


def interleave(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """What llama.cpp's converter does to a llama: in each head, row i of half h goes to row 2 * i + h."""
    size = rows.shape[0] // num_heads
    moved = np.empty_like(rows)
    for head in range(num_heads):
        for half in range(2):
            for i in range(size // 2):
                moved[head * size + 2 * i + half] = rows[head * size + half * (size // 2) + i]
    return moved


def test_interleaved_rows_of_a_llama_are_put_back(written: Written) -> None:
    original = model_tensors(bias=["attn_q", "attn_k", "attn_v"])
    heads = {"attn_q.": 4, "attn_k.": 2}
    converted = dict(original)
    for name, array in original.items():
        for part, count in heads.items():
            if part in name:
                converted[name] = interleave(array, count)
    reader = GgufReader(written(tensors=converted))
    for layer in range(2):
        for letter in "qkv":
            for kind in ("weight", "bias"):
                read = reader.read(f"model.layers.{layer}.self_attn.{letter}_proj.{kind}")
                assert np.array_equal(read, original[f"blk.{layer}.attn_{letter}.{kind}"])


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3"])
def test_rows_of_a_qwen_are_left_alone(architecture: str, written: Written) -> None:
    original = model_tensors(architecture)
    reader = GgufReader(written(architecture, tensors=original))
    assert np.array_equal(reader.read("model.layers.1.self_attn.q_proj.weight"), original["blk.1.attn_q.weight"])
    assert np.array_equal(reader.read("lm_head.weight"), original["output.weight"])


def test_quantised_rows_are_put_back_after_they_are_read(tmp_path: Path) -> None:
    rows = stored("Q8_0", (32, 32))
    path = write_gguf(tmp_path / "m.gguf", model_metadata(), model_tensors() | {"blk.0.attn_q.weight": rows})
    file = GgufFile.open(path)
    read = GgufReader(file).read("model.layers.0.self_attn.q_proj.weight")
    assert read.dtype == np.float32
    assert np.array_equal(interleave(read, 4), file.read("blk.0.attn_q.weight"))


def test_a_name_the_file_does_not_have_is_an_error(written: Written) -> None:
    with pytest.raises(BadCheckpoint, match=r"no tensor for 'model\.layers\.9"):
        GgufReader(written()).read("model.layers.9.mlp.up_proj.weight")
