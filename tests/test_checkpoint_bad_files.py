"""Files that are not whole, and checkpoints that do not fit: a clear error, and nothing changed."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from checkpoint_files import (
    LINEARS,
    Net,
    assert_unchanged,
    block,
    copies,
    net,
    run_tool,
    swapped,
    write,
)
from torch import Tensor, nn

from mxfp4_ops import Mxfp4Linear, checkpoint, swap_linear

OURS = {"quant_method": "mxfp4_ops"}
UP = "blocks.1.up.weight"

Change = Callable[[dict[str, Tensor]], object]


def without(name: str) -> Change:
    return lambda tensors: tensors.pop(name)


def with_(name: str, change: Callable[[Tensor], Tensor]) -> Change:
    return lambda tensors: tensors.update({name: change(tensors[name])})


def refused(model: nn.Module, path: Path, message: str) -> None:
    """Loading fails, names the file, and leaves the model as it was, its modules included."""
    before, modules = copies(model), list(model.modules())
    tensors = list(model.state_dict(keep_vars=True).values())
    with pytest.raises(ValueError, match=message) as caught:
        checkpoint.load(model, path, progress=False)
    assert str(path) in str(caught.value)
    assert_unchanged(model, before)
    assert list(model.modules()) == modules
    now = model.state_dict(keep_vars=True).values()
    assert all(a is b for a, b in zip(now, tensors, strict=True))


@pytest.mark.parametrize("into", ["float", "swapped"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without(f"{UP}_scale"), f"{UP} is there, but {UP}_scale is missing"),
        (without(UP), f"{UP}_scale is there, but {UP} is missing"),
        (without("blocks.1.up.bias"), "holds no blocks.1.up.bias, which the model has"),
        (without("embed.weight"), "holds no embed.weight, which the model has"),
        (without("blocks.0.steps"), "holds no blocks.0.steps, which the model has"),
        (with_(f"{UP}_scale", lambda t: t[:, :0]), rf"{UP}_scale must have shape \[96, 1\] for"),
        (with_(f"{UP}_scale", lambda t: t.float()), rf"{UP} \(U8\) and {UP}_scale \(F32\) are qu"),
        (with_(UP, lambda t: t[:, :9]), rf"{UP} has shape \[96, 9\]; codes of MXFP4"),
        (
            with_("embed.weight", lambda t: t[:4]),
            r"embed.weight has shape \[4, 32\], but .* \[10, 32\]",
        ),
        (with_("embed.weight", lambda t: t.long()), "embed.weight is I64, but the model's is"),
        (lambda t: t.update(extra=torch.ones(2)), "the model has no extra"),
        (
            lambda t: t.update({UP: t[UP][:32], f"{UP}_scale": t[f"{UP}_scale"][:32]}),
            rf"{UP} has shape \[32, 32\], but the model's has \[96, 32\]",
        ),
    ],
)
def test_does_not_fit(into: str, change: Change, message: str, tmp_path: Path) -> None:
    tensors = dict(swapped().state_dict())
    change(tensors)
    write(tmp_path, tensors, metadata=OURS)
    refused(net(seed=1) if into == "float" else swapped(seed=1), tmp_path, message)


def test_a_float_weight_for_a_swapped_layer(tmp_path: Path) -> None:
    path = write(tmp_path, net().state_dict())
    refused(
        swapped(seed=1), path, r"blocks.0.(up|down).weight is F32, but the model's is torch.uint8"
    )


def test_a_quantised_weight_that_is_no_linear_layers(tmp_path: Path) -> None:
    tensors = dict(swapped().state_dict())
    tensors["embed.weight"] = torch.zeros(10, 16).byte()
    tensors["embed.weight_scale"] = torch.zeros(10, 1).byte()
    path = write(tmp_path, tensors, metadata=OURS)
    refused(
        net(seed=1), path, "embed.weight is MXFP4, but .* a float tensor of Embedding, which cannot"
    )


def test_a_tied_weight_cannot_be_quantised(tmp_path: Path) -> None:
    tensors = dict(swapped(skip=()).state_dict())
    del tensors["embed.weight"]
    path = write(tmp_path, tensors, metadata=OURS)
    refused(net(tied=True), path, "lm_head.weight is MXFP4, .* its weight is shared with embed")


def test_a_subclass_of_linear_cannot_be_replaced(tmp_path: Path) -> None:
    class Special(nn.Linear):
        pass

    model = net(seed=1)
    block(model, 1).up = Special(32, 96)
    path = write(tmp_path, swapped().state_dict(), metadata=OURS)
    refused(model, path, f"{UP} is MXFP4, but .*: it is a Special, a subclass of nn.Linear")


def test_a_lone_layer_cannot_be_replaced(tmp_path: Path) -> None:
    layer = Mxfp4Linear.from_linear(nn.Linear(32, 8))
    path = write(tmp_path, layer.state_dict(), metadata=OURS)
    with pytest.raises(ValueError, match="is itself a linear layer"):
        checkpoint.load(nn.Linear(32, 8), path, progress=False)
    again = Mxfp4Linear(32, 8)
    checkpoint.load(again, path, progress=False)
    assert_unchanged(again, layer.state_dict())


def test_buffers_that_no_file_holds_must_not_be_on_meta(tmp_path: Path) -> None:
    with torch.device("meta"):
        model = Net()
        model.register_buffer("table", torch.zeros(3), persistent=False)
    path = write(tmp_path, swapped().state_dict(), metadata=OURS)
    with pytest.raises(ValueError, match="buffer table is on the meta device"):
        checkpoint.load(model, path, progress=False)


@pytest.mark.parametrize("options", [{"scale_mode": "odd"}, {"activation": "fp8"}])
def test_wrong_options(options: dict[str, str], tmp_path: Path) -> None:
    write(tmp_path, swapped().state_dict(), metadata=OURS)
    with pytest.raises(ValueError, match=next(iter(options))):
        checkpoint.load(net(), tmp_path, progress=False, **options)  # type: ignore[arg-type]


def test_safetensors_cut_off_anywhere(tmp_path: Path) -> None:
    file = write(tmp_path, swapped().state_dict(), metadata=OURS) / "model.safetensors"
    whole = file.read_bytes()
    model = net(seed=1)
    for length in (0, 1, 7, 8, 9, 100, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:length])
        refused(model, file, "not a whole safetensors file")
    file.write_bytes(whole)
    checkpoint.load(model, file, progress=False)


def test_safetensors_with_a_broken_header(tmp_path: Path) -> None:
    file = write(tmp_path, swapped().state_dict(), metadata=OURS) / "model.safetensors"
    whole = bytearray(file.read_bytes())
    for at in (0, 8, 20):
        broken = whole.copy()
        broken[at] ^= 0xFF
        file.write_bytes(broken)
        refused(net(seed=1), file, "not a whole safetensors file")


def test_a_file_that_is_cut_while_it_is_read(tmp_path: Path) -> None:
    """The headers were right; reading fails half-way, and the model is still as it was."""
    file = write(tmp_path, swapped().state_dict(), metadata=OURS) / "model.safetensors"
    opened = checkpoint.open(file)
    file.write_bytes(file.read_bytes()[:-1])
    model = net(seed=1)
    before = copies(model)
    with pytest.raises(ValueError, match="not a whole safetensors file"):
        checkpoint.load(model, opened, progress=False)
    assert_unchanged(model, before)


def test_gguf_cut_off_anywhere(tmp_path: Path) -> None:
    source = run_tool("gguf", tmp_path) / "checkpoint" / "model.gguf"
    whole = source.read_bytes()
    file = tmp_path / "cut.gguf"
    for length in (4, 8, 24, 40, 100, 300, len(whole) // 2, len(whole) - 64):
        file.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"GGUF file|ends within") as caught:
            list(checkpoint.open(file).items())
        assert str(file) in str(caught.value)


def test_indices(tmp_path: Path) -> None:
    checkpoint.save(swapped(), tmp_path, shard_bytes=4000)
    index = tmp_path / "model.safetensors.index.json"
    listed = json.loads(index.read_text())
    model = net(seed=1)
    first = min(tmp_path.glob("model-00001-of-*.safetensors"))
    moved = first.rename(tmp_path / "elsewhere")
    refused(model, first.parent, f"{first}: this file is missing, which {index} lists")
    moved.rename(first)

    index.write_text(json.dumps({"weight_map": listed["weight_map"] | {"more": first.name}}))
    refused(model, tmp_path, f"{first}: more is missing, which {index} lists")
    index.write_text(json.dumps({"weight_map": ["a"]}))
    refused(model, tmp_path, "'weight_map' must map names of tensors to files")
    index.write_text("{")
    refused(model, tmp_path, f"{index}: not JSON")
    index.write_text(json.dumps(listed))
    checkpoint.load(model, tmp_path, progress=False)


def test_the_same_tensor_in_two_files(tmp_path: Path) -> None:
    write(tmp_path, {"a": torch.ones(2)}, file="a.safetensors")
    write(tmp_path, {"a": torch.ones(2)}, file="b.safetensors")
    with pytest.raises(ValueError, match=r"b\.safetensors: a is in .*a\.safetensors as well"):
        checkpoint.open(tmp_path)


def test_broken_config(tmp_path: Path) -> None:
    write(tmp_path, swapped().state_dict(), metadata=OURS)
    config = tmp_path / "config.json"
    for text, message in (("{", "not JSON"), ("[]", "must hold a JSON object")):
        config.write_text(text)
        with pytest.raises(ValueError, match=message) as caught:
            checkpoint.open(tmp_path)
        assert str(config) in str(caught.value)


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no file or folder"):
        checkpoint.open(tmp_path / "absent")
    with pytest.raises(ValueError, match="no safetensors file in this folder"):
        checkpoint.open(tmp_path)
    write(tmp_path, {"a": torch.ones(2)})
    with pytest.raises(ValueError, match="it holds no b"):
        checkpoint.open(tmp_path).read("b")


def test_a_model_that_was_swapped_otherwise(tmp_path: Path) -> None:
    """A layer that the file quantises and the model has in float is swapped; not the reverse."""
    path = write(tmp_path, swapped(skip=["blocks.0"]).state_dict(), metadata=OURS)
    model = net(seed=1)
    swap_linear(model, filter_fn=lambda name, _: name == LINEARS[0], progress=False)
    refused(model, path, f"{LINEARS[0]}.weight is F32, but the model's is torch.uint8")


@pytest.mark.parametrize(("package", "content"), [("gguf", b"GGUF"), ("safetensors", b"")])
def test_a_package_that_is_missing(
    package: str, content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(ModuleNotFoundError, match=f"pip install {package}"):
        checkpoint.open(tmp_path / "file")
