"""``python -m simoffload.calibration.fsdp.record FOLDER -o OUT`` keeps the needed part of a measurement.

It writes ``micro.json``, whose section ``fsdp`` has the costs (``calibrate micro --from-json`` makes profiles
from it), and ``fit/runs.json`` and ``holdout/runs.json`` without their traces.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

__all__ = ["costs_section", "own_times"]

_KEPT = ("name", "model", "workload", "strategy", "ranks", "attention")


def own_times(events: list[list[Any]]) -> dict[str, dict[str, float]]:
    """Return the median time [us] of each function without those that it calls, by forward and backward."""
    rows: dict[str, dict[str, list[float]]] = {"forward": {}, "backward": {}}
    for main, part in ((1, rows["forward"]), (0, rows["backward"])):
        stack: list[tuple[str, float, float]] = []  # name, end, own time so far
        for name, begin, end, _ in sorted((one for one in events if one[3] == main), key=lambda one: one[1]):
            while stack and stack[-1][1] <= begin:
                _keep(part, stack.pop())
            if stack:
                above = stack[-1]
                stack[-1] = (above[0], above[1], above[2] - (end - begin))
            stack.append((name, end, end - begin))
        while stack:
            _keep(part, stack.pop())
    return {
        name: {key: round(median(found), 2) for key, found in part.items()} for name, part in rows.items()
    }


def _keep(part: dict[str, list[float]], call: tuple[str, float, float]) -> None:
    part.setdefault(call[0], []).append(call[2])


def costs_section(costs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the section ``fsdp`` of a record."""
    runs = []
    for run in costs["runs"]:
        seconds: dict[str, list[float]] = {}
        for one in run["passes"]:
            seconds.setdefault(one["name"], []).append(one["seconds"])
        row = {key: run[key] for key in _KEPT}
        row["seconds"] = {name: round(median(found), 7) for name, found in seconds.items()}
        if run["strategy"] is not None:
            row["hooks"] = own_times(run["traces"]["hooks"]["events"])
        runs.append(row)
    kept = {key: costs["adamw"][key] for key in ("operations", "threads", "gpu")}
    return {**kept, "together": costs.get("adamw_together") or [], "runs": runs}


def _runs(data: Mapping[str, Any]) -> dict[str, Any]:
    runs = [
        {key: value for key, value in run.items() if key not in ("traces", "loading_s")}
        for run in data["runs"]
    ]
    return {**data, "runs": runs}


def main() -> int:
    """Read a folder of measurements and write the needed part to another one."""
    parser = argparse.ArgumentParser(prog="python -m simoffload.calibration.fsdp.record")
    parser.add_argument("folder", type=Path)
    parser.add_argument("-o", "--output-dir", type=Path, required=True)
    parser.add_argument("--only", choices=("micro", "fit", "holdout"), action="append")
    arguments = parser.parse_args()

    def read(name: str) -> Any:
        return json.loads((arguments.folder / name).read_text(encoding="utf-8"))

    for name in arguments.only or ("micro", "fit", "holdout"):
        if name == "micro":
            data = read("micro.json")
            data["sections"]["fsdp"] = costs_section(read("costs.json"))
            path = arguments.output_dir / "micro.json"
        else:
            data, path = _runs(read(f"{name}.json")), arguments.output_dir / name / "runs.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(data, separators=(",", ":")) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
