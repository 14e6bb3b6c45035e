"""Copies of several ranks at once against the rates at which they were measured."""

from __future__ import annotations

import pytest

from simoffload.documents import parse_yaml
from simoffload.scenario import resolve
from simoffload.simulation import simulate

_GB = 1e9

SCENARIO = """
name: copies
model: {{name: {model}, dtype: float16, num_hidden_layers: {layers}}}
platform: h200-8gpu-vm
workload: {{kind: inference, batch_size: 8, prompt_length: 64, output_length: 3}}
strategy: {{kind: deepspeed, weights: dram, ranks: {ranks}}}
"""


def copy_rate(*, model: str, layers: int, ranks: int) -> float:
    """Mean rate [B/s] of the copies of weights to one GPU in a decode step."""
    text = SCENARIO.format(model=model, layers=layers, ranks=ranks)
    result = simulate(resolve(parse_yaml(text, name="copies.yaml")), keep_timelines=True)
    copies = [one for one in result.timelines["decode 1"] if one.op.kind == "copy" and one.op.size > 1e6]
    return (
        sum(one.op.size for one in copies) / sum(one.end - one.start - one.op.fixed for one in copies) * 1e12
    )


@pytest.mark.parametrize(("model", "layers"), [("opt-6.7b", 16), ("opt-66b", 8)])
@pytest.mark.parametrize(("ranks", "measured"), [(4, 25.2), (8, 22.7)])
def test_copies_of_ranks_are_as_fast_as_they_were_measured_together(
    model: str, layers: int, ranks: int, measured: float
) -> None:
    """Pinned copies to 4 and 8 GPUs at once (platform h200-8gpu-vm), for small layers and for large ones."""
    assert copy_rate(model=model, layers=layers, ranks=ranks) == pytest.approx(measured * _GB, rel=0.01)
