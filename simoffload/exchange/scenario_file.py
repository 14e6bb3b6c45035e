"""Scenarios as files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

__all__ = ["scenario_text"]


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        """Write a value again where it occurs again: scenario files have no anchors."""
        return True


def scenario_text(tree: Mapping[str, Any]) -> str:
    """A scenario's content as YAML, in its own order."""
    return yaml.dump(dict(tree), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
