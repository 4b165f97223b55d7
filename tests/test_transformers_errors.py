"""What Transformers' users are told when something is wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tiny_llama import load, make, swapped

import transformers  # isort: skip  # tiny_llama skips these tests where it is missing
from safetensors.torch import load_file, save_file

from mxfp4_ops.integrations.transformers import Mxfp4OpsConfig


@pytest.fixture(scope="module")
def float_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("float"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scale_mode": "round"}, "scale_mode must be 'even', 'floor' or 'ceil', got 'round'"),
        ({"activation": "int8"}, "activation must be 'mxfp4' or 'bf16', got 'int8'"),
        ({"modules_to_not_convert": "lm_head"}, "must be a list of names, got the string"),
        ({"quant_method": "mxfp4"}, "quant_method must be 'mxfp4_ops', got 'mxfp4'"),
    ],
    ids=str,
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Mxfp4OpsConfig(**options)


@pytest.mark.parametrize("lost", ["weight", "weight_scale"])
def test_a_lost_tensor_is_named(float_folder: Path, tmp_path: Path, lost: str) -> None:
    load(float_folder, Mxfp4OpsConfig()).save_pretrained(tmp_path)
    file, name = tmp_path / "model.safetensors", f"model.layers.1.mlp.up_proj.{lost}"
    tensors = load_file(file)
    del tensors[name]
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=f"no file holds {name} for .* in .*model.safetensors"):
        load(tmp_path)


def test_a_weight_of_another_shape(
    float_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = make(tmp_path, hidden_size=64)
    tensors, name = load_file(source / "model.safetensors"), "model.layers.1.mlp.up_proj.weight"
    tensors[name] = tensors[name][:, :32].contiguous()
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    transformers.utils.logging.enable_propagation()
    try:
        with pytest.raises(RuntimeError, match="conversion of the weights"):
            load(source, Mxfp4OpsConfig())
    finally:
        transformers.utils.logging.disable_propagation()
    assert f"{name} must have shape [96, 64], but is [96, 32] in the file" in caplog.text


def test_says_when_there_is_nothing_to_quantise(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = transformers.GPT2Config(
        n_embd=64, n_layer=1, n_head=2, vocab_size=64, bos_token_id=1, eos_token_id=1
    )
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path)
    assert swapped(load(tmp_path, Mxfp4OpsConfig())) == set()
    assert "mxfp4_ops quantised nothing of GPT2LMHeadModel" in caplog.text


def test_names_what_to_install() -> None:
    script = "import sys; sys.modules['transformers'] = None; import mxfp4_ops.integrations.{}"
    run = [sys.executable, "-c", script.format("transformers")]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert "needs Transformers 5 or newer: pip install 'transformers>=5'" in done.stderr
