"""From the text of a kernel to steps that execute it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from . import control, crosslane, fp4, lds_ops, masks, matrix, memory_ops, packed, tables, vector
from .errors import EmulationError
from .parse import Instruction, Kernel, parse_kernel
from .wave import Step

SPECIAL = {
    **masks.BUILDERS,
    **crosslane.BUILDERS,
    **packed.BUILDERS,
    **fp4.BUILDERS,
    **matrix.BUILDERS,
}


def decode(ins: Instruction, labels: dict[str, int]) -> Step:
    """What executes an instruction."""
    name = ins.mnemonic
    if name.startswith("s_"):
        return control.build(ins, labels)
    if name.startswith("ds_"):
        return lds_ops.builder(name)(ins)
    for prefix, builder in memory_ops.BUILDERS.items():
        if name.startswith(prefix):
            return builder(ins)
    if name == "v_nop":
        vector.only(ins)
        return lambda w: None
    if name.startswith(("v_cmp_", "v_cmpx_")):
        return masks.compare(ins)
    if name in SPECIAL:
        if ins.encoding in ("dpp", "sdwa") and name not in ("v_cndmask_b32", "v_fmac_f32"):
            raise EmulationError(f"{ins.encoding} on {name}")
        return SPECIAL[name](ins)
    if name in tables.TABLE:
        return vector.build(ins)
    raise EmulationError(f"unknown instruction {name}")


@dataclass(frozen=True)
class Program:
    """A kernel, decoded."""

    kernel: Kernel
    steps: tuple[Step, ...]

    @classmethod
    def parse(cls, text: str, kernel: str | None = None) -> Program:
        """The kernel of that name in an `amdgcn` text, or its only one."""
        parsed = parse_kernel(text, kernel)
        _check_modes(parsed)
        steps = []
        for ins in parsed.instructions:
            try:
                _check_registers(ins, parsed)
                steps.append(decode(ins, parsed.labels))
            except (EmulationError, ValueError, KeyError) as error:
                raise EmulationError(f"line {ins.line}: {ins.text}: {error}") from error
        return cls(parsed, tuple(steps))


def _check_modes(kernel: Kernel) -> None:
    """The float modes that the arithmetic here has."""
    wanted = {
        "float_round_mode_32": 0,
        "float_round_mode_16_64": 0,
        "float_denorm_mode_32": 3,
        "float_denorm_mode_16_64": 3,
        "ieee_mode": 1,
        "dx10_clamp": 1,
        "private_segment_fixed_size": 0,
        "enable_private_segment": 0,
        "user_sgpr_kernarg_segment_ptr": 1,
        "system_sgpr_workgroup_info": 0,
    }
    for name, value in wanted.items():
        if kernel.field(name) != value:
            raise EmulationError(f".amdhsa_{name} {kernel.field(name)} is not modelled")


def _check_registers(ins: Instruction, kernel: Kernel) -> None:
    vector_count = kernel.field("accum_offset")
    limits = {"v": vector_count, "a": kernel.field("next_free_vgpr") - vector_count, "s": 128}
    for op in ins.operands:
        if op.kind in limits and op.index + op.count > limits[op.kind]:
            raise EmulationError(f"{op.text} is beyond the {limits[op.kind]} registers allocated")


def unknown_instructions(text: str) -> Iterator[str]:
    """The instructions of a text that `Program.parse` would fail on."""
    kernel = parse_kernel(text)
    for ins in kernel.instructions:
        try:
            decode(ins, kernel.labels)
        except (EmulationError, ValueError, KeyError) as error:
            yield f"line {ins.line}: {ins.text}: {error}"
