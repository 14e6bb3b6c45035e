"""Shipped scenarios of training run with few steps and agree with the published runs."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from simoffload.cli import main
from simoffload.results.training import TrainingResult
from simoffload.scenario import LoadedScenario, read_scenario
from simoffload.simulation import fit, simulate
from simoffload.strategies.base import traffic
from simoffload.strategies.programs.zero_training import ZeroTrainingPlan
from tests.scenarios.test_shipped import TRAINING

XINNOR_16B = ("xinnor/llama-16b-optimizer", "xinnor/llama-16b-parameters")
LAYER = 218_112_000  # Llama-3.1-8B: 4096 (4096 + 1024 + 1024 + 4096 + 3 x 14336) and two norms
EMBEDDINGS = 2 * 32_000 * 4096 + 4096


def zero_plan(scenario: LoadedScenario) -> ZeroTrainingPlan:
    plan = scenario.plan()
    assert isinstance(plan, ZeroTrainingPlan)
    return plan


def trained(name: str, *overrides: str) -> TrainingResult:
    result = simulate(read_scenario(name, overrides=overrides))
    assert isinstance(result, TrainingResult)
    assert result.fits, result.advice
    return result


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("xinnor/llama-1b", 4 * LAYER + EMBEDDINGS),
        ("xinnor/llama-2b", 8 * LAYER + EMBEDDINGS),
        ("xinnor/llama-3b", 12 * LAYER + EMBEDDINGS),
        *((name, 64 * LAYER + EMBEDDINGS) for name in XINNOR_16B),
    ],
)
def test_xinnors_models_have_its_sizes(name: str, parameters: int) -> None:
    scenario = read_scenario(name)
    assert scenario.model.num_parameters == parameters
    assert scenario.scenario.workload.max_context == 4096


@pytest.mark.parametrize(
    ("name", "billions", "share"),
    [
        ("zero-infinity/gpt2-50b", 50.356, 1e-5),  # "total parameters 50.356 B" of its log
        ("zero-offload-2020/gpt2-10b", 10, 0.03),
        ("zero-offload-2021/gpt2", 40, 0.03),
        ("zenflow/qwen2.5-3b", 3.09, 0.002),  # model cards
        ("zenflow/qwen2.5-1.5b", 1.54, 0.003),
        ("superoffload/qwen3-14b", 14.8, 0.003),
        ("training/gpt-1t", 1000, 0.01),
        ("training/bloom-mod-2", 24_170, 0.001),  # 12 x 4800 x 20480² and embeddings
    ],
)
def test_models_have_their_sources_sizes(name: str, billions: float, share: float) -> None:
    assert read_scenario(name).model.num_parameters / 1e9 == pytest.approx(billions, rel=share)


# -- Xinnor: what is moved ----------------------------------------------------------------------


def requests(plan: ZeroTrainingPlan, *, written: bool) -> int:
    return sum(
        one.full_requests(block=524_288, threads=1)
        for stage in plan.first_io
        for one in stage.transfers
        if one.written is written
    )


@pytest.mark.parametrize(
    ("name", "read", "written"), [(XINNOR_16B[0], 325_488, 650_976), (XINNOR_16B[1], 595_728, 813_720)]
)
def test_requests_of_a_whole_block_until_the_end_of_the_first_step(
    name: str, read: int, written: int
) -> None:
    plan = zero_plan(read_scenario(name))
    assert plan.settings.params.block_size == 524_288
    assert (requests(plan, written=False), requests(plan, written=True)) == (read, written)


def test_a_later_step_moves_other_bytes_than_the_first() -> None:
    """Master weights, moments and gradient both ways; with parameters 2 written and a good 4 read more."""
    for name, read, written in ((XINNOR_16B[0], 16.0, 16.0), (XINNOR_16B[1], 20.35, 18.0)):
        scenario = read_scenario(name)
        (moved,) = traffic(zero_plan(scenario))
        numel = scenario.model.num_parameters
        assert moved.read / numel == pytest.approx(read, abs=0.05)
        assert moved.written / numel == pytest.approx(written, rel=1e-3)


# -- Xinnor: trends of its charts ---------------------------------------------------------------


ZENFLOW = "strategy.ds_config.zero_optimization.zenflow={topk_ratio: 0.1}"


@cache
def step(size: str, tier: str, accumulation: int = 1, *more: str) -> float:
    """[s] of a step of xinnor/llama-1b or -3b with its optimizer on a tier."""
    accumulated = f"workload.gradient_accumulation_steps={accumulation}"
    found = trained(f"xinnor/llama-{size}", f"strategy.optimizer={tier}", accumulated, *more).step_s
    assert found is not None
    return found


def test_offload_to_memory_is_slower_than_the_gpu_and_more_so_for_the_larger_model() -> None:
    lost = {size: step(size, "dram") - step(size, "hbm") for size in ("1b", "3b")}
    assert 0 < lost["1b"] < lost["3b"]


@pytest.mark.parametrize("size", ["1b", "3b"])
@pytest.mark.parametrize("accumulation", [1, 4, 8])
def test_raid_lies_between_memory_and_one_drive(size: str, accumulation: int) -> None:
    memory, raid, drive = (step(size, tier, accumulation) for tier in ("dram", "raid", "nvme"))
    assert 1.2 * memory < raid < 0.6 * drive


@pytest.mark.parametrize("size", ["1b", "3b"])
@pytest.mark.parametrize("tier", ["dram", "raid", "nvme"])
def test_accumulation_narrows_the_gap_to_the_gpu(size: str, tier: str) -> None:
    gaps = [step(size, tier, steps) / step(size, "hbm", steps) for steps in (1, 4, 8)]
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[2] < gaps[0] / 2


@pytest.mark.parametrize("size", ["1b", "3b"])
def test_zenflow_reduces_the_penalty_and_most_so_on_drives(size: str) -> None:
    tiers = ("dram", "raid", "nvme")
    without = {tier: step(size, tier) for tier in tiers}
    with_it = {tier: step(size, tier, 1, ZENFLOW) for tier in tiers}
    assert all(step(size, "hbm") < with_it[tier] < without[tier] / 2 for tier in tiers)
    assert with_it["raid"] < without["dram"]
    assert with_it["raid"] / with_it["dram"] < without["raid"] / without["dram"]


# -- how many hosts a model needs ---------------------------------------------------------------

RAID = 4 * 3.84e12  # [B] of a DGX A100's drives
MEMORY = 2**40


@pytest.mark.parametrize(
    ("name", "hosts", "fits"),
    [
        ("bloom-7b1", 1, True),
        ("bloom-176b", 1, True),
        ("bloom-mod-1", 1, False),  # 21.8 TB on 15.4
        ("bloom-mod-1", 2, False),  # 2.4 TB of gradients in memory of 2.2
        ("bloom-mod-1", 4, True),
        pytest.param("bloom-mod-2", 32, False, marks=pytest.mark.slow),  # 48 TB of gradients in memory of 35
        pytest.param("bloom-mod-2", 64, True, marks=pytest.mark.slow),
    ],
)
def test_what_trains_on_how_many_dgx_a100(name: str, hosts: int, fits: bool) -> None:
    scenario = read_scenario(f"training/{name}", overrides=[f"nodes={hosts}", f"strategy.ranks={8 * hosts}"])
    numel = scenario.model.num_parameters
    assert (18 * numel < hosts * RAID and 2 * numel < hosts * MEMORY) is fits
    result = fit(scenario)
    assert result.fits is fits
    uses = {use.tier: use for use in result.capacity}
    assert uses["raid"].capacity == hosts * RAID
    assert uses["raid"].needed == pytest.approx(18 * numel, rel=1e-3)
    assert uses["dram"].needed > 2 * numel / hosts


@pytest.mark.slow
def test_the_appliance_holds_the_states_of_a_trillion_parameters_and_not_of_24() -> None:
    there = ["strategy.weights=ai400x2", "strategy.optimizer=ai400x2"]
    held = {
        name: {use.tier: use for use in fit(read_scenario(f"training/{name}", overrides=there)).capacity}
        for name in ("bloom-mod-1", "bloom-mod-2")
    }
    assert held["bloom-mod-1"]["ai400x2"].fits
    assert not held["bloom-mod-2"]["ai400x2"].fits


def test_a_trillion_parameters_need_more_than_two_dgx_h100() -> None:
    found = {
        hosts: fit(
            read_scenario("training/gpt-1t", overrides=[f"nodes={hosts}", f"strategy.ranks={8 * hosts}"])
        )
        for hosts in (1, 4)
    }
    assert [result.fits for result in found.values()] == [False, True]
    assert [use.tier for use in found[1].capacity if not use.fits] == ["dram"]


@pytest.mark.parametrize("name", sorted(TRAINING - {"training/bloom-mod-2"}))
def test_it_fits_as_it_is(name: str) -> None:
    result = fit(read_scenario(name))
    assert result.fits, result.advice
    assert {use.tier for use in result.capacity} >= {"hbm", "dram"}


# -- the documentation --------------------------------------------------------------------------

TIERS = ("raid", "nvme", "dram")


def test_the_example_of_the_documentation_runs(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (repository / "docs" / "scenarios.md").read_text().partition("## Training")[2]
    example, *_ = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    (tmp_path / "training.yaml").write_text(example)
    monkeypatch.chdir(tmp_path)
    assert main(["check", "training.yaml"]) == 0
    run = ["run", "training.yaml", "--set"]
    codes = {tier: main([*run, f"strategy.optimizer={tier}"]) for tier in TIERS}
    assert codes == {"raid": 0, "nvme": 0, "dram": 3}, capsys.readouterr().err
    reported = " ".join(capsys.readouterr().out.split())
    assert all(f" limited by {tier} write, " in reported for tier in TIERS[:2])


def test_the_documentation_names_the_shipped_scenarios(repository: Path) -> None:
    text = (repository / "docs" / "scenarios.md").read_text()
    assert {name.partition("/")[0] for name in TRAINING} <= set(re.findall(r"`([\w.-]+)/", text))
