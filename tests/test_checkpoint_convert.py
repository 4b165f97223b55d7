"""`checkpoint.convert`: the layers and bits of `swap_linear`, and going on where it stopped."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from checkpoint_files import (
    LINEARS,
    SAMPLES,
    Net,
    assert_same,
    assert_unchanged,
    net,
    swapped,
    write,
)
from checkpoint_tools import llama
from common import assert_same_bits, every_mode, random_codes
from torch import Tensor, nn

from mxfp4_ops import ScaleMode, checkpoint, swap_linear
from mxfp4_ops.checkpoint import write as writing
from mxfp4_ops.checkpoint.journal import NAME as JOURNAL

targets = pytest.mark.parametrize("to", ["mxfp4_ops", "compressed-tensors"])


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write(tmp_path / "float", net().state_dict())


@targets
@every_mode
def test_same_as_swapping(to: str, mode: ScaleMode, source: Path, tmp_path: Path) -> None:
    """A converted file loads as the model that was swapped in memory."""
    into = tmp_path / "c"
    checkpoint.convert(source, into, to=to, model=net(), scale_mode=mode, progress=False)
    expected, model = swapped(scale_mode=mode), net(seed=1)
    report = checkpoint.load(model, into, progress=False)
    assert report.format == to
    assert_unchanged(model, expected.state_dict())
    saved = tmp_path / "saved"
    checkpoint.save(expected, saved, to=to)
    assert_same(checkpoint.open(into), checkpoint.open(saved))
    left = (set(checkpoint.open(folder).excluded) for folder in (into, saved))
    assert next(left) - {"embed"} == next(left)


def test_skip(source: Path, tmp_path: Path) -> None:
    done = checkpoint.convert(
        source, tmp_path / "c", model=net(), skip=["blocks.*.up"], progress=False
    )
    expected = net()
    report = swap_linear(expected, skip=["blocks.*.up"], progress=False)
    quantized = [row.entry.module for row in done.rows if row.quantized]
    assert sorted(map(str, quantized)) == sorted(report.swapped)
    reasons = {row.entry.module: row.reason for row in done.rows if row.reason}
    assert reasons == report.skipped


def test_the_model_is_found_by_config(tmp_path: Path) -> None:
    """config.json and Transformers say which tensors are linear layers; embeddings are none."""
    model = llama()
    model.save_pretrained(tmp_path / "float")
    (tmp_path / "float" / "tokenizer.json").write_text("{}")
    checkpoint.convert(tmp_path / "float", tmp_path / "c", progress=False)
    opened = checkpoint.open(tmp_path / "c")
    report = swap_linear(model, progress=False)
    assert sorted(opened.quantized()) == sorted(f"{name}.weight" for name in report.swapped)
    for name, t in model.state_dict().items():
        if not name.endswith("_scale"):
            value = opened.read(name)
            assert_same_bits(value[0] if isinstance(value, tuple) else value, t)
    assert opened.config["model_type"] == "llama"
    assert (tmp_path / "c" / "tokenizer.json").read_text() == "{}"


def test_include(source: Path, tmp_path: Path) -> None:
    """Without a model the caller says what to quantise."""
    checkpoint.convert(source, tmp_path / "c", include=["blocks.0", "lm_head"], progress=False)
    assert sorted(checkpoint.open(tmp_path / "c").quantized()) == [
        "blocks.0.down.weight",
        "blocks.0.up.weight",
    ]
    done = checkpoint.convert(
        source, tmp_path / "d", include=["blocks", "lm_head"], skip=(), dry_run=True
    )
    assert not (tmp_path / "d").exists()
    assert [row.entry.name for row in done.rows if row.quantized and row.entry.name[0] != "b"] == [
        "lm_head.weight"
    ]


def test_sizes_are_those_of_the_files(source: Path, tmp_path: Path) -> None:
    done = checkpoint.convert(source, tmp_path / "c", model=net(), progress=False)
    written = checkpoint.open(tmp_path / "c")
    assert {row.entry.name: row.after for row in done.rows} == {
        name: entry.nbytes for name, entry in written.entries.items()
    }
    read = checkpoint.open(source)
    assert {row.entry.name: row.before for row in done.rows} == {
        name: entry.nbytes for name, entry in read.entries.items()
    }


@targets
def test_foreign_bits_are_taken_over(to: str, tmp_path: Path) -> None:
    """Files that quantised otherwise than we would keep their bits, whatever the scale mode."""
    opened = checkpoint.open(SAMPLES / "torchao" / "checkpoint")
    checkpoint.convert(opened, tmp_path / "c", to=to, scale_mode="floor", progress=False)
    assert_same(checkpoint.open(tmp_path / "c"), opened)


def test_what_a_config_leaves_in_float_is_kept(tmp_path: Path) -> None:
    """Also a tied head, which is in no file, and names of layers that have no weight there."""
    codes, scales = random_codes(8, 32)
    tensors = {"m.weight_packed": codes, "m.weight_scale": scales, "e.weight": torch.ones(9, 32)}
    groups = {"group_0": {"input_activations": {"num_bits": 4}}}
    quantization = {
        "quant_method": "compressed-tensors",
        "format": "mxfp4-pack-quantized",
        "config_groups": groups,
        "ignore": ["other.gate", "re:.*router"],
    }
    folder = write(tmp_path / "packed", tensors, quantization)
    config = json.loads((folder / "config.json").read_text()) | {"tie_word_embeddings": True}
    (folder / "config.json").write_text(json.dumps(config))
    checkpoint.convert(folder, tmp_path / "c", progress=False)
    assert checkpoint.open(tmp_path / "c").config == {
        "model_type": "net",
        "tie_word_embeddings": True,
        "quantization_config": {
            "quant_method": "mxfp4_ops",
            "scale_mode": "even",
            "activation": "mxfp4",
            "modules_to_not_convert": ["e", "other.gate", "lm_head"],
        },
    }


class Interrupted(Exception):
    pass


@dataclass
class Writes:
    """Names of the files that were written, and how many may be."""

    names: list[str] = field(default_factory=list)
    stop_after: int | None = 2


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> Writes:
    seen = Writes()
    really = writing.write_tensors

    def write_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
        if len(seen.names) == seen.stop_after:
            raise Interrupted
        really(path, tensors, metadata)
        seen.names.append(path.name)

    monkeypatch.setattr(writing, "write_tensors", write_tensors)
    return seen


def convert(source: Path, into: Path, **options: object) -> checkpoint.Conversion:
    return checkpoint.convert(
        source,
        into,
        model=net(),
        shard_bytes=2000,
        progress=False,
        **options,  # type: ignore[arg-type]
    )


def test_going_on(source: Path, writes: Writes, tmp_path: Path) -> None:
    into = tmp_path / "c"
    with pytest.raises(Interrupted):
        convert(source, into)
    assert (into / JOURNAL).is_file()
    assert not (into / "config.json").exists()
    kept, broken = writes.names
    time = (into / kept).stat().st_mtime_ns
    changed = bytearray((into / broken).read_bytes())
    changed[-1] ^= 1
    (into / broken).write_bytes(changed)

    writes.names, writes.stop_after = [], None
    done = convert(source, into)
    assert set(writes.names) == {shard.file for shard in done.shards} - {kept}
    assert len(done.shards) > 3
    assert (into / kept).stat().st_mtime_ns == time
    assert not (into / JOURNAL).exists()
    assert not list(into.glob("*.part"))
    convert(source, tmp_path / "at once")
    assert_same(checkpoint.open(into), checkpoint.open(tmp_path / "at once"))


@pytest.mark.parametrize(
    "change", [{"scale_mode": "floor"}, {"to": "compressed-tensors"}, {"skip": ["blocks.0"]}]
)
def test_not_going_on_with_other_options(
    change: dict[str, object], source: Path, writes: Writes, tmp_path: Path
) -> None:
    with pytest.raises(Interrupted):
        convert(source, tmp_path / "c")
    with pytest.raises(ValueError, match="the beginning of another conversion"):
        convert(source, tmp_path / "c", **change)


def test_not_going_on_with_another_source(source: Path, writes: Writes, tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        convert(source, tmp_path / "c")
    write(source, net(seed=1).state_dict())
    with pytest.raises(ValueError, match="the beginning of another conversion"):
        convert(source, tmp_path / "c")


def test_not_over_another_checkpoint(source: Path, tmp_path: Path) -> None:
    convert(source, tmp_path / "c")
    with pytest.raises(ValueError, match="there is a checkpoint in it already"):
        convert(source, tmp_path / "c")
    with pytest.raises(ValueError, match="it is a file; give a folder"):
        convert(source, source / "model.safetensors")


def sequential() -> nn.Module:
    return nn.Sequential(nn.Linear(32, 32))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "cannot be told from the file, and no config.json names the model's architecture"),
        ({"model": sequential()}, "it holds no 0.weight, which the model has"),
        ({"model": net(), "skip": ["blocks", "lm_head"]}, "there is nothing to quantise in it"),
        ({"include": ["nowhere"]}, "include pattern 'nowhere' matches no matrix"),
        ({"include": "blocks"}, "include must be a list of patterns, got the string 'blocks'"),
        ({"include": ["blocks"], "skip": "up"}, "skip must be a list of patterns"),
        ({"to": "gguf"}, "to must be one of mxfp4_ops, compressed-tensors, got 'gguf'"),
    ],
)
def test_refused(options: dict[str, object], message: str, source: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        checkpoint.convert(source, tmp_path / "c", progress=False, **options)  # type: ignore[arg-type]
    assert not (tmp_path / "c").exists()


def test_an_unknown_architecture(tmp_path: Path) -> None:
    folder = write(tmp_path / "float", net().state_dict())
    (folder / "config.json").write_text(json.dumps({"architectures": ["NoSuchModel"]}))
    with pytest.raises(ValueError, match="the installed Transformers has no NoSuchModel"):
        checkpoint.convert(folder, tmp_path / "c", progress=False)


def test_weights_that_cannot_be_quantised_stay(tmp_path: Path) -> None:
    """Of the file's dtype and shape, whatever the model is made of."""
    tensors = dict(net().state_dict())
    tensors["blocks.0.up.weight"] = tensors["blocks.0.up.weight"].double()
    done = checkpoint.convert(
        write(tmp_path / "float", tensors), tmp_path / "c", model=net(), progress=False
    )
    reasons = {row.entry.name: row.reason for row in done.rows if not row.quantized}
    assert reasons["blocks.0.up.weight"] == "its weight is F64, not BF16 or F16 or F32"
    assert len(checkpoint.open(tmp_path / "c").quantized()) == len(LINEARS) - 1


def test_experts_have_no_place_in_compressed_tensors(tmp_path: Path) -> None:
    codes, scales = random_codes(3, 8, 64)
    tensors = {"up_blocks": codes.reshape(3, 8, 2, 16), "up_scales": scales}
    folder = write(tmp_path / "float", tensors)
    with pytest.raises(ValueError, match=r"up has shape \[3, 8, 64\]: .* 2-d weights"):
        checkpoint.convert(folder, tmp_path / "c", to="compressed-tensors", progress=False)


def test_tied_embeddings(tmp_path: Path) -> None:
    """The head is the embedding, so neither is quantised and one is written."""
    model = net(tied=True)
    tensors = {name: t for name, t in model.state_dict().items() if name != "lm_head.weight"}
    folder = write(tmp_path / "float", tensors)
    checkpoint.convert(folder, tmp_path / "c", model=model, skip=(), progress=False)
    again = Net(tied=True).eval()
    checkpoint.load(again, tmp_path / "c", progress=False)
    assert again.lm_head.weight is again.embed.weight
    assert_unchanged(again, swapped(tied=True).state_dict())
