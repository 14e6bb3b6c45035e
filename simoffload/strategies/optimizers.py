"""Optimizers: their memory traffic per element, and bitsandbytes' 8-bit states and paged states.

Adam's memory traffic is counted in csrc/adam/cpu_adam_impl.cpp of DeepSpeed (one loop over the elements of a
parameter) and torch/optim/adam.py of PyTorch (``_single_tensor_adam``: a sequence of operations over the
whole tensor; the default on the CPU if neither ``foreach`` nor ``fused`` is chosen).

bitsandbytes was read at 95f9af30 (2026-08): optim/optimizer.py (``init_state``, ``get_state_buffer``,
``prefetch_state``, ``step``), optim/adamw.py, csrc/kernels.cu (``kOptimizerStatic8bit2StateBlockwise``). A
paged state is unified memory (``cudaMallocManaged``): the driver moves to host memory what the GPU has no
room for, and each step brings it back, tensor by tensor, before its update. References: Dettmers et al.,
8-bit optimizers, arXiv 2110.02861; QLoRA, arXiv 2305.14314, section 3.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import NamedTuple

from simoffload.documents import Edit
from simoffload.hardware import Machine
from simoffload.models import SINGLE
from simoffload.results import STATES_8BIT, Change
from simoffload.strategies.held import INITIALISATION, Held


class _Operation(NamedTuple):
    """An _Operation is an element-by-element operation over tensors in single precision."""

    read: int
    """Number of tensors that are read; a tensor read twice counts once, as its element is cached."""
    written: int = 1

    @property
    def traffic(self) -> int:
        """Memory traffic per element [B]."""
        return (self.read + self.written) * SINGLE


DEEPSPEED_ADAM = _Operation(read=4, written=3).traffic
"""[B] of traffic per parameter: weight, gradient and two moments are read; all but the gradient written."""

_TORCH = (
    _Operation(2),  # exp_avg.lerp_(grad)
    _Operation(1),  # exp_avg_sq.mul_
    _Operation(2),  # exp_avg_sq.addcmul_(grad, grad)
    _Operation(1),  # exp_avg_sq.sqrt()
    _Operation(1),  # / bias_correction2_sqrt
    _Operation(1),  # .add_(eps)
    _Operation(3),  # param.addcdiv_(exp_avg, denom)
)

TORCH_ADAM = sum(operation.traffic for operation in _TORCH)
"""[B] of memory traffic per parameter of ``torch.optim.Adam`` without weight decay, its default."""
TORCH_ADAM_NEW = 2
"""Number of temporary tensors of a parameter's size in a step: results of ``sqrt()`` and the division."""
TORCH_FOREACH = TORCH_ADAM + SINGLE
"""[B] of memory traffic per parameter on the GPU, where PyTorch works on all tensors at once
(``_multi_tensor_adam``): ``_foreach_addcmul_`` reads the gradient as both of its factors."""
TORCH_WEIGHT_DECAY = _Operation(1).traffic
"""[B] of additional memory traffic per parameter in ``torch.optim.AdamW`` (``param.mul_``)."""


def overflow_check_traffic(element: int = 2) -> int:
    """Return the memory traffic per gradient of ``element`` [B] in ZeRO-3's search for overflow [B].

    ``torch.isinf`` writes the magnitudes and compares them, ``torch.isnan`` compares gradients with
    themselves; each result is a truth value of 1 B, which ``any()`` reads (``has_overflow``, stage3.py).
    """
    return (2 * element) + 2 * (element + 1) + 2


# -- bitsandbytes --------------------------------------------------------------------------------------

BLOCK = 256
"""Number of elements that share a scale (``blocksize``; 2048 before 0.45)."""
_SMALLEST_8BIT = 4096
"""Number of elements below which states stay in single precision (``min_8bit_size``)."""
_SMALLEST_PAGED = 100_000
"""Number of elements from which a state is paged (``get_state_buffer``)."""
PAGED = "paged optimizer moments"
"""Name of the memory term of states that may be paged out."""
PAGED_OUT = "optimizer moments paged out"
"""Name of the memory term of those that are."""
PAGING_RATE = (
    "paged optimizer: the rate of page-locked copies is assumed for moments that are paged out and back; "
    "page faults, which were not measured, make it slower"
)
"""Warning about what is paged out."""


def optimizer_changes(path: tuple[str, ...], *, now: str | None) -> Iterator[Change]:
    """Yield the optimizers of bitsandbytes in place of an Adam, which is ``now``, by the edit of a key:
    paged, with 8-bit moments, and both."""
    if now is not None and now not in ("Adam", "AdamW"):
        return
    for name, how, quality in (
        ("PagedAdamW", "moments that do not fit are paged out to host memory", ""),
        ("AdamW8bit", "moments in 8 bit", STATES_8BIT),
        ("PagedAdamW8bit", "moments in 8 bit, and paged out where they do not fit", STATES_8BIT),
    ):
        kind = "precision" if quality else "setting"
        description = f"optimizer {name} of bitsandbytes ({how})"
        yield Change(kind, description, (Edit(path, name),), quality=quality)


def optimizer_script(name: str) -> str:
    """Return how a program makes an optimizer of bitsandbytes."""
    hugging_face = {"AdamW8bit": "adamw_8bit", "PagedAdamW": "paged_adamw_32bit"}.get(
        name, "paged_adamw_8bit"
    )
    return (
        f'# With Hugging Face\'s Trainer instead: TrainingArguments(optim="{hugging_face}", ...)\n'
        "import bitsandbytes as bnb\n\n"
        f"optimizer = bnb.optim.{name}(model.parameters(), lr=learning_rate)\n"
    )


def moments(numel: int, *, bits: int) -> int:
    """Return the size [B] of a tensor's moments with 8 or 32 ``bits`` for an element, and scales."""
    if bits == 8 and numel >= _SMALLEST_8BIT:
        return 2 * (numel + SINGLE * -(-numel // BLOCK))
    return 2 * SINGLE * numel


def paged(numel: int, *, bits: int) -> int:
    """Return the part of ``moments`` that is paged [B]: neither scales nor small tensors."""
    return 2 * numel * bits // 8 if numel >= _SMALLEST_PAGED else 0


def update_traffic(numel: int, *, bits: int) -> int:
    """Return the memory traffic of the one kernel that updates ``numel`` elements in single precision [B]:
    weight and moments, with their scales, are read and written, the gradient is read."""
    return 3 * SINGLE * numel + 2 * moments(numel, bits=bits)


def with_paging(held: Iterable[Held], machine: Machine, *, per_host: int) -> Iterator[Held]:
    """Yield what tiers hold at each stage, with those moments in host memory for which a GPU has no room."""
    room = machine.tiers["hbm"].capacity
    for stage, group in groupby(held, key=lambda one: one.stage):
        found = list(group)
        needed = sum(one.size for one in found if one.tier == "hbm")
        out = min(sum(one.size for one in found if one.name == PAGED), max(0, needed - room))
        for one in found:
            # What stays makes room for other allocations as well, so that it counts as free.
            yield one._replace(size=one.size - out, spare=True) if one.name == PAGED else one
        if out:
            yield Held("dram", PAGED_OUT, out * per_host, stage=stage)


def paged_out(held: Iterable[Held], *, per_host: int) -> int:
    """Return what one GPU pages out in a step, and back, at the stage with the largest need [B]."""
    found = (one.size for one in held if one.name == PAGED_OUT and one.stage != INITIALISATION)
    return max(found, default=0) // per_host
