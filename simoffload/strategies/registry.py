"""The strategies that there are, by ``strategy.kind``."""

from __future__ import annotations

from typing import Annotated, Any, Union, get_args

from pydantic import Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema

from simoffload.strategies.base import Strategy, WorkloadKind
from simoffload.strategies.checkpoint.strategy import CheckpointStorage
from simoffload.strategies.resident import Resident
from simoffload.strategies.training.fsdp import Fsdp
from simoffload.strategies.training.zero_training import ZeroTraining
from simoffload.strategies.zero_inference import ZeroInference

__all__ = ["AnyStrategy", "register", "registered_outside", "strategies", "strategy_for"]


def register(strategy: type[Strategy]) -> type[Strategy]:
    """Make a strategy known by the default of its ``kind``; scenarios that are read from now on may name it.

    Of a kind of workload the first that is registered is taken where a scenario names none. Also a decorator.
    A class that is defined anew, as by running a cell of a notebook again, takes the place of the old one.
    Raises ValueError where another strategy has its kind, or where it lacks or misnames what all have.
    """
    _check_complete(strategy)
    kind = strategy.model_fields["kind"].default
    if get_args(strategy.model_fields["kind"].annotation) != (kind,):
        raise ValueError(f'{strategy.__qualname__}: write kind as kind: Literal["name"] = "name"')
    known = Strategy.registered.get(kind, strategy)
    if (known.__module__, known.__qualname__) != (strategy.__module__, strategy.__qualname__):
        raise ValueError(f"the strategy {kind} is known already, as {known.__qualname__}")
    Strategy.registered[kind] = strategy
    return strategy


def _check_complete(strategy: type[Strategy]) -> None:
    name = strategy.__qualname__
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
    if strange := strategy.tier_keys.keys() - strategy.model_fields.keys():
        raise ValueError(f"{name}.tier_keys: it has no field {', '.join(sorted(strange))}")


def registered_outside() -> tuple[type[Strategy], ...]:
    """Strategies that are not the package's own, to be registered where work is sent."""
    return tuple(one for one in Strategy.registered.values() if not one.__module__.startswith("simoffload."))


def strategies() -> dict[str, type[Strategy]]:
    """All strategies by kind."""
    return dict(Strategy.registered)


def strategy_for(workload: WorkloadKind | str) -> tuple[str, ...]:
    """Kinds of the strategies that serve a kind of workload, the usual one first."""
    return tuple(kind for kind, one in Strategy.registered.items() if workload in one.serves)


class _Registered:
    """Any registered strategy, told apart by ``kind``."""

    def __get_pydantic_core_schema__(self, _source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        union: Any = Union[tuple(Strategy.registered.values())]  # noqa: UP007  # known only at run time
        return handler.generate_schema(Annotated[union, Field(discriminator="kind")])


AnyStrategy = Annotated[Strategy, _Registered()]

for _one in (ZeroInference, ZeroTraining, Fsdp, Resident, CheckpointStorage):
    register(_one)
