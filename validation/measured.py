"""This module predicts recorded runs of DeepSpeed, FSDP, Accelerate and tensor parallelism.

The runs in ``measured/fit/<machine>/`` were available while costs of the host thread and efficiencies were
determined, those in ``measured/holdout/<machine>/`` were not. The folder of a machine contains ``runs*.json``
(from ``calibrate deepspeed``, or of FSDP: docs/measurements/fsdp.md) and the profile that ``calibrate micro``
made on the same machine, unless its folder in the other set has it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from simoffload.planning.errors import Comparable, RealTimes, calibration_errors
from simoffload.strategies.ds_config import DeepSpeedConfig, OffloadParamSection
from simoffload_calibrate.compare import ComparedPass, ComparedRun, compare_file
from simoffload_calibrate.micro.profiles import base_platform
from simoffload_calibrate.micro.record import read_record
from simoffload_calibrate.records import RecordedRun, Records, read_records
from validation.shipped_hosts import without

PARTS = ("fit", "holdout")
PASSES = ("decode", "prefill", "step", "forward", "backward", "optimizer")
_FOLDER = Path(__file__).parent / "measured"


Profile = Literal["own", "same kind", "shipped", "DGX"]
"""Profile that predicts a run: measured on the same machine, on another one of its kind, shipped, or that of
a DGX for machines whose shipped one is none."""
_DGX = {"H100": "dgx-h100", "H200": "dgx-h200"}


class MeasuredRun(NamedTuple):
    """One recorded run of a set, with its prediction."""

    part: str
    """The set of the run: fit or holdout."""
    machine: str
    date: str
    """The day of the run."""
    compared: ComparedRun

    @property
    def group(self) -> str:
        """Return the group of the run, as strategies name it under ``evidence``."""
        return self.compared.run.group


def compare_measured(folder: Path = _FOLDER, profile: Profile = "own") -> tuple[MeasuredRun, ...]:
    """Predict every recorded run, except for its first pass; intervals are without the errors of its machine.

    Runs for which no other machine of their kind was measured are left out with the profile "same kind", and
    those from drives with a DGX. Shipped is the machine most like theirs, with a host made without the record
    of their own machine.
    Raises InputError for a wrong file, and ValueError if a machine has no profile of its own.
    """
    found: list[MeasuredRun] = []
    for part in PARTS:
        for path in sorted((folder / part).glob("*/runs*.json")):
            machine = path.parent.name
            platform = _elsewhere(folder, machine) if profile == "own" else None
            records = read_records(path)
            if profile == "same kind":
                platform = same_kind(folder, machine, records)
                if platform is None:
                    continue
            own = profile == "own"
            shipped = base_platform(records.gpu, gpus=records.gpus)
            if profile == "DGX":
                if shipped in _DGX.values():
                    continue
                platform = shipped = next(dgx for gpu, dgx in _DGX.items() if gpu in records.gpu)
            changes = without(machine, shipped) if profile in ("shipped", "DGX") else None
            file = compare_file(
                path,
                platform=platform,
                own_profile=own,
                first=False,
                profiles=changes,
                elsewhere=profile == "same kind",
            )
            if profile == "own" and file.remarks:
                raise ValueError(f"{path}: {'; '.join(file.remarks)}")
            found += [
                MeasuredRun(part, machine, records.date, compared)
                for compared in file.runs
                if profile != "DGX" or "nvme" not in (compared.run.offload, compared.run.optimizer)
            ]
    return left_out(found)


def left_out(runs: Iterable[MeasuredRun]) -> tuple[MeasuredRun, ...]:
    """Return runs with intervals that are without the errors of their machine."""
    return tuple(
        run._replace(
            compared=run.compared._replace(
                passes=tuple(_left_out(one, run.machine) for one in run.compared.passes)
            )
        )
        for run in runs
    )


def _left_out(one: ComparedPass, machine: str) -> ComparedPass:
    if one.compared is None or one.predicted is None:
        return one
    low, high = calibration_errors().factors(one.compared, without=machine)
    return one._replace(interval=(one.predicted * low, one.predicted * high))


def _elsewhere(folder: Path, machine: str) -> str | None:
    """Find the profile of a machine that has runs in both sets and a profile in one of them."""
    places = [folder / part / machine / "platform.yaml" for part in PARTS]
    found = [place for place in places if place.is_file()]
    return str(found[0]) if len(found) == 1 else None


class MeasuredMachine(NamedTuple):
    """What a record of ``calibrate micro`` states of a machine."""

    name: str
    gpu: str
    gpus: int
    date: str
    sections: tuple[str, ...]


@cache
def _measured_machine(record: Path) -> MeasuredMachine:
    raw = read_record(record)
    about = raw["machine"]
    gpu = (about.get("gpu") or {"name": ""})["name"]
    sections = tuple(sorted(raw["sections"]))
    return MeasuredMachine(record.parent.name, gpu, about.get("gpus") or 0, raw["date"], sections)


def measured_machines(folder: Path = _FOLDER) -> Iterator[MeasuredMachine]:
    """Yield every machine once, in order of their names; one without a record has that of its runs."""
    folders: dict[str, list[Path]] = {}
    for place in sorted(folder.glob("*/*/")):
        folders.setdefault(place.name, []).append(place)
    for name, places in sorted(folders.items()):
        records = [place / "micro.json" for place in places if (place / "micro.json").is_file()]
        if records:
            yield _measured_machine(records[0])
            continue
        runs = read_records(next(path for place in places for path in place.glob("runs*.json")))
        yield MeasuredMachine(name, runs.gpu, runs.gpus, runs.date, ())


def same_kind(folder: Path, machine: str, records: Records) -> str | None:
    """Return the profile of another machine of the fit set that has the GPU of these runs, and as many.

    The host thread of DeepSpeed, or the functions of FSDP, must have been measured there. Of several machines
    it is the one with the fewest GPUs, then with the most sections measured, then the first by name.
    """
    needed = "fsdp" if records.runs[0].group == "fsdp" else "hooks"
    others = [
        one
        for platform in (folder / "fit").glob("*/platform.yaml")
        if (platform.parent / "micro.json").is_file()
        and (one := _measured_machine(platform.parent / "micro.json")).name != machine
        and one.gpu == records.gpu
        and one.gpus >= records.gpus
        and needed in one.sections
    ]
    if not others:
        return None
    other = min(others, key=lambda one: (one.gpus, -len(one.sections), one.name))
    return str(folder / "fit" / other.name / "platform.yaml")


def counted(
    runs: Iterable[MeasuredRun], *, part: str | None = None, group: str = "zero"
) -> list[ComparedRun]:
    """Select the runs of one group, in one set or in both."""
    return [run.compared for run in runs if part in (None, run.part) and run.group == group]


# -- errors ---------------------------------------------------------------------------------------


class Observed(NamedTuple):
    """An Observed is a real time with what it is compared with."""

    compared: Comparable
    machine: str
    held_out: bool
    ratio: float
    """Of the time to the predicted one."""


def observed_runs(runs: Iterable[MeasuredRun]) -> Iterator[Observed]:
    """Yield the times of all passes."""
    for run in runs:
        for one in run.compared.passes:
            if one.compared and one.measured and one.predicted:
                ratio = one.measured / one.predicted
                yield Observed(one.compared, run.machine, run.part == "holdout", ratio)


def error_rows(times: Iterable[Observed]) -> list[RealTimes]:
    """Return the table to whose times every answer refers."""
    found: dict[tuple[Any, ...], list[float]] = {}
    for one in times:
        key = *one.compared[:3], one.machine, one.held_out
        found.setdefault(key, []).append(round(one.ratio, 3))
    return [RealTimes._make((*key, tuple(sorted(ratios)))) for key, ratios in sorted(found.items())]


# -- DeepSpeed's settings ----------------------------------------------------------------------------

_ZERO = (
    "stage3_prefetch_bucket_size",
    "stage3_param_persistence_threshold",
    "stage3_model_persistence_threshold",
    "stage3_max_live_parameters",
    "stage3_max_reuse_distance",
    "overlap_comm",
)
_OFFLOAD = ("pin_memory", "buffer_count", "buffer_size")
_AIO = ("block_size", "queue_depth", "intra_op_parallelism", "use_gds")
_SETTINGS = (*_ZERO, *_OFFLOAD, *_AIO)

Value = int | str


class SettingPair(NamedTuple):
    """Two runs on one machine that differ in one setting."""

    setting: str
    before: Value
    after: Value
    base: ComparedRun
    other: ComparedRun

    def ratio(self, name: str) -> tuple[float, float] | None:
        """Return the ratio of a pass's time after the change to that before: (measured, predicted)."""
        one, two = self.base.find(name), self.other.find(name)
        if one is None or two is None:
            return None
        if not (one.measured and two.measured and one.predicted and two.predicted):
            return None
        return two.measured / one.measured, two.predicted / one.predicted


def _values(config: DeepSpeedConfig) -> dict[str, Value]:
    """Return every setting, with DeepSpeed's default where none is given."""
    zero, aio = config.zero_optimization, config.aio
    offload = zero.offload_param or OffloadParamSection()
    values: dict[str, Value] = {name: getattr(zero, name) for name in _ZERO}
    values |= {name: getattr(offload, name) for name in _OFFLOAD}
    values |= {name: getattr(aio, name) for name in _AIO}
    values["overlap_comm"] = zero.overlap_comm is not False
    values["pin_memory"] = offload.pin_memory is not False
    values["intra_op_parallelism"] = aio.intra_op_parallelism or 1
    return values


_DEFAULTS = _values(DeepSpeedConfig())


def _settings(run: RecordedRun) -> dict[str, Value]:
    return _values(DeepSpeedConfig.model_validate(run.ds_config or {}))


def changed(run: RecordedRun) -> dict[str, Value]:
    """Return the settings of a run that differ from DeepSpeed's defaults, by DeepSpeed's names."""
    return {name: value for name, value in _settings(run).items() if value != _DEFAULTS[name]}


def setting_pairs(runs: Sequence[ComparedRun]) -> Iterator[SettingPair]:
    """Pair the runs of one machine that differ in exactly one setting.

    The base of a pair is the run with the default value or, where there is none, the first.
    """
    for setting in _SETTINGS:
        groups: dict[str, dict[Value, ComparedRun]] = {}
        for compared in runs:
            values, run = _settings(compared.run), compared.run
            value = values.pop(setting)
            about = (run.model, run.workload, run.ranks, run.offload, run.attention, values)
            groups.setdefault(json.dumps(about, sort_keys=True), {}).setdefault(value, compared)
        for by_value in groups.values():
            base = _DEFAULTS[setting] if _DEFAULTS[setting] in by_value else next(iter(by_value))
            for value, other in by_value.items():
                if value != base:
                    yield SettingPair(setting, base, value, by_value[base], other)
