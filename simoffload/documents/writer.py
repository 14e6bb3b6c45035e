"""Plain trees as text: YAML that reads back as the same tree, and a ds_config as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import yaml

from simoffload.documents.reader import is_text

__all__ = ["ds_config_text", "yaml_text"]


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        """Write a value again where it occurs again: documents have no anchors."""
        return True

    def represent_str(self, data: str) -> yaml.ScalarNode:
        """Put in double quotes what YAML 1.2 takes for a number and 1.1 does not, as ``1e9``, and text that
        does not print."""
        is_plain = is_text(data) and data.replace("\n", "").isprintable()
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=None if is_plain else '"')


_Dumper.add_representer(str, _Dumper.represent_str)


def yaml_text(tree: Mapping[str, Any], *, flow: bool = False) -> str:
    """A document's content in its own order; with ``flow`` each innermost mapping and list is on one line."""
    return yaml.dump(
        dict(tree),
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=None if flow else False,
        width=10**6 if flow else 100,
    )


def ds_config_text(config: Any) -> str:
    """A ds_config as JSON; whole numbers that were written as 4e9 stand as DeepSpeed's own would."""
    return json.dumps(_with_integers(config), indent=2) + "\n"


def _with_integers(node: Any) -> Any:
    if isinstance(node, Mapping):
        return {key: _with_integers(value) for key, value in node.items()}
    if isinstance(node, list):
        return [_with_integers(value) for value in node]
    return int(node) if isinstance(node, float) and node.is_integer() and abs(node) >= 1e3 else node
