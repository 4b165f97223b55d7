"""Codes and scales in safetensors files, looked at without loading them."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from safetensors import safe_open

SCALE = "_scale"


def check_pairs(files: Iterable[str], names: Collection[str]) -> set[str]:
    """Check that the files of a model hold codes and scales together.

    Where both kinds are without the other, Transformers may have fused one of them with that of
    other layers, as the model's own format has it. That is not looked into.

    Args:
        files: of one model. Those that are not safetensors are passed over.
        names: that a weight may have in its module, such as `weight`.

    Returns:
        Full names of the weights that have both codes and scales.

    Raises:
        ValueError: one of the two is missing; the message names tensor and file.
    """
    codes: dict[str, str] = {}
    scales: dict[str, str] = {}
    for path in map(str, files):
        if not path.endswith(".safetensors"):
            continue
        with safe_open(path, framework="pt") as file:
            for key in file.keys():  # noqa: SIM118  # a file is no mapping
                name = key.rpartition(".")[2]
                if name.removesuffix(SCALE) not in names:
                    continue
                if name.endswith(SCALE):
                    scales[key.removesuffix(SCALE)] = path
                elif file.get_slice(key).get_dtype() == "U8":
                    codes[key] = path
    no_scales, no_codes = codes.keys() - scales.keys(), scales.keys() - codes.keys()
    if no_scales and not no_codes:
        weight = min(no_scales)
        raise ValueError(f"no file holds {weight}{SCALE} for {weight} in {codes[weight]}")
    if no_codes and not no_scales:
        weight = min(no_codes)
        raise ValueError(f"no file holds {weight} for {weight}{SCALE} in {scales[weight]}")
    return codes.keys() & scales.keys()
