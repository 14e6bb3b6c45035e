"""The section "hooks": decode and training steps of small models under ZeRO-3, part by part."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from simoffload.calibration.deepspeed.launch import NEEDED, LaunchSettings, run_cases
from simoffload.calibration.processes import missing_packages
from simoffload.calibration.runs import CalibrationRun
from simoffload.calibration.small_models import small_cases, small_training_cases
from simoffload.documents import read_document

__all__ = ["measure_hooks"]

_SECONDS_PER_CASE = 240.0
"""In it is the compilation of an optimizer, at its first use."""
_STEADY = 2
"""The first training step whose times count."""
_TIMES = ("module", "fetch", "fetched", "launched", "released")


def measure_hooks(
    ranks: Sequence[int], *, deep: bool, seconds: float, progress: Callable[[str], None]
) -> dict[str, Any]:
    """Run the small models on each number of ranks; what the fit needs of their records.

    ``deep`` = train models with as many layers as real ones. Decode steps stand in "runs"; training steps, on
    one rank and on the most ranks, in "training". Each of the two may take ``seconds``. Raises LookupError,
    with the reason, where DeepSpeed is missing or no run of inference came to its end.
    """
    missing = missing_packages(NEEDED)
    if missing:
        raise LookupError(f"{', '.join(missing)} not installed")
    cases = [case for number in ranks for case in small_cases(number)]
    trained = [case for number in sorted({1, max(ranks)}) for case in small_training_cases(number, deep=deep)]
    runs, failed = _carry_out(cases, seconds, progress)
    if not runs:
        raise LookupError(f"no run came to its end: {failed[0]['error']}")
    training, more = _carry_out(trained, seconds, progress)
    return {
        "runs": [_inference(run) for run in runs],
        "training": [_training(run) for run in training],
        "failed": failed + more,
    }


def _carry_out(
    cases: Sequence[CalibrationRun], seconds: float, progress: Callable[[str], None]
) -> tuple[list[dict[str, Any]], list[dict[str, str]]]:
    """Records of the runs that came to their end, and names of the others with the reason."""
    with tempfile.TemporaryDirectory(prefix="simoffload-hooks-") as name:
        settings = LaunchSettings(
            folder=Path(name) / "runs",
            swap_folder=Path(name) / "swap",
            largest=0,
            seconds_per_case=_SECONDS_PER_CASE,
            seconds=seconds,
            trace=True,
        )
        outcome = run_cases(cases, settings, progress=lambda text: progress(f"hooks, {text[:60]}"))
        runs = read_document(outcome.file).data["runs"] if outcome.done else []
    return runs, [{"name": name, "error": why} for name, why in outcome.failed]


def _kept(run: Mapping[str, Any]) -> dict[str, Any]:
    return {key: run[key] for key in ("name", "model", "workload", "ranks", "ds_config", "attention")}


def _inference(run: Mapping[str, Any]) -> dict[str, Any]:
    timed = [one for one in run["passes"] if one["repetition"]]
    passes = [{key: one[key] for key in ("name", "repetition", "seconds")} for one in timed]
    return _kept(run) | {"passes": passes, "traces": {"decode 1": _modules(run["traces"]["decode 1"])}}


def _training(run: Mapping[str, Any]) -> dict[str, Any]:
    timed = [one for one in run["passes"] if one["repetition"] >= _STEADY]
    passes = [{key: one[key] for key in ("name", "repetition", "micro_step", "seconds")} for one in timed]
    traces = {name: _modules(trace) if "modules" in trace else trace for name, trace in run["traces"].items()}
    return _kept(run) | {"threads": run["threads"], "passes": passes, "traces": traces}


def _modules(trace: Mapping[str, Any]) -> dict[str, Any]:
    modules = {key: trace["modules"][key] for key in _TIMES}
    return {"seconds": trace["seconds"], "modules": modules}
