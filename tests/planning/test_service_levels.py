"""Service levels as people write them."""

from __future__ import annotations

import pytest

from simoffload.errors import InputError
from simoffload.planning.service_levels import ServiceLevel, parse_service
from simoffload.results.checkpoint import CheckpointResult
from simoffload.results.inference import InferenceResult
from simoffload.results.training import TrainingResult
from simoffload.simulation import fit, simulate
from tests.planning.advise.conftest import STORAGE_BOUND, loaded

BY_KIND = {"inference": InferenceResult, "training": TrainingResult, "checkpoint": CheckpointResult}


@pytest.mark.parametrize(
    ("text", "kind", "level", "shown"),
    [
        ("tpot=200ms", "inference", ServiceLevel("tpot_s", 0.2), "tpot ≤ 200 ms"),
        (" ttft = 2 s ", "inference", ServiceLevel("ttft_s", 2.0), "ttft ≤ 2 s"),
        ("tpot_s=1h", "inference", ServiceLevel("tpot_s", 3600.0), "tpot ≤ 1 h"),
        ("tokens_per_s=50", "inference", ServiceLevel("tokens_per_s", 50.0), "tokens_per_s ≥ 50"),
        ("step=10 min", "training", ServiceLevel("step_s", 600.0), "step ≤ 600 s"),
        ("save=5s", "checkpoint", ServiceLevel("save_s", 5.0), "save ≤ 5 s"),
    ],
)
def test_good_ones(text: str, kind: str, level: ServiceLevel, shown: str) -> None:
    found = parse_service(text, BY_KIND[kind])
    assert found == level
    assert found.text == shown


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("tpot", "inference", "has no limit; write e.g. tpot=200ms"),
        ("tpot=", "inference", "has no limit"),
        ("=5s", "inference", 'unknown metric ""'),
        ("tpto=5s", "inference", 'unknown metric "tpto"; did you mean "tpot"?'),
        (
            "step=5s",
            "inference",
            "not a metric of this kind of work; it has ttft, tpot, e2e, tokens_per_s",
        ),
        ("ttft=5s", "training", "ttft is not a metric of this kind of work; it has step, tokens_per_s"),
        ("tpot=5", "inference", "unit"),
        ("tpot=5GB", "inference", "GB"),
        ("tpot=0s", "inference", "must be above zero"),
        ("tokens_per_s=many", "inference", '"many" is not a number'),
        ("tokens_per_s=nan", "inference", "must be above zero"),
        ("tokens_per_s=inf", "inference", "must be above zero and finite"),
        ("tokens_per_s=-1", "inference", "must be above zero"),
    ],
)
def test_bad_ones(text: str, kind: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_service(text, BY_KIND[kind])
    (problem,) = caught.value.problems
    assert problem.path == "--slo"
    assert message in problem.message


def test_a_limit_itself_is_kept() -> None:
    scenario = loaded(STORAGE_BOUND)
    result = simulate(scenario)
    time, rate = result.metrics()["ttft_s"] or 0, result.metrics()["tokens_per_s"] or 0
    assert ServiceLevel("ttft_s", time).kept(result)
    assert not ServiceLevel("ttft_s", 0.999 * time).kept(result)
    assert ServiceLevel("tokens_per_s", rate).kept(result)
    assert not ServiceLevel("tokens_per_s", 1.001 * rate).kept(result)
    assert not ServiceLevel("ttft_s", 1e9).kept(fit(scenario)), "what was not simulated keeps nothing"
