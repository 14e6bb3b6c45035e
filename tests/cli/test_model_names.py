"""``simoffload run``, ``fit`` and ``compare`` with a model in place of a scenario."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simoffload.documents import parse_yaml
from simoffload.errors import InputError
from simoffload.scenario import read_scenario
from tests.cli.conftest import SCENARIO

pytestmark = pytest.mark.usefixtures("known")


def test_the_platform_stands_before_a_target(program) -> None:
    answer = program("compare", "bloom-560m", "--on", "dgx-a100:dram,raid,dgx-h100:raid", "--json")
    assert answer.status == 0
    labels = [row["label"] for row in json.loads(answer.out)["compared"]]
    assert [one for one in labels if "configured" not in one] == [
        *("dram", "raid", "dgx-h100:raid"),
        *("vllm", "dgx-h100:vllm"),
    ]


def test_it_holds_for_the_targets_before_it_too(program) -> None:
    answer = program("fit", "bloom-560m", "--on", "dram,dgx-a100:raid", "--json")
    assert [row["label"] for row in json.loads(answer.out)["compared"]] == ["dram", "raid"]


def test_what_is_set_is_in_the_answer(program) -> None:
    argv = ("--set", "platform=h100-2nvme", "--set", "workload.batch_size=4")
    answer = program("run", "bloom-560m", *argv, "--set", "workload.output_length=1")
    assert answer.status == 0
    assert answer.out.startswith("bloom-560m, float16 on 1 × NVIDIA H100 NVL 94 GB (h100-2nvme, ")
    assert "batch 4 × 1 GPU, 2,048 tokens in, 1 out, up to 8,192" in answer.out


def test_without_a_platform(program) -> None:
    answer = program("fit", "bloom-560m", "--on", "dram,raid")
    assert (answer.status, answer.out) == (2, "")
    assert answer.err.startswith(
        "error: bloom-560m: a model needs a machine: --gpu ID, such as --gpu rtx-4090 (simoffload profiles"
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
    assert "list: simoffload scenarios list, simoffload models list; name any other model by" in answer.err


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


def _config(folder: str) -> str:
    file = Path(folder, "config.json")
    file.parent.mkdir(parents=True)
    file.write_text(
        '{"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 256, "intermediate_size": 512, '
        '"num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 1000, '
        '"max_position_embeddings": 2048, "torch_dtype": "bfloat16"}'
    )
    return str(file)


def test_a_config_json_stands_wherever_a_name_does(program) -> None:
    file, other = _config("Tiny-1B"), _config("Small-2B")
    machine = ("--set", "platform=dgx-h100", "--json")
    for argv in ((file,), ("Tiny-1B/",), ("--model", file), ("qwen3-0.6b", "--model", file)):
        found = json.loads(program("fit", *argv, *machine).out)
        assert (found["model"]["name"], found["name"]) == ("Tiny-1B", "Tiny-1B"), argv
    found = json.loads(program("fit", file, *machine, "--set", "model.quantization=q4_k_m").out)
    assert found["model"]["name"] == "Tiny-1B, q4_k_m"
    compared = json.loads(program("compare", "--models", f"{file},{other},qwen3:0.6b", *machine).out)
    names = [row["result"]["model"]["name"] for row in compared["compared"]]
    assert names == ["Tiny-1B", "Small-2B", "qwen3-0.6b, q4_k_m"]
    assert program("models", "show", file).out.startswith("Tiny-1B (llama)")
    with pytest.raises(InputError, match="is a model, not a scenario; question"):
        read_scenario(file)


def test_a_folder_needs_no_slash_and_takes_a_form(program) -> None:
    _config("Tiny-1B")
    machine = ("--set", "platform=dgx-h100", "--json")
    for text in ("Tiny-1B:q4_k_m", "./Tiny-1B:Q4_K_M", "Tiny-1B/config.json:q4"):
        for argv in ((text,), ("qwen3-0.6b", "--model", text)):
            assert json.loads(program("fit", *argv, *machine).out)["model"]["name"] == "Tiny-1B, q4_k_m", argv
    assert json.loads(program("fit", "Tiny-1B", *machine).out)["model"]["name"] == "Tiny-1B"
    assert program("check", "Tiny-1B").out.startswith("Tiny-1B: ok (model config: Tiny-1B, llama")


def test_a_scenario_in_json_is_no_model(program) -> None:
    Path("s.json").write_text(json.dumps(parse_yaml(SCENARIO, name="s.yaml").data))
    assert json.loads(program("fit", "s.json", "--json").out)["model"]["name"] == "bloom-560m"


def test_another_model_keeps_the_form_that_its_name_says(program) -> None:
    stated = ("--set", "model.quantization=int4-g128", "--set", "platform=dgx-h100", "--json")
    argv = ("qwen3-0.6b", "--models", "qwen3-1.7b,Qwen/Qwen3-4B-FP8")
    names = [
        row["result"]["model"]["name"]
        for row in json.loads(program("compare", *argv, *stated).out)["compared"]
    ]
    assert names == ["qwen3-0.6b, int4-g128", "qwen3-1.7b, int4-g128", "qwen3-4b, fp8"]


def test_a_scenario_may_have_a_tag_of_ollama(program) -> None:
    Path("s.yaml").write_text(SCENARIO.replace("bloom-560m", "qwen3:0.6b-q8_0"))
    assert json.loads(program("fit", "s.yaml", "--json").out)["model"]["name"] == "qwen3-0.6b, q8_0"


def test_a_form_that_is_not_known_gets_one_message(program) -> None:
    answer = program("run", "Qwen3-8B-exl2", "--gpu", "rtx-4090")
    assert (answer.status, answer.err.count("error:")) == (2, 1)
    assert "is qwen3-8b, but its weights are in exl2" in answer.err
    assert "write qwen3-8b:q4_k_m or the path of its config.json" in answer.err


def test_room_for_more_tokens_is_an_option(program) -> None:
    gpu = ("--gpu", "rtx-4090", "--set", "strategy.kind=transformers", "--set", "workload.output_length=1")
    found = json.loads(program("run", "qwen3-8b", *gpu, "--context", "8192", "--json").out)
    assert found["workload"]["context"] == 8192
    answer = program("run", "qwen3-8b", *gpu, "--context", "8192")
    assert "tokens in, 1 out, room for 8,192" in answer.out
    assert not json.loads(program("fit", "qwen3-8b", *gpu, "--context", "100000", "--json").out)["fits"]


def test_a_context_below_prompt_and_output_gets_one_message(program) -> None:
    work = ("--set", "workload.prompt_length=512", "--set", "workload.output_length=32")
    for source in ("qwen3-8b", "serving/gpt-oss-120b"):
        answer = program("run", source, "--gpu", "h100-sxm", *work, "--context", "400")
        assert answer.status == 2
        assert answer.err.splitlines()[-1] == (
            "error: --context: 400 tokens have no room for 512 in and 32 out; give at least 544, or lower "
            "workload.prompt_length or output_length"
        )
