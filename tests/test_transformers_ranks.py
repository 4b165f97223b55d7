"""Transformers divides a saved MXFP4 model among ranks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ranks import group
from tiny_llama import LINEARS, TOKENS, load, make, swapped
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from mxfp4_ops.integrations.transformers import Mxfp4OpsConfig

SIZE = 2


def _compare(mesh: DeviceMesh, folder: Path) -> None:
    """On each rank: the sharded model gives what the whole one does."""
    from transformers.distributed.configuration_utils import DistributedConfig

    os.environ |= {"RANK": str(dist.get_rank()), "WORLD_SIZE": str(SIZE), "LOCAL_RANK": "0"}
    config = DistributedConfig(tp_size=SIZE, tp_plan="auto")
    model = load(folder / "saved", distributed_config=config)
    assert swapped(model) == LINEARS
    for name in LINEARS:
        layer = model.get_submodule(name)
        for tensor in (layer.weight, layer.weight_scale):
            assert isinstance(tensor, DTensor)
            assert tensor.to_local().numel() * SIZE == tensor.numel()
    actual, expected = (m(TOKENS).logits for m in (model, load(folder / "saved")))
    torch.testing.assert_close(actual, expected)
    with pytest.raises(ValueError, match="cannot be divided among ranks"):
        load(folder / "float", Mxfp4OpsConfig(), distributed_config=config)


def test_tensor_parallel(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    pytest.importorskip("transformers", minversion="5.18")
    # K of each rank holds whole blocks of 32.
    source = make(tmp_path / "float", intermediate_size=128, attention_bias=False)
    load(source, Mxfp4OpsConfig()).save_pretrained(tmp_path / "saved")
    group(SIZE).run(_compare, folder=tmp_path)
