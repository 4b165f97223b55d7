"""Transformers quantises while it loads, and saves and loads what it quantised."""

from __future__ import annotations

import json
import weakref
from pathlib import Path
from typing import Any

import oracle
import pytest
import torch
from common import assert_same_bits, every_mode
from tiny_llama import LINEARS, TOKENS, assert_same_state, load, make, saved_again, swapped
from torch import Tensor, nn

import mxfp4_ops
from mxfp4_ops import api, checkpoint

import transformers  # isort: skip  # tiny_llama skips these tests where it is missing
from safetensors.torch import load_file

from mxfp4_ops.integrations.transformers import Mxfp4OpsConfig

transformers.utils.logging.disable_progress_bar()


@pytest.fixture(scope="module")
def float_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("float"))


@every_mode
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_quantises_while_loading(float_folder: Path, dtype: torch.dtype, mode: Any) -> None:
    model = load(float_folder, Mxfp4OpsConfig(scale_mode=mode), dtype=dtype)
    assert swapped(model) == LINEARS
    weights = load_file(float_folder / "model.safetensors")
    for name in LINEARS:
        layer = model.get_submodule(name)
        codes, scales = oracle.quantize_tensor(weights[f"{name}.weight"].to(dtype), mode)
        assert torch.equal(layer.weight, codes)
        assert torch.equal(layer.weight_scale, scales)
        assert layer.scale_mode == mode
    assert {p.dtype for p in model.parameters() if p.is_floating_point()} == {dtype}


def test_is_the_same_model_as_after_swap_linear(float_folder: Path, tmp_path: Path) -> None:
    model, expected = load(float_folder, Mxfp4OpsConfig()), load(float_folder)
    mxfp4_ops.swap_linear(expected, progress=False)
    assert_same_state(model, expected)
    again = saved_again(model, tmp_path)
    options = {"max_new_tokens": 12, "do_sample": False, "attention_mask": torch.ones_like(TOKENS)}
    text = expected.generate(TOKENS, **options)
    assert len(set(text[0].tolist())) > 8  # not one token again and again
    for each in model, again:
        assert torch.equal(each(TOKENS).logits, expected(TOKENS).logits)
        assert torch.equal(each.generate(TOKENS, **options), text)


@pytest.mark.parametrize("activation", ["mxfp4", "bf16"])
def test_activation(float_folder: Path, tmp_path: Path, activation: Any) -> None:
    model, expected = load(float_folder, Mxfp4OpsConfig(activation=activation)), load(float_folder)
    mxfp4_ops.swap_linear(expected, activation=activation, progress=False)
    for each in model, saved_again(model, tmp_path):
        assert each.get_submodule("model.layers.0.mlp.up_proj").activation == activation
        assert each.config.quantization_config.activation == activation
        assert torch.equal(each(TOKENS).logits, expected(TOKENS).logits)


def test_what_is_written(float_folder: Path, tmp_path: Path) -> None:
    load(float_folder, Mxfp4OpsConfig(scale_mode="ceil")).save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["quantization_config"] == {
        "quant_method": "mxfp4_ops",
        "scale_mode": "ceil",
        "activation": "mxfp4",
        "modules_to_not_convert": ["lm_head"],
    }
    tensors = load_file(tmp_path / "model.safetensors")
    packed = {name for name, tensor in tensors.items() if tensor.dtype == torch.uint8}
    assert packed == {f"{name}.{t}" for name in LINEARS for t in ("weight", "weight_scale")}


def test_one_float_weight_at_a_time(float_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[weakref.ref[Tensor]] = []
    quantize = api.quantize

    def spy(x: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
        if x.device.type != "meta":  # the layers are made on that one
            assert [weight for weight in seen if weight() is not None] == []
            seen.append(weakref.ref(x))
        return quantize(x, **options)

    monkeypatch.setattr(api, "quantize", spy)
    load(float_folder, Mxfp4OpsConfig())
    assert len(seen) == len(LINEARS)


@pytest.mark.parametrize(
    ("patterns", "left"),
    [
        (["down_proj", "lm_head"], {n for n in LINEARS if n.endswith("down_proj")}),
        (["model.layers.1", "lm_head"], {n for n in LINEARS if ".1." in n}),
        ([r"model\.layers\.\d\.self_attn", "lm_head"], {n for n in LINEARS if "attn" in n}),
        ([], set()),
    ],
    ids=["end", "beginning", "regular expression", "nothing"],
)
def test_modules_to_not_convert(
    float_folder: Path, tmp_path: Path, patterns: list[str], left: set[str]
) -> None:
    model = load(float_folder, Mxfp4OpsConfig(modules_to_not_convert=patterns))
    head = set() if patterns else {"lm_head"}
    assert swapped(model) == (LINEARS | head) - left
    assert model.config.quantization_config.modules_to_not_convert == patterns
    saved_again(model, tmp_path)


def test_one_configuration_for_several_models(float_folder: Path) -> None:
    config = Mxfp4OpsConfig()
    model = load(float_folder, config)
    assert config.modules_to_not_convert is None
    assert model.config.quantization_config.modules_to_not_convert == ["lm_head"]
    assert model.hf_quantizer.quantization_config is model.config.quantization_config


def test_configuration_as_a_dictionary(float_folder: Path, tmp_path: Path) -> None:
    config = {"quant_method": "mxfp4_ops", "scale_mode": "ceil"}
    model = load(float_folder, quantization_config=config)
    assert_same_state(model, load(float_folder, Mxfp4OpsConfig(scale_mode="ceil")))
    saved_again(model, tmp_path)


def test_tied_weights_stay_tied(tmp_path: Path) -> None:
    source = make(tmp_path / "float", tie_word_embeddings=True)
    model = load(source, Mxfp4OpsConfig(modules_to_not_convert=[]))
    again = saved_again(model, tmp_path / "saved")
    for each in model, again:
        assert swapped(each) == LINEARS
        assert each.lm_head.weight is each.model.embed_tokens.weight
    assert again.config.quantization_config.modules_to_not_convert == ["lm_head"]


def test_layers_that_cannot_be_quantised(tmp_path: Path) -> None:
    source = make(tmp_path / "float", intermediate_size=80)  # no multiple of 32
    model = load(source, Mxfp4OpsConfig())
    down = {f"model.layers.{layer}.mlp.down_proj" for layer in range(2)}
    assert swapped(model) == LINEARS - down
    assert set(model.config.quantization_config.modules_to_not_convert) == down | {"lm_head"}
    saved_again(model, tmp_path / "saved")


class Nested(transformers.PreTrainedModel):
    """A skipped `proj` whose name ends that of a layer that is not."""

    config_class = transformers.LlamaConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.inner = nn.ModuleDict({"proj": nn.Linear(64, 32)})
        self.proj = nn.Linear(48, 32)
        self.last = nn.LayerNorm(32)
        self.post_init()  # type: ignore[no-untyped-call]


def test_a_name_that_ends_another(tmp_path: Path) -> None:
    Nested(transformers.LlamaConfig()).save_pretrained(tmp_path / "float")
    model = Nested.from_pretrained(tmp_path / "float", quantization_config=Mxfp4OpsConfig())
    assert swapped(model) == {"inner.proj"}
    model.save_pretrained(tmp_path / "saved")
    assert_same_state(Nested.from_pretrained(tmp_path / "saved"), model)


def test_tensors_that_the_file_format_fuses(tmp_path: Path) -> None:
    """Its files hold two layers of each MLP as one weight, which is taken apart before."""
    torch.manual_seed(0)
    config = transformers.Dinov2Config(
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=28,
        use_swiglu_ffn=True,
    )
    transformers.Dinov2Model(config).save_pretrained(tmp_path / "float")
    folders = tmp_path / "float", tmp_path / "saved"
    model = transformers.AutoModel.from_pretrained(folders[0], quantization_config=Mxfp4OpsConfig())
    if "encoder.layer.0.mlp.gate_proj" not in swapped(model):
        pytest.skip("this Transformers keeps the two layers as one")
    model.save_pretrained(folders[1])
    assert_same_state(transformers.AutoModel.from_pretrained(folders[1]), model)


def test_files_are_those_of_mxfp4_ops_checkpoint(float_folder: Path, tmp_path: Path) -> None:
    model = load(float_folder, Mxfp4OpsConfig())
    checkpoint.convert(float_folder, tmp_path / "converted")
    assert_same_state(load(tmp_path / "converted"), model)

    model.save_pretrained(tmp_path / "saved")
    other = transformers.LlamaForCausalLM(model.config)
    checkpoint.load(other, tmp_path / "saved")
    assert_same_state(other, model)


def test_a_new_head_is_float(float_folder: Path, tmp_path: Path) -> None:
    load(float_folder, Mxfp4OpsConfig()).save_pretrained(tmp_path)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path, num_labels=3)
    assert type(model.score) is nn.Linear
    assert swapped(model) == LINEARS


def test_dequantize(float_folder: Path) -> None:
    model = load(float_folder, Mxfp4OpsConfig(), dtype=torch.float32)
    name = "model.layers.0.mlp.up_proj"
    before = model.get_submodule(name)
    model.dequantize()
    assert swapped(model) == set()
    assert_same_bits(model.get_submodule(name).weight.detach(), before.dequantize(torch.float32))
    assert not hasattr(model.config, "quantization_config")


@pytest.mark.parametrize("device_map", ["auto", "cpu", {"": "cpu"}], ids=str)
def test_device_map(float_folder: Path, tmp_path: Path, device_map: Any) -> None:
    pytest.importorskip("accelerate")
    expected = load(float_folder, Mxfp4OpsConfig())
    model = load(float_folder, Mxfp4OpsConfig(), device_map=device_map)
    assert_same_state(model.cpu(), expected)
    model.save_pretrained(tmp_path)
    assert_same_state(load(tmp_path, device_map=device_map).cpu(), expected)


DISK = {"model.layers.1": "disk"} | dict.fromkeys(
    ("model.embed_tokens", "model.layers.0", "model.norm", "model.rotary_emb", "lm_head"), "cpu"
)


def test_offload_to_disk(float_folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    with pytest.raises(ValueError, match="device_map sends modules to the disk"):
        load(float_folder, Mxfp4OpsConfig(), device_map=DISK, offload_folder=tmp_path / "offload")
    expected = load(float_folder, Mxfp4OpsConfig())
    expected.save_pretrained(tmp_path / "saved")
    model = load(tmp_path / "saved", device_map=DISK, offload_folder=tmp_path / "offload")
    assert model.model.layers[1].mlp.up_proj.weight.is_meta
    assert torch.equal(model(TOKENS).logits, expected(TOKENS).logits)
