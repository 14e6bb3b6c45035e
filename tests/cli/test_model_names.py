"""``simoffload run``, ``fit`` and ``compare`` with a model in place of a scenario."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import SCENARIO

NOTE = (
    "bloom-560m is a model; simulated with batch 1 per GPU, 512 tokens in, 32 out, on 8 GPUs of dgx-a100; "
    "change this with --set"
)


def test_the_platform_stands_before_a_target(program) -> None:
    answer = program("compare", "bloom-560m", "--on", "dgx-a100:dram,raid,dgx-h100:raid", "--json")
    assert answer.status == 0
    assert answer.err.splitlines()[0] == NOTE
    labels = [row["label"] for row in json.loads(answer.out)["compared"]]
    offloaded, together = ["dram", "raid", "dgx-h100:raid"], ["vllm", "dgx-h100:tensor_parallel"]
    assert labels == [*offloaded, *together]


def test_it_holds_for_the_targets_before_it_too(program) -> None:
    answer = program("fit", "bloom-560m", "--on", "dram,dgx-a100:raid", "--json")
    assert [row["label"] for row in json.loads(answer.out)["compared"]] == ["dram", "raid"]


def test_what_is_set_is_in_the_note(program) -> None:
    argv = (
        "--set",
        "platform=h100-2nvme",
        "--set",
        "workload.batch_size=4",
        "--set",
        "workload.output_length=1",
    )
    answer = program("run", "bloom-560m", *argv)
    assert answer.status == 0
    assert answer.err.startswith(
        "bloom-560m is a model; simulated with batch 4 per GPU, 512 tokens in, 1 out, on 1 GPU of h100"
    )
    assert "batch 4 × 1 GPU" in answer.out


def test_without_a_platform(program) -> None:
    answer = program("fit", "bloom-560m", "--on", "dram,raid")
    assert (answer.status, answer.out) == (2, "")
    assert answer.err.startswith(
        "error: bloom-560m: a model needs a platform: --set platform=PLATFORM, or --on PLATFORM:TIER,… of"
    )


def test_a_misspelt_model(program) -> None:
    answer = program("fit", "lama-3.1-8b", "--on", "dgx-a100:dram")
    assert (answer.status, answer.out) == (2, "")
    assert 'no shipped scenario or model of that name; did you mean "llama-3.1-8b"?' in answer.err


def test_ids_of_the_hub_and_other_spellings(program) -> None:
    answer = program("fit", "Qwen/Qwen3-0.6B", "--set", "platform=DGX_H100", "--json")
    found = json.loads(answer.out)
    assert (found["model"]["name"], found["platform"]) == ("qwen3-0.6b", "dgx-h100")


def test_what_several_names_begin_with(program) -> None:
    answer = program("fit", "qwen3", "--set", "platform=dgx-h100")
    assert answer.status == 2
    assert '"qwen3" may be qwen3-0.6b, qwen3-1.7b' in answer.err


def test_a_mistake_in_the_name_of_a_shipped_scenario_is_no_model(program) -> None:
    answer = program("fit", "ddn/bloom-1b1", "--set", "platform=dgx-h100")
    assert 'did you mean "ddn/bloom-7b1"?' in answer.err


def test_a_name_like_no_other_gets_the_lists(program) -> None:
    answer = program("run", "nosuch")
    assert answer.err.endswith("list: simoffload scenarios list, simoffload models list\n")


def test_an_override_reaches_into_a_model_that_is_a_name(program) -> None:
    argv = ("--set", "platform=dgx-h100", "--set", "model.quantization=fp8", "--json")
    found = json.loads(program("fit", "qwen3-0.6b", *argv).out)
    assert found["model"]["name"] == "qwen3-0.6b, fp8"


def test_a_file_of_that_name_comes_first(program) -> None:
    Path("opt-13b").write_text(SCENARIO)
    answer = program("fit", "opt-13b", "--set", "platform=dgx-a100")
    assert (answer.status, answer.out) == (2, "")
    assert "the name of a document ends in .yaml" in answer.err


def test_a_checkpoints_folder_of_that_name_does_not(program) -> None:
    Path("bloom-560m").mkdir()
    assert program("fit", "bloom-560m", "--on", "dgx-a100:dram").status == 0
