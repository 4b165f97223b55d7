"""`checkpoint.load`: fill a model from a checkpoint of any format."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike

import torch
from torch import Tensor, nn

from ..formats import Activation, ScaleMode
from ..swap import swap_linear
from ..swap_experts import swap_experts
from .entries import Mxfp4Weight, Settings
from .fit import Fit, fit, named_tensors
from .progress import track
from .reader import Checkpoint, open


@dataclass(frozen=True)
class LoadReport:
    """What `load` did.

    Attributes:
        format: of the checkpoint.
        quantized: names of the weights that are in MXFP4 now.
        others: names of the other tensors that were filled.
        settings: how the layers that were swapped run.
    """

    format: str
    quantized: list[str]
    others: list[str]
    settings: Settings

    def __str__(self) -> str:
        return (
            f"format {self.format}: {len(self.quantized)} weights in MXFP4, "
            f"{len(self.others)} other tensors; scale_mode '{self.settings.scale_mode}', "
            f"activation '{self.settings.activation}'"
        )


def load(
    model: nn.Module,
    path: str | PathLike[str] | Checkpoint,
    *,
    format: str | None = None,
    scale_mode: ScaleMode | None = None,
    activation: Activation | None = None,
    device: torch.device | str | None = None,
    progress: bool = True,
) -> LoadReport:
    """Fill a model from a checkpoint, in place.

    Each `nn.Linear` whose weight the checkpoint holds in MXFP4 becomes an `Mxfp4Linear`, and so do
    gpt-oss's experts `Mxfp4Experts`; the others stay as they are. So the model may be a float one,
    one on the meta device (whose float weights never exist: the peak of memory is the packed size
    and one tensor), or one that `swap_linear` and `swap_experts` have been over.

    Args:
        model: its tensors must have the checkpoint's names and shapes. Tensors on a device keep
            device and dtype; those on the meta device take the checkpoint's dtype.
        path: what `open` takes, or what it gave.
        format: see `open`.
        scale_mode: how the activations of swapped layers get their scales; None takes what the
            checkpoint says.
        activation: whether swapped layers quantise their activations (`mxfp4`) or not (`bf16`);
            None takes what the checkpoint says.
        device: of what was on the meta device; the CPU if None.
        progress: show a progress bar on stderr.

    Returns:
        What was filled.

    Raises:
        ValueError: the checkpoint cannot be read, something is missing in it or in the model, a
            shape does not match, or a layer cannot be swapped. The message names file and tensor,
            and the model is as it was.
    """
    checkpoint = path if isinstance(path, Checkpoint) else open(path, format=format)
    settings = Settings(
        scale_mode or checkpoint.settings.scale_mode,
        activation or checkpoint.settings.activation,
    )
    plan = fit(checkpoint, model)
    tensors = _read(checkpoint, plan, torch.device(device or "cpu"), progress)
    # From here on nothing can fail.
    if plan.swapped:
        _swap(model, plan, settings)
    _fill(model, tensors)
    others = [name for name, entry in checkpoint.entries.items() if not entry.quantized]
    return LoadReport(checkpoint.format, checkpoint.quantized(), others, settings)


def _read(
    checkpoint: Checkpoint, plan: Fit, device: torch.device, progress: bool
) -> dict[str, Tensor]:
    """All tensors for the model, by the names that they will have in it."""
    tensors: dict[str, Tensor] = {}

    for entry in track(checkpoint.entries.values(), progress):
        value = checkpoint.read(entry.name)
        like = plan.targets[entry.name]
        where = device if like.is_meta else like.device
        if isinstance(value, Mxfp4Weight):
            tensors[entry.name] = value.codes.to(where)
            tensors[f"{entry.name}_scale"] = value.scales.to(where)
        else:
            tensors[entry.name] = value.to(where, value.dtype if like.is_meta else like.dtype)
    return tensors


def _swap(model: nn.Module, plan: Fit, settings: Settings) -> None:
    """Put MXFP4 modules in the place of float ones; their tensors are on the meta device yet."""
    empty: dict[Tensor, nn.Parameter] = {}
    for module in model.modules():
        for name, old in module._parameters.items():
            if old is not None and old in plan.swapped:
                meta = torch.empty_like(old, device="meta")
                new = empty.setdefault(old, nn.Parameter(meta, old.requires_grad))
                module._parameters[name] = new
    chosen = set(empty.values())

    def is_chosen(_: str, module: nn.Module) -> bool:
        return any(parameter in chosen for parameter in module.parameters(recurse=False))

    for swap in (swap_linear, swap_experts):
        swap(
            model,
            skip=(),
            filter_fn=is_chosen,
            scale_mode=settings.scale_mode,
            activation=settings.activation,
            progress=False,
        )


def _fill(model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Give the model its tensors; what is one tensor under several names stays one."""
    replaced: dict[Tensor, Tensor] = {}
    for name, old in named_tensors(model).items():
        if name not in tensors:
            continue
        new = tensors[name]
        if isinstance(old, nn.Parameter) and not old.is_meta:
            old.data = new
        elif isinstance(old, nn.Parameter):
            replaced[old] = nn.Parameter(new, old.requires_grad and new.is_floating_point())
        else:
            replaced[old] = new
    for module in model.modules():
        for held in (module._parameters, module._buffers):
            for key, t in held.items():
                if t is not None and t in replaced:
                    held[key] = replaced[t]  # type: ignore[assignment]
