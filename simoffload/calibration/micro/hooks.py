"""The section "hooks": decode steps of small models under ZeRO-3, module by module."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from simoffload.calibration.deepspeed.launch import NEEDED, Settings, run_cases
from simoffload.calibration.processes import missing_packages
from simoffload.calibration.small_models import small_cases
from simoffload.documents import read_document

__all__ = ["measure_hooks"]

_SECONDS_PER_CASE = 120.0
_TIMES = ("module", "fetch", "fetched", "launched", "released")


def measure_hooks(ranks: Sequence[int], *, seconds: float, progress: Callable[[str], None]) -> dict[str, Any]:
    """Run the small models on each number of ranks, ``seconds`` at most; what the fit needs of their records.

    Raises LookupError, with the reason, where DeepSpeed is missing or no run came to its end.
    """
    missing = missing_packages(NEEDED)
    if missing:
        raise LookupError(f"{', '.join(missing)} not installed")
    cases = [case for number in ranks for case in small_cases(number)]
    with tempfile.TemporaryDirectory(prefix="simoffload-hooks-") as name:
        folder = Path(name) / "runs"
        settings = Settings(
            folder=folder,
            swap_folder=Path(name) / "swap",
            largest=0,
            seconds_per_case=_SECONDS_PER_CASE,
            seconds=seconds,
            trace=True,
        )
        outcome = run_cases(cases, settings, progress=lambda text: progress(f"hooks, {text[:60]}"))
        if not outcome.done:
            raise LookupError(f"no run came to its end: {outcome.failed[0][1]}")
        runs = read_document(outcome.file).data["runs"]
    failed = [{"name": name, "error": why} for name, why in outcome.failed]
    return {"runs": [_needed(run) for run in runs], "failed": failed}


def _needed(run: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: run[key] for key in ("name", "model", "workload", "ranks", "ds_config", "attention")}
    timed = [one for one in run["passes"] if one["repetition"]]
    kept["passes"] = [{key: one[key] for key in ("name", "repetition", "seconds")} for one in timed]
    step = run["traces"]["decode 1"]
    modules = {key: step["modules"][key] for key in _TIMES}
    return kept | {"traces": {"decode 1": {"seconds": step["seconds"], "modules": modules}}}
