"""``python -m validation.shipped_hosts`` writes the host thread of shipped machines from measured ones.

The costs are those of the reference host times a factor: the geometric mean over the machines in
``measured/fit`` with the same GPU. They are virtual machines, and no DGX was measured, so that every number
is an estimate. Run it after ``validation.reference_costs`` and ``validation.refit``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from math import exp, hypot, log, sqrt
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from simoffload.calibration.host_costs import COSTS, SCALED, of_real_models
from simoffload.calibration.micro.fitted import seconds_text
from simoffload.calibration.reference import reference_costs
from simoffload.hardware import TimeInput, load_platform
from simoffload.hardware.spreads import DEFAULT_SPREADS

__all__ = ["HOSTS", "host_text", "measured_factor", "pooled_factor"]

_ROOT = Path(__file__).parents[1]
_FIT = _ROOT / "validation" / "measured" / "fit"
HOSTS = {"dgx-h100-2tb": "H100", "dgx-h200-2tb": "H200", "h200-8gpu-vm-host": "H200"}
"""Shipped hosts, and the GPU of the machines that stand for each."""


class Factor(NamedTuple):
    """The factor of the machines with one GPU."""

    value: float
    spread: float
    """Relative standard deviation of the factor of another such machine."""
    source: str
    date: str


def pooled_factor(factors: Mapping[str, tuple[float, float]], date: str) -> Factor:
    """Return the geometric mean of factors with their spreads, by the name of the machine.

    The spread contains that among the machines and their own; it is at least that of a machine that was not
    measured (docs/explanations.md), because a few machines of one day show too little of it.
    """
    logs = {name: log(factor) for name, (factor, _) in factors.items()}
    mean = fmean(logs.values())
    among = sqrt(fmean([(one - mean) ** 2 for one in logs.values()]))
    own = sqrt(fmean([spread**2 for _, spread in factors.values()]))
    spread = max(DEFAULT_SPREADS[TimeInput.HOST].other, hypot(among, own))
    names = ", ".join(f"{name} {factor:.3g}" for name, (factor, _) in sorted(factors.items()))
    source = f"calibrate micro on virtual machines, geometric mean: {names} (validation/measured/fit)"
    return Factor(float(f"{exp(mean):.3g}"), float(f"{spread:.2g}"), source, date)


def measured_factor(gpu: str) -> Factor:
    """Return the factor of the machines of the fit set with a GPU."""
    factors: dict[str, tuple[float, float]] = {}
    dates = []
    for path in sorted(_FIT.glob("*/platform.yaml")):
        platform = load_platform(path)
        factor, name = platform.host.host_factor, path.parent.name
        if factor is None or factor.origin != "measured" or gpu not in platform.accelerator.name:
            continue
        if (path.parent / "micro.json").is_file():  # without a record, the profile is another machine's
            factors[name] = (factor.value, factor.spread or 0.0)
            dates.append(factor.date.isoformat())
    return pooled_factor(factors, max(dates))


def host_text(text: str, factor: Factor) -> str:
    """Return the text of a host's profile with the costs of the reference host times a factor."""
    return "".join(f"{line}\n" for line in _lines(text.splitlines(), factor))


def _lines(lines: list[str], factor: Factor) -> Iterator[str]:
    shallow = {key: row.value for key, row in reference_costs().items()}
    costs, real = of_real_models(shallow), of_real_models(dict.fromkeys(shallow, 1.0))
    for line in lines:
        key = line.strip().partition(":")[0]
        if line.startswith("host_factor:"):
            continue
        if line == "deepspeed:":
            about = f'origin: estimate, source: "{factor.source}", date: {factor.date}'
            yield f"host_factor: {{value: {factor.value}, {about}, spread: {factor.spread}}}"
        if line.startswith("  ") and key in costs:
            is_share = key in COSTS and key not in SCALED
            shown = f"{costs[key]:.4g}" if is_share else seconds_text(costs[key] * factor.value)
            scaled = f" x {real[key]} (models of real size)" if real[key] != 1 else ""
            scaled += "" if is_share else f" x {factor.value}"
            source = f'source: "cost of the reference host{scaled} (docs/measurements/host-thread.md)"'
            yield f"  {key}: {{value: {shown}, origin: estimate, {source}, date: {factor.date}}}"
        else:
            yield line


def main() -> None:
    """Write the profiles of all these hosts."""
    for name, gpu in HOSTS.items():
        path = _ROOT / "hardware_profiles" / "host" / f"{name}.yaml"
        factor = measured_factor(gpu)
        path.write_text(host_text(path.read_text("utf-8"), factor), encoding="utf-8")
        sys.stdout.write(f"{name}: {factor.value}, spread {factor.spread}; {factor.source}\n")


if __name__ == "__main__":
    main()
