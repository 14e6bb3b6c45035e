"""The rules of vLLM against recorded streams, with fitted and with simulated times of steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.serving.streams import Linear
from validation.recorded_streams import own_streams, predicted, sharegpt, streams_table

_PRO = "RTXPRO6000"
_FITTED = {
    "RTX4090_Llama-3.1-8B": (2588, 256, Linear(1.515e-2, 9.085e-5, 1.4128e-7, 2.3893e-10)),
    f"{_PRO}_Llama-3.1-8B": (10**7, 128, Linear(1.1434e-2, 3.9185e-5, 8.6959e-8, 7.9917e-10)),
    f"{_PRO}_Qwen3-32B": (10**7, 128, Linear(2.6616e-2, 1.4148e-4, 1.25698e-7, 2.4476e-8)),
}
"""KV blocks, sequences, and constants of steps that are fitted to the run itself: a test of rules alone."""


@pytest.mark.parametrize("run", _FITTED)
def test_the_rules_alone_reproduce_a_run(run: str) -> None:
    blocks, sequences, times = _FITTED[run]
    recorded = sharegpt(run, blocks=blocks, sequences=sequences, async_scheduling=False)
    served, requests = recorded.replay(times), recorded.requests
    for mine, measured in ((served.ttft, requests.ttft), (served.tpot, requests.tpot)):
        assert mine.mean() == pytest.approx(measured.mean(), rel=0.03)
        for share in (50, 90, 99):
            assert np.percentile(mine, share) == pytest.approx(np.percentile(measured, share), rel=0.03)
    preempted = 188 if blocks < 10**7 else 0  # of the replay with the constants that were fitted first
    assert served.preemptions.sum() == pytest.approx(preempted, rel=0.1)


def test_a_card_whose_kernels_were_measured_one_by_one_is_within_a_tenth() -> None:
    blocks, sequences, _ = _FITTED["RTX4090_Llama-3.1-8B"]
    (found,) = predicted([sharegpt("RTX4090_Llama-3.1-8B", blocks=blocks, sequences=sequences)])
    for measured, simulated, inside in found.figures.values():
        assert simulated == pytest.approx(measured, rel=0.1)
        assert inside


def test_streams_below_the_knee_are_predicted() -> None:
    names = {"vllm-0.25 llama-8b uniform 8/s", "vllm-0.25 llama-8b uniform 16/s"}
    streams = [one for one in own_streams() if f"{one.engine} {one.run.name}" in names]
    found = list(predicted(streams))
    for one in found:
        for name, bar in (("ttft mean", 0.15), ("tpot mean", 0.1)):
            measured, simulated, _ = one.figures[name]
            assert simulated == pytest.approx(measured, rel=bar)
    page = (Path(__file__).parents[2] / "docs" / "validation" / "vllm.md").read_text("utf-8")
    rows = streams_table(found).splitlines()
    assert len(rows) == 4
    assert set(rows) <= set(page.splitlines()), "run python -m validation"


def test_a_common_text_is_found_as_often_as_recorded() -> None:
    # All but the first request of each of four texts of 2,048 tokens.
    (stream,) = [one for one in own_streams() if one.run.name == "common 20/s"]
    assert stream.replay(Linear(8e-3, 2e-5, 4e-8)).cached.sum() == 196 * 2048
