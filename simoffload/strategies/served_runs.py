"""Real runs of vLLM with which predictions of compiled serving were compared: on which GPUs, and of what.

They are the rows of validation/serving (vLLM 0.25.1, one GPU each); a test compares this table with them.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import NamedTuple

from simoffload.models import Module
from simoffload.models.formats import Kernel

MOST_SEQUENCES = 256
"""Most sequences of a decode step in those runs."""
FEW_SEQUENCES = 32
"""Sequences from which on decode steps of another GPU have products that arithmetic limits, too (our
choice)."""


class ServedRuns(NamedTuple):
    """ServedRuns are what was served on GPUs of one kind."""

    gpu: str
    """Words with which the names of these GPUs begin in profiles."""
    weights: frozenset[Kernel]
    """Kernels of weights other than those of experts; empty for 16 bits."""
    experts: frozenset[Kernel]
    """Kernels of the weights of experts; empty for 16 bits."""
    in_place: frozenset[Kernel]
    """Kernels of weights other than those of experts that were read in host memory."""


_RUNS = (
    ServedRuns("NVIDIA H100 SXM5", frozenset({"", "int4"}), frozenset({"", "mxfp4"}), frozenset({""})),
    ServedRuns("NVIDIA H200 SXM5", frozenset({""}), frozenset({"", "mxfp4"}), frozenset({""})),
)


def served_runs(gpu: str) -> ServedRuns | None:
    """Return the runs on a GPU of this name; None if there are none."""
    return next((one for one in _RUNS if gpu.startswith(one.gpu)), None)


class Stored(NamedTuple):
    """A Stored is a form in which a model's weights are stored, and the kernel that reads them."""

    form: str
    """Name of the format; empty for 16 bits."""
    kernel: Kernel
    """Kernel of vLLM; empty for 16 bits, and for a format of other programs."""
    experts: bool
    """Whether these are weights of experts."""

    def within(self, kernels: Container[Kernel]) -> bool:
        """Return whether one of the kernels reads them."""
        return self.kernel in kernels and bool(self.kernel or not self.form)

    def __str__(self) -> str:
        """Return the words for them in a sentence."""
        return ("experts" if self.experts else "weights") + (f" as {self.form}" if self.form else "")


def stored_weights(modules: Sequence[Module], *, native_float8: bool) -> tuple[Stored, ...]:
    """Return the forms of the weights of modules, each once; FP8 is decoded on a GPU without its products."""
    found: list[Stored] = []
    for module in modules:
        for one in module.parameters:
            form = "" if one.storage is None else one.storage.format.name
            kernel = "" if one.storage is None else one.storage.format.dequantization.kernel
            if kernel == "float8" and not native_float8:
                kernel = "int8"
            found.append(Stored(form, kernel, module.share < 1))
    return tuple(dict.fromkeys(found))


def unserved(stored: Sequence[Stored], gpu: str) -> Iterator[str]:
    """Yield what no run did of a model with such weights on a GPU, each to follow "no real run".

    Without runs on the GPU, those of another tell nothing about its kernels of formats and experts.
    """
    runs = served_runs(gpu)
    if runs is None:
        yield f"served a model on {gpu}"
        for form in dict.fromkeys(one.form for one in stored if one.form):
            yield f"served weights as {form} on {gpu}"
        if any(one.experts for one in stored):
            yield f"served experts on {gpu}"
        return
    unknown = [one for one in stored if not one.within(runs.experts if one.experts else runs.weights)]
    for form in dict.fromkeys(one.form for one in unknown):
        widest = min((one for one in unknown if one.form == form), key=lambda one: one.experts)
        yield f"served {widest} on {gpu}"


def unserved_in_place(stored: Sequence[Stored], gpu: str) -> Iterator[str]:
    """Yield the same of weights that kernels read in host memory."""
    runs = served_runs(gpu)
    if runs is None:
        yield f"served weights in host memory on {gpu}"
        return
    unknown = [one for one in stored if one.experts or not one.within(runs.in_place)]
    yield from dict.fromkeys(f"served {one} in host memory on {gpu}" for one in unknown[:1])
