"""Statistics for hosts that change their speed: probes show the noise, and lower quartiles avoid it.

Interrupts, other virtual machines and waits only lengthen a measured time. So a cost is the lower quartile of
its repetitions in all rounds: it stays the same if the machine is disturbed during half of the time, and
it depends less on a few extreme repetitions than their minimum (docs/CALIBRATION.md has the numbers).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import exp, log
from statistics import fmean, median, quantiles
from typing import Any

from simoffload.units import plural

_DRIFT = 1.15
"""The ratio of two probes, before and after a section, from which the host changed its speed."""
_DISTURBED = 1.25
"""The ratio of a probe to the fastest probe of the machine from which the host was disturbed.

Both ratios come from 38 probes on the noisy virtual machine of an H100. Consecutive probes differed by 13 %
in the median and by at most 32 %; the median was 1.26 times as slow as the fastest one."""
_QUANTILES = ("p10", "p25", "p50", "p75", "p90")
_TIMES = ("fetch", "fetched", "launched", "released")
"""The columns of a trace, which has four times of every call of a module."""

Probe = Mapping[str, Any]


# -- probes ---------------------------------------------------------------------------------------


def probe_level(probe: Probe) -> float:
    """Return the time of a call in a probe [s]: the geometric mean over the kinds of calls.

    The time of a kind is the mean of its quantiles. A thread that shares its core with another one
    alternates between full and half speed every few milliseconds: the median has one of the two values, but
    the mean shows the share of the time at half speed.
    """
    means = (fmean(float(kind[name]) for name in _QUANTILES) for kind in probe["calls"].values())
    return exp(fmean(map(log, means)))


def is_noisy(measurement: Mapping[str, Any], probes: Sequence[Probe]) -> bool:
    """Return whether the probes before and after a measurement differ, or both show a disturbed host."""
    fast, slow = sorted(probe_level(probes[index]) for index in measurement["probes"])
    return slow > _DRIFT * fast or fast > _DISTURBED * min(map(probe_level, probes))


def machine_noise(rounds: Sequence[Mapping[str, Any]], probes: Sequence[Probe]) -> dict[str, Any]:
    """Return the summary for the record, with levels relative to the fastest probe; empty without a probe.

    "sections" counts the measurements of each section, and those on a quiet host.
    """
    if not probes:
        return {}
    levels = [probe_level(probe) for probe in probes]
    fastest = min(levels)
    sections: dict[str, dict[str, int]] = {}
    for measurement in rounds:
        row = sections.setdefault(measurement["section"], {"measured": 0, "quiet": 0})
        row["measured"] += 1
        row["quiet"] += not is_noisy(measurement, probes)
    steal = [float(probe["steal"]) for probe in probes if probe.get("steal") is not None]
    return {
        "probes": len(probes),
        "quietest_seconds": fastest,
        "median": round(median(levels) / fastest, 3),
        "worst": round(max(levels) / fastest, 3),
        "largest_steal": round(max(steal), 4) if steal else None,
        "repeated": len({(one["section"], one["round"]) for one in rounds if one["again"]}),
        "sections": sections,
    }


def noise_summary(noise: Mapping[str, Any]) -> str:
    """Return a line for the user about the noise of a machine."""
    summary = (
        f"host: the median of {noise['probes']} probes took {noise['median']:.2f} x, the slowest "
        f"{noise['worst']:.2f} x the time of the fastest"
    )
    again = noise["repeated"]
    return f"{summary}; {plural(again, 'section')} measured again" if again else summary


def noise_warning(noise: Mapping[str, Any], *, file: str) -> tuple[str, ...]:
    """Return a warning if the speed of the host changed during measurements; ``file`` is the record."""
    names = noise.get("stayed_noisy")
    if not names:
        return ()
    warning = (
        f"the speed of the host changed while {', '.join(names)} were measured: their spread is in {file}; "
        "--resume measures them again at a quieter time"
    )
    return (warning,)


# -- repetitions ----------------------------------------------------------------------------------


def _fast_half(count: int) -> int:
    """Return the size of the fast half of ``count`` samples, whose median is the lower quartile."""
    return (count + 1) // 2


def lower_quartile(samples: Sequence[float]) -> float:
    """Return the median of the fast half of the samples, which includes the middle one."""
    return float(median(sorted(samples)[: _fast_half(len(samples))]))


def spread(samples: Sequence[float]) -> list[float]:
    """Return P10 and P90 of the samples; of two samples, both of them."""
    if len(samples) < 3:
        return [float(min(samples)), float(max(samples))]
    cuts = quantiles(samples, n=10, method="inclusive")
    return [float(cuts[0]), float(cuts[-1])]


def pooled(results: Sequence[Any]) -> Any:
    """Return the results of all rounds of a section as one tree of the same form.

    A list under a key that ends in "seconds" holds repetitions, each of them a number or a list with a number
    for each rank. A table under such a key holds such lists. The lower quartile replaces each list, and P10
    and P90 are stored under the key with "_spread" appended. Rows of a table belong together if they differ
    in nothing but times.
    """
    first = results[0]
    if isinstance(first, Mapping):
        tree: dict[str, Any] = {}
        for key in dict.fromkeys(key for result in results for key in result):
            values = [result[key] for result in results if key in result]
            if _is_time(key) and isinstance(values[0], list | dict):
                tree[key], tree[f"{key}_spread"] = _statistics(values)
            else:
                tree[key] = pooled(values)
        return tree
    if isinstance(first, list) and all(isinstance(row, Mapping) for rows in results for row in rows):
        groups: dict[str, list[Any]] = {}
        for row in (row for rows in results for row in rows):
            groups.setdefault(_identity(row), []).append(row)
        return [pooled(group) for group in groups.values()]
    return first


def _statistics(values: Sequence[Any]) -> tuple[Any, Any]:
    """Return lower quartile and spread of the samples in several lists, or by the keys of several tables."""
    if isinstance(values[0], Mapping):
        named = {key: _statistics([value[key] for value in values if key in value]) for key in values[0]}
        return {key: pair[0] for key, pair in named.items()}, {key: pair[1] for key, pair in named.items()}
    samples = [sample for value in values for sample in value]
    return _by_rank(lower_quartile, samples), _by_rank(spread, samples)


def _is_time(key: str) -> bool:
    return key == "seconds" or key.endswith("_seconds")


def _identity(row: Mapping[str, Any]) -> str:
    return json.dumps({key: value for key, value in row.items() if not _is_time(key)}, sort_keys=True)


def _by_rank(statistic: Callable[[Sequence[float]], Any], samples: Sequence[Any]) -> Any:
    if isinstance(samples[0], list):
        return [statistic(by_rank) for by_rank in zip(*samples, strict=True)]
    return statistic(samples)


# -- steps of small models ------------------------------------------------------------------------


def pooled_steps(results: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the section ``hooks`` of all rounds and numbers of ranks, with one entry for each small model.

    An entry keeps the fast half of the passes, whose median is the lower quartile. "times" has the lower
    quartile, P10 and P90 of all passes by kind. In traces, the interval between two consecutive times is the
    lower quartile of that interval.
    """
    parts: dict[str, dict[str, list[Mapping[str, Any]]]] = {"runs": {}, "training": {}, "held_back": {}}
    failed: dict[str, Any] = {}
    for result in results:
        for part, runs in parts.items():
            for run in result.get(part, ()):
                runs.setdefault(run["name"], []).append(run)
        failed |= {failure["name"]: failure for failure in result.get("failed", ())}
    tables = {part: [_pooled_run(rounds) for rounds in runs.values()] for part, runs in parts.items()}
    return {**tables, "failed": list(failed.values())}


def _pooled_run(rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    groups: dict[tuple[str, int | None], list[Mapping[str, Any]]] = {}
    traces: dict[str, list[Mapping[str, Any]]] = {}
    for run in rounds:
        for one in run["passes"]:
            groups.setdefault((str(one["name"]).partition(" ")[0], one.get("micro_step")), []).append(one)
        for name, recorded in run["traces"].items():
            traces.setdefault(name, []).extend(recorded)
    passes = []
    times = []
    for (kind, micro_step), group in groups.items():
        passes += sorted(group, key=lambda one: float(one["seconds"]))[: _fast_half(len(group))]
        seconds = [float(one["seconds"]) for one in group]
        row = {"name": kind} | ({} if micro_step is None else {"micro_step": micro_step})
        values = {"count": len(seconds), "seconds": lower_quartile(seconds), "spread": spread(seconds)}
        times.append({**row, **values})
    return {
        **{key: value for key, value in rounds[0].items() if key not in ("passes", "traces")},
        "times": times,
        "passes": passes,
        "traces": {name: pooled_trace(recorded) for name, recorded in traces.items()},
    }


def pooled_trace(traces: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return one trace of a pass from several traces of the same modules; without modules, the first one."""
    first = traces[0]
    if "modules" not in first:
        return first
    modules = first["modules"]
    same = [trace["modules"] for trace in traces if trace["modules"]["module"] == modules["module"]]
    calls = len(modules["module"])
    events = sorted(
        ((index, key) for index in range(calls) for key in _TIMES),
        key=lambda event: float(modules[event[1]][event[0]]),
    )
    columns: dict[str, Any] = {"module": modules["module"], **{key: [0.0] * calls for key in _TIMES}}
    now, before = 0.0, [0.0] * len(same)
    for index, key in events:
        after = [float(trace[key][index]) for trace in same]
        now += lower_quartile([end - begin for begin, end in zip(before, after, strict=True)])
        columns[key][index] = round(now, 1)
        before = after
    return {"seconds": lower_quartile([float(trace["seconds"]) for trace in traces]), "modules": columns}
