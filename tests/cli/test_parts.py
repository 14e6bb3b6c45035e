"""A machine by its parts: --gpu, --gpus, --memory, --drive and --model, without a file."""

from __future__ import annotations

import json

import pytest

import simoffload as so
from simoffload.planning.costs import load_costs, present
from simoffload.planning.question import question
from simoffload.scenario import MachineParts, default_scenario
from tests.cli.conftest import Program

pytestmark = pytest.mark.usefixtures("known")

STORY = (
    *("--gpu", "rtx-4090", "--memory", "64GB", "--drive", "samsung-980-pro-2tb", "--on", "nvme"),
    "--json",
)


def test_a_model_runs_on_a_machine_that_is_named_by_its_parts(program: Program) -> None:
    answer = program("run", "llama-3.3-70b", *STORY)
    assert answer.status == 0, answer.err
    data = json.loads(answer.out)
    assert data["platform"] == "rtx-4090-desktop"
    assert data["target"] == "nvme"
    memory = next(one for one in data["capacity"] if one["tier"] == "dram")
    assert memory["capacity_bytes"] == 64 * 2**30  # as modules are sold
    assert "powers of ten" not in answer.err


def test_the_model_may_stand_in_place_of_the_scenario(program: Program) -> None:
    answers = [program("run", *model, *STORY) for model in (("llama-3.3-70b",), ("--model", "llama-3.3-70b"))]
    first, second = (json.loads(answer.out)["metrics"] for answer in answers)
    assert first == second


def test_parts_replace_those_of_a_scenario(program: Program) -> None:
    by_parts = program("run", "small.yaml", "--gpu", "a100-80g-sxm", "--memory", "2 TiB", "--json")
    by_keys = program(
        *("run", "small.yaml", "--set", "equipment.accelerator=a100-80g-sxm"),
        *("--set", "profiles.host/dgx-a100-1tib.memory_capacity=2 TiB", "--json"),
    )
    assert by_parts.status == 0, by_parts.err
    assert json.loads(by_parts.out)["metrics"] == json.loads(by_keys.out)["metrics"]


@pytest.mark.parametrize(("drive", "drives"), [("samsung-pm1733-7.68tb", 1), ("3xsolidigm-ps1010-7.68tb", 3)])
def test_drives_take_the_place_of_those_of_the_machine(program: Program, drive: str, drives: int) -> None:
    answer = program("run", "small.yaml", "--drive", drive, "--json")
    assert answer.status == 0, answer.err
    storage = next(one for one in json.loads(answer.out)["capacity"] if one["tier"] == "raid")
    assert storage["capacity_bytes"] == drives * 7_680_000_000_000


def test_what_to_type_has_the_parts(program: Program) -> None:
    words = ("--model", "opt-30b", "--gpu", "rtx-4090", "--slo", "tpot=100s", "--by", "workload.batch_size")
    answer = program("reach", *words)
    assert answer.status == 0, answer.err
    assert "simoffload run --model opt-30b --gpu rtx-4090 --set workload.batch_size=" in answer.out


def test_compare_and_fit_take_parts(program: Program) -> None:
    compared = program("compare", "opt-30b", "--gpu", "rtx-4090", "--memory", "96GB", "--on", "dram,nvme")
    assert compared.status == 0, compared.err
    assert "Verdict: dram is fastest: 0." in compared.out
    refused = program("compare", "opt-30b", "--gpu", "rtx-4090", "--memory", "32GB", "--on", "dram,nvme")
    assert "only nvme fits" in " ".join(refused.out.split())
    words = ("--model", "llama-3.3-70b", "--gpu", "rtx-4090", "--memory", "64GB", "--program", "deepspeed")
    fits = program("fit", *words, "--on", "dram")
    assert fits.status == 3
    assert "does not fit" in fits.out


def test_a_model_is_trained_with_what_is_usual(program: Program) -> None:
    words = ("--gpu", "rtx-4090", "--memory", "192GB", "--set", "workload.kind=training", "--on", "hbm+dram")
    answer = program("run", "llama-3.1-8b", *words, "--json")
    assert answer.status == 0, answer.err
    data = json.loads(answer.out)
    assert data["workload"]["sequence_length"] == 2048
    assert "checkpoints" in {term["name"] for one in data["capacity"] for term in one["terms"]}
    longer = program("run", "llama-3.1-8b", *words, "--set", "workload.sequence_length=4096", "--json")
    assert json.loads(longer.out)["workload"]["sequence_length"] == 4096


OFFERS = ("4xmicron-9550-pro-7.68tb", "8xmicron-9550-pro-7.68tb", "ddn-ai400x2")


def test_several_drives_are_offers(program: Program) -> None:
    words = ("--gpu", "h100-sxm", "--gpus", "8", "--json")
    answer = program("compare", "llama-3.1-405b", *words, "--drive", ",".join(OFFERS))
    assert answer.status == 0, answer.err
    rows = json.loads(answer.out)["compared"]
    assert [row["label"] for row in rows] == [x for one in OFFERS for x in (one, f"{one}, as configured")]
    alone = [program("run", "llama-3.1-405b", *words, "--drive", OFFERS[2], "--on", "pfs")]
    assert json.loads(alone[0].out)["metrics"]["tpot_s"] == rows[5]["result"]["metrics"]["tpot_s"]
    text = program("compare", "llama-3.1-405b", *words[:-1], "--drive", ",".join(OFFERS)).out
    assert "\nVerdict: 8xmicron-9550-pro-7.68tb gives 0.832 tokens/s of all 8 sequences (" in text
    assert "ddn-ai400x2 is as fast within the uncertainty but costs 2.3 times as much" in " ".join(
        text.split()
    )


def test_offers_are_judged_at_their_best_free_settings(program: Program) -> None:
    """With one thread, small requests and copies through host memory the filesystem ties with four drives."""
    words = ("--gpu", "h100-sxm", "--gpus", "8", "--drive", f"{OFFERS[0]},{OFFERS[2]}")
    answer = program("compare", "llama-3.1-405b", *words, "--json")
    data = json.loads(answer.out)
    found = data["free_settings"]["ddn-ai400x2"]
    assert found["text"] == "use_gds, queue_depth 32 and buffer_count 20"
    assert found["simulations"] <= 40
    times = {row["label"]: row["result"]["metrics"]["tpot_s"] for row in data["compared"]}
    assert found["gain"] == pytest.approx(times["ddn-ai400x2, as configured"] / times["ddn-ai400x2"])
    assert {row["label"] for row in data["compared"] if row["tie_with_baseline"]} == {
        "ddn-ai400x2, as configured"
    }
    text = " ".join(program("compare", "llama-3.1-405b", *words).out.split())
    assert "Verdict: ddn-ai400x2 is fastest: 0.778 tokens/s of all 8 sequences" in text
    assert "ddn-ai400x2 is at its best settings that cost nothing: reads straight into the GPU" in text
    set_ = [word for one in found["set"] for word in ("--set", one)]
    same = program("run", "llama-3.1-405b", *words[:4], "--drive", OFFERS[2], "--on", "pfs", *set_, "--json")
    assert json.loads(same.out)["metrics"]["tpot_s"] == times["ddn-ai400x2"]
    stated = json.loads(program("compare", "llama-3.1-405b", *words, "--settings", "stated", "--json").out)
    assert [row["label"] for row in stated["compared"]] == [OFFERS[0], OFFERS[2]]
    assert "free_settings" not in stated


def test_settings_and_nearer_places_are_those_of_the_objective(program: Program) -> None:
    """What makes the filesystem 2.5 times as fast also takes more power, as host memory does."""
    words = ("--gpu", "h100-sxm", "--gpus", "8", "--drive", ",".join(OFFERS[::2]), "--json")
    found = {}
    for objective in ("power_w", "cost_per_million_tokens"):
        answer = program("compare", "llama-3.1-405b", *words, "--objective", objective)
        found[objective] = data = json.loads(answer.out)
        costs = {row["label"]: row["economics"]["metrics"][objective] for row in data["compared"]}
        assert data["ranking"] == sorted(costs, key=costs.__getitem__)
        for place in data["nearer"]:
            assert place["gain"] > 1
            assert " times as good as " in place["text"]
    assert [row["label"] for row in found["power_w"]["compared"]][:2] == [OFFERS[0], OFFERS[2]]
    by_cost = found["cost_per_million_tokens"]
    assert by_cost["free_settings"][OFFERS[2]]["gain"] == pytest.approx(
        costs[f"{OFFERS[2]}, as configured"] / costs[OFFERS[2]], rel=1e-9
    )


def test_offers_hold_the_optimizer_of_training(program: Program) -> None:
    words = ("--gpu", "h100-sxm", "--gpus", "8", "--set", "workload.kind=training", "--json")
    answer = program("compare", "llama-3.1-8b", *words, "--drive", ",".join(OFFERS[:2]))
    assert answer.status == 0, answer.err
    compared = json.loads(answer.out)["compared"]
    assert {row["label"].partition(",")[0] for row in compared} == set(OFFERS[:2])
    assert {row["result"]["optimizer_target"] for row in compared} == {"raid"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--drive", "ddn-ai400x2,ddn-ai400x2"), "simoffload compare: a drive is given twice"),
        (
            ("--drive", f"{OFFERS[0]},{OFFERS[2]}", "--on", "raid"),
            "each on a tier of its own; leave out --on",
        ),
        (("--drive", OFFERS[0]), "one scenario is not a comparison"),
    ],
)
def test_offers_that_are_none(program: Program, words: tuple[str, ...], message: str) -> None:
    answer = program("compare", "llama-3.1-405b", "--gpu", "h100-sxm", "--gpus", "8", *words)
    assert answer.status == 2
    assert message in answer.err


def test_a_part_is_named_once(program: Program) -> None:
    answer = program("run", "opt-30b", "--gpu", "rtx-4090", "--drive", OFFERS[0], "--drive", OFFERS[2])
    assert answer.status == 2
    assert "--drive is given twice" in answer.err


def test_storage_takes_the_place_of_its_own_kind(program: Program) -> None:
    words = ("--gpu", "h100-sxm", "--gpus", "8", "--json")
    shipped = program("run", "llama-3.1-405b", *words, "--on", "pfs")
    named = program("run", "llama-3.1-405b", *words, "--on", "pfs", "--drive", "ddn-ai400x2")
    assert json.loads(named.out)["metrics"] == json.loads(shipped.out)["metrics"]


def test_models_alone_are_compared_where_each_fits(program: Program) -> None:
    models = "qwen3-8b,qwen3-32b,llama-3.3-70b"
    answer = program("compare", "--models", models, "--gpu", "rtx-4090", "--memory", "96GB")
    assert answer.status == 0, answer.err
    assert "\nVerdict: qwen3-8b is fastest: " in answer.out
    none = program("compare", "--gpu", "rtx-4090")
    assert (none.status, "required: SCENARIO, or --models" in none.err) == (2, True)


def test_swap_buffers_hold_what_each_of_the_gpus_gets(program: Program) -> None:
    parts = ("--gpu", "a100-80g-sxm", "--gpus", "2", "--drive", "4xmicron-9550-pro-7.68tb")
    answer = program("fit", "bloom-176b", *parts, "--on", "raid")
    assert answer.status == 0, answer.err


@pytest.mark.parametrize(
    ("gpu", "number", "platform", "lanes"),
    [
        ("rtx-3090", 2, "rtx-3090-workstation", [8, 8]),  # a desktop divides its 16 lanes
        ("rtx-3090", 4, "rtx-4090-threadripper", [16] * 4),
        ("rtx-3090", 8, "l40s-server", [16] * 8),  # four behind each of two switches
        ("rtx-4090", 2, "rtx-4090-2gpu", [8, 8]),  # which is shipped
        ("rtx-a6000", 4, "lambda-vector-a6000", [16] * 4),
        ("t4", 4, "gcp-t4", [16] * 4),
        ("l40s", 8, "l40s-server", [16] * 8),
    ],
)
def test_more_gpus_than_a_shipped_machine_has_are_composed(
    gpu: str, number: int, platform: str, lanes: list[int]
) -> None:
    """One to eight of a kind, in the machine of its class, with a price if its host has one."""
    parts = MachineParts(gpu=gpu, gpus=number)
    assert parts.platforms()[0] == platform
    base = default_scenario("qwen3-8b", platform)
    found = base.edited(*parts.edits(base))
    assert found.machine.accelerator.id == gpu
    wiring = found.platform().profile
    assert [wiring.switches[at].lanes if at in wiring.switches else 16 for at in wiring.gpus] == lanes
    assert found.scenario.strategy.gpus == number
    shipped = number <= len(base.platform().profile.gpus)
    assert bool(parts.assumed(base)) is not shipped
    bill = present(found, so.fit(found), load_costs())
    assert sum(item.number for item in bill.items if item.key == f"accelerator/{gpu}") == number


@pytest.mark.parametrize(("gpu", "lanes"), [("rtx-3090", 8), ("rtx-4060-ti-16gb", 8), ("rtx-5060-ti", 8)])
def test_two_cards_share_the_lanes_of_the_cpu(gpu: str, lanes: int) -> None:
    """16 lanes are 8 for each, which are all that the smaller cards have."""
    one, two = (question("qwen3-8b", gpu=gpu, gpus=number, program="llama.cpp") for number in (1, 2))
    switches = two.platform().profile.switches
    assert [switches[name].lanes for name in two.platform().profile.gpus] == [lanes, lanes]
    assert one.platform().gpu_pcie_link.lanes == (16 if gpu == "rtx-3090" else 8)


def test_what_is_assumed_of_a_composed_machine_is_said(program: Program) -> None:
    answer = program(
        "run", "qwen3-8b", "--gpu", "rtx-3090", "--gpus", "2", "--set", "strategy.kind=tensor_parallel"
    )
    assert answer.status == 0, answer.err
    text = " ".join(answer.out.split())
    assert "the machine is composed: rtx-3090-workstation with 2 x rtx-3090, each with 8 lanes" in text
    assert "its host (desktop-ddr4-64gb), slots, cooling and a power supply for all of them" in text
    for words, message in (
        (("--gpu", "gb10", "--gpus", "2"), "a gb10 is a machine of its own; several are several machines"),
        (("--gpu", "rtx-3090", "--gpus", "9"), "no shipped platform has 9 GPUs rtx-3090"),
        (
            ("--gpus", "3", "--set", "platform=rtx-3090-workstation"),
            "--gpus: rtx-3090-workstation does not take 3 GPUs; name the GPU without a platform",
        ),
    ):
        refused = program("run", "qwen3-8b", *words)
        assert (refused.status, message in refused.err) == (2, True), refused.err


ALONE = ("qwen3-8b", "--gpu", "rtx-4090", "--gpus", "0", "--set=workload.prompt_length=64")


def test_the_cpu_alone_has_no_cache_in_hbm_and_no_gpu_in_a_stream(program: Program) -> None:
    found = program("fit", *ALONE)
    assert "dram, int8" in found.out
    assert "hbm" not in found.out
    stream = program("stream", *ALONE, "--set=stream.num_prompts=4", "--set=stream.replications=1")
    assert stream.status == 0, stream.err
    assert " GPU" not in stream.out.splitlines()[0]
    wrong = program("run", "qwen3-8b", "--gpu", "rtx-4090", "--gpus", "-1")
    assert (wrong.status, '"-1" is not a whole number from 0' in wrong.err) == (2, True)
    many = program("run", "qwen3-8b", "--gpu", "rtx-4090", "--gpus", "1000000000")
    assert (many.status, '"1000000000" has more than 9 digits' in many.err) == (2, True)
    none = program("run", "qwen3-8b", "--gpu", "rtx-4090", "--memory", "0GB")
    assert (none.status, '--memory: must be above 0, got "0GB"' in none.err) == (2, True)


def test_with_no_gpus_the_cpu_computes_everything(program: Program) -> None:
    """The same as num_gpus: 0 under llama.cpp; GPUs are neither paid for nor proposed."""
    alone = json.loads(program("run", *ALONE, "--json").out)
    words = ("--gpu", "rtx-4090", *ALONE[-1:], "--set", "strategy={kind: llama_cpp, num_gpus: 0}")
    stated = json.loads(program("run", "qwen3-8b", *words, "--json").out)
    assert alone["metrics"] == stated["metrics"]
    used = json.loads(program("run", "qwen3-8b", "--gpu", "rtx-4090", ALONE[-1], "--json").out)
    assert used["metrics"]["tpot_s"] < alone["metrics"]["tpot_s"] / 4  # 1008 GB/s against 89.6
    assert {one["tier"] for one in alone["capacity"]} == {"dram"}
    paid, drawn = (
        {one["key"].partition("/")[0] for one in alone["economics"][part]} for part in ("bill", "power")
    )
    assert "host" in paid & drawn
    assert "accelerator" not in paid | drawn
    said = " ".join(program("run", *ALONE).out.split())
    assert "8 to 16 cores" in said
    assert "-dev none" in said
    assert "weights stored as q8_0 (answers change): 1." in said
    for wrong in ("second", "faster without", "per GPU"):
        assert wrong not in said


def test_a_server_without_its_gpus_has_one_sequence(program: Program) -> None:
    words = ("--set=platform=mi300x-8gpu", "--gpus=0", "--set=workload.prompt_length=64", "--json")
    data = json.loads(program("run", "qwen3-8b", *words).out)
    assert data["provenance"]["scenario"]["strategy"]["num_gpus"] == 0
    assert data["workload"]["batch_size"] == 1


def test_advice_without_a_gpu_needs_none(program: Program) -> None:
    answer = program("advise", *ALONE, "--json")
    assert answer.status == 0, answer.err
    found = json.loads(answer.out)
    assert found["options"]
    for one in found["options"]:
        strategy = next((each["value"] for each in one["changes"] if each["path"] == ["strategy"]), None)
        assert strategy is None or strategy["num_gpus"] == 0, one
        assert "GPU" not in one["description"], one


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--program", "vllm"), "--gpus: 0: only llama.cpp does inference on the CPU alone"),
        (("--set=workload.kind=training",), "--gpus: 0: no program does training on the CPU alone"),
        (("--set=strategy={kind: accelerate}",), "--gpus: 0: only llama.cpp does inference"),
        (("--set=strategy.gpu_layers=4",), "num_gpus is 0: no GPU has layers"),
    ],
)
def test_what_needs_a_gpu_is_refused_without_one(
    program: Program, words: tuple[str, ...], message: str
) -> None:
    answer = program("run", *ALONE[:-1], *words)
    assert answer.status == 2
    assert message in answer.err


@pytest.mark.parametrize("number", ["-1", "00", "0.0", "none"])
def test_a_number_of_gpus_is_a_whole_one(program: Program, number: str) -> None:
    answer = program("run", "qwen3-8b", "--gpu", "rtx-4090", f"--gpus={number}")
    assert answer.status == 2
    assert "is not a whole number" in answer.err


def test_without_a_gpu_a_machine_has_to_be_named(program: Program) -> None:
    answer = program("run", "qwen3-8b", "--gpus", "0")
    assert answer.status == 2
    assert "--set platform=FILE with what simoffload detect writes" in answer.err
