"""The published figures are complete data, and all of them can be simulated."""

from __future__ import annotations

import pytest

from simoffload.scenario import list_scenarios, load_scenario
from validation.published import PLAN_METRICS, RESULT_METRICS, RULES, Reference, load_references

REFERENCES = load_references()
SPECIAL_METRICS = {"ratio", "order"}
CHECKPOINTS = {"dn25", "dnx", "mlps", "bloom"}
TRAINING = {"xin", "zo20", "z3off", "z2off", "zinf", "zf", "zo", "zfb", "so"}
SERVED = {"acc", "cheops", "fg", "fg256", "gptf", "lcpp", "lmc", "mck", "vkv", "vw"}
"""Publications whose scenarios keep the weights where their own keys put them."""


def test_ids_are_unique() -> None:
    assert len({reference.id for reference in REFERENCES}) == len(REFERENCES)


def test_every_publication_is_there() -> None:
    assert {reference.publication for reference in REFERENCES} == {
        "ddn",
        "dn24",
        "zi22",
        "zi23",
    } | TRAINING | CHECKPOINTS | SERVED


@pytest.mark.parametrize("reference", REFERENCES, ids=lambda reference: reference.id)
def test_a_reference_makes_sense(reference: Reference) -> None:
    assert reference.source
    assert reference.locator
    assert reference.scenario in list_scenarios()
    assert reference.metric in RESULT_METRICS.keys() | PLAN_METRICS.keys() | SPECIAL_METRICS
    assert reference.rule in RULES.keys() | {"equal", "inside", "report"}
    assert bool(reference.tolerance) == (reference.rule in {"within", "factor", "between"})
    assert bool(reference.target) == (reference.publication not in TRAINING | SERVED)
    assert bool(reference.relative_to) == (reference.metric == "ratio")
    if reference.metric != "order":
        assert float(reference.published) >= 0


@pytest.mark.parametrize(
    "case", sorted({(reference.scenario, reference.overrides) for reference in REFERENCES}), ids=":".join
)
def test_overrides_apply(case: tuple[str, str]) -> None:
    scenario, overrides = case
    load_scenario(scenario, overrides=[part for part in overrides.split(";") if part]).plan()
