"""Small models on which the host thread's costs are measured."""

from __future__ import annotations

import pytest

from simoffload_calibrate.jobs import thread_environment
from simoffload_calibrate.runs import CalibrationRun, Training
from simoffload_calibrate.small_models import eager_cases, small_cases, small_training_cases


def work(case: CalibrationRun) -> Training:
    found = case.request.workload
    assert isinstance(found, Training)
    return found


def offloaded(case: CalibrationRun) -> tuple[bool, bool]:
    """Parameters, optimizer."""
    zero = case.ds_config["zero_optimization"]
    return "offload_param" in zero, "offload_optimizer" in zero


@pytest.mark.parametrize("ranks", [1, 4])
def test_training_covers_what_decides_about_the_host_thread(ranks: int) -> None:
    cases = small_training_cases(ranks)
    assert len(cases) == 12
    assert {case.ranks for case in cases} == {ranks}
    families = {case.hf_config["model_type"] for case in cases}
    assert families == {"opt", "bloom", "llama"}
    assert {offloaded(case) for case in cases} == {(False, False), (False, True), (True, True)}
    assert {work(case).gradient_accumulation_steps for case in cases} == {1, 3}
    for family in families:
        mine = [case for case in cases if case.hf_config["model_type"] == family]
        assert {work(case).gradient_checkpointing for case in mine} == {True, False}
        assert {offloaded(case) for case in mine} == {(False, False), (False, True), (True, True)}
        buckets = {case.ds_config["zero_optimization"].get("stage3_prefetch_bucket_size") for case in mine}
        assert buckets == {None, 0, 1}


def test_some_optimizers_have_several_sub_groups() -> None:
    sizes = {case.ds_config["zero_optimization"].get("sub_group_size") for case in small_training_cases(1)}
    assert sizes == {None, 10**6}
    assert all(case.num_parameters > 4 * 10**6 for case in small_training_cases(1))


def test_trained_models_are_as_deep_as_real_ones_unless_it_must_be_quick() -> None:
    layers = {
        deep: {
            case.hf_config.get("num_hidden_layers", case.hf_config.get("n_layer"))
            for case in small_training_cases(1, deep=deep)
        }
        for deep in (True, False)
    }
    assert layers == {True: {24}, False: {8}}


def test_names_differ() -> None:
    cases = [case for ranks in (1, 2) for case in (*small_cases(ranks), *small_training_cases(ranks))]
    assert len({case.request.name for case in cases}) == len(cases)


def test_ranks_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(16)), raising=False)
    threads = {ranks: thread_environment(ranks)["OMP_NUM_THREADS"] for ranks in (1, 2, 3, 4, 32)}
    assert threads == {1: "16", 2: "8", 3: "5", 4: "4", 32: "1"}
    monkeypatch.setenv("OMP_NUM_THREADS", "6")
    assert thread_environment(4) == {"OMP_NUM_THREADS": "6"}


@pytest.mark.parametrize(("ranks", "kv_heads"), [(1, 6), (2, 6), (3, 6), (4, 8), (5, 10), (6, 6), (8, 8)])
def test_ranks_divide_the_heads_of_the_models_that_are_divided_among_them(ranks: int, kv_heads: int) -> None:
    llama = [case.hf_config for case in eager_cases(ranks) if case.hf_config["model_type"] == "llama"]
    for config in llama:
        assert config["num_key_value_heads"] == kv_heads
        assert config["num_attention_heads"] == 2 * kv_heads
        assert config["hidden_size"] == 128 * kv_heads, "heads of 64 elements"
        assert config["intermediate_size"] % ranks == 0
