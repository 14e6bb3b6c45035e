"""What a real DeepSpeed run is asked to do, read from files that look like scenarios."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from simoffload.documents import Document, Frozen, quoted, read_document, validate
from simoffload.errors import InputError, Problem
from simoffload.models import ModelSpec
from simoffload.strategies.ds_config import DeepSpeedConfig
from simoffload.workload import Computation, Training

__all__ = [
    "CalibrationRun",
    "RunRequest",
    "offload_config",
    "offload_device",
    "read_requests",
    "request",
]

_DEVICES = {"hbm": "none", "gpu": "none", "dram": "cpu", "cpu": "cpu", "nvme": "nvme"}
_SCENARIO_ONLY = ("description", "platform", "nodes", "engine", "checkpoint", "dataset")
"""Keys of a scenario that a run on a real machine has no use for."""


class _Strategy(Frozen):
    """The part of a scenario's strategy that a run can carry out."""

    kind: Literal["zero_inference"] = "zero_inference"
    ranks: Annotated[int, Field(strict=True, ge=1, le=8)] = 1
    weights: Literal["hbm", "gpu", "dram", "cpu", "nvme"] | None = None
    ds_config: dict[str, Any] = Field(default_factory=dict)
    deepspeed_version: str | None = None
    """Accepted, and not used: the version that is installed runs."""


class RunRequest(Frozen):
    """One run: which model does what work on how many ranks under which ``ds_config``."""

    name: Annotated[str, Field(min_length=1, max_length=200)]
    model: ModelSpec
    workload: Computation
    strategy: _Strategy = _Strategy()


@dataclass(frozen=True)
class CalibrationRun:
    """A request with everything resolved that the process with DeepSpeed needs to carry it out."""

    request: RunRequest
    hf_config: Mapping[str, Any]
    """Configuration in Hugging Face's keys, ``model_type`` included."""
    num_parameters: int
    dtype: str
    ds_config: Mapping[str, Any]

    @property
    def ranks(self) -> int:
        """Processes, one GPU each."""
        return self.request.strategy.ranks

    @property
    def device(self) -> str:
        """Where the parameters are offloaded to: none, cpu or nvme."""
        return offload_device(self.ds_config)

    @property
    def host_bytes(self) -> int:
        """[B] of host memory, about: 16-bit weights, and 16 B a parameter when an optimizer is there."""
        training = isinstance(self.request.workload, Training)
        weights = 0 if self.device == "none" else 2
        return self.num_parameters * (weights + (16 if training else 0))

    @property
    def swap_bytes(self) -> int:
        """[B] that the run may write to storage: the 16-bit weights, and 12 B a parameter of optimizer
        states and 4 of gradients where these are on storage (facts of DeepSpeed's swap folders)."""
        zero = self.ds_config.get("zero_optimization", {})
        optimizer = (zero.get("offload_optimizer") or {}).get("device")
        states = 16 if optimizer == "nvme" and isinstance(self.request.workload, Training) else 0
        return self.num_parameters * (states + (2 if self.device == "nvme" else 0))


def offload_device(config: Mapping[str, Any]) -> str:
    """Where a ``ds_config`` offloads parameters to: none, cpu or nvme."""
    zero = config.get("zero_optimization")
    section = zero.get("offload_param") if isinstance(zero, Mapping) else None
    return str((section.get("device") if isinstance(section, Mapping) else None) or "none")


def offload_config(device: str, *, optimizer: str | None = None) -> dict[str, Any]:
    """A ``ds_config`` with DeepSpeed's defaults that offloads parameters to "none", "cpu" or "nvme"."""
    zero: dict[str, Any] = {"stage": 3}
    if device != "none":
        zero["offload_param"] = {"device": device, "pin_memory": True}
    if optimizer not in (None, "none"):
        zero["offload_optimizer"] = {"device": optimizer, "pin_memory": True}
    return {"zero_optimization": zero}


def read_requests(paths: Sequence[Path]) -> tuple[CalibrationRun, ...]:
    """Read run files: a scenario each, or a list of them under ``runs``. Raises InputError with all problems.

    What of a scenario does not matter to such a run (``_SCENARIO_ONLY``) is ignored.
    """
    cases: list[CalibrationRun] = []
    problems: list[Problem] = []
    for path in paths:
        try:
            document = read_document(path)
            cases.extend(_cases(document))
        except InputError as error:
            problems.extend(error.problems)
    if problems:
        raise InputError(problems)
    return tuple(cases)


def request(data: Mapping[str, Any]) -> CalibrationRun:
    """Check one request given as plain values. Raises InputError."""
    return _case(Document("", {"run": dict(data)}), ("run",))


def _cases(document: Document) -> Iterator[CalibrationRun]:
    if not isinstance(document.data, dict) or "runs" not in document.data:
        yield _case(document, ())
        return
    runs = document.data["runs"]
    if not isinstance(runs, list) or not runs:
        raise InputError(
            [document.problem(("runs",), "must be a list of runs, each written like a scenario")]
        )
    others = [key for key in document.data if key != "runs"]
    if others:
        raise InputError([document.problem((key,), 'unknown beside "runs"') for key in others])
    names: set[str] = set()
    for index in range(len(runs)):
        case = _case(document, ("runs", index))
        if case.request.name in names:
            text = f"{quoted(case.request.name)} is the name of an earlier run; names must differ"
            raise InputError([document.problem(("runs", index, "name"), text)])
        names.add(case.request.name)
        yield case


def _case(document: Document, at: tuple[str | int, ...]) -> CalibrationRun:
    node: Any = document.data
    for key in at:
        node = node[key]
    if isinstance(node, dict):
        for key in _SCENARIO_ONLY:
            node.pop(key, None)
    checked = validate(document, RunRequest, at=at)
    if checked.strategy.ds_config:
        config = checked.strategy.ds_config
        known = validate(document, DeepSpeedConfig, at=(*at, "strategy", "ds_config"))
        _check_config(document, at, checked, known)
    else:
        config = _default_config(checked)
    shape = checked.model.shape(root=document.root)
    _check_length(document, at, checked, shape.max_position_embeddings)
    return CalibrationRun(
        request=checked,
        hf_config=checked.model.hf_config(root=document.root),
        num_parameters=shape.num_parameters,
        dtype=shape.dtype,
        ds_config=config,
    )


def _check_config(
    document: Document, at: tuple[str | int, ...], checked: RunRequest, config: DeepSpeedConfig
) -> None:
    """Refuse what would run as something else than it says."""
    zero = config.zero_optimization
    place = (*at, "strategy", "ds_config", "zero_optimization")
    if zero.stage != 3:
        text = f"must be 3: these runs measure ZeRO-3 offload, got {zero.stage}"
        raise InputError([document.problem((*place, "stage"), text)])
    device = (zero.offload_param.device if zero.offload_param else None) or "none"
    wanted = _DEVICES.get(checked.strategy.weights or "")
    if wanted is not None and wanted != device:
        text = (
            f'"{checked.strategy.weights}" contradicts ds_config, which offloads to "{device}"; leave one out'
        )
        raise InputError([document.problem((*at, "strategy", "weights"), text)])


def _check_length(
    document: Document, at: tuple[str | int, ...], checked: RunRequest, limit: int | None
) -> None:
    work = checked.workload
    training = isinstance(work, Training)
    tokens = work.sequence_length if isinstance(work, Training) else work.max_context
    if limit is not None and tokens > limit:
        key = "sequence_length" if training else "prompt_length"
        text = f"{tokens} tokens in all are more than the {limit} positions of the model"
        raise InputError([document.problem((*at, "workload", key), text)])


def _default_config(checked: RunRequest) -> dict[str, Any]:
    device = _DEVICES.get(checked.strategy.weights or "", "none")
    training = isinstance(checked.workload, Training)
    return offload_config(device, optimizer=device if training else None)
