"""Service levels as people write them."""

from __future__ import annotations

import pytest

from simoffload.errors import InputError
from simoffload.extensions.serving.answers import RequestMetrics
from simoffload.extensions.storage.result import CheckpointResult
from simoffload.planning.service_levels import ServiceLevel, parse_service
from simoffload.results import WithMetrics, declared_metrics
from simoffload.results.inference import InferenceResult
from simoffload.results.training import TrainingResult
from simoffload.simulation import fit, simulate
from tests.planning.advise.conftest import STORAGE_BOUND, loaded

BY_KIND: dict[str, type[WithMetrics]] = {
    "inference": InferenceResult,
    "training": TrainingResult,
    "checkpoint": CheckpointResult,
    "stream": RequestMetrics,
}


def level(metric: str, limit: float) -> ServiceLevel:
    return ServiceLevel(declared_metrics()[metric], limit)


@pytest.mark.parametrize(
    ("text", "kind", "wanted", "shown"),
    [
        ("tpot=200ms", "inference", level("tpot_s", 0.2), "tpot ≤ 200 ms"),
        (" ttft = 2 s ", "inference", level("ttft_s", 2.0), "ttft ≤ 2 s"),
        ("tpot_s=1h", "inference", level("tpot_s", 3600.0), "tpot ≤ 1 h"),
        ("tokens_per_s=50", "inference", level("tokens_per_s", 50.0), "tokens_per_s ≥ 50"),
        ("step=10 min", "training", level("step_s", 600.0), "step ≤ 600 s"),
        ("save=5s", "checkpoint", level("save_s", 5.0), "save ≤ 5 s"),
    ],
)
def test_good_ones(text: str, kind: str, wanted: ServiceLevel, shown: str) -> None:
    found = parse_service(text, BY_KIND[kind])
    assert (found.metric.name, found.limit) == (wanted.metric.name, wanted.limit)
    assert found.text == shown


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("tpot", "inference", "has no limit; write e.g. tpot=200ms"),
        (
            "bogus=1",
            "checkpoint",
            'unknown metric "bogus"; this kind of work has save, bytes_per_s, blocking',
        ),
        ("bogus=1", "stream", "has ttft, tpot, e2el, attain; write e.g. tpot=200ms, ttft=2s or attain=0.99"),
        ("tpot=", "inference", "has no limit"),
        ("=5s", "inference", 'unknown metric ""'),
        ("tpto=5s", "inference", 'unknown metric "tpto"; did you mean "tpot"?'),
        (
            "step=5s",
            "inference",
            "no limit of this kind of work; it has ttft, prompt_tokens_per_s, tpot, tokens_per_s",
        ),
        ("ttft=5s", "training", "ttft is no limit of this kind of work; it has step, forward"),
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
    assert level("ttft_s", time).kept(result)
    assert not level("ttft_s", 0.999 * time).kept(result)
    assert level("tokens_per_s", rate).kept(result)
    assert not level("tokens_per_s", 1.001 * rate).kept(result)
    assert not level("ttft_s", 1e9).kept(fit(scenario)), "what was not simulated keeps nothing"
