"""``python -m validation.reference_costs`` writes the costs of a reference host, pooled over machines.

Only records in ``measured/fit`` are used, never those of the held-out set. The unknowns of one regression
over all of them are the reference's costs, one factor per machine, one level per section, and deviations of
single costs per machine. The spread of the deviations is estimated in the same iteration. The reference
host is the geometric mean of the quiet machines.
"""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import exp
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np

from simoffload.hardware import load_platform
from simoffload_calibrate.host_costs import COSTS, SCALED, TRACED, Observation
from simoffload_calibrate.micro.fit_programs import (
    HostTimes,
    fit_host,
    ridge,
    signed_errors,
    small_model_times,
)
from simoffload_calibrate.micro.noise import probe_level
from simoffload_calibrate.micro.profiles import base_platform
from simoffload_calibrate.micro.record import read_record
from simoffload_calibrate.reference import REFERENCE_PROBE, ReferenceCost, reference_costs

_ROOT = Path(__file__).parents[1]
_RECORDS = _ROOT / "validation" / "measured" / "fit"
_TABLE = _ROOT / "simoffload_calibrate" / "reference_costs.csv"
_NOISY = 0.1
"""A machine whose sections differ by more than this takes no part in the mean that is the reference host."""
_SPREADS = 0.05, 0.5
"""Bounds of the spread of a cost among machines: with nine machines of two kinds no smaller one is known."""
_BEGIN, _LOOSE = 0.2, 1.0
"""Standard deviations of priors: of a machine's own costs at first, and of the reference's costs."""
_LEFT_OUT = (
    *("llama not offloaded", "llama none", "bloom no prefetch", "bloom b0"),
    *("bloom trained, nothing", "llama trained, all"),
)
"""Parts of the names of small models that a fit may not see, to test it."""
_ROUNDS = 15
_LARGEST_STEP = 0.7


class Pool(NamedTuple):
    """The reference host, and what machines are relative to it."""

    costs: dict[str, float]
    """[s] Costs in shallow models; ``graph`` is a share."""
    spreads: dict[str, float]
    factors: dict[str, float]
    """By machine."""
    noise: dict[str, float]
    """Relative scatter of the times of small models, by machine."""


def pooled(machines: Mapping[str, Sequence[Observation]], start: Mapping[str, float]) -> Pool:
    """Fit the reference's costs, one factor per machine and the spread of the costs among machines."""
    costs, spreads = dict(start), np.full(len(COSTS), _BEGIN)
    hosts = [HostTimes(steps) for steps in machines.values()]
    states = [host.begin(costs) for host in hosts]
    for _ in range(_ROUNDS):
        systems = [host.equations(costs, state, spreads) for host, state in zip(hosts, states, strict=True)]
        ends = np.cumsum([len(COSTS), *(len(system.prior) for system in systems)])
        rows = np.cumsum([0, *(len(system.target) for system in systems)])
        table = np.zeros((rows[-1], ends[-1]))
        for system, row, columns in zip(systems, pairwise(rows), pairwise(ends), strict=True):
            table[slice(*row), : len(COSTS)] = system.table[:, -len(COSTS) :]
            table[slice(*row), slice(*columns)] = system.table
        found = ridge(
            table,
            np.concatenate([system.target for system in systems]),
            noise=np.concatenate([system.noise for system in systems]),
            prior=np.concatenate([np.full(len(COSTS), _LOOSE), *(system.prior for system in systems)]),
        )
        shared, *own = np.split(found.values, ends[:-1])
        states = [state.after(values) for state, values in zip(states, own, strict=True)]
        variances = np.split(np.diag(found.covariance), ends[:-1])[1:]
        squares = [
            state.own**2 + variance[-len(COSTS) :] for state, variance in zip(states, variances, strict=True)
        ]
        spreads = np.clip(np.sqrt(np.mean(squares, axis=0)), *_SPREADS)
        quiet = [
            state.factor for state, system in zip(states, systems, strict=True) if system.scatter < _NOISY
        ]
        mean = float(np.mean(quiet))
        states = [state._replace(factor=state.factor - mean) for state in states]
        change = np.clip(shared, -_LARGEST_STEP, _LARGEST_STEP)
        costs = {
            key: value * exp(float(more) + (mean if key in SCALED else 0.0))
            for (key, value), more in zip(costs.items(), change, strict=True)
        }
    return Pool(
        costs,
        dict(zip(COSTS, map(float, spreads), strict=True)),
        {name: exp(state.factor) for name, state in zip(machines, states, strict=True)},
        {name: system.scatter for name, system in zip(machines, systems, strict=True)},
    )


def table_text(rows: Sequence[ReferenceCost]) -> str:
    """Return the table as text."""
    written = io.StringIO()
    table = csv.writer(written, lineterminator="\n")
    table.writerow(ReferenceCost._fields)
    for row in rows:
        table.writerow((row.cost, f"{row.value:.4g}", f"{row.spread:.2g}", row.machines, row.source))
    return written.getvalue()


def main() -> None:
    """Write the table, starting from the present one."""
    present = reference_costs()
    machines: dict[str, list[Observation]] = {}
    probes: dict[str, float] = {}
    for path in sorted(_RECORDS.glob("*/micro.json")):
        raw = read_record(path)
        machine = load_platform(base_platform(raw["machine"]["gpu"]["name"])).machine(nodes=1)
        steps = list(small_model_times(raw, machine, ("runs", "training")))
        if steps:
            machines[path.parent.name] = steps
        if raw.get("probes"):
            probes[path.parent.name] = median(map(probe_level, raw["probes"]))
        sys.stdout.write(f"{path.parent.name}: {len(steps)} times\n")
    pool = pooled(machines, {key: present[key].value for key in COSTS})
    rows = []
    for key, value in pool.costs.items():
        seen = [name for name, steps in machines.items() if _occurs(key, steps)]
        source = f"small models on {', '.join(seen)}"
        rows.append(ReferenceCost(key, value, pool.spreads[key], len(seen), source))
    rows += [one for one in present.values() if not one.machines]
    quiet = median(probes[name] / pool.factors[name] for name in probes)
    probe, source = present[REFERENCE_PROBE], f"probes on {', '.join(probes)}"
    rows.append(probe._replace(value=quiet, machines=len(probes), source=source))
    _TABLE.write_text(table_text(rows), encoding="utf-8")
    table = {row.cost: row for row in rows}
    for name, factor in pool.factors.items():
        sys.stdout.write(f"{name}: factor {factor:.3f}, scatter {pool.noise[name]:.1%}\n")
        for kind, (mean, worst) in left_out(machines[name], table).items():
            sys.stdout.write(f"  models left out: {kind} {mean:+.1%}, worst {worst:+.1%}\n")


def left_out(
    steps: Sequence[Observation], reference: Mapping[str, ReferenceCost]
) -> dict[str, tuple[float, float]]:
    """Return the errors of small models that a fit of the machine did not see, as records before 2026-11-22
    hold none back: one with nothing offloaded, and one without prefetch."""
    hidden: list[Observation] = []
    seen: list[Observation] = []
    for one in steps:
        (hidden if any(part in one.model for part in _LEFT_OUT) else seen).append(one)
    values = fit_host(seen, reference).values
    return signed_errors([one for one in hidden if one.kind != TRACED], values)


def _occurs(key: str, steps: Sequence[Observation]) -> bool:
    column = COSTS.index(key)
    return any(bool(one.counts[column]) for one in steps if one.kind != TRACED)


if __name__ == "__main__":
    main()
