"""`swap_linear` frees each float weight as it goes: its peak is one layer's, not the model's."""

from __future__ import annotations

from peak_memory import needs_peak, printed

LAYERS, SIZE = 24, 2048
LAYER_MIB = SIZE * SIZE * 4 / (1 << 20)

# Measures, in MiB above what is resident at the start, the peak of converting one layer and then of
# swapping all of them. One conversion goes before, because the first of everything allocates more.
SCRIPT = f"""
import json, sys, torch
from peak_memory import peak
from mxfp4_ops import Mxfp4Linear, swap_linear

torch.set_num_threads(1)
layers = [torch.nn.Linear({SIZE}, {SIZE}, bias=False) for _ in range({LAYERS})]
model = torch.nn.Sequential(*layers)
held = [layer.weight for layer in layers] if sys.argv[1] == "held" else []
del layers
Mxfp4Linear.from_linear(model[0])
one = peak(lambda: Mxfp4Linear.from_linear(model[0]))
every = peak(lambda: swap_linear(model, progress=False))
print(json.dumps([one, every]))
"""


@needs_peak
def test_peak_grows_by_one_layer() -> None:
    one, every = printed(SCRIPT, "freed")
    assert every <= one + LAYER_MIB


@needs_peak
def test_the_measure_sees_weights_that_are_kept() -> None:
    """If something outside holds the float weights, all codes come on top of them."""
    one, every = printed(SCRIPT, "held")
    assert every > one + LAYER_MIB
