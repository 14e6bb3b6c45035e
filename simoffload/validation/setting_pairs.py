"""DeepSpeed's knobs of recorded runs: which differ from the default, and runs that differ in one only."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pydantic import ValidationError

from simoffload.calibration.compare import ComparedRun
from simoffload.calibration.records import RecordedRun
from simoffload.strategies.ds_config import DeepSpeedConfig, OffloadParamSection

__all__ = ["SETTINGS", "SettingPair", "changed", "setting_pairs"]

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
SETTINGS = (*_ZERO, *_OFFLOAD, *_AIO)

Value = int | str


class SettingPair(NamedTuple):
    """Two runs on one machine that differ in one knob."""

    setting: str
    before: Value
    after: Value
    base: ComparedRun
    other: ComparedRun

    def ratio(self, name: str) -> tuple[float, float] | None:
        """Time of the pass ``name`` after the change over that before it: (measured, predicted)."""
        one, two = self.base.find(name), self.other.find(name)
        if one is None or two is None:
            return None
        if not (one.measured and two.measured and one.predicted and two.predicted):
            return None
        return two.measured / one.measured, two.predicted / one.predicted


def _values(config: DeepSpeedConfig) -> dict[str, Value]:
    """Every knob with DeepSpeed's default where none is given."""
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


def _of(run: RecordedRun) -> dict[str, Value] | None:
    try:
        return _values(DeepSpeedConfig.model_validate(run.ds_config or {}))
    except ValidationError:
        return None


def changed(run: RecordedRun) -> dict[str, Value]:
    """The knobs of a run that differ from DeepSpeed's defaults, by DeepSpeed's names."""
    return {name: value for name, value in (_of(run) or {}).items() if value != _DEFAULTS[name]}


def setting_pairs(runs: Sequence[ComparedRun]) -> Iterator[SettingPair]:
    """Runs of one machine that are alike but for one knob, each beside the one with the default value.

    Where none has the default, beside the first.
    """
    for setting in SETTINGS:
        groups: dict[str, dict[Value, ComparedRun]] = {}
        for compared in runs:
            values = _of(compared.run)
            if values is not None:
                value = values.pop(setting)
                groups.setdefault(_key(compared.run, values), {}).setdefault(value, compared)
        for rows_of_group in groups.values():
            base = _DEFAULTS[setting] if _DEFAULTS[setting] in rows_of_group else next(iter(rows_of_group))
            for value, other in rows_of_group.items():
                if value != base:
                    yield SettingPair(setting, base, value, rows_of_group[base], other)


def _key(run: RecordedRun, values: dict[str, Value]) -> str:
    about = (run.model, run.workload, run.ranks, run.offload, run.attention, values)
    return json.dumps(about, sort_keys=True)
