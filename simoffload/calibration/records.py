"""The files of runs that ``calibrate deepspeed`` and ``simoffload.calibration.fsdp`` write, read back."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from simoffload.calibration.runs import offload_device
from simoffload.documents import Document, exists, file_errors, validate
from simoffload.errors import InputError, Problem

__all__ = ["Activity", "ModuleTimes", "Pass", "RecordedRun", "Records", "StepTrace", "Traces", "read_records"]

_LARGEST = 256 * 1024**2
"""[B] a run with traces takes about 0.1 MB."""
_STEADY, _STEADY_TRAINING = 1, 2
"""The first repetition whose times count: memory is allocated and traces are recorded in those before."""

Seconds = Annotated[float, Field(ge=1e-9, le=1e9)]
Times = tuple[float, ...]
StorageRow = tuple[str, str, int, float, float, int]
"""Operation, tensor, size [B], begin [us], duration of the call [us], swap buffers free afterwards."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Pass(_Part):
    """One timed pass."""

    name: str
    repetition: Annotated[int, Field(ge=0)]
    seconds: Seconds


class ModuleTimes(_Part):
    """Host times [us] of every module call of a pass, in the order in which the calls begin.

    Fetch is from ``fetch`` to ``fetched``, the module with its children to ``launched``, its release to
    ``released``.
    """

    module: tuple[str, ...]
    fetch: Times
    fetched: Times
    launched: Times
    released: Times

    @model_validator(mode="after")
    def _equal(self) -> ModuleTimes:
        lengths = {len(column) for column in (self.fetch, self.fetched, self.launched, self.released)}
        if lengths != {len(self.module)}:
            raise ValueError("the columns of a trace must be of one length")
        return self


class StepTrace(_Part):
    """One traced pass."""

    seconds: Seconds
    modules: ModuleTimes
    storage: tuple[StorageRow, ...] | None = None


class Activity(_Part):
    """What the GPU did in one pass, by kind."""

    busy_us: dict[str, float]
    """[us]"""


class Traces(_Part):
    """What was traced; the rest of what a record may hold is not used."""

    decode: StepTrace | None = Field(default=None, alias="decode 1")
    gpu_decode: Activity | None = Field(default=None, alias="gpu decode")


class Threads(_Part):
    """Of each rank's CPU work."""

    omp: Annotated[int, Field(ge=1)] = Field(alias="OMP_NUM_THREADS")


class RecordedRun(_Part):
    """One run as it was carried out."""

    name: Annotated[str, Field(min_length=1)]
    model: dict[str, Any]
    workload: dict[str, Any]
    ranks: Annotated[int, Field(ge=1)]
    ds_config: dict[str, Any] | None = None
    strategy: dict[str, Any] | None = None
    """As in a scenario, of a run without DeepSpeed."""
    attention: str | None = None
    """Transformers' name of the implementation that ran."""
    threads: Threads | None = None
    passes: Annotated[tuple[Pass, ...], Field(min_length=1)]
    traces: Traces = Traces()

    @model_validator(mode="after")
    def _one_of_both(self) -> RecordedRun:
        if (self.ds_config is None) is (self.strategy is None):
            raise ValueError("a run has either ds_config or strategy")
        return self

    @property
    def training(self) -> bool:
        """Whether it was training, not inference."""
        return bool(self.workload.get("kind") == "training")

    @property
    def group(self) -> str:
        """What was run, as a strategy names it under ``evidence``."""
        return "zero" if self.strategy is None else "fsdp"

    @property
    def offload(self) -> str:
        """Where parameters were: none, cpu or nvme."""
        if self.strategy is not None:
            return "cpu" if self.strategy.get("cpu_offload") else "none"
        return offload_device(self.ds_config or {})

    @property
    def optimizer(self) -> str:
        """Where the optimizer's states were: none, cpu or nvme."""
        if self.strategy is not None:
            return self.offload
        section = ((self.ds_config or {}).get("zero_optimization") or {}).get("offload_optimizer") or {}
        return str(section.get("device") or "none")

    def measured(self) -> dict[str, float]:
        """Times [s] by pass.

        Inference: "first pass" (of the first repetition), "prefill" and "decode" (the median step) of the
        second. Training: the median over the later repetitions of the sums per repetition; whole steps
        that were timed by themselves count before the sum of their parts.
        """
        if self.training:
            return self._training()
        steady = [one for one in self.passes if one.repetition == _STEADY]
        times = {
            "first pass": [p.seconds for p in self.passes if p.repetition == 0 and p.name == "prefill"],
            "prefill": [p.seconds for p in steady if p.name == "prefill"],
            "decode": [p.seconds for p in steady if p.name.startswith("decode")],
        }
        return {name: median(found) for name, found in times.items() if found}

    def _training(self) -> dict[str, float]:
        has_step = any(one.name == "step" for one in self.passes)
        steady = 0 if has_step else _STEADY_TRAINING
        sums: dict[str, dict[int, float]] = {}
        for one in self.passes:
            if one.repetition >= steady:
                for name in (one.name,) if has_step else (one.name, "step"):
                    row = sums.setdefault(name, {})
                    row[one.repetition] = row.get(one.repetition, 0.0) + one.seconds
        order = sorted(sums, key=lambda name: name == "step")
        return {name: median(sums[name].values()) for name in order}


class Records(_Part):
    """A file of runs."""

    layout: Literal["simoffload/deepspeed-runs/1", "simoffload/fsdp-runs/1"] = Field(alias="schema")
    machine: dict[str, Any]
    runs: tuple[RecordedRun, ...]

    @property
    def deepspeed(self) -> str | None:
        """DeepSpeed's version without a suffix of its build."""
        version = self.machine.get("deepspeed")
        return version.partition("+")[0] if isinstance(version, str) else None

    @property
    def gpu(self) -> str:
        """Name of the GPU; empty without one."""
        return str(self.machine.get("gpu") or "")


def read_records(path: Path) -> Records:
    """Read a file of ``calibrate deepspeed``. Raises InputError for anything else."""
    text = _text(path)
    try:
        data = json.loads(text, parse_constant=_refuse)
    except json.JSONDecodeError as error:
        reason = f"not valid JSON: {error.msg[0].lower()}{error.msg[1:]}; was the file cut off?"
        raise InputError([Problem(str(path), error.lineno, error.colno, "", reason)]) from None
    except (ValueError, RecursionError) as error:
        raise _refusal(path, f"not valid JSON: {error}") from None
    if not isinstance(data, dict) or "runs" not in data or "schema" not in data:
        message = 'not a record of "calibrate deepspeed", which has the keys schema, machine and runs'
        raise _refusal(path, message)
    return validate(Document(str(path), data), Records)


def _text(path: Path) -> str:
    with file_errors(path):
        if not exists(path):
            raise _refusal(path, "no such file")
        if path.is_dir():
            raise _refusal(path, "this is a folder; name the runs.json in it")
        if path.stat().st_size > _LARGEST:
            raise _refusal(path, "larger than 256 MiB")
        content = path.read_bytes()
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise _refusal(path, "not a text in UTF-8") from None


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not a number")


def _refusal(path: Path, message: str) -> InputError:
    return InputError([Problem(str(path), None, None, "", message)])
