"""The inputs and versions from which a result was computed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from simoffload.results.values import by_name

if TYPE_CHECKING:
    from simoffload.hardware import Spread


@dataclass(frozen=True)
class ResultProvenance:
    """ResultProvenance lists the inputs and versions from which a result was computed."""

    scenario: dict[str, Any]
    """The scenario as read, with all overrides."""
    profiles: tuple[tuple[str, str, str], ...]
    """(kind, id, sha256) of every profile used."""
    inputs: tuple[tuple[str, str, str, str, str, str, str], ...]
    """(profile, key, value, origin, source, date, spread) of every number used."""
    versions: dict[str, str]
    exports: dict[str, Any] = field(default_factory=dict)
    """Configuration files with which the real program runs what was simulated; content by name."""
    spreads: Mapping[str, Spread] = field(default_factory=dict)
    """Relative standard deviations of the inputs that decide times, by what they decide; those of storage by
    tier; empty without times."""
    program: str = ""
    """Program and version for which the configuration files are written, such as "DeepSpeed 0.19.8"."""

    @property
    def origins(self) -> dict[str, int]:
        """Number of inputs by origin: spec, measured, estimate."""
        counts: dict[str, int] = {}
        for _, _, _, origin, *_ in self.inputs:
            counts[origin] = counts.get(origin, 0) + 1
        return counts

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values; of the inputs, only their number by origin."""
        profiles = [dict(zip(("kind", "id", "sha256"), use, strict=True)) for use in self.profiles]
        return {
            "scenario": self.scenario,
            "profiles": profiles,
            **by_name(self, "origins versions"),
            "exports": self.exports,
        }
