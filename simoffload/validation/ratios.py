"""Published ratios between tiers, to set beside simulated ones."""

from __future__ import annotations

from simoffload.scenario import LoadedScenario, load_scenario
from simoffload.validation.tables import Reference, load_references

__all__ = ["published_ratios"]


def published_ratios(scenario: LoadedScenario, baseline: str) -> dict[str, tuple[float, str]]:
    """Published time on each tier over that on the tier ``baseline``, with what was said.

    Empty unless the scenario is, up to its target, one that is shipped to reproduce a publication.
    """
    ratios = [one for one in load_references() if one.metric == "ratio" and one.target]
    for name in dict.fromkeys(reference.scenario for reference in ratios):
        if name.rpartition("/")[2] == scenario.name and _same_work(scenario, load_scenario(name)):
            return _relative([one for one in ratios if one.scenario == name], baseline)
    return {}


def _same_work(one: LoadedScenario, other: LoadedScenario) -> bool:
    """Whether two scenarios differ in nothing but the tier of the weights."""
    mine, theirs = (
        {**each.document.data, "strategy": {**each.document.data["strategy"], "weights": None}}
        for each in (one, other)
    )
    return bool(mine == theirs)


def _relative(ratios: list[Reference], baseline: str) -> dict[str, tuple[float, str]]:
    """Follow the published ratios from the baseline to every tier that they lead to."""
    known = {baseline: 1.0}
    published: dict[str, list[str]] = {baseline: []}
    for _ in ratios:
        for one in ratios:
            forth = (one.relative_to, one.target, float(one.published))
            back = (one.target, one.relative_to, 1 / float(one.published))
            for start, end, ratio in (forth, back):
                if start in known and end not in known:
                    known[end] = known[start] * ratio
                    published[end] = [
                        *published[start],
                        f"{one.target} over {one.relative_to}: {one.note or one.published}",
                    ]
    return {tier: (known[tier], "; ".join(published[tier])) for tier in known if tier != baseline}
