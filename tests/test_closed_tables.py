"""Kinds of operations, causes and devices are closed: every table by kind has an entry for each. What differs
between kinds of tiers is in the one table of these."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator, Mapping
from enum import Enum
from importlib import import_module
from types import ModuleType
from typing import Any, Literal, NamedTuple, get_args, get_origin

import pytest

import simoffload
from simoffload.errors import SimulationError
from simoffload.hardware import KINDS, STORAGE_KINDS, TIER_KINDS, DeviceKind, TimeInput
from simoffload.report.plotting import BLUE, cause_colour
from simoffload.results import cause_text
from simoffload.results.attribution import _MEANINGS
from simoffload.schedule import Block, Cause, CauseKind, Link, Op, OpKind, Schedule, check_schedule
from simoffload.strategies.cache.kv_cache import _streamed

TIERS, OPERATIONS = set(TIER_KINDS), set(get_args(OpKind))
DEVICES, CAUSES = set(get_args(DeviceKind)), set(get_args(CauseKind))


class Table(NamedTuple):
    """A table of a module, by a closed kind."""

    name: str
    kinds: frozenset[Any]
    table: Mapping[Any, Any]


def modules() -> Iterator[ModuleType]:
    """All modules of the package."""
    for one in pkgutil.walk_packages(simoffload.__path__, "simoffload."):
        if not one.name.endswith("__main__"):
            yield import_module(one.name)


def kinds_of(key: Any) -> frozenset[Any]:
    """The values of a closed type; none for an open one such as text."""
    if get_origin(key) is Literal:
        return frozenset(get_args(key))
    closed = isinstance(key, type) and issubclass(key, Enum)
    return frozenset(key) if closed else frozenset()


def tables() -> Iterator[Table]:
    """The tables whose annotation says that they are by a closed kind."""
    for module in modules():
        for name, written in vars(module).get("__annotations__", {}).items():
            if not written.startswith(("Mapping[", "dict[")):
                continue
            try:
                annotation = eval(written, vars(module))
            except NameError:  # a type that only type checkers import
                continue
            if kinds := kinds_of(get_args(annotation)[0]):
                yield Table(f"{module.__name__}.{name}", kinds, vars(module)[name])


def test_every_table_by_kind_has_an_entry_for_each() -> None:
    found = list(tables())
    lacking = {one.name: one.kinds - set(one.table) for one in found if one.kinds - set(one.table)}
    assert lacking == {}
    by_kind = [
        one.name.rpartition(".")[2] for one in found if one.kinds in (OPERATIONS, CAUSES, set(TimeInput))
    ]
    assert sorted(by_kind) == ["_CAUSES", "_LIMITS", "_MEANINGS", "_TEXTS"]


def test_no_table_is_by_kind_without_saying_so() -> None:
    """A dictionary of a module with only kinds as its keys must be annotated, so that the test above sees
    it."""
    known = {id(one.table) for one in tables()} | {id(TIER_KINDS)}
    open_tables = [
        f"{module.__name__}.{name}"
        for module in modules()
        for name, value in vars(module).items()
        if isinstance(value, dict)
        and len(value) > 1
        and any(set(value) <= kinds for kinds in (TIERS, OPERATIONS, CAUSES, DEVICES))
        and id(value) not in known
    ]
    assert open_tables == []


def test_every_kind_of_tier_and_device_has_its_profile() -> None:
    assert set(KINDS) >= DEVICES
    assert {"hbm", "dram", *(one.name for one in STORAGE_KINDS.values())} == TIERS
    assert set(STORAGE_KINDS) <= set(KINDS)
    assert set(_streamed().tiers) == TIERS - {"hbm"}


def test_every_cause_without_a_route_has_a_colour_of_its_own() -> None:
    causes = {one.cause for one in _MEANINGS.values() if not one.empty}
    assert {kind for kind in causes if cause_colour(Cause(kind)) == BLUE} == set()


def test_every_kind_of_cause_has_a_text_of_its_own() -> None:
    """Times of two causes with one text would be two rows with one name."""
    gpus = {"gpu-to-gpu": (0, 1)}
    texts = [cause_text(Cause(kind, gpus=gpus.get(kind, ()), name=kind)) for kind in get_args(CauseKind)]
    assert len(set(texts)) == len(texts)
    assert all(texts)


@pytest.mark.parametrize(
    ("cause", "text"),
    [
        (Cause("read", "raid"), "raid read"),
        (Cause("write"), "storage write"),
        (Cause("read").of_cache("nvme"), "nvme read (key-value cache on nvme)"),
        (Cause("host-to-gpu").of_cache(""), "host to GPU"),
        (Cause("gpu-to-host").of_cache("dram"), "GPU to host (key-value cache on dram)"),
        (Cause("gpu-to-host", gpus=(3,)).of_cache("dram"), "GPU to host 3 (key-value cache on dram)"),
        (Cause("host-to-gpu", memory="pageable"), "host to GPU, pageable"),
        (Cause("host-to-gpu", memory="never written"), "host to GPU, pageable, never written"),
        (Cause("gpu-to-gpu", gpus=(0, 1)), "GPU 0 to GPU 1"),
        (Cause("in-place"), "weights read in host memory"),
        (Cause.own("hidden states"), "hidden states"),
    ],
)
def test_a_cause_has_its_text(cause: Cause, text: str) -> None:
    assert cause_text(cause) == text


def test_an_operation_of_an_unknown_kind_is_refused_with_those_that_are_known() -> None:
    """A strategy from outside may write one; no table would have an entry for it."""
    strange: Any = "mark"
    blocks = (Block("b", (Op(strange, "x", 0, 1),)),)
    with pytest.raises(SimulationError, match=r"mark.*its kind must be one of hook, launch, wait"):
        check_schedule(Schedule("s", 1, ("host",), (Link("l", 1),), (), blocks))
