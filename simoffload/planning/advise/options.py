"""What could be changed about a scenario: each option is a scenario of its own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Literal, NamedTuple

from simoffload.documents import Document
from simoffload.documents.overrides import with_value
from simoffload.documents.tree import Location

__all__ = ["Change", "Kind", "Option", "applied", "change", "freed"]

_REPEATED = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
"""Keys of ds_config that say again what the workload says."""

Kind = Literal["hardware", "placement", "workload", "setting"]
"""What is changed: something to buy, where things lie, what is asked for, or how DeepSpeed is set."""


class Change(NamedTuple):
    """One value of the scenario's file."""

    location: Location
    value: Any


class Option(NamedTuple):
    """A change that may pay."""

    key: str
    """A short name, unique among the options of a scenario; its file is called after it."""
    words: str
    kind: Kind
    changes: tuple[Change, ...]
    priced: bool = True
    """Whether a bill shows what it costs."""


def change(path: str, value: Any) -> Change:
    """A change at a path whose keys have no dots: ``workload.batch_size``."""
    return Change(tuple(path.split(".")), value)


def applied(document: Document, changes: Iterable[Change]) -> Document:
    """The document with changes made to it; keys that are missing are created."""
    data = document.data
    for location, value in changes:
        data, _, _ = with_value(data, location, value)
    return replace(document, data=data, marks={})


def freed(document: Document) -> tuple[Change, ...]:
    """What in ds_config would contradict other batches or numbers of ranks, left to the workload."""
    said = document.data["strategy"].get("ds_config") or {}
    found = (key for key in _REPEATED if said.get(key) not in (None, "auto"))
    return tuple(Change(("strategy", "ds_config", key), "auto") for key in found)
