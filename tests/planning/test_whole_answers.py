"""A whole answer for each kind of tier of each platform, in each place that may be on it.

All combinations take minutes: ``HYPOTHESIS_PROFILE=explore`` tries them. Otherwise, every place is tried on
every kind of tier once, each time on the smallest machine that has such a tier.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple

import pytest

import simoffload as so
from simoffload.documents import Document, Edit, edited
from simoffload.errors import InputError, SimulationError
from simoffload.hardware import Machine, list_profiles, load_platform
from simoffload.report.from_result import result_document
from simoffload.report.markdown import markdown
from simoffload.report.terminal import terminal_text
from simoffload.scenario import LoadedScenario, ScenarioCache
from simoffload.scenario.loading import resolve
from tests.examples import EXPLORES

PLATFORMS = [one.id for one in list_profiles("platform")]
INFERENCE = {"kind": "inference", "batch_size": 1, "prompt_length": 40, "output_length": 3}
TRAINING = {"kind": "training", "batch_size": 1, "sequence_length": 8}
STATES = {"kind": "deepspeed", "weights": "dram", "optimizer": "dram"}
SAVED = {"kind": "checkpoint"}
CACHED = {"kind": "transformers"}


class Place(NamedTuple):
    """Something that a scenario stores on a tier."""

    workload: Mapping[str, Any]
    strategy: Mapping[str, Any]
    key: str
    """Where the scenario names the tier."""
    more: Mapping[str, Any] = {}


PLACES = {
    "weights": Place(INFERENCE, {"kind": "deepspeed"}, "strategy.weights"),
    "files": Place(INFERENCE, {"kind": "accelerate", "device_map": "disk"}, "strategy.offload_folder"),
    "cache": Place(
        INFERENCE, CACHED | {"kv_cache": {"implementation": "streamed"}}, "strategy.kv_cache.tier"
    ),
    "offloaded cache": Place(INFERENCE, CACHED, "strategy.kv_cache.tier"),
    "blocks": Place(
        INFERENCE,
        {"kind": "vllm", "kv_cache": {"connector": {"prefix": 32}}},
        "strategy.kv_cache.connector.tier",
    ),
    "trained weights": Place(TRAINING, STATES, "strategy.weights"),
    "optimizer": Place(TRAINING, STATES, "strategy.optimizer"),
    "checkpoints": Place(SAVED, SAVED, "strategy.tier"),
    "checkpoints of a run": Place(TRAINING, STATES, "checkpoint.tier"),
    "data": Place(TRAINING, STATES, "dataset.tier", {"dataset": {"sample_size": "1 MB", "samples": 50}}),
}
REFUSED = {
    ("files", "hbm"),
    ("files", "dram"),
    ("files", "remote"),
    ("cache", "hbm"),
    ("blocks", "hbm"),
    *(
        (place, kind)
        for place in ("checkpoints", "checkpoints of a run")
        for kind in ("hbm", "dram", "remote")
    ),
    *(("data", kind) for kind in ("hbm", "dram", "remote")),
    *(("offloaded cache", kind) for kind in ("nvme", "nfs", "pfs", "nvmeof", "remote")),
}
"""Places that are on no tier of a kind, in every program."""


@cache
def machine(platform: str) -> Machine:
    return load_platform(platform).machine(nodes=1)


def combinations() -> list[tuple[str, str, str]]:
    """Platform, tier and place: all, or of each place and kind of tier the one on the smallest machine."""
    listed = [
        (platform, tier.name, place, tier.kind)
        for platform in sorted(PLATFORMS, key=lambda one: machine(one).gpus)
        for tier in machine(platform).tiers.values()
        for place in PLACES
    ]
    first = {(place, kind): (platform, tier, place) for platform, tier, place, kind in reversed(listed)}
    return [one[:3] for one in listed] if EXPLORES else list(first.values())


_CACHE = ScenarioCache()


def scenario(platform: str, tier: str, place: str) -> LoadedScenario:
    workload, strategy, key, more = PLACES[place]
    tree: dict[str, Any] = {
        "name": "s",
        "model": {"name": "opt-125m", "num_hidden_layers": 2, "dtype": "float16"},
        "platform": platform,
        "workload": workload,
        "strategy": strategy,
        **more,
    }
    tree = json.loads(json.dumps(tree))
    *sections, last = key.split(".")
    node = tree
    for section in sections:
        node = node.setdefault(section, {})
    node[last] = tier
    return resolve(Document("s.yaml", tree), cache=_CACHE)


@pytest.mark.parametrize(("platform", "tier", "place"), combinations())
def test_every_place_has_a_whole_answer(platform: str, tier: str, place: str) -> None:
    """A time with its confidence, costs, JSON and reports; or a refusal that says why."""
    kind = machine(platform).tiers[tier].kind
    try:
        result = so.simulate(scenario(platform, tier, place), keep_timelines=True)
    except InputError:
        assert (place, kind) in REFUSED
        return
    assert (place, kind) not in REFUSED
    assert result.fits
    assert result.costs is not None
    json.dumps(result.to_dict(), allow_nan=False)
    document = result_document(result, bars=200)
    assert terminal_text(document)
    assert markdown(document)
    for section in document.sections:
        for chart in section.charts:
            chart.draw()
    assert result.confidence.intervals()
    assert ("the memory of another host" in result.confidence.unlike) == (
        kind == "remote" and place in ("weights", "trained weights", "optimizer")
    )


def test_an_explanation_tries_the_memory_of_another_host_too() -> None:
    """``advise`` and ``run --explain`` ended in a KeyError, whatever held the weights."""
    explained = so.simulate(scenario("hgx-h800", "dram", "weights"), explain=True)
    assert explained.next_changes is not None
    assert "weights on peer" in [one.change.description for one in explained.next_changes.tried]
    json.dumps(explained.to_dict(), allow_nan=False)


SLOW = {
    "raid": "samsung-pm1733-3.84tb",
    "nfs": "nfs-100gbe",
    "pfs": "ddn-ai400x2",
    "nvmeof": "solidigm-ps1010-7.68tb",
}
"""Profiles whose rates those of tiers of the DGX H100 follow from."""


@pytest.mark.parametrize("rate", ["1 B/s", "9 B/s"])
@pytest.mark.parametrize("tier", SLOW)
@pytest.mark.parametrize("place", ["weights", "checkpoints"])
def test_storage_of_a_few_bytes_a_second_is_slow_and_no_error(place: str, tier: str, rate: str) -> None:
    """Parts of such a rate, of a target or with an efficiency, were rounded to nothing, and divided by."""
    slow = [Edit(("profiles", SLOW[tier], key), rate) for key in ("read", "write")]
    changed = resolve(edited(scenario("dgx-h100", tier, place).document, slow), cache=_CACHE)
    with suppress(SimulationError):  # longer than a timeline can hold
        result = so.simulate(changed)
        assert result.compared_s is not None
        assert result.compared_s > 3600


@pytest.mark.parametrize(
    ("model", "cache"),
    [
        ("mistral-7b", {"tier": "dram"}),
        ("gemma-2-2b", {"tier": "dram"}),
        ("mistral-7b", {"tier": "raid", "implementation": "streamed"}),
        ("mistral-7b", {"tier": "dram", "implementation": "streamed"}),
    ],
)
def test_a_window_of_one_token_keeps_nothing_outside_the_gpu(model: str, cache: dict[str, str]) -> None:
    """A token sees only itself: its layers have no tensors to move, and what moves none has no cause."""
    base = scenario("dgx-a100", "hbm", "offloaded cache").document
    edits = [
        Edit(("model",), {"name": model, "num_hidden_layers": 4, "sliding_window": 1}),
        Edit(("strategy", "kv_cache"), cache),
    ]
    result = so.simulate(resolve(edited(base, edits), cache=_CACHE))
    assert result.step is not None
    assert terminal_text(result_document(result))
    causes = [one.cause_text for one in result.step.shares]
    assert "storage write" not in causes
    assert any("key-value cache" in cause for cause in causes) == (model == "gemma-2-2b")


FOUND: dict[str, dict[str, Any]] = {
    "no layer of the model caches keys and values": {
        "model": {"name": "qwen3-next-80b-a3b", "num_hidden_layers": 1},
        "strategy": {"kind": "vllm", "offload_group_size": 2, "offload_num_in_group": 2},
    },
    "a host whose loops move a few bytes a second": {
        "workload": TRAINING,
        "strategy": {"kind": "fsdp"},
        "profiles": {"host/dgx-a100-1tib": {"cpu_optimizer": {"limit": "3 B/s"}}},
    },
    "an operation that takes longer than a call with several": {
        "model": {"name": "phi-3-mini-128k", "num_hidden_layers": 3, "attention": "eager"},
        "strategy": {"kind": "deepspeed"},
        "profiles": {"host/dgx-a100-1tib": {"deepspeed": {"operation": "1 h"}}},
    },
}
"""What random scenarios ended with, all of them in internal errors."""


@pytest.mark.parametrize("what", FOUND)
def test_what_random_scenarios_found_has_an_answer(what: str) -> None:
    base = scenario("dgx-a100-80g", "hbm", "weights").document
    edits = [Edit((section,), value) for section, value in FOUND[what].items()]
    with suppress(SimulationError):  # longer than a timeline can hold
        result = so.simulate(resolve(edited(base, edits), cache=_CACHE))
        assert result.compared_s is not None
        assert terminal_text(result_document(result))


@pytest.mark.parametrize("strategy", ["vllm", "fsdp"])
def test_a_host_whose_operations_take_no_time_is_refused(strategy: str) -> None:
    """Costs of other programs are multiples of this one, and were divided by nothing."""
    work = TRAINING if strategy == "fsdp" else INFERENCE
    base = scenario("dgx-a100-80g", "hbm", "weights").document
    host = {"host/dgx-a100-1tib": {"deepspeed": {"operation": "0 s"}}}
    edits = [Edit((key,), one) for key, one in (("workload", work), ("strategy", {"kind": strategy}))]
    with pytest.raises(InputError, match="operation: must be above 0"):
        resolve(edited(base, [*edits, Edit(("profiles",), host)]), cache=_CACHE)
