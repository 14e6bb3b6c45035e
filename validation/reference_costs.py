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
from math import exp
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np

from simoffload.calibration.host_costs import COSTS, SCALED, TRACED, Observation
from simoffload.calibration.host_fit import (
    TRACE_LEVEL,
    Array,
    fit_host,
    huber,
    level_spread,
    logarithms,
    noises,
    ridge,
    scaled,
    signed_errors,
    stretches,
)
from simoffload.calibration.micro.fit_deepspeed import small_model_times
from simoffload.calibration.micro.noise import probe_level
from simoffload.calibration.micro.profiles import base_platform
from simoffload.calibration.micro.record import read_record
from simoffload.calibration.reference import REFERENCE_PROBE, ReferenceCost, reference_costs
from simoffload.hardware import load_platform

__all__ = ["Pool", "left_out", "pooled", "table_text"]

_ROOT = Path(__file__).parents[1]
_RECORDS = _ROOT / "validation" / "measured" / "fit"
_TABLE = _ROOT / "simoffload" / "calibration" / "reference_costs.csv"
_NOISY = 0.1
"""A machine whose sections differ by more than this takes no part in the mean that is the reference host."""
_SPREADS = 0.05, 0.5
"""Bounds of the spread of a cost among machines: with nine machines of two kinds no smaller one is known."""
_BEGIN, _LOOSE, _ANY = 0.2, 1.0, 10.0
"""Standard deviations of priors: of a machine's own costs at first, of the reference's costs, of factors."""
_LEFT_OUT = (
    *("llama not offloaded", "llama none", "bloom no prefetch", "bloom b0"),
    *("bloom trained, nothing", "llama trained, all"),
)
"""Parts of the names of small models that a fit may not see, to test it."""
_ROUNDS = 15
_LARGEST_STEP = 0.7


class _Machine(NamedTuple):
    name: str
    steps: Sequence[Observation]
    names: Sequence[tuple[str, str]]
    at: Array


class _State(NamedTuple):
    factor: float
    """Logarithm of the machine's factor."""
    levels: Array
    own: Array


class _System(NamedTuple):
    table: Array
    target: Array
    deviation: Array
    noise: float
    """Relative scatter of the machine's times."""


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
    known = [_Machine(name, steps, *stretches(steps)) for name, steps in machines.items()]
    costs, spreads = dict(start), np.full(len(COSTS), _BEGIN)
    factors = [float(np.median(logarithms(one.steps, costs)[1])) for one in known]
    states = [
        _State(factor, np.zeros(len(one.names)), np.zeros(len(COSTS)))
        for one, factor in zip(known, factors, strict=True)
    ]
    noise: list[float] = []
    for _ in range(_ROUNDS):
        begins = np.cumsum([len(COSTS), *(1 + len(one.names) + len(COSTS) for one in known)])
        prior = np.full(begins[-1], _ANY)
        prior[: len(COSTS)] = _LOOSE
        systems = [_system(one, costs, state) for one, state in zip(known, states, strict=True)]
        noise = [system.noise for system in systems]
        table = np.zeros((sum(len(one.steps) for one in known), begins[-1]))
        row = 0
        for one, system, begin, end in zip(known, systems, begins[:-1], begins[1:], strict=True):
            rows = slice(row, row + len(one.steps))
            table[rows, : len(COSTS)] = system.table[:, -len(COSTS) :]
            table[rows, begin:end] = system.table
            levels = [TRACE_LEVEL if model else system.noise for _, model in one.names]
            prior[begin + 1 : end] = [*levels, *spreads]
            row += len(one.steps)
        found = ridge(
            table,
            np.concatenate([system.target for system in systems]),
            noise=np.concatenate([system.deviation for system in systems]),
            prior=prior,
        )
        states = [
            _State(
                state.factor + found.values[b],
                found.values[b + 1 : e - len(COSTS)],
                found.values[e - len(COSTS) : e],
            )
            for state, b, e in zip(states, begins[:-1], begins[1:], strict=True)
        ]
        variance = np.diag(found.covariance)
        squares = [
            state.own**2 + variance[e - len(COSTS) : e] for state, e in zip(states, begins[1:], strict=True)
        ]
        spreads = np.clip(np.sqrt(np.mean(squares, axis=0)), *_SPREADS)
        quiet = [state.factor for state, scatter in zip(states, noise, strict=True) if scatter < _NOISY]
        mean = float(np.mean(quiet))
        states = [state._replace(factor=state.factor - mean) for state in states]
        change = np.clip(found.values[: len(COSTS)], -_LARGEST_STEP, _LARGEST_STEP)
        costs = {
            key: value * exp(float(more) + (mean if key in SCALED else 0.0))
            for (key, value), more in zip(costs.items(), change, strict=True)
        }
    names = [one.name for one in known]
    return Pool(
        costs,
        dict(zip(COSTS, map(float, spreads), strict=True)),
        {name: exp(state.factor) for name, state in zip(names, states, strict=True)},
        dict(zip(names, noise, strict=True)),
    )


def _system(one: _Machine, costs: Mapping[str, float], state: _State) -> _System:
    """Return the equations of one machine for factor, levels and own costs, around a state."""
    values = {
        key: value * exp(float(own))
        for (key, value), own in zip(scaled(costs, exp(state.factor)).items(), state.own, strict=True)
    }
    share, difference = logarithms(one.steps, values)
    time = (share @ np.array([key in SCALED for key in COSTS], dtype=float))[:, None]
    left = difference - (one.at * time) @ state.levels
    return _System(
        np.hstack([time, one.at * time, share]),
        difference + share @ state.own,
        huber(left, noises(one.steps, left)),
        level_spread(one.steps, left),
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
    for name, factor in pool.factors.items():
        sys.stdout.write(f"{name}: factor {factor:.3f}, scatter {pool.noise[name]:.1%}\n")
        for kind, (mean, worst) in left_out(machines[name]).items():
            sys.stdout.write(f"  models left out: {kind} {mean:+.1%}, worst {worst:+.1%}\n")
    rows = []
    for key, value in pool.costs.items():
        seen = [name for name, steps in machines.items() if _occurs(key, steps)]
        source = f"small models on {', '.join(seen)}"
        rows.append(ReferenceCost(key, value, pool.spreads[key], len(seen), source))
    rows += [one for one in present.values() if not one.machines]
    quiet = median(probes[name] / pool.factors[name] for name in probes)
    rows.append(ReferenceCost(REFERENCE_PROBE, quiet, 0.3, len(probes), f"probes on {', '.join(probes)}"))
    _TABLE.write_text(table_text(rows), encoding="utf-8")


def left_out(steps: Sequence[Observation]) -> dict[str, tuple[float, float]]:
    """Return the errors of small models that a fit of the machine did not see, as records before 2026-11-22
    hold none back: one with nothing offloaded, and one without prefetch."""
    hidden = [one for one in steps if any(part in one.model for part in _LEFT_OUT)]
    fit = fit_host(
        [one for one in steps if not any(part in one.model for part in _LEFT_OUT)], reference_costs()
    )
    return signed_errors([one for one in hidden if one.kind != TRACED], fit.values)


def _occurs(key: str, steps: Sequence[Observation]) -> bool:
    column = COSTS.index(key)
    return any(bool(one.counts[column]) for one in steps if one.kind != TRACED)


if __name__ == "__main__":
    main()
