"""Every key of every kind of file, with kinds of values that do not belong there.

Each key is tried with a sixth of them, in turn, and with all where tests explore (``tests/examples.py``).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from simoffload.documents import Document, parse_yaml, validate
from simoffload.documents.validation import key_names, place_of
from simoffload.errors import InputError
from simoffload.extensions.sweep.definition import SweepSection
from simoffload.hardware import KINDS, Library
from simoffload.models import load_model
from simoffload.models.sizes import _sizes
from simoffload.scenario import Scenario, ScenarioCache
from simoffload.scenario.loading import resolve
from simoffload.strategies.ds_config import DeepSpeedConfig
from tests.examples import EXPLORES

REPOSITORY = Path(__file__).parents[2]
WRONG: tuple[Any, ...] = (
    *(None, True, "", "dram", "5 GB/s", "é" * 300),
    *(0, 7, -1, 2.5, 1e300, 10**29, math.nan, math.inf, -math.inf),
    *([], ["x"], [[1, 2]], {}, {"x": 1}, {"value": None}, {"points": 3}),
)
EVERY = 1 if EXPLORES else 6
DEEPEST = 8
Location = tuple[str | int, ...]
INFERENCE = {"kind": "inference", "batch_size": 1, "prompt_length": 8, "output_length": 3}
TRAINING = {"kind": "training", "batch_size": 1, "sequence_length": 8}
WORK = {
    "deepspeed": INFERENCE,
    "accelerate": INFERENCE,
    "transformers": INFERENCE,
    "vllm": INFERENCE,
    "gpt_fast": INFERENCE,
    "flexgen": INFERENCE,
    "deepspeed, training": TRAINING,
    "fsdp": TRAINING,
    "checkpoint": {"kind": "checkpoint"},
}
OWN: dict[str, dict[str, Any]] = {"checkpoint": {"tier": "raid"}}
SMALL = {"name": "opt-125m", "num_hidden_layers": 2}


def scenario(kind: str) -> dict[str, Any]:
    strategy = {"kind": kind.partition(",")[0], **OWN.get(kind, {})}
    tree = {"name": "s", "model": SMALL, "platform": "dgx-a100", "workload": WORK[kind], "strategy": strategy}
    if kind == "deepspeed, training":
        tree["dataset"] = {"tier": "raid", "sample_size": "1 MB", "samples": 10}
        tree["checkpoint"] = {"tier": "raid"}
    return copy.deepcopy(tree)


def keys(
    model: type[BaseModel], tree: Any, at: Location = (), seen: set[Any] | None = None
) -> Iterator[tuple[Location, Any]]:
    """Every key that a file may have, with the tree around it; sections that the file lacks are opened.

    Of sections of one type, such as the many numbers with an origin, one is entered.
    """
    seen = set() if seen is None else seen
    node = tree
    for part in at:
        node = node[part]
    if isinstance(node, list):
        for number in range(min(len(node), 2)):
            yield (*at, number), tree
            yield from keys(model, tree, (*at, number), seen)
    types = place_of(model, tree, at, ends_in_key=False).types
    known = key_names(types)
    if not isinstance(node, dict) or len(at) >= DEEPEST or (known and types in seen):
        return
    seen.add(types)
    for key in dict.fromkeys([*node, *known]):
        place, around = (*at, key), tree
        if key not in node:
            around = replaced(tree, place, {})
        yield place, around
        yield from keys(model, around, place, seen)


def replaced(tree: Any, at: Location, value: Any) -> Any:
    """The tree with another value at a place; only what leads there is copied."""
    if not at:
        return value
    new = copy.copy(tree)
    inside = tree[at[0]] if isinstance(tree, list) or at[0] in tree else {}
    new[at[0]] = replaced(inside, at[1:], value)
    return new


def refused(model: type[BaseModel], tree: Any) -> bool:
    """Whether a file is refused, in a way that the user can read."""
    try:
        validate(Document("f.yaml", tree), model)
    except InputError as error:
        text = str(error)
        assert text.startswith("f.yaml"), text
        assert "pydantic" not in text, text
        return True
    return False


def _checked(model: type[BaseModel], tree: Any) -> tuple[int, list[Any]]:
    """The number of values that were tried, and the trees with those that are accepted."""
    count, accepted = 0, []
    for number, (place, around) in enumerate(keys(model, tree)):
        for value in WRONG[number % EVERY :: EVERY]:
            changed = replaced(around, place, value)
            count += 1
            if not refused(model, changed):
                accepted.append(changed)
    return count, accepted


@cache
def _machines() -> ScenarioCache:
    return ScenarioCache()


@pytest.mark.parametrize("kind", WORK)
def test_no_value_of_a_wrong_kind_breaks_a_scenario(kind: str) -> None:
    """Values that the sections accept are resolved too, with model, machine and strategy."""
    tree = scenario(kind)
    assert not refused(Scenario, tree)
    count, accepted = _checked(Scenario, tree)
    assert count > 1500 / EVERY
    assert accepted
    for changed in accepted:
        with suppress(InputError):
            resolve(Document("f.yaml", changed, root=REPOSITORY), cache=_machines())


def profile(kind: str) -> dict[str, Any]:
    """The shortest shipped profile of a kind; keys that it lacks are opened."""
    library = Library()
    found = (library.find(one.id, (kind,)).document.data for one in library.summaries(kind))
    data: dict[str, Any] = min(found, key=lambda one: len(str(one)))
    few = list(data.get("devices", {}).items())[:2]  # of the price list, which has a hundred
    return data | ({"devices": dict(few)} if few else {})


@pytest.mark.parametrize("kind", KINDS)
def test_no_value_of_a_wrong_kind_breaks_a_profile(kind: str) -> None:
    tree = profile(kind)
    assert not refused(KINDS[kind], tree)
    count, _ = _checked(KINDS[kind], tree)
    assert count > 90 / EVERY


SWEEP = """
axes:
  workload.batch_size: {choices: [1, 2]}
  nodes: {range: {min: 1, max: 8, step: 1}}
constraints: [nodes < 4]
"""


def test_no_value_of_a_wrong_kind_breaks_a_sweep_or_a_ds_config() -> None:
    tree = parse_yaml(SWEEP, name="sweep").data
    assert not refused(SweepSection, tree)
    assert _checked(SweepSection, tree)[0] > 90 / EVERY
    assert _checked(DeepSpeedConfig, {})[0] > 900 / EVERY


def test_no_value_of_a_wrong_kind_breaks_a_model() -> None:
    families = {size.family: dict(size.config) for size in _sizes().values()}
    assert len(families) > 15
    for family, config in families.items():
        tree = {"family": family, **config, "num_hidden_layers": 2}
        known = (*tree, "rope_scaling", "quantization_config", "dtype", "attention", "routing")
        for number, key in enumerate(known):
            for value in WRONG[number % EVERY :: EVERY]:
                with suppress(InputError):
                    load_model({**tree, key: value})


def test_a_text_where_a_mapping_belongs_gets_the_mapping_as_a_hint() -> None:
    """``form`` of the section, a method, was taken for the hint, and the answer was an internal error."""
    tree = scenario("deepspeed")
    tree["strategy"]["kv_cache"] = "dram"
    with pytest.raises(InputError) as caught:
        validate(Document("f.yaml", tree), Scenario)
    expected = 'strategy.kv_cache: must be a mapping, got "dram"; write {tier: dram}'
    assert expected in str(caught.value)
    tree["strategy"]["kv_cache"] = {"tier": "dram"}
    assert not refused(Scenario, tree)


def test_a_number_without_its_origin_gets_the_whole_form_as_a_hint() -> None:
    drive = profile("drive") | {"read": "5 GB/s"}
    with pytest.raises(InputError) as caught:
        validate(Document("f.yaml", drive), KINDS["drive"])
    assert "write {value: 5 GB/s, origin: …, source: …, date: …}" in str(caught.value)
