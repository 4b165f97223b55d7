"""Small checkpoints by the tools that people use: `python checkpoint_tools.py TOOL FOLDER`.

Each writes FOLDER/checkpoint as its tool does, and FOLDER/expected.safetensors: the quantised
weights as that very tool dequantises them. Tests run this in a process of its own, because some of
the tools change torch or Transformers. tests/checkpoint_samples holds what it wrote for those that
are too large to be installed everywhere.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

KEPT = "model.layers.0.self_attn.o_proj"
"""A layer that every tool is told to leave in float, as it is told to leave the head."""


def llama() -> Any:
    """A model with more than 128 rows and more than 4 blocks to a row in some of its layers."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=32,
        intermediate_size=160,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
    return LlamaForCausalLM(config).bfloat16()


def expect(folder: Path, weights: dict[str, Tensor]) -> None:
    owned = {name: weight.detach().contiguous() for name, weight in weights.items()}
    save_file(owned, folder / "expected.safetensors")


def compressed_tensors(folder: Path) -> None:
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config
    from compressed_tensors.quantization.quant_scheme import preset_name_to_scheme
    from compressed_tensors.quantization.utils import calculate_qparams

    model = llama()
    scheme = preset_name_to_scheme("MXFP4", ["Linear"])
    config = QuantizationConfig(config_groups={"group_0": scheme}, ignore=["lm_head", KEPT])
    apply_quantization_config(model, config)
    layers = {n: m for n, m in model.named_modules() if hasattr(m, "weight_scale")}
    for layer in layers.values():
        blocks = layer.weight.unflatten(-1, (-1, 32))
        scheme = layer.quantization_scheme.weights
        layer.weight_scale.data = calculate_qparams(blocks.amin(-1), blocks.amax(-1), scheme)[0]
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    model.save_pretrained(folder / "checkpoint")
    compressor.update_config(str(folder / "checkpoint"))
    compressor.decompress_model(model)
    expect(folder, {f"{name}.weight": layer.weight for name, layer in layers.items()})


def quark(folder: Path) -> None:
    from quark.torch import ModelQuantizer, export_safetensors
    from quark.torch.quantization.config.config import OCP_MXFP4Spec, QConfig, QLayerConfig

    layer = QLayerConfig(
        weight=OCP_MXFP4Spec(ch_axis=-1, is_dynamic=False).to_quantization_spec(),
        input_tensors=OCP_MXFP4Spec(ch_axis=-1, is_dynamic=True).to_quantization_spec(),
    )
    quantizer = ModelQuantizer(QConfig(global_quant_config=layer, exclude=["lm_head", KEPT]))
    model = quantizer.freeze(quantizer.quantize_model(llama()))
    layers = {n: m for n, m in model.named_modules() if hasattr(m, "get_quant_weight")}
    expected = {f"{n}.weight": m.get_quant_weight(m.weight) for n, m in layers.items()}
    export_safetensors(model=model, output_dir=str(folder / "checkpoint"))
    expect(folder, expected)


def torchao(folder: Path) -> None:
    """The scales are swizzled; layers quantise their activations."""
    from torchao.prototype.mx_formats.inference_workflow import MXDynamicActivationMXWeightConfig
    from torchao.quantization import quantize_
    from torchao.quantization.quantize_.common import KernelPreference

    def chosen(module: torch.nn.Module, name: str) -> bool:
        return isinstance(module, torch.nn.Linear) and name not in ("lm_head", KEPT)

    config = MXDynamicActivationMXWeightConfig(
        activation_dtype=torch.float4_e2m1fn_x2,
        weight_dtype=torch.float4_e2m1fn_x2,
        kernel_preference=KernelPreference.EMULATED,
    )
    model = llama()
    quantize_(model, config, chosen)
    _save_torchao(folder, model.state_dict())


def torchao_plain(folder: Path) -> None:
    """The scales are plain; only weights are quantised."""
    from torchao.prototype.mx_formats.mx_tensor import MXTensor

    state = llama().state_dict()
    for name, weight in state.items():
        if name.endswith("_proj.weight") and not name.startswith(KEPT):
            state[name] = MXTensor.to_mx(weight, torch.float4_e2m1fn_x2, 32)
    _save_torchao(folder, state)


def _save_torchao(folder: Path, state: dict[str, Tensor]) -> None:
    from torchao.prototype.mx_formats.mx_tensor import MXTensor
    from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict

    bare = {
        name: t.data if isinstance(t.data, MXTensor) else t.detach() for name, t in state.items()
    }
    tensors, metadata = flatten_tensor_state_dict(bare)
    (folder / "checkpoint").mkdir()
    save_file(tensors, folder / "checkpoint" / "model.safetensors", metadata)
    quantized = {name: t for name, t in bare.items() if isinstance(t, MXTensor)}
    expect(folder, {name: t.dequantize() for name, t in quantized.items()})


def gguf(folder: Path) -> None:
    from gguf import GGMLQuantizationType as Type
    from gguf import GGUFWriter
    from gguf.quants import dequantize, quantize

    (folder / "checkpoint").mkdir()
    rng = np.random.default_rng(0)
    writer = GGUFWriter(folder / "checkpoint" / "model.gguf", "llama")
    expected = {}
    for name, shape, kind in (
        ("token_embd.weight", (8, 64), Type.F16),
        ("blk.0.attn_q.weight", (48, 64), Type.MXFP4),
        ("blk.0.attn_k.weight", (16, 64), Type.Q8_0),
        ("blk.0.attn_v.weight", (16, 64), Type.BF16),
        ("blk.0.attn_norm.weight", (64,), Type.F32),
        ("blk.0.ffn_up_exps.weight", (3, 16, 96), Type.MXFP4),
    ):
        values = rng.standard_normal(shape, dtype=np.float32) * 2.0 ** rng.integers(-9, 9, shape)
        stored = quantize(values.astype(np.float32), kind)
        writer.add_tensor(name, stored, raw_dtype=kind)
        expected[name] = torch.from_numpy(dequantize(stored, kind).reshape(shape))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    expect(folder, expected)


def gpt_oss(folder: Path) -> None:
    """Transformers has a model of gpt-oss and reads its files, but writes them on GPUs only."""
    from transformers import AutoModelForCausalLM, GptOssConfig, GptOssForCausalLM
    from transformers.utils.quantization_config import Mxfp4Config

    torch.manual_seed(0)
    config = GptOssConfig(
        vocab_size=32,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=32,
        num_local_experts=4,
        num_experts_per_tok=2,
    )
    saved = folder / "checkpoint"
    GptOssForCausalLM(config).bfloat16().save_pretrained(saved)
    tensors = load_file(saved / "model.safetensors")
    experts = [n for n in tensors if n.endswith(("gate_up_proj", "down_proj"))]
    for name in experts:
        count, k, n = tensors.pop(name).shape
        tensors[f"{name}_blocks"] = torch.randint(0, 256, (count, n, k // 32, 16)).byte()
        tensors[f"{name}_scales"] = torch.randint(118, 124, (count, n, k // 32)).byte()
    save_file(tensors, saved / "model.safetensors", {"format": "pt"})
    described = json.loads((saved / "config.json").read_text())
    described["quantization_config"] = {
        "quant_method": "mxfp4",
        "modules_to_not_convert": ["lm_head"],
    }
    (saved / "config.json").write_text(json.dumps(described))
    model = AutoModelForCausalLM.from_pretrained(
        saved, quantization_config=Mxfp4Config(dequantize=True)
    )
    state = model.state_dict()
    expect(folder, {name: state[name].transpose(-1, -2) for name in experts})


def read_compressed_tensors(folder: Path) -> None:
    """Have Transformers and compressed-tensors read what was written in their format."""
    from transformers import AutoModelForCausalLM, CompressedTensorsConfig

    model = AutoModelForCausalLM.from_pretrained(
        folder / "checkpoint",
        quantization_config=CompressedTensorsConfig(dequantize=True),
        dtype=torch.bfloat16,
    )
    expect(folder, {n: t for n, t in model.state_dict().items() if n.endswith("weight")})


TOOLS: dict[str, Callable[[Path], None]] = {
    "compressed-tensors": compressed_tensors,
    "quark": quark,
    "torchao": torchao,
    "torchao-plain": torchao_plain,
    "gguf": gguf,
    "gpt-oss": gpt_oss,
    "read-compressed-tensors": read_compressed_tensors,
}

if __name__ == "__main__":
    TOOLS[sys.argv[1]](Path(sys.argv[2]))
