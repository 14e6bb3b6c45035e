"""Schedules of machines that share the coordinator's decisions, against those written without them."""

from __future__ import annotations

import pytest

from simoffload.documents import Edit
from simoffload.planning.profile_parameters import edit_of, profile_parameters, scaled
from simoffload.recent import Recent
from simoffload.scenario import read_scenario
from simoffload.scenario.loading import LoadedScenario
from simoffload.schedule import Schedule
from simoffload.strategies.plan import InferencePlan, StepWork
from simoffload.strategies.programs import zero_inference
from simoffload.strategies.training import micro_step

CHANGED: dict[str, dict[str, tuple[str, ...]]] = {
    "storage rate": {"drive": ("read", "write"), "pfs": ("read", "write"), "nfs": ("read", "write")},
    "storage latency": {"drive": ("read_latency", "write_latency"), "pfs": ("latency",), "nfs": ("latency",)},
    "PCIe": {"pcie": ("lane_rate", "latency")},
    "costs of the host": {
        "host": ("deepspeed.hook", "deepspeed.prefetch_call", "deepspeed.cold_share", "pageable")
    },
}
"""Keys of profiles, by their kind, whose numbers differ between machines."""


def edits(scenario: LoadedScenario, keys: dict[str, tuple[str, ...]]) -> list[Edit]:
    """Return edits that halve numbers of a scenario's profiles."""
    found = []
    for number in profile_parameters(scenario.machine):
        changed = scaled(number, 0.5)
        if changed is not None and number.key in keys.get(number.profile.partition("/")[0], ()):
            found.append(edit_of(number.profile, number.key, changed[0]))
    return found


def schedules(scenario: LoadedScenario) -> list[Schedule]:
    """Return the schedules of a step, or of the first pass and decode steps."""
    plan = scenario.plan()
    if isinstance(plan, StepWork):
        return [plan.schedule(part) for part in plan.parts]
    assert isinstance(plan, InferencePlan)
    length = plan.workload.prompt_length
    first = plan.forward("first", length, length, first=True)
    return [plan.schedule(one) for one in (first, plan.decode_step(1), plan.decode_step(2))]


CACHES = (
    (micro_step, "_LAYERED"),
    (micro_step, "_REPLAYS"),
    (zero_inference, "_LAYERED"),
    (zero_inference, "_TEMPLATES"),
)


@pytest.mark.parametrize(
    "name", ["ddn/bloom-7b1", "micron/opt-30b", "training/bloom-7b1", "training/bloom-176b"]
)
def test_schedules_equal_those_written_anew(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decisions depend on no rate: machines that share them get the operations that they get alone."""
    scenario = read_scenario(name)
    own = schedules(scenario)
    found = {what: schedules(scenario.edited(*edits(scenario, keys))) for what, keys in CHANGED.items()}
    assert schedules(scenario) == own
    for what, keys in CHANGED.items():
        for module, cached in CACHES:
            monkeypatch.setattr(module, cached, Recent())
        changed = read_scenario(name)
        alone = schedules(changed.edited(*edits(changed, keys)))
        assert found[what] == alone, what
        assert found[what] != own, what
