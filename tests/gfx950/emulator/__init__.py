"""An interpreter of the gfx950 (CDNA4) assembly that Triton emits.

    program = Program.parse(compiled.asm["amdgcn"])
    stats = launch(program, (4, 1, 1), [x, out, n], num_warps=4, lds_bytes=compiled.metadata.shared)

It executes the text instruction by instruction: waves of 64 lanes with their scalar, vector and
accumulation registers, EXEC, VCC, SCC and M0, LDS, barriers and waits. It is meant to be stricter
than a GPU, and fails, with the place in the text, on

- an instruction, modifier or float mode that it does not know;
- a register that is read or written while a load into it is in flight: what a load returns appears
  with the `s_waitcnt` that retires it, for scalar loads only with `lgkmcnt(0)`;
- an undefined bit (of a register, of LDS, of a lane that EXEC left out) in an address, a stored
  value, a branch or EXEC. Elsewhere undefined bits travel along as in a memory checker;
- an access outside of a buffer, each of which lies far from the others; outside of LDS; or not
  aligned. Outside of a descriptor's range, loads give 0 and stores are dropped, as in hardware;
- two waves that access the same bytes of LDS between two barriers, one of them writing, where an
  access that its wave has not waited for at a barrier counts on both sides of it;
- two lanes or two workgroups that store different values at the same place, and a workgroup that
  loads what another one has stored;
- more instructions than a limit.

The order of waves between barriers can be chosen: no result may depend on it.

What it assumes, and what it does not model:

- time, caches and the bits that steer them; `s_nop`, the hazards of matrix instructions and of
  registers that are written shortly before they are read (LLVM inserts the waits that they need);
- stores appear at once: loads by the workgroup that stored are not checked for waits;
- float modes as Triton sets them: nearest even, denormals kept, IEEE mode, DX10 clamp. The payloads
  of NaNs are not those of the hardware;
- reciprocal, square root, exponential and logarithm are correctly rounded with denormals flushed
  (the hardware is within one unit in the last place);
- matrix instructions sum in float64 and round once. The hardware's order of additions and the bits
  that it drops when it aligns products of different size are unknown. Only E2M1 operands of the
  scaled forms, and the float forms with one block, are known;
- what `v_cvt_scalef32_pk_fp4_*` makes of Inf and NaN is unknown and counts as undefined;
- the division macro's `v_div_scale`, `v_div_fmas` and `v_div_fixup` scale such that the quotient is
  right, where the manual's text for them would not lead to it;
- scratch memory, atomics, flat addresses, swizzled or structured buffers, images and exceptions.

Sources: AMD's "CDNA4 Instruction Set Architecture" and LLVM's user guide for the AMDGPU backend.
"""

from .errors import EmulationError
from .program import Program, unknown_instructions
from .run import Stats, launch

__all__ = ["EmulationError", "Program", "Stats", "launch", "unknown_instructions"]
