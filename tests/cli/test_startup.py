"""A run imports what its scenario needs: no other strategy, no other family, nothing that draws."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec

import pytest

STRATEGIES = "simoffload.strategies."
OTHERS = {
    "ddn/bloom-176b": {
        f"{STRATEGIES}training",
        "simoffload.extensions.storage.program",
        f"{STRATEGIES}programs.tensor_parallel",
        "simoffload.models.drafts",
        "simoffload.models.families.llama",
        "simoffload.models.quantization_config",
        "simoffload.extensions.storage.data_loading",
    },
    "fsdp/llama-3.1-8b": {
        f"{STRATEGIES}programs.zero_inference",
        f"{STRATEGIES}programs.transformers",
        f"{STRATEGIES}programs.vllm",
        f"{STRATEGIES}programs.zero_training",
        "simoffload.models.families.gpt",
    },
}
"""What a run of a scenario does not need."""
NEVER = {"argcomplete", "numpy", "pandas", "plotly", "rich", "simoffload.extensions.sweep.run"}


@pytest.mark.parametrize("scenario", OTHERS)
def test_a_run_imports_no_other_strategy(scenario: str) -> None:
    code = (
        "import json, sys, simoffload.cli\n"
        f"status = simoffload.cli.main(['run', {scenario!r}])\n"
        "print(json.dumps([status, *sys.modules]), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    status, *modules = json.loads(done.stderr)
    assert status == 0
    assert all(map(find_spec, OTHERS[scenario]))
    assert (OTHERS[scenario] | NEVER).isdisjoint(modules)


def test_reading_scenarios_imports_no_strategy_before_one_is_read() -> None:
    code = "import sys, simoffload.scenario; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found = {one.split(".")[2] for one in done.stdout.split() if one.startswith(STRATEGIES)}
    assert found == {"base", "registry"}
