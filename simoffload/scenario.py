"""A scenario: which model does what work on which platform, offloaded how."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from simoffload.documents import Document, read_document, set_value, suggest, validate
from simoffload.errors import InputError, Problem
from simoffload.hardware import Machine, load_platform
from simoffload.models import ModelShape, ModelSpec, load_model
from simoffload.shipped import shipped_folder
from simoffload.strategies import Plan, Resident, Strategy, ZeroInference
from simoffload.strategies.ds_config import DeepSpeedConfig
from simoffload.workload import Workload

__all__ = ["EngineOptions", "LoadedScenario", "Scenario", "list_scenarios", "load_scenario", "resolve"]

T = TypeVar("T")


class EngineOptions(BaseModel):
    """How the simulation is carried out, not what is simulated."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tokens: Literal["on", "off"] = "on"
    """"on": decode steps between a few simulated ones are interpolated; "off": every step is simulated."""
    max_events: Annotated[int, Field(strict=True, ge=1)] | None = None
    """Stop a pass with an error after so many clock events."""


class Scenario(BaseModel):
    """The content of a scenario file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[str, Field(min_length=1, max_length=200)]
    description: Annotated[str, Field(max_length=4000)] = ""
    model: ModelSpec
    platform: Annotated[str, Field(min_length=1)]
    """Id of a shipped platform or the path of a platform file, relative to the scenario."""
    nodes: Annotated[int, Field(strict=True, ge=1, le=8192)] = 1
    workload: Workload
    strategy: Strategy
    engine: EngineOptions = EngineOptions()


@dataclass(frozen=True)
class LoadedScenario:
    """A scenario with everything it refers to, checked and resolved."""

    scenario: Scenario
    document: Document
    """What was read, overrides applied and a ds_config in place of its path."""
    model: ModelShape
    machine: Machine

    @property
    def name(self) -> str:
        """The scenario's name."""
        return self.scenario.name

    def on(self, target: str) -> LoadedScenario:
        """The same work with the weights on another tier; InputError if the machine has no such tier.

        "gpu" and "cpu" mean the tiers "hbm" and "dram"; "resident" means a whole copy in each GPU, without
        ZeRO. On any tier a resident model becomes one under ZeRO-3.
        """
        if target == "resident":
            return self._resident()
        tier = _tier_name(target, self.machine)
        old = self.scenario.strategy
        new = ZeroInference(ranks=old.ranks, weights=tier)
        if isinstance(old, ZeroInference):
            new = old.model_copy(update={"weights": tier, "ds_config": _without_device(old.ds_config)})
        written = deepcopy(self.document.data["strategy"]) | {"kind": "zero_inference", "weights": tier}
        offload = ((written.get("ds_config") or {}).get("zero_optimization") or {}).get("offload_param") or {}
        offload.pop("device", None)
        document = replace(self.document, data={**self.document.data, "strategy": written})
        return replace(self, scenario=self.scenario.model_copy(update={"strategy": new}), document=document)

    def _resident(self) -> LoadedScenario:
        strategy = Resident(ranks=self.scenario.strategy.ranks)
        document = replace(self.document, data={**self.document.data, "strategy": strategy.model_dump()})
        return replace(
            self, scenario=self.scenario.model_copy(update={"strategy": strategy}), document=document
        )

    def plan(self) -> Plan:
        """Apply the strategy; InputError, with its place in the file, for what DeepSpeed would refuse."""
        ranks, gpus = self.scenario.strategy.ranks, self.machine.gpus
        if ranks > gpus:
            text = f"{ranks} ranks, but the platform has {gpus} GPU(s); lower it or raise nodes"
            raise InputError([self.document.problem(("strategy", "ranks"), text)])
        try:
            plan = self.scenario.strategy.plan(self.model, self.scenario.workload, self.machine)
            _ = plan.memory  # counted by walking through a pass, in which DeepSpeed may run out of buffers
        except InputError as error:
            raise InputError(_placed(self.document, error)) from None
        return plan


def list_scenarios() -> tuple[str, ...]:
    """Names of the shipped scenarios, as ``load_scenario`` takes them."""
    folder = shipped_folder("scenarios")
    return tuple(
        sorted(path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.yaml"))
    )


def load_scenario(source: str | Path, *, overrides: Sequence[str] = ()) -> LoadedScenario:
    """Read a scenario file (or a shipped scenario by name), apply ``a.b=value`` overrides, resolve it.

    Raises InputError with every problem found, each with file, line, key and what is valid.
    """
    return resolve(read_document(_locate(source)), overrides=overrides)


def resolve(document: Document, *, overrides: Sequence[str] = ()) -> LoadedScenario:
    """Check a document and load all that it refers to. Raises InputError."""
    for assignment in overrides:
        document = set_value(document, assignment)
    problems: list[Problem] = []
    document = _complete(document, problems)
    try:
        scenario = validate(document, Scenario)
    except InputError as error:
        raise InputError((*error.problems, *problems)) from None
    model = _try(document, problems, "model", lambda: load_model(scenario.model, root=document.root))
    platform = _try(
        document, problems, "platform", lambda: load_platform(scenario.platform, root=document.root)
    )
    if problems or model is None or platform is None:
        raise InputError(problems)
    machine = _try(document, problems, "nodes", lambda: platform.machine(nodes=scenario.nodes))
    if machine is None:
        raise InputError(problems)
    strategy = scenario.strategy
    if isinstance(strategy, ZeroInference) and strategy.weights is not None:
        named = strategy.weights
        tier = _try(document, problems, "strategy.weights", lambda: _tier_name(named, machine))
        strategy = strategy.model_copy(update={"weights": tier})
    if problems:
        raise InputError(problems)
    return LoadedScenario(scenario.model_copy(update={"strategy": strategy}), document, model, machine)


_ALIASES = {"gpu": "hbm", "cpu": "dram", "ram": "dram"}


def _tier_name(name: str, machine: Machine) -> str:
    """The machine's name for a tier; "gpu", "cpu" and "ram" are understood. InputError if there is none."""
    known = _ALIASES.get(name.lower(), name)
    if known in machine.tiers:
        return known
    has = ", ".join(machine.tiers)
    message = (
        f'no tier "{name}" on platform "{machine.platform}" (has: {has}){suggest(name, list(machine.tiers))}'
    )
    raise InputError([Problem("", None, None, "strategy.weights", message)])


def _without_device(config: DeepSpeedConfig) -> DeepSpeedConfig:
    """The same knobs with no word on the device: the target of a comparison decides it."""
    zero = config.zero_optimization
    if zero.offload_param is None:
        return config
    offload = zero.offload_param.model_copy(update={"device": None})
    return config.model_copy(update={"zero_optimization": zero.model_copy(update={"offload_param": offload})})


def _locate(source: str | Path) -> Path:
    path = Path(source)
    if path.suffix in {".yaml", ".yml", ".json"} or path.exists():
        return path
    if str(source) in list_scenarios():
        return shipped_folder("scenarios") / f"{source}.yaml"
    message = f"no such file, and no shipped scenario of that name{suggest(str(source), list_scenarios())}"
    raise InputError([Problem(str(source), None, None, "", message)])


def _complete(document: Document, problems: list[Problem]) -> Document:
    """Fill in the strategy's kind where it is left out, and the content of a ds_config file for its path."""
    strategy = document.data.get("strategy")
    if not isinstance(strategy, dict):
        return document
    strategy = {"kind": "zero_inference", **strategy}
    if "weights" in strategy and strategy["weights"] is None:
        text = "is empty; name a tier of the platform, e.g. dram, or leave the key out"
        problems.append(document.problem(("strategy", "weights"), text))
    path = strategy.get("ds_config")
    if isinstance(path, str):
        config = _try(document, problems, "strategy.ds_config", lambda: _ds_config(document, path))
        strategy["ds_config"] = config if config is not None else {}
    return replace(document, data={**document.data, "strategy": strategy})


def _ds_config(document: Document, name: str) -> Any:
    root = document.root or Path()
    path = root / name
    if not path.resolve().is_relative_to(root.resolve()):
        raise InputError([Problem("", None, None, "", f'"{name}" is outside the folder of the scenario')])
    read = read_document(path)
    validate(read, DeepSpeedConfig)
    return read.data


def _try(document: Document, problems: list[Problem], key: str, action: Callable[[], T]) -> T | None:
    """Run ``action``; note what is wrong, placed at ``key`` where it names no file of its own."""
    try:
        return action()
    except InputError as error:
        location = tuple(key.split("."))
        for problem in error.problems:
            if problem.line is not None:
                problems.append(problem)
            else:  # about a file as a whole, or no file at all: what matters is where it is referred to
                text = f"{problem.path}: {problem.message}" if problem.path else problem.message
                problems.append(document.problem(location, text))
        return None


def _placed(document: Document, error: InputError) -> list[Problem]:
    """Give problems that name only a key the place of that key in the document."""
    return [
        problem if problem.path else document.problem(tuple(problem.key.split(".")), problem.message)
        for problem in error.problems
    ]
