"""Which changes to profiles can decide anything in a scenario."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simoffload.hardware.topology import Platform

__all__ = ["deciding_changes"]

_TIERS = {"zero_inference": ("weights",), "zero_training": ("weights", "optimizer")}
"""By kind of strategy, the keys that say which tiers it uses when each of them is given."""
_SECTIONS = ("checkpoint", "dataset")
_SPEEDS = ("read", "write", "latency", "read_latency", "write_latency", "per_connection")
"""Keys of storage profiles that do not decide what fits."""


def deciding_changes(data: Mapping[str, Any], platform: Platform) -> dict[str, Any]:
    """The section ``profiles`` of a complete scenario without how fast storage is that is left aside.

    Its capacity counts: advice names the smallest tier that would do.
    """
    changes: dict[str, Any] = dict(data["profiles"])
    used = _used(data)
    if used is None:
        return changes
    aside = [target for name, target in platform.targets.items() if name not in used]
    if any(target.drive for name, target in platform.targets.items() if name in used):
        aside = [target for target in aside if not target.drive]  # one may be built of the other
    names = {target.id for target in aside}
    for name, change in changes.items():
        if name.rpartition("/")[2] in names and isinstance(change, Mapping):
            changes[name] = {key: value for key, value in change.items() if key not in _SPEEDS}
    return changes


def _used(data: Mapping[str, Any]) -> set[str] | None:
    """Tiers that the scenario names; None if it leaves any of them to be found out."""
    strategy = data.get("strategy")
    keys = _TIERS.get(strategy.get("kind", "")) if isinstance(strategy, Mapping) else None
    if keys is None or any(section in data for section in _SECTIONS):
        return None
    assert isinstance(strategy, Mapping)
    named = [strategy.get(key) for key in keys]
    return {name for name in named if isinstance(name, str)} if all(named) else None
