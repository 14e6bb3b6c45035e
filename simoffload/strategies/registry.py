"""The registry of strategies by ``strategy.kind``.

The strategies of the core are listed by name, those of extensions by what these offer; each is imported when
a document with its kind is read. Other strategies call :func:`register`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Set
from contextlib import suppress
from functools import reduce
from itertools import chain
from math import prod
from operator import or_
from typing import Annotated, Any, get_args

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, TypeAdapter, ValidationError
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticKnownError, core_schema

from simoffload.documents import named
from simoffload.extending import Offer, at, missing_note, offers
from simoffload.hardware import Machine, tiers_outside
from simoffload.models import ModelShape
from simoffload.strategies.base import BEST, Strategy, Suits, WorkloadKind


def _is_gguf(model: ModelShape) -> bool:
    from simoffload.strategies.requirements import methods_of

    return "gguf" in methods_of(model)


def _other_than_gguf(model: ModelShape, _machine: Machine) -> bool:
    return not _is_gguf(model)


def _other_than_gguf_on_desks(model: ModelShape, machine: Machine) -> bool:
    """On a desk people run such files with llama.cpp, whatever else reads them."""
    return not (machine.is_personal and _is_gguf(model))


def _everywhere(_model: ModelShape, _machine: Machine) -> bool:
    return True


def _own(kind: str, place: str, serves: frozenset[WorkloadKind], suits: Suits | None = None) -> Offer:
    return Offer(kind, f"simoffload.strategies.programs.{place}", serves, suits)


_INFERENCE: frozenset[WorkloadKind] = frozenset({"inference"})
_TRAINING: frozenset[WorkloadKind] = frozenset({"training"})
_OWN = (
    _own(BEST, "best:Best", _INFERENCE | _TRAINING),
    _own("vllm", "vllm:Vllm", _INFERENCE, _other_than_gguf_on_desks),
    _own("deepspeed", "zero_inference:ZeroInference", _INFERENCE, _other_than_gguf),
    _own("transformers", "transformers:TransformersTraining", _TRAINING, _other_than_gguf),
    _own("deepspeed", "zero_training:ZeroTraining", _TRAINING, _other_than_gguf),
    _own("transformers", "transformers:Transformers", _INFERENCE, _other_than_gguf),
    _own("accelerate", "accelerate:Accelerate", _INFERENCE, _other_than_gguf),
    _own("gpt_fast", "gpt_fast:GptFast", _INFERENCE),
    _own("llama_cpp", "llama_cpp:LlamaCpp", _INFERENCE, _everywhere),
)
"""Strategies of the core; for each kind of workload the default comes first. A kind has several classes if
its program is described by other keys for another kind of workload."""


SYNONYMS = {"llama.cpp": "llama_cpp", "ollama": "llama_cpp", "lmstudio": "llama_cpp"}
"""Other names of kinds: what people type, and programs that are llama.cpp inside."""
_OLD = {
    "zero_inference": "deepspeed",
    "zero_training": "deepspeed",
    "resident": "transformers",
    "vllm_cpu_offload": "vllm",
    "tensor_parallel": "vllm",
}
"""Names of kinds before 2026-11-29, with the new ones; ``tensor_parallel`` without ``compiled`` is now
``transformers``."""


def in_new_form(section: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    """Return a section ``strategy`` of a scenario in its present form, and what to write instead of its old
    one; "" for a form that remains valid.

    A section in its present form is returned itself.
    """
    kind = section.get("kind")
    if not isinstance(kind, str):
        return section, ""
    new = dict(section) | {"kind": _OLD.get(kind, SYNONYMS.get(kind, kind))}
    if kind == "tensor_parallel" and not new.get("compiled", False):
        new = {"tensor_parallel_size": 1} | new | {"kind": "transformers"}
        new.pop("compiled", None)
    form = [f"kind: {new['kind']}"]
    if "tensor_parallel_size" not in section and "tensor_parallel_size" in new:
        form.append("tensor_parallel_size: 1")
    if new["kind"] == "vllm" and "compiled" in new:
        compiled = new.pop("compiled")
        if compiled is not True:
            new["enforce_eager"] = not compiled if compiled is False else compiled
            form.append("enforce_eager: true")
    if new["kind"] == "transformers" and "data_parallel_size" in new:
        degrees = (new.get(key, 1) for key in ("tensor_parallel_size", "pipeline_parallel_size"))
        sizes = [new.pop("data_parallel_size"), *degrees]
        new["ranks"] = prod(sizes) if all(type(one) is int for one in sizes) else sizes[0]
        form.append(f"ranks: {new['ranks']}")
    if new == section:
        return section, ""
    dropped = [key for key in ("compiled", "data_parallel_size") if key in section and key not in new]
    text = " and ".join(form) + (f", without {' and '.join(dropped)}" if dropped else "")
    old = "compiled" if new["kind"] == kind else kind
    return new, "" if kind in SYNONYMS else f"{old} was renamed; write {text}"


registered: dict[str, type[Strategy]] = {}
"""Strategies outside the package by their kind."""


def register(strategy: type[Strategy]) -> type[Strategy]:
    """Register a strategy under the default of its field ``kind``, so that scenarios can name it; also a
    decorator.

    It is among the programs from which "best" chooses only where its ``traits.suits`` says so. Registering a
    class again, for example by running a cell of a notebook twice, replaces the earlier one. Raises
    ValueError if another strategy has the same kind, or if an attribute that every strategy must define is
    missing or invalid.
    """
    _check_complete(strategy)
    kind = strategy.model_fields["kind"].default
    if get_args(strategy.model_fields["kind"].annotation) != (kind,):
        raise ValueError(f'{strategy.__qualname__}: write kind as kind: Literal["name"] = "name"')
    if kind in (*_OLD, *SYNONYMS):
        raise ValueError(f"{kind} is another name of {_OLD.get(kind) or SYNONYMS[kind]}; choose another kind")
    known = strategy_of(kind) or strategy
    if (known.__module__, known.__qualname__) != (strategy.__module__, strategy.__qualname__):
        raise ValueError(f"the strategy {kind} is known already, as {known.__qualname__}")
    registered[kind] = strategy
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


def registered_outside() -> tuple[type, ...]:
    """Return the strategies, and the profiles of kinds of tiers, that were registered outside the package, so
    that worker processes can register them."""
    own = {one.kind for one in _offered()}
    return *tiers_outside(), *(one for kind, one in registered.items() if kind not in own)


def register_outside(registered: tuple[type, ...]) -> None:
    """Register what was registered in another process; the modules of tiers, once imported, have done so."""
    for one in registered:
        if issubclass(one, Strategy):
            register(one)


def kinds() -> tuple[str, ...]:
    """Return the kinds of all strategies without importing them."""
    return tuple(dict.fromkeys((*(one.kind for one in _offered()), *registered)))


def strategy_of(kind: object, work: object = None) -> type[Strategy] | None:
    """Return the strategy of a kind, for a kind of workload if there are several; None if it is unknown.

    For a workload that none of them supports, the first one is returned, which then refuses it.
    """
    return next(iter(_classes(kind, work)), None)


def _classes(kind: object, work: object) -> list[type[Strategy]]:
    """Return the strategies of a kind for a kind of workload, or all of them if they support no such one."""
    own = [one for one in _OWN if one.kind == kind] or [one for one in offers() if one.kind == kind]
    if not own:
        return [registered[kind]] if isinstance(kind, str) and kind in registered else []
    return [_class(one) for one in own if work in one.serves] or list(map(_class, own))


def _class(one: Offer) -> type[Strategy]:
    found: type[Strategy] = at(one.place)
    return found


def _offered() -> tuple[Offer, ...]:
    """Return the programs of the core and of all extensions."""
    return (*_OWN, *offers())


def strategy_in(scenario: Mapping[str, Any], *keys: str) -> type[Strategy] | None:
    """Return the strategy that the content of a scenario names, also by an old name, or that is usual for its
    workload and its keys, to which others are added; None if it is unknown."""
    section, workload = scenario.get("strategy"), scenario.get("workload")
    work = workload.get("kind", "inference") if isinstance(workload, Mapping) else "inference"
    if not isinstance(section, Mapping):
        return None
    kind = in_new_form(section)[0].get("kind")
    return strategy_of(usual_kind(str(work), {*section, *keys}) if kind is None else kind, work)


def strategies() -> tuple[type[Strategy], ...]:
    """Return all strategies, of which several may have one kind and support different workloads."""
    own = {one.kind for one in _offered()}
    return (*map(_class, _offered()), *(one for kind, one in registered.items() if kind not in own))


def strategy_for(workload: WorkloadKind | str) -> tuple[str, ...]:
    """Return the kinds of the strategies that support a kind of workload, the default first."""
    serves: list[tuple[str, Collection[str]]] = [(one.kind, one.serves) for one in _offered()]
    serves += [(kind, one.serves) for kind, one in registered.items()]
    return tuple(dict.fromkeys(kind for kind, work in serves if workload in work))


def suited_to(workload: WorkloadKind | str, model: ModelShape, machine: Machine) -> tuple[str, ...]:
    """Return the kinds of the strategies that people use for a kind of workload, a model and a machine."""
    return tuple(dict.fromkeys(kind for kind, suits in _used(workload) if suits(model, machine)))


def _used(workload: WorkloadKind | str) -> Iterator[tuple[str, Suits]]:
    """Yield the kinds of the strategies that people use for a kind of workload, each with what it suits."""
    own = ((one.kind, one.serves, one.suits) for one in _offered())
    others = ((kind, one.serves, one.traits.suits) for kind, one in registered.items())
    for kind, serves, suits in chain(own, others):
        if workload in serves and suits is not None:
            yield kind, suits


def usual_kind(workload: WorkloadKind | str, keys: Collection[str] = ()) -> str:
    """Return the kind of a section ``strategy`` with some keys that states none: the only program that people
    use for the work and that has all of these keys, or else "best", which says which keys no program has."""
    serving = strategy_for(workload) or strategy_for("inference")
    if BEST not in serving:
        return serving[0]
    used = tuple(dict.fromkeys(kind for kind, _ in _used(workload)))
    own = {*keys} - {"kind", "ranks"}
    having = [kind for kind in used if not own or own <= fields_of(kind, workload)]
    return having[0] if len(having) == 1 else BEST


def canonical_kind(name: str) -> str:
    """Return the kind that a name means, which may be a synonym or a name before 2026-11-29."""
    meant = named(name, (*kinds(), *SYNONYMS))
    return str(in_new_form({"kind": meant[0] if len(meant) == 1 else name})[0]["kind"])


def fields_of(kind: str, workload: WorkloadKind | str) -> Set[str]:
    """Return the keys of a registered kind for a kind of workload."""
    found = strategy_of(kind, workload)
    return found.model_fields.keys() if found is not None else frozenset()


class _OfItsKind:
    """Field type for any strategy: a document names it by ``kind``, and only the module of that kind is
    imported."""

    def __get_pydantic_core_schema__(self, _source: Any, _handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_plain_validator_function(_validated)

    def __get_pydantic_json_schema__(
        self, _schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return handler(TypeAdapter(reduce(or_, strategies())).core_schema)


def _validated(data: Any, info: core_schema.ValidationInfo) -> Strategy:
    """Return the strategy that a document describes, for the ``workload`` beside it; raises pydantic's errors
    of a discriminated union."""
    if isinstance(data, Strategy):
        return data
    if not isinstance(data, dict):
        raise PydanticKnownError("model_attributes_type")
    if "kind" not in data:
        raise PydanticKnownError("union_tag_not_found", {"discriminator": "'kind'"})
    found = _classes(data["kind"], _work_beside(info))
    if not found:
        expected = ", ".join(map(repr, kinds()))
        context = {"discriminator": "'kind'", "tag": str(data["kind"]), "expected_tags": expected}
        if note := missing_note():
            raise ValueError(f"kind {data['kind']!r} is not one of {expected}; {note}")
        raise PydanticKnownError("union_tag_invalid", context)
    *others, last = found
    for one in others:
        with suppress(ValidationError):
            return one.model_validate(data)
    return last.model_validate(data)


def _work_beside(info: core_schema.ValidationInfo) -> str | None:
    """Return the kind of the ``workload`` beside a strategy, which may be invalid otherwise."""
    valid = (info.data or {}).get("workload")
    if valid is not None:
        return str(valid.kind)
    document = info.context if isinstance(info.context, Mapping) else {}
    workload = document.get("workload")
    kind = workload.get("kind") if isinstance(workload, Mapping) else None
    return kind if isinstance(kind, str) else None


AnyStrategy = Annotated[Strategy, _OfItsKind()]
