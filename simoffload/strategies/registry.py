"""The registry of strategies by ``strategy.kind``.

The strategies of the package are listed by name and imported when a document with their kind is read. Other
strategies call :func:`register`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from typing import Annotated, Any, NamedTuple, Union, get_args

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler, TypeAdapter
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticKnownError, core_schema

from simoffload.hardware import Machine
from simoffload.models import ModelShape
from simoffload.strategies.base import BEST, NOW, Strategy, WorkloadKind


def _is_gguf(model: ModelShape) -> bool:
    from simoffload.strategies.requirements import methods_of

    return "gguf" in methods_of(model)


def _other_than_gguf(model: ModelShape, _machine: Machine) -> bool:
    return not _is_gguf(model)


def _on_a_desk_or_of_gguf(model: ModelShape, machine: Machine) -> bool:
    return machine.is_personal or _is_gguf(model)


def _of_opt(model: ModelShape, _machine: Machine) -> bool:
    return model.family == "opt"


class _Shipped(NamedTuple):
    """Module and class of a strategy of the package, the kinds of workload that it supports, and what it is
    used for."""

    module: str
    """Module of the strategy below ``simoffload.strategies``."""
    name: str
    serves: frozenset[WorkloadKind]
    suits: Callable[[ModelShape, Machine], bool] | None = None
    """Function that returns whether people use it for a model on a machine; None: only where it is named."""


_INFERENCE: frozenset[WorkloadKind] = frozenset({"inference"})
_TRAINING: frozenset[WorkloadKind] = frozenset({"training"})
_OWN: Mapping[str, _Shipped] = {
    BEST: _Shipped("programs.best", "Best", _INFERENCE | _TRAINING),
    "zero_inference": _Shipped("programs.zero_inference", "ZeroInference", _INFERENCE, _other_than_gguf),
    "zero_training": _Shipped("programs.zero_training", "ZeroTraining", _TRAINING, _other_than_gguf),
    "fsdp": _Shipped("programs.fsdp", "Fsdp", _TRAINING, _other_than_gguf),
    "accelerate": _Shipped("programs.accelerate", "Accelerate", _INFERENCE, _other_than_gguf),
    "resident": _Shipped("programs.resident", "Resident", _INFERENCE | _TRAINING, _other_than_gguf),
    "tensor_parallel": _Shipped("programs.tensor_parallel", "TensorParallel", _INFERENCE, _other_than_gguf),
    "vllm_cpu_offload": _Shipped("programs.vllm", "VllmCpuOffload", _INFERENCE, _other_than_gguf),
    "llama_cpp": _Shipped("programs.llama_cpp", "LlamaCpp", _INFERENCE, _on_a_desk_or_of_gguf),
    "flexgen": _Shipped("programs.flexgen", "FlexGen", _INFERENCE, _of_opt),
    "checkpoint": _Shipped("programs.checkpoint", "CheckpointStorage", frozenset({"checkpoint"})),
}
"""Strategies of the package by kind; for each kind of workload the default comes first."""


registered: dict[str, type[Strategy]] = {}
"""Strategies outside the package by their kind."""


def register(strategy: type[Strategy]) -> type[Strategy]:
    """Register a strategy under the default of its field ``kind``, so that scenarios can name it; also a
    decorator.

    If a scenario names no strategy, the first one registered for its kind of workload is used. Registering a
    class again, for example by running a cell of a notebook twice, replaces the earlier one. Raises
    ValueError if another strategy has the same kind, or if an attribute that every strategy must define is
    missing or invalid.
    """
    _check_complete(strategy)
    kind = strategy.model_fields["kind"].default
    if get_args(strategy.model_fields["kind"].annotation) != (kind,):
        raise ValueError(f'{strategy.__qualname__}: write kind as kind: Literal["name"] = "name"')
    known = strategy_of(kind) or strategy
    if (known.__module__, known.__qualname__) != (strategy.__module__, strategy.__qualname__):
        raise ValueError(f"the strategy {kind} is known already, as {known.__qualname__}")
    registered[kind] = strategy
    return strategy


_OLDER = (
    "allowing baseline caches caveat moves placement_name placement_words placements places precisions "
    "retarget splits tier_paths uses_storage"
)
"""Members by which programs once answered what planning may change."""
_SCATTERED = (
    "batch_unit cached evidence evidence_of formats gathers gpu_keys release_fixed_batch spans_hosts spread "
    "trains unseen"
)
"""Members by which programs once told one property each."""


def _check_complete(strategy: type[Strategy]) -> None:
    name = strategy.__qualname__
    known = {*dir(strategy)} - strategy.model_fields.keys()
    if (older := {*_OLDER.split()} & known) and "tunables" in getattr(strategy, "__abstractmethods__", ()):
        raise ValueError(f"{name} defines {', '.join(sorted(older))}, of which nothing asks; {NOW}")
    if scattered := {*_SCATTERED.split()} & known:
        text = "traits, description and sizes are asked instead (strategies/base.py)"
        raise ValueError(f"{name} defines {', '.join(sorted(scattered))}, of which nothing asks; {text}")
    missing = sorted(getattr(strategy, "__abstractmethods__", ()))
    if not hasattr(strategy, "serves"):
        missing.append("serves")
    if missing:
        raise ValueError(f"{name} lacks {', '.join(missing)}; see Strategy in strategies/base.py")
    work = get_args(WorkloadKind)
    if not strategy.serves <= set(work):
        raise ValueError(
            f"{name}.serves: kinds of workload are {', '.join(work)}, got {set(strategy.serves)}"
        )


def registered_outside() -> tuple[type[Strategy], ...]:
    """Return the strategies that were registered outside the package, so that worker processes can register
    them."""
    return tuple(one for kind, one in registered.items() if kind not in _OWN)


def kinds() -> tuple[str, ...]:
    """Return the kinds of all strategies without importing them."""
    return tuple(dict.fromkeys((*_OWN, *registered)))


def strategy_of(kind: object) -> type[Strategy] | None:
    """Return the strategy of a kind; None if the kind is unknown."""
    if not isinstance(kind, str):
        return None
    if kind in _OWN:
        own = _OWN[kind]
        found: type[Strategy] = getattr(import_module(f"simoffload.strategies.{own.module}"), own.name)
        return found
    return registered.get(kind)


def strategies() -> dict[str, type[Strategy]]:
    """Return all strategies by their kind."""
    return {kind: found for kind in kinds() if (found := strategy_of(kind))}


def strategy_for(workload: WorkloadKind | str) -> tuple[str, ...]:
    """Return the kinds of the strategies that support a kind of workload, the default first."""
    serves = {kind: own.serves for kind, own in _OWN.items()}
    serves |= {kind: one.serves for kind, one in registered.items()}
    return tuple(kind for kind, work in serves.items() if workload in work)


def suited_to(workload: WorkloadKind | str, model: ModelShape, machine: Machine) -> tuple[str, ...]:
    """Return the kinds of the strategies that people use for a kind of workload, a model and a machine."""
    own = (kind for kind, one in _OWN.items() if one.suits is not None and one.suits(model, machine))
    others = (kind for kind, one in registered.items() if one.traits.suits(model, machine))
    return tuple(kind for kind in (*own, *others) if kind in strategy_for(workload))


def usual_kind(workload: WorkloadKind | str, keys: Collection[str] = ()) -> str:
    """Return the kind of a section ``strategy`` with some keys that states none: the only program that people
    use for the work and that has all of these keys; "best" where several have them; the first that people use
    where none has, which then says so."""
    serving = strategy_for(workload) or strategy_for("inference")
    if BEST not in serving:
        return serving[0]
    used = [kind for kind in serving if kind in registered or _OWN[kind].suits is not None]
    own = {*keys} - {"kind", "ranks"}
    having = [kind for kind in used if not own or own <= fields_of(kind)]
    return having[0] if len(having) == 1 else BEST if having else used[0]


def fields_of(kind: str) -> Collection[str]:
    """Return the keys of a registered kind."""
    found = strategy_of(kind)
    return found.model_fields.keys() if found is not None else ()


class _OfItsKind:
    """Field type for any strategy: a document names it by ``kind``, and only the module of that kind is
    imported."""

    def __get_pydantic_core_schema__(self, _source: Any, _handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(_validated)

    def __get_pydantic_json_schema__(
        self, _schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        union: Any = Union[tuple(strategies().values())]  # noqa: UP007  # known only at run time
        return handler(TypeAdapter(Annotated[union, Field(discriminator="kind")]).core_schema)


def _validated(data: Any) -> Strategy:
    """Return the strategy that a document describes; raises pydantic's errors of a discriminated union."""
    if isinstance(data, Strategy):
        return data
    if not isinstance(data, dict):
        raise PydanticKnownError("model_attributes_type")
    if "kind" not in data:
        raise PydanticKnownError("union_tag_not_found", {"discriminator": "'kind'"})
    found = strategy_of(data["kind"])
    if found is None:
        expected = ", ".join(map(repr, kinds()))
        context = {"discriminator": "'kind'", "tag": str(data["kind"]), "expected_tags": expected}
        raise PydanticKnownError("union_tag_invalid", context)
    return found.model_validate(data)


AnyStrategy = Annotated[Strategy, _OfItsKind()]
