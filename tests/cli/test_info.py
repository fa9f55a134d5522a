"""`onepass info` tells what the configuration and the tokenizer of a model say."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from onepass.cli.main import main

Checkpoint = Callable[[str], Path]


def test_a_checkpoint_is_described_as_json(checkpoint: Checkpoint, capsys: pytest.CaptureFixture[str]) -> None:
    folder = checkpoint("llama3")
    config = json.loads((folder / "config.json").read_text())
    assert main(["info", str(folder), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["architecture"], facts["layers"], facts["heads"], facts["kv_heads"]) == (
        "llama",
        config["num_hidden_layers"],
        config["num_attention_heads"],
        config["num_key_value_heads"],
    )
    assert facts["rope"]["kind"] == "llama3"
    assert facts["tokenizer"] == {"kind": "BPE", "vocabulary": 600}
    assert facts["file_bytes"] == sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    kv = facts["kv_bytes_per_token"]
    assert kv["bfloat16"] == 2 * 2 * facts["layers"] * facts["kv_heads"] * facts["head_dim"]
    assert kv["float32"] == 2 * kv["bfloat16"]
    steps = [name for name in facts["programs"] if name.startswith("step-")]
    assert 1 <= len(steps) <= 8
    assert facts["attention"]["xla"] == "available"
    assert "TPU" in facts["attention"]["pallas-tpu"]
    states = {row["name"]: row["state"] for row in facts["backends"]}
    assert list(states) == ["xla", "cpu", "amx", "hopper", "pallas-tpu"]
    assert sorted(states.values()).count("used") == 1
    assert main(["info", str(folder)]) == 0
    assert "pallas-tpu (unavailable: it needs a TPU; this is cpu)" in capsys.readouterr().out.replace("\n", " ")


def test_a_random_shape_has_no_tokenizer(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "random:qwen3-0.6b?layers=2"]) == 0
    rows = {line[:20].strip(): line[20:].strip() for line in capsys.readouterr().out.splitlines()}
    assert (rows["layers"], rows["tokenizer"], rows["tied embeddings"]) == ("2", "none (token ids only)", "yes")
    assert rows["kv bytes per token"] == "bfloat16 8,192, float32 16,384"


def test_a_gguf_file_is_described_with_its_chat_template(
    smollm2_gguf: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["info", str(smollm2_gguf), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["source"], facts["parameters"], facts["file_bytes"]) == ("gguf", 134_515_008, 98_362_432)
    assert facts["quantization"] == "GGUF, Q4_1, Q8_0"
    assert "<|im_start|>" in facts["chat_template"]
    assert facts["licence"] == "apache-2.0"
    assert main(["info", str(smollm2_gguf)]) == 0
    out = capsys.readouterr().out
    assert f"{len(facts['chat_template']):,} characters of Jinja" in out
    assert "<|im_start|>" not in out, "a page of Jinja is for programs to read"


def test_compiled_programs_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / f"{'0' * 64}.program").write_bytes(bytes(2_000))
    command = ["info", "random:qwen3-0.6b?layers=2", "--programs-dir", str(tmp_path)]
    assert main([*command, "--json"]) == 0
    programs = json.loads(capsys.readouterr().out)["compiled_programs"]
    assert programs == {"folder": str(tmp_path), "programs": 1, "bytes": 2_000, "problem": None}
    assert main(command) == 0
    assert f"1 (2.0 kB) in {tmp_path}" in capsys.readouterr().out.replace("\n", "").replace("  ", "")
    tmp_path.chmod(0o770)
    assert main([*command, "--json"]) == 0
    assert "chmod 700" in json.loads(capsys.readouterr().out)["compiled_programs"]["problem"]


def test_an_adapter_and_a_quantised_checkpoint_are_named(
    checkpoint: Checkpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "base_model_name_or_path": "org/base"}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    module = "base_model.model.model.layers.1.mlp.up_proj"
    pair = {"lora_A": np.ones((2, 64), np.float32), "lora_B": np.ones((96, 2), np.float32)}
    tensors = {f"{module}.{side}.weight": value for side, value in pair.items()}
    save_file(tensors, tmp_path / "adapter_model.safetensors")
    arguments = ["info", str(checkpoint("llama2")), "--adapter", str(tmp_path)]
    assert main([*arguments, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["model"], facts["quantization"]) == (f"llama2+{tmp_path.name}", None)
    assert (facts["adapter"]["rank"], facts["adapter"]["merged"]) == (2, ["up_proj"])
    assert main(arguments) == 0
    assert "org/base" in capsys.readouterr().out
    assert main(["info", str(checkpoint("llama3")), "--adapter", str(tmp_path)]) == 2
    assert "does not fit llama3: " in capsys.readouterr().err
