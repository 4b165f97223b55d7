"""`checkpoint.load` and `checkpoint.save`: into which models, and with the same bits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from checkpoint_files import (
    LINEARS,
    TOKENS,
    Net,
    assert_same,
    assert_unchanged,
    block,
    copies,
    net,
    settings,
    swapped,
    write,
)
from common import assert_same_bits, random_codes
from torch import nn

from mxfp4_ops import Mxfp4Linear, checkpoint, swap_linear

formats = pytest.mark.parametrize("to", ["mxfp4_ops", "compressed-tensors"])


def meta(tied: bool = False) -> Net:
    """Parameters on the meta device; buffers, as far as files hold them, too."""
    with torch.device("meta"):
        return Net(tied=tied).eval()


@formats
@pytest.mark.parametrize("kind", ["float", "meta", "swapped", "swapped on meta"])
def test_round_trip(to: str, kind: str, tmp_path: Path) -> None:
    """Into any kind of model; nothing is left of what was in it."""
    saved = swapped()
    checkpoint.save(saved, tmp_path / "c", to=to)
    model = meta() if "meta" in kind else net(seed=1)
    if "swapped" in kind:
        swap_linear(model, progress=False)
    report = checkpoint.load(model, tmp_path / "c", progress=False)
    assert report.format == to
    assert sorted(report.quantized) == sorted(f"{name}.weight" for name in LINEARS)
    assert_unchanged(model, saved.state_dict())
    assert_same_bits(model(TOKENS), saved(TOKENS))
    assert all(isinstance(model.get_submodule(name), Mxfp4Linear) for name in LINEARS)
    assert type(model.lm_head) is nn.Linear


@formats
def test_settings_come_back(to: str, tmp_path: Path) -> None:
    checkpoint.save(swapped(activation="bf16"), tmp_path / "c", to=to)
    model = net(seed=1)
    report = checkpoint.load(model, tmp_path / "c", progress=False)
    assert report.settings == checkpoint.Settings("even", "bf16")
    assert settings(block(model, 0).up) == ("even", "bf16")


def test_scale_mode_comes_back_and_can_be_overruled(tmp_path: Path) -> None:
    saved = swapped(scale_mode="ceil")
    checkpoint.save(saved, tmp_path / "c")
    first, second = net(seed=1), net(seed=1)
    checkpoint.load(first, tmp_path / "c", progress=False)
    assert settings(block(first, 1).down) == ("ceil", "mxfp4")
    assert_same_bits(first(TOKENS), saved(TOKENS))
    checkpoint.load(second, tmp_path / "c", scale_mode="floor", activation="bf16", progress=False)
    assert settings(block(second, 1).down) == ("floor", "bf16")


def test_a_file_alone_says_what_it_is(tmp_path: Path) -> None:
    saved = swapped(scale_mode="floor")
    checkpoint.save(saved, tmp_path / "c")
    file = (tmp_path / "c" / "model.safetensors").rename(tmp_path / "alone.safetensors")
    model = meta()
    assert checkpoint.load(model, file, progress=False).settings.scale_mode == "floor"
    assert_unchanged(model, saved.state_dict())


@pytest.mark.parametrize("kind", ["float", "meta"])
def test_tied_weights_are_written_once_and_stay_tied(kind: str, tmp_path: Path) -> None:
    checkpoint.save(swapped(tied=True), tmp_path / "c")
    assert "lm_head.weight" not in checkpoint.open(tmp_path / "c").names()
    model = meta(tied=True) if kind == "meta" else net(tied=True, seed=1)
    checkpoint.load(model, tmp_path / "c", progress=False)
    assert model.lm_head.weight is model.embed.weight
    assert_unchanged(model, swapped(tied=True).state_dict())


def test_layers_with_one_weight_keep_one(tmp_path: Path) -> None:
    def build(seed: int) -> nn.Sequential:
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 64))
        model[1].weight = model[0].weight
        return model

    saved, model = build(0), build(1)
    swap_linear(saved, progress=False)
    checkpoint.save(saved, tmp_path / "c")
    checkpoint.load(model, tmp_path / "c", progress=False)
    assert model[0].weight is model[1].weight
    assert model[0].weight_scale is model[1].weight_scale
    assert_unchanged(model, saved.state_dict())


def test_parameters_that_stay_float_stay_the_same_objects(tmp_path: Path) -> None:
    """So that optimizers and hooks that hold them go on; and they keep their dtype."""
    checkpoint.save(swapped(), tmp_path / "c")
    model = net(seed=1).to(torch.bfloat16)
    held = {name: p for name, p in model.named_parameters() if ".weight" not in name}
    held["embed.weight"] = model.get_parameter("embed.weight")
    calls: list[nn.Module] = []
    block(model, 0).up.register_forward_hook(lambda module, *_: calls.append(module))
    checkpoint.load(model, tmp_path / "c", progress=False)
    now = dict(model.named_parameters())
    for name, parameter in held.items():
        assert now[name] is parameter
        assert parameter.requires_grad
    assert_same_bits(model.embed.weight, net().embed.weight.to(torch.bfloat16))
    model(TOKENS)
    assert calls == [block(model, 0).up]


def test_meta_tensors_take_the_dtype_of_the_file(tmp_path: Path) -> None:
    saved = swapped().to(torch.bfloat16)
    checkpoint.save(saved, tmp_path / "c")
    model = meta()
    checkpoint.load(model, tmp_path / "c", progress=False)
    assert model.embed.weight.dtype == torch.bfloat16
    assert model.embed.weight.requires_grad
    assert not block(model, 0).up.weight.requires_grad


def test_layers_that_the_file_leaves_in_float(tmp_path: Path) -> None:
    """The file decides, whatever `swap_linear` would have taken by default."""
    saved = swapped(skip=["lm_head", "blocks.0.down"])
    checkpoint.save(saved, tmp_path / "c")
    model = net(seed=1)
    checkpoint.load(model, tmp_path / "c", progress=False)
    assert type(block(model, 0).down) is nn.Linear
    assert_same_bits(model(TOKENS), saved(TOKENS))


def test_a_quantised_head(tmp_path: Path) -> None:
    saved = swapped(skip=())
    checkpoint.save(saved, tmp_path / "c")
    model = net(seed=1)
    checkpoint.load(model, tmp_path / "c", progress=False)
    assert isinstance(model.lm_head, Mxfp4Linear)
    assert_same_bits(model(TOKENS), saved(TOKENS))


def test_a_float_checkpoint_fills_a_float_model(tmp_path: Path) -> None:
    saved, model = net(), net(seed=1)
    report = checkpoint.load(model, write(tmp_path, saved.state_dict()), progress=False)
    assert report.quantized == []
    assert_unchanged(model, saved.state_dict())


class Experts(nn.Module):
    """Packed weights of experts, as a module for them holds them."""

    def __init__(self, n: int = 8) -> None:
        super().__init__()
        codes, scales = torch.zeros(3, n, 32).byte(), torch.zeros(3, n, 2).byte()
        self.up = nn.Parameter(codes, requires_grad=False)
        self.up_scale = nn.Parameter(scales, requires_grad=False)


def test_experts(tmp_path: Path) -> None:
    codes, scales = random_codes(3, 8, 64)
    tensors = {"up_blocks": codes.reshape(3, 8, 2, 16), "up_scales": scales}
    model = Experts()
    checkpoint.load(model, write(tmp_path / "c", tensors), progress=False)
    assert_same_bits(model.up, codes)
    assert_same_bits(model.up_scale, scales)
    checkpoint.save(model, tmp_path / "ours")
    again, foreign = checkpoint.open(tmp_path / "ours"), checkpoint.open(tmp_path / "c")
    assert again.entries["up"].shape == (3, 8, 64)
    assert_same(again, foreign)


@pytest.mark.parametrize("kind", ["float", "meta"])
def test_buffers_that_are_no_longer_saved(kind: str, tmp_path: Path) -> None:
    """Older files hold what is not in a state dict any more, such as BERT's position_ids."""
    table = torch.arange(5, dtype=torch.int32)
    model = meta() if kind == "meta" else net(seed=1)
    model.register_buffer("table", torch.zeros_like(table, device=model.embed.weight.device), False)
    tensors = swapped().state_dict() | {"table": table}
    ours = {"quant_method": "mxfp4_ops"}
    checkpoint.load(model, write(tmp_path, tensors, metadata=ours), progress=False)
    assert_same_bits(model.get_buffer("table"), table)
    assert_unchanged(model, swapped().state_dict())


def test_shards(tmp_path: Path) -> None:
    saved = swapped()
    checkpoint.save(saved, tmp_path / "c", shard_bytes=2000)
    files = sorted(file.name for file in (tmp_path / "c").glob("*.safetensors"))
    assert len(files) > 3
    assert files[0] == f"model-00001-of-{len(files):05}.safetensors"
    for file in files:
        assert (tmp_path / "c" / file).stat().st_size < 8000
    model = meta()
    checkpoint.load(model, tmp_path / "c", progress=False)
    assert_unchanged(model, saved.state_dict())
    one = checkpoint.open(tmp_path / "c" / files[0])
    assert 0 < len(one.names()) < len(checkpoint.open(tmp_path / "c").names())


def test_codes_and_scales_in_different_files(tmp_path: Path) -> None:
    codes, scales = random_codes(8, 32)
    write(tmp_path, {"0.weight_packed": codes}, file="a.safetensors")
    write(tmp_path, {"0.weight_scale": scales}, file="b.safetensors")
    model = nn.Sequential(nn.Linear(32, 8, bias=False))
    checkpoint.load(model, tmp_path, progress=False)
    assert_same_bits(model.get_parameter("0.weight"), codes)
    assert_same_bits(model.get_parameter("0.weight_scale"), scales)


def test_progress(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    checkpoint.save(swapped(), tmp_path / "c")
    checkpoint.load(net(), tmp_path / "c", progress=False)
    assert capfd.readouterr() == ("", "")
    checkpoint.load(net(), tmp_path / "c")
    assert "tensors" in capfd.readouterr().err


def test_config_describes_what_is_left_in_float(tmp_path: Path) -> None:
    saved = swapped(skip=["lm_head", "blocks.0.down"])
    checkpoint.save(saved, tmp_path / "c", config={"model_type": "net", "sizes": [1, 2]})
    assert checkpoint.open(tmp_path / "c").config == {
        "model_type": "net",
        "sizes": [1, 2],
        "quantization_config": {
            "quant_method": "mxfp4_ops",
            "scale_mode": "even",
            "activation": "mxfp4",
            "modules_to_not_convert": ["blocks.0.down", "lm_head"],
        },
    }


def test_names_in_the_config_do_not_take_in_quantised_layers(tmp_path: Path) -> None:
    """Transformers would take `down` for the end of `blocks.0.down` as well."""
    blocks = nn.ModuleDict({"down": nn.Linear(32, 32)})
    model = nn.ModuleDict({"down": nn.Linear(32, 32), "blocks": blocks})
    swap_linear(model, filter_fn=lambda name, _: name == "blocks.down", progress=False)
    checkpoint.save(model, tmp_path / "c")
    opened = checkpoint.open(tmp_path / "c")
    quantization = opened.config["quantization_config"]
    assert quantization["modules_to_not_convert"] == ["down$"]
    assert opened.excluded == ["down"]


@pytest.mark.parametrize(
    ("build", "options", "message"),
    [
        (net, {}, "nothing in the model is MXFP4"),
        (swapped, {"to": "gguf"}, "to must be one of mxfp4_ops, compressed-tensors, got 'gguf'"),
        (swapped, {"shard_bytes": 0}, "shard_bytes must be at least 1"),
        (lambda: Experts(), {"to": "compressed-tensors"}, r"up has shape \[3, 8, 64\]: .*2-d"),
        (meta, {}, "nothing in the model is MXFP4"),
    ],
)
def test_what_cannot_be_saved(build, options, message: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=message):
        checkpoint.save(build(), tmp_path / "c", **options)
    assert not list(tmp_path.rglob("*.safetensors"))


def test_layers_that_differ_cannot_be_saved(tmp_path: Path) -> None:
    model = swapped()
    vars(block(model, 0).up)["scale_mode"] = "floor"
    with pytest.raises(ValueError, match="they differ"):
        checkpoint.save(model, tmp_path / "c")


def test_saving_does_not_mix_checkpoints(tmp_path: Path) -> None:
    checkpoint.save(swapped(), tmp_path / "c")
    before = (tmp_path / "c" / "model.safetensors").read_bytes()
    with pytest.raises(ValueError, match="there is a checkpoint in it already"):
        checkpoint.save(swapped(seed=1), tmp_path / "c")
    assert (tmp_path / "c" / "model.safetensors").read_bytes() == before


def test_parameters_in_one_memory_are_written_apart(tmp_path: Path) -> None:
    model = swapped()
    flat = torch.randn(32)
    norm = block(model, 0).norm
    norm.weight.data, norm.bias.data = flat, flat[:]
    block(model, 1).norm.weight.data = flat.flip(0).as_strided((32,), (1,))
    checkpoint.save(model, tmp_path / "c")
    again = net(seed=1)
    checkpoint.load(again, tmp_path / "c", progress=False)
    assert_unchanged(again, model.state_dict())


def test_saving_leaves_the_model_alone(tmp_path: Path) -> None:
    model = swapped()
    before = copies(model)
    checkpoint.save(model, tmp_path / "c")
    assert_unchanged(model, before)
