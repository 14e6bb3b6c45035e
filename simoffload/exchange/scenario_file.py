"""Scenarios, and the ds_config in them, as files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import yaml

__all__ = ["pasteable", "scenario_text"]


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        """Write a value again where it occurs again: scenario files have no anchors."""
        return True


def scenario_text(tree: Mapping[str, Any]) -> str:
    """A scenario's content as YAML, in its own order."""
    return yaml.dump(dict(tree), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


def pasteable(config: Any) -> str:
    """A ds_config as JSON; whole numbers that were written as 4e9 stand as DeepSpeed's own would."""
    return json.dumps(_complete(config), indent=2) + "\n"


def _complete(node: Any) -> Any:
    if isinstance(node, Mapping):
        return {key: _complete(value) for key, value in node.items()}
    if isinstance(node, list):
        return [_complete(value) for value in node]
    return int(node) if isinstance(node, float) and node.is_integer() and abs(node) >= 1e3 else node
