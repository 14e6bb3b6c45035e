"""``check``: files, standard input, and what is shipped by its name."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from tests.cli.test_training import SCENARIO


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ddn/bloom-7b1", "scenario"),
        ("training/bloom-7b1", "scenario"),
        ("checkpoint/mlperf-8b", "scenario"),
        ("dgx-a100", "profile"),
        ("drive/samsung-980-pro-2tb", "profile"),
        ("small.yaml", "scenario"),
    ],
)
def test_names_and_files_are_checked_alike(program, name: str, kind: str) -> None:
    assert program("check", name)[:2] == (0, f"{name}: ok ({kind})\n")


def test_a_config_of_any_name_is_read_as_python_writes_it(program, tmp_path: Path) -> None:
    """With numbers that JSON lacks, and longer than a scenario may be."""
    sizes = {"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "intermediate_size": 14336}
    sizes |= {"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256}
    text = json.dumps({**sizes, "limit": float("inf"), "text": "x" * 1_000_000})
    (tmp_path / "m_config.json").write_text(text)
    status, out, err = program("check", "m_config.json")
    assert (status, err) == (0, "")
    assert out.startswith("m_config.json: ok (model config: m, llama with 32 layers: ")
    (tmp_path / "s.json").write_text(json.dumps({"name": "s", "limit": float("inf")}))
    assert "limit: Infinity is not a number; write a finite one" in program("check", "s.json").err


def test_a_file_comes_before_what_is_shipped(program, tmp_path: Path) -> None:
    (tmp_path / "dgx-a100").write_text("")
    answer = program("check", "dgx-a100")
    assert answer.status == 2
    assert "the name of a document ends in .yaml" in answer.err


def test_a_file_that_names_no_program_is_checked_under_the_one_chosen(program, tmp_path: Path) -> None:
    whole = (tmp_path / "small.yaml").read_text()
    (tmp_path / "open.yaml").write_text(whole.partition("strategy:")[0])
    assert program("check", "open.yaml") == (0, "open.yaml: ok (scenario)\n", "")
    (tmp_path / "mixed.yaml").write_text(whole + "  cpu_offload_gb: 3\n")
    answer = program("check", "mixed.yaml")
    assert answer.status == 2
    assert "strategy: no program has ds_config, cpu_offload_gb together" in answer.err


def test_names_and_files_together(program) -> None:
    data = json.loads(program("check", "ddn/bloom-7b1", "small.yaml", "dgx-a100", "--json").out)
    assert [(one["file"], one["kind"]) for one in data["files"]] == [
        ("ddn/bloom-7b1", "scenario"),
        ("small.yaml", "scenario"),
        ("dgx-a100", "profile"),
    ]


def test_shipped_profiles_are_checked_by_id(program) -> None:
    assert program("profiles", "check", "dgx-a100") == (0, "dgx-a100: ok (profile)\n", "")
    answer = program("profiles", "check", "ddn/bloom-7b1")
    assert answer.status == 2
    assert answer.err.startswith("error: ddn/bloom-7b1: no such file, and no shipped profile of that name")


NOTE = "ds_config zero_optimization.contiguous_gradients: false is not modelled; gradients are copied into"
LEFT_OUT = SCENARIO.replace("{stage: 3,", "{stage: 3, contiguous_gradients: false,")


def test_what_is_not_modelled_is_told_by_run_and_check(program, tmp_path: Path) -> None:
    (tmp_path / "left.yaml").write_text(LEFT_OUT)
    checked = program("check", "left.yaml")
    assert checked.status == 0
    assert checked.err.startswith(f"warning: left.yaml: {NOTE}")
    (warning,) = json.loads(program("check", "left.yaml", "--json").out)["files"][0]["warnings"]
    assert warning.startswith(NOTE)
    run = program("run", "left.yaml", "--json")
    assert warning in json.loads(run.out)["warnings"]
    assert warning in " ".join(program("run", "left.yaml").out.split())


def test_what_is_not_modelled_of_checkpoints_is_told(program, tmp_path: Path) -> None:
    """The section of ds_config is read for the scenario's checkpoints only."""
    config = (
        "ds_config:\n    checkpoint: {use_node_local_storage: true, writer: {type: fast, io_multiplier: 4}}"
    )
    text = SCENARIO.replace("ds_config:", config)
    (tmp_path / "saves.yaml").write_text(f"{text}checkpoint: {{tier: raid}}\n")
    (tmp_path / "none.yaml").write_text(text)
    rendered = program("check", "saves.yaml").err.splitlines()
    assert [line.partition("ds_config ")[2] for line in rendered] == [
        "checkpoint.use_node_local_storage: true is not modelled",
        "checkpoint.writer.io_multiplier: 4 is not modelled",
    ]
    assert program("check", "none.yaml").err == ""


def test_a_ds_config_of_training_is_checked_as_one(program, tmp_path: Path) -> None:
    """Stage 2 and the optimizer's sections are fine, and a key at which DeepSpeed stops is an error."""
    config = {
        "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memroy": True}},
        "optimizer": {"type": "AdamW"},
    }
    (tmp_path / "ds.json").write_text(json.dumps(config))
    answer = program("check", "ds.json")
    assert answer.status == 2
    where = "ds.json:1:89: zero_optimization.offload_optimizer.pin_memroy"
    assert (
        answer.err == f'error: {where}: unknown key, at which DeepSpeed stops; did you mean "pin_memory"?\n'
    )


def test_standard_input_is_checked(program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(LEFT_OUT.encode())))
    answer = program("check", "-")
    assert answer.out == "-: ok (scenario)\n"
    assert NOTE in answer.err


def test_check_understands_equipment(program, tmp_path: Path) -> None:
    text = SCENARIO + "equipment: {tiers: {array: {profile: raid0-8x-pm1733-3.84tb, at: [plx0]}}}\n"
    (tmp_path / "equipped.yaml").write_text(text)
    assert program("check", "equipped.yaml").out == "equipped.yaml: ok (scenario)\n"
    (tmp_path / "equipped.yaml").write_text(text.replace("[plx0]", "[plx4]"))
    answer = program("check", "equipped.yaml")
    assert answer.status == 2
    assert answer.err.startswith(
        'error: equipped.yaml:10:67: equipment.tiers.array.at[0]: no vertex "plx4" (has: cpu,'
    )


@pytest.mark.parametrize("command", ["check", "fit", "run"])
def test_a_data_type_that_the_gpu_lacks_is_told_before_anything_is_simulated(
    program, command: str, tmp_path: Path
) -> None:
    """The default of gpt-oss is bfloat16, which a V100 does not have."""
    text = (tmp_path / "small.yaml").read_text().replace("bloom-560m", "gpt-oss-20b")
    (tmp_path / "old.yaml").write_text(text.replace("dgx-a100", "dgx-2"))
    answer = program(command, "old.yaml")
    assert answer.status == 2
    assert answer.err == (
        "error: old.yaml:2:8: model.dtype: v100-32g-sxm does not support bfloat16; write float16 or float32\n"
    )


def test_limits_hold_for_all_files_together_and_from_reading_on(program) -> None:
    answer = program("check", "small.yaml", "dgx-a100", "--timeout", "1 us")
    assert (answer.status, answer.out) == (1, "")
    assert answer.err.startswith("error: stopped by engine.timeout (--timeout) after 1e-06 s while ")
    assert program("profiles", "check", "dgx-a100", "--timeout", "1 us").status == 1
    assert program("check", "small.yaml", "dgx-a100", "--timeout", "1 min", "--memory-limit", "2 GiB") == (
        0,
        "small.yaml: ok (scenario)\ndgx-a100: ok (profile)\n",
        "",
    )
    answer = program("check", "small.yaml", "--memory-limit", "1 MiB")
    assert answer.status == 2
    assert "must be at least 256 MiB" in answer.err


def test_a_limit_of_the_command_line_replaces_that_of_the_file(program, tmp_path: Path) -> None:
    text = (tmp_path / "small.yaml").read_text()
    (tmp_path / "small.yaml").write_text(f"{text}engine: {{timeout: 1 us}}\n")
    assert program("check", "small.yaml").status == 1
    assert program("check", "small.yaml", "--timeout", "1 min").status == 0
