"""A machine by its parts: --gpu, --gpus, --memory, --drive and --model, without a file."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import Program

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
    assert [row["label"] for row in rows] == list(OFFERS)
    alone = [program("run", "llama-3.1-405b", *words, "--drive", OFFERS[2], "--on", "pfs")]
    assert json.loads(alone[0].out)["metrics"]["tpot_s"] == rows[2]["result"]["metrics"]["tpot_s"]
    text = program("compare", "llama-3.1-405b", *words[:-1], "--drive", ",".join(OFFERS)).out
    assert "\nVerdict: 8xmicron-9550-pro-7.68tb gives 0.376 tokens/s of all 8 sequences (" in text
    assert "ddn-ai400x2 is as fast within the uncertainty but costs 2.5 times as much" in " ".join(
        text.split()
    )


def test_offers_hold_the_optimizer_of_training(program: Program) -> None:
    words = ("--gpu", "h100-sxm", "--gpus", "8", "--set", "workload.kind=training", "--json")
    answer = program("compare", "llama-3.1-8b", *words, "--drive", ",".join(OFFERS[:2]))
    assert answer.status == 0, answer.err
    assert [row["result"]["optimizer_target"] for row in json.loads(answer.out)["compared"]] == [
        "raid",
        "raid",
    ]


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
