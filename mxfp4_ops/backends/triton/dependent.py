"""Kernels that NVIDIA's GPUs (sm_90 and later) launch before the one before them has ended.

A kernel so launched may touch what others wrote only after `wait_for_previous`; until then it may
read what none of the kernels still running writes. One that waits itself before it lets the next
begin keeps all that came before it out of the next one's way. (PTX ISA, griddepcontrol)
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def wait_for_previous() -> None:
    """Until the kernels before have ended and what they wrote can be read."""
    tl.inline_asm_elementwise(
        "griddepcontrol.wait; // $0", "=r", [], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def let_next_begin() -> None:
    """The next kernel may be launched, when all programs have come here."""
    tl.inline_asm_elementwise(
        "griddepcontrol.launch_dependents; // $0", "=r", [], dtype=tl.int32, is_pure=False, pack=1
    )
