"""What the figures of recorded runs show; docs/figures.py draws them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from simoffload.calibration.compare import ComparedPass
from simoffload.calibration.streams import LayerStarts
from simoffload.validation.measured import PASSES, MeasuredRun
from simoffload.validation.setting_pairs import changed

__all__ = ["SCATTER", "ShownStep", "captions", "passes", "shown_steps"]

SCATTER = "measured-scatter.svg"
"""The file that shows the passes of all runs."""


class ShownStep(NamedTuple):
    """A decode step of which a figure shows the layers."""

    name: str
    """The file of the figure."""
    run: str
    """Which run it is of, in words."""
    layers: LayerStarts

    @property
    def title(self) -> str:
        """What the figure is called."""
        return f"Begin of each layer of one decode step: {self.run}"


def captions(runs: Sequence[MeasuredRun]) -> list[tuple[str, str]]:
    """The file of each figure and what it shows."""
    about = "Predicted over measured times of decode steps, prefills and training"
    scatter = [(SCATTER, f"{about}; crosses at the lower edge lie below it")] if any(passes(runs)) else []
    text = "Begin of each layer, measured and simulated: {}"
    return scatter + [(step.name, text.format(step.run)) for step in shown_steps(runs)]


def passes(runs: Sequence[MeasuredRun]) -> Iterator[tuple[MeasuredRun, ComparedPass]]:
    """The passes of all runs with a measured time and both predictions."""
    for row in runs:
        for name in PASSES:
            one = row.compared.find(name)
            if not row.host_thread_only and one is not None and one.measured and one.predicted and one.naive:
                yield row, one


def shown_steps(runs: Sequence[MeasuredRun]) -> list[ShownStep]:
    """By number of GPUs the first run with CPU offload: held-out ones and DeepSpeed's defaults come first."""
    chosen: dict[int, ShownStep] = {}
    for row in sorted(runs, key=lambda row: (row.part != "holdout", bool(changed(row.compared.run)))):
        run, layers = row.compared.run, row.compared.layers
        if not row.host_thread_only and layers is not None and run.offload == "cpu":
            name = f"timeline-{run.ranks}-gpu{'s' if run.ranks > 1 else ''}.svg"
            about = f"{run.name}, {run.ranks} GPU(s), {row.part} set, machine {row.machine}"
            chosen.setdefault(run.ranks, ShownStep(name, about, layers))
    return [step for _, step in sorted(chosen.items())]
