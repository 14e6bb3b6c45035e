"""What edits of a scenario give: the one way in which planning asks about changed scenarios."""

from __future__ import annotations

from collections.abc import Iterable

from simoffload.documents import Document, Edit, edited
from simoffload.errors import InputError
from simoffload.hardware import Platform
from simoffload.hardware.changes import spelled
from simoffload.results.capacity import TierUse
from simoffload.results.result import SimulationResult
from simoffload.scenario import LoadedScenario, Shelf, resolve
from simoffload.simulation import Progress, fit, simulate
from simoffload.simulation.capacity import memory_footprint

__all__ = ["Evaluator"]


class Evaluator:
    """A scenario, and itself with edits; what they have in common is read and built once."""

    def __init__(self, scenario: LoadedScenario, *, shelf: Shelf | None = None) -> None:
        self.scenario = scenario
        self.shelf = scenario.shelf if shelf is None else shelf
        self._footprints: dict[str, tuple[TierUse, ...] | None] = {}

    @property
    def platform(self) -> Platform:
        """That of the scenario as it is."""
        return self.shelf.platform(self.scenario.document)

    def document(self, *edits: Edit) -> Document:
        """The document with edits made to it.

        Profiles are named ``kind/id`` in edits; where the document has one by its id, it goes on so.
        """
        document = self.scenario.document
        for path, value in edits:
            section, *inner = path
            if section == "profiles" and inner:
                inner[0] = spelled(document.data.get("profiles") or {}, str(inner[0]))
            document = edited(document, [Edit((section, *inner), value)])
        return document

    def possible(self, *edits: Edit) -> Document:
        """The same, without numbers of profiles that the changed machine does not have any more.

        Raises InputError for a machine that cannot be.
        """
        changed, own = self.document(*edits), self.scenario.document.data.get("profiles") or {}
        if not own:
            return changed
        uses = self.shelf.platform(changed, changed=False).profiles
        has = {name for use in uses for name in (use.id, f"{use.kind}/{use.id}")}
        kept = {name: one for name, one in changed.data["profiles"].items() if name in has or name not in own}
        return edited(changed, [Edit(("profiles",), kept)], in_place=True)

    def edited(self, *edits: Edit) -> LoadedScenario:
        """The scenario with edits, resolved anew. Raises InputError."""
        return resolve(self.possible(*edits), shelf=self.shelf)

    def knows(self, *edits: Edit) -> bool:
        """Whether ``footprint`` has been asked that."""
        return _key(edits) in self._footprints

    def footprint(self, *edits: Edit) -> tuple[TierUse, ...] | None:
        """What each tier must hold with edits; None if they are refused."""
        key = _key(edits)
        if key not in self._footprints:
            try:
                self._footprints[key] = memory_footprint(self.edited(*edits))
            except InputError:
                self._footprints[key] = None
        return self._footprints[key]

    def capacity(self, *edits: Edit) -> SimulationResult:
        """Whether it fits with edits; raises what ``fit`` raises."""
        return fit(self.edited(*edits))

    def simulated(
        self, *edits: Edit, progress: Progress | None = None
    ) -> tuple[LoadedScenario, SimulationResult]:
        """The scenario with edits and its simulation; raises what ``simulate`` raises.

        Neither is kept here: there are many, and results are large.
        """
        scenario = self.edited(*edits)
        return scenario, simulate(scenario, progress=progress)


def _key(edits: Iterable[Edit]) -> str:
    return " ".join(map(repr, edits))
