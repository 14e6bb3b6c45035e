"""Everything that explains one result: what it hangs on, how sure it is, what faster storage would bring."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from simoffload.planning.bandwidth import StorageCurve, storage_curve
from simoffload.planning.sensitivity import Sensitivity, sensitivity
from simoffload.planning.uncertainty import Uncertainty, uncertainty
from simoffload.scenario import LoadedScenario
from simoffload.simulation import Progress

__all__ = ["Explanation", "explain"]


@dataclass(frozen=True)
class Explanation:
    """Answers that take more simulations than the result itself."""

    sensitivity: Sensitivity
    uncertainty: Uncertainty
    storage: StorageCurve | None
    """None where no storage is used."""

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values."""
        return {
            "sensitivity": self.sensitivity.to_dict(),
            "uncertainty": self.uncertainty.to_dict(),
            "storage": self.storage.to_dict() if self.storage else None,
        }


def explain(scenario: LoadedScenario, *, progress: Progress | None = None) -> Explanation:
    """Explain the result of a scenario; InputError where it does not fit."""
    found = sensitivity(scenario, progress=progress)
    return Explanation(found, uncertainty(found), storage_curve(scenario, progress=progress))
