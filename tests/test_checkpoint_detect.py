"""Which format a checkpoint has: what is stated and what is seen, and no guesses."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_files import write
from common import random_codes
from torch import Tensor

from mxfp4_ops import checkpoint

CODES, SCALES = random_codes(4, 64)
SAME_NAME = {"a.weight": CODES, "a.weight_scale": SCALES}
PACKED = {"a.weight_packed": CODES, "a.weight_scale": SCALES}
EXPERTS = {"a_blocks": CODES.reshape(4, 2, 16), "a_scales": SCALES}
FLOAT = {"a.weight": torch.ones(4, 64)}

QUARK = {"quant_method": "quark"}
QUARK["global_quant_config"] = {"weight": {"dtype": "fp4", "group_size": 32}}  # type: ignore[assignment]
COMPRESSED = {"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized"}
COMPRESSED["config_groups"] = {"group_0": {}}  # type: ignore[assignment]
OURS = {"quant_method": "mxfp4_ops"}


@pytest.mark.parametrize(
    ("tensors", "quantization", "metadata", "format"),
    [
        (SAME_NAME, QUARK, None, "quark"),
        (SAME_NAME, OURS, None, "mxfp4_ops"),
        (SAME_NAME, None, OURS, "mxfp4_ops"),
        (PACKED, COMPRESSED, None, "compressed-tensors"),
        (PACKED, None, None, "compressed-tensors"),
        (EXPERTS, {"quant_method": "mxfp4"}, None, "gpt-oss"),
        (EXPERTS, None, None, "gpt-oss"),
        (FLOAT, None, None, "float"),
    ],
)
def test_found(
    tensors: Mapping[str, Tensor],
    quantization: Mapping[str, Any] | None,
    metadata: Mapping[str, str] | None,
    format: str,
    tmp_path: Path,
) -> None:
    opened = checkpoint.open(write(tmp_path, tensors, quantization, metadata))
    assert opened.format == format
    assert bool(opened.quantized()) == (format != "float")


@pytest.mark.parametrize(
    ("tensors", "quantization", "metadata", "message"),
    [
        # The same names and dtypes are those of two formats.
        (SAME_NAME, None, None, r"a\.weight may be of 'mxfp4_ops' or 'quark'; say format="),
        (SAME_NAME, QUARK, OURS, "contradict each other"),
        (PACKED, QUARK, None, "'quark', but a.weight_packed is named as in format 'compressed-"),
        (EXPERTS, COMPRESSED, None, "but a_blocks is named as in format 'gpt-oss'"),
        (FLOAT, {"quant_method": "gptq"}, None, "quant_method 'gptq', which is not read"),
        (FLOAT, {"bits": 4}, None, "quant_method None, which is not read"),
        ({"a.qweight": CODES}, None, None, r"a.qweight is U8 \[4, 32\], as in no format"),
        (
            SAME_NAME | {"b_blocks": CODES.reshape(4, 2, 16), "b_scales": SCALES},
            None,
            None,
            "may be",
        ),
        (FLOAT, QUARK, None, "no tensor in it is MXFP4 of format 'quark'"),
        (
            SAME_NAME,
            {"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "int8"}}},
            None,
            "without MXFP4 weights",
        ),
        (
            PACKED,
            {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"},
            None,
            "format 'nvfp4-pack-quantized'; .* only 'mxfp4-pack-quantized' is MXFP4",
        ),
        (
            {"a._weight_qdata": CODES, "a._weight_scale": SCALES},
            None,
            None,
            "do not describe a._weight",
        ),
        (
            SAME_NAME,
            OURS | {"scale_mode": "odd"},
            None,
            "scale_mode must be 'even', 'floor' or 'ceil', got 'odd'",
        ),
    ],
)
def test_refused(
    tensors: Mapping[str, Tensor],
    quantization: Mapping[str, Any] | None,
    metadata: Mapping[str, str] | None,
    message: str,
    tmp_path: Path,
) -> None:
    write(tmp_path, tensors, quantization, metadata)
    with pytest.raises(ValueError, match=message) as caught:
        checkpoint.open(tmp_path)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("format", ["quark", "mxfp4_ops"])
def test_format_decides(format: str, tmp_path: Path) -> None:
    opened = checkpoint.open(write(tmp_path, SAME_NAME), format=format)
    assert opened.format == format
    assert opened.quantized() == ["a.weight"]


def test_a_format_that_is_not_it(tmp_path: Path) -> None:
    write(tmp_path, PACKED)
    with pytest.raises(ValueError, match=r"is there, but a\.weight is missing"):
        checkpoint.open(tmp_path, format="quark")
    with pytest.raises(ValueError, match="it is not a GGUF file"):
        checkpoint.open(tmp_path, format="gguf")
    with pytest.raises(ValueError, match=r"format must be one of mxfp4_ops, quark, .*got 'awq'"):
        checkpoint.open(tmp_path, format="awq")


def test_activations_that_other_tools_do_not_quantise(tmp_path: Path) -> None:
    config = COMPRESSED | {"config_groups": {"group_0": {"input_activations": None}}}
    assert checkpoint.open(write(tmp_path / "c", PACKED, config)).settings.activation == "bf16"
    assert checkpoint.open(write(tmp_path / "q", SAME_NAME, QUARK)).settings.activation == "bf16"


def test_scale_mode_of_quark(tmp_path: Path) -> None:
    spec = {"dtype": "fp4", "group_size": 32, "scale_calculation_mode": "floor"}
    layer = {"weight": spec, "input_tensors": spec}
    config = {"quant_method": "quark", "layer_quant_config": {"*": layer}}
    opened = checkpoint.open(write(tmp_path, SAME_NAME, config))
    assert opened.settings == checkpoint.Settings("floor", "mxfp4")


def test_parameters_that_are_only_called_like_scales(tmp_path: Path) -> None:
    others = {"logit_scale": torch.ones(()), "mask": torch.ones(2, 2).byte()}
    others |= {"temperature": torch.ones(2), "temperature_scale": torch.ones(2)}
    opened = checkpoint.open(write(tmp_path, SAME_NAME | others, OURS))
    assert opened.quantized() == ["a.weight"]
    assert set(opened.names()) == {"a.weight", *others}
