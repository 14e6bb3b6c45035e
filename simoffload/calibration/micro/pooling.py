"""One number from the repetitions of all rounds: the quiet quantile, and its spread beside it.

A measured time is never too short: interrupts, other guests of the host and waits only add to it. So a cost
is the lower quartile of its repetitions, which a machine that is disturbed for half of the time leaves
alone, while the shortest repetition would be an extreme of a few (docs/CALIBRATION.md has the numbers).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from statistics import median, quantiles
from typing import Any

__all__ = ["pooled", "pooled_steps", "quiet", "quiet_half", "quiet_trace", "spread"]

_TIMES = ("fetch", "fetched", "launched", "released")
"""Columns of a trace: four times of every call of a module."""


def quiet_half(samples: Sequence[float]) -> list[float]:
    """The shorter half of the samples, the middle one included; its median is the lower quartile."""
    return sorted(samples)[: (len(samples) + 1) // 2]


def quiet(samples: Sequence[float]) -> float:
    """The lower quartile."""
    return float(median(quiet_half(samples)))


def spread(samples: Sequence[float]) -> list[float]:
    """The tenth and the ninetieth percentile; of two samples, both of them."""
    if len(samples) < 3:
        return [float(min(samples)), float(max(samples))]
    cuts = quantiles(samples, n=10, method="inclusive")
    return [float(cuts[0]), float(cuts[-1])]


def pooled(found: Sequence[Any]) -> Any:
    """What the rounds of a section found, as one tree of the same form.

    A list under a key that ends in "seconds" holds repetitions, each a number or a number for each rank, and
    a table under such a key holds lists: in the place of a list come its lower quartile, and P10 and P90
    under the key with "_spread" added. Rows of a
    table belong together if they differ in nothing but times.
    """
    first = found[0]
    if isinstance(first, Mapping):
        tree: dict[str, Any] = {}
        for key in dict.fromkeys(key for one in found for key in one):
            values = [one[key] for one in found if key in one]
            if _is_time(key) and isinstance(values[0], list | dict):
                tree[key], tree[f"{key}_spread"] = _statistics(values)
            else:
                tree[key] = pooled(values)
        return tree
    if isinstance(first, list) and all(isinstance(row, Mapping) for rows in found for row in rows):
        groups: dict[str, list[Any]] = {}
        for row in (row for rows in found for row in rows):
            groups.setdefault(_identity(row), []).append(row)
        return [pooled(group) for group in groups.values()]
    return first


def _statistics(values: Sequence[Any]) -> tuple[Any, Any]:
    """Lower quartile and spread of the samples in several lists, or of those under each key of tables."""
    if isinstance(values[0], Mapping):
        named = {key: _statistics([value[key] for value in values if key in value]) for key in values[0]}
        return {key: one[0] for key, one in named.items()}, {key: one[1] for key, one in named.items()}
    samples = [sample for value in values for sample in value]
    return _by_rank(quiet, samples), _by_rank(spread, samples)


def _is_time(key: str) -> bool:
    return key == "seconds" or key.endswith("_seconds")


def _identity(row: Mapping[str, Any]) -> str:
    return json.dumps({key: value for key, value in row.items() if not _is_time(key)}, sort_keys=True)


def _by_rank(statistic: Any, samples: Sequence[Any]) -> Any:
    if isinstance(samples[0], list):
        return [statistic(one) for one in zip(*samples, strict=True)]
    return statistic(samples)


# -- steps of small models ----------------------------------------------------------------------


def pooled_steps(found: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The section ``hooks`` of all rounds and numbers of ranks: small models by name.

    Of the passes of a model the quiet half is kept, so that their median is the lower quartile; "times" has
    the lower quartile and P10 to P90 of all passes by kind. Of its traces the intervals between any two
    times are lower quartiles.
    """
    parts: dict[str, dict[str, list[Mapping[str, Any]]]] = {"runs": {}, "training": {}, "held_back": {}}
    failed: dict[str, Any] = {}
    for one in found:
        for part, runs in parts.items():
            for run in one.get(part, ()):
                runs.setdefault(run["name"], []).append(run)
        failed |= {failure["name"]: failure for failure in one.get("failed", ())}
    tables = {part: [_pooled_run(group) for group in runs.values()] for part, runs in parts.items()}
    return {**tables, "failed": list(failed.values())}


def _pooled_run(rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    groups: dict[tuple[str, int | None], list[Mapping[str, Any]]] = {}
    traces: dict[str, list[Mapping[str, Any]]] = {}
    for run in rounds:
        for one in run["passes"]:
            groups.setdefault((str(one["name"]).partition(" ")[0], one.get("micro_step")), []).append(one)
        for name, seen in run["traces"].items():
            traces.setdefault(name, []).extend(seen)
    kept = []
    times = []
    for (kind, micro_step), group in groups.items():
        ordered = sorted(group, key=lambda one: float(one["seconds"]))
        kept += ordered[: (len(group) + 1) // 2]
        seconds = [float(one["seconds"]) for one in group]
        row = {"name": kind} | ({} if micro_step is None else {"micro_step": micro_step})
        times.append({**row, "count": len(seconds), "seconds": quiet(seconds), "spread": spread(seconds)})
    return {
        **{key: value for key, value in rounds[0].items() if key not in ("passes", "traces")},
        "times": times,
        "passes": kept,
        "traces": {name: quiet_trace(seen) for name, seen in traces.items()},
    }


def quiet_trace(traces: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """One trace of a pass from several of the same modules; what is no trace of modules is the first one."""
    first = traces[0]
    if "modules" not in first:
        return first
    modules = first["modules"]
    alike = [one["modules"] for one in traces if one["modules"]["module"] == modules["module"]]
    calls = len(modules["module"])
    memory_stages = sorted(
        ((index, key) for index in range(calls) for key in _TIMES),
        key=lambda moment: float(modules[moment[1]][moment[0]]),
    )
    columns: dict[str, Any] = {"module": modules["module"], **{key: [0.0] * calls for key in _TIMES}}
    now, before = 0.0, [0.0] * len(alike)
    for index, key in memory_stages:
        after = [float(one[key][index]) for one in alike]
        now += quiet([end - begin for begin, end in zip(before, after, strict=True)])
        columns[key][index] = round(now, 1)
        before = after
    return {"seconds": quiet([float(one["seconds"]) for one in traces]), "modules": columns}
