"""``profiles``, ``scenarios``, ``models`` and ``check``."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from simoffload.hardware import list_profiles
from simoffload.scenario import list_scenarios


def test_profiles_list(program) -> None:
    listed = json.loads(program("profiles", "list", "--json").out)["profiles"]
    assert len(listed) == len(list_profiles())
    assert [one["name"] for one in listed if one["id"] == "100gbe"] == ["Ethernet 100 Gb/s"]
    assert [one["id"] for one in listed if not one["numbers_from"]] == [], "of every profile"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "host dgx-h200-2tb",
            "on virtual machines with H200: host thread; on virtual machines with four H200: CPU Adam; …",
        ),
        ("host h200-1gpu-vm-host", "measured: host thread, CPU Adam, memory"),
        ("platform h100-1gpu-vm", "measured: host thread, CPU Adam, memory; data sheet: GPU"),
        ("platform gh200", "data sheet: GPU; estimate: host thread, CPU Adam, memory"),
        ("accelerator rtx-4090", "data sheet: memory; estimate: arithmetic"),
        ("drive samsung-980-pro-2tb", "data sheet: reads, writes; estimate: latency"),
        ("nic 100gbe", "estimate: rate, latency"),
        ("raid raid6-8x-7450-7.68tb", "estimate: reads, writes"),
        ("costs reference", "estimate: most prices"),
    ],
)
def test_profiles_list_says_what_was_measured_on_a_machine_of_the_kind(program, name: str, said: str) -> None:
    """No DGX was measured, but virtual machines with one of its GPUs were."""
    kind, identifier = name.split()
    text = program("profiles", "list", kind).out
    (below,) = re.findall(rf"^{kind} +{re.escape(identifier)} .*\n((?:    .*\n)+)", text, re.MULTILINE)
    numbers, more, _ = said.partition("…")
    found = " ".join(below.split())  # behind the rest of a long name
    assert numbers in found if more else found.endswith(said)
    listed = json.loads(program("profiles", "list", kind, "--json").out)["profiles"]
    (row,) = (one for one in listed if one["id"] == identifier)
    assert row["numbers_from"]


@pytest.mark.parametrize(
    "command",
    ["profiles list", "profiles show dgx-h100", "scenarios list", "models list", "models show deepseek-v3"],
)
def test_lists_are_80_columns_wide_and_cut_no_name(program, command: str) -> None:
    answer = program(*command.split())
    assert max(map(len, answer.out.splitlines())) <= 80
    assert "…" not in answer.out


def test_profiles_of_one_kind(program) -> None:
    lines = program("profiles", "list", "nfs").out.splitlines()
    assert {line.split()[0] for line in lines if not line.startswith(" ")} == {"KIND", "nfs"}


def test_profiles_show_every_number_with_its_origin(program) -> None:
    numbers = json.loads(program("profiles", "show", "samsung-pm1733-3.84tb", "--json").out)["numbers"]
    read = next(number for number in numbers if number["key"] == "read")
    assert all(read[part] for part in ("text", "origin", "source", "date"))
    shown = program("profiles", "show", "samsung-pm1733-3.84tb").out
    assert all(number["source"] in shown for number in numbers)


def test_profiles_show_the_spreads_that_a_profile_states(program) -> None:
    numbers = json.loads(program("profiles", "show", "dgx-h200-2tb", "--json").out)["numbers"]
    spreads = {number["key"]: number["spread"] for number in numbers}
    assert (spreads["host_factor"], spreads["memory_capacity"]) == ("0.31", "")
    lines = program("profiles", "show", "dgx-h200-2tb").out.splitlines()
    head = next(line for line in lines if line.startswith("KEY"))
    factor = next(line for line in lines if line.startswith("host_factor "))
    assert factor[head.index("SPREAD") :].startswith("0.31 ")


def test_a_platform_shows_what_it_is_made_of(program) -> None:
    numbers = json.loads(program("profiles", "show", "platform/dgx-a100", "--json").out)["numbers"]
    assert {"dgx-a100", "a100-40g-sxm", "ddn-ai400x2"} <= {number["profile"] for number in numbers}


def test_a_profile_by_its_file(program, repository: Path) -> None:
    path = repository / "hardware_profiles" / "drive" / "samsung-pm1733-3.84tb.yaml"
    by_id, by_file = (
        json.loads(program("profiles", "show", word, "--json").out)["numbers"]
        for word in ("samsung-pm1733-3.84tb", str(path))
    )
    assert by_id == by_file


def test_scenarios_list(program) -> None:
    listed = json.loads(program("scenarios", "list", "--json").out)["scenarios"]
    assert [one["name"] for one in listed] == list(list_scenarios())
    assert all(one["description"] for one in listed)


def test_models_of_a_year_and_their_order(program) -> None:
    def listed(*argv: str) -> list[dict[str, object]]:
        return json.loads(program("models", "list", "--json", *argv).out)["models"]

    every = listed()
    assert {one["name"] for one in every if one["year"] is None} == {"bloom-mod-1", "bloom-mod-2"}
    order = [(one["year"] or 0, one["num_parameters"]) for one in every]
    assert order == sorted(order, reverse=True)
    of_2024 = [one for one in every if one["year"] == 2024]
    assert listed("--year", "2024") == of_2024
    assert of_2024[0]["name"] == "deepseek-v3"
    sizes = [one["num_parameters"] for one in listed("--sort", "size")]
    assert sizes == sorted(sizes, reverse=True)
    names = [one["name"] for one in listed("--sort", "name", "--year", "2022")]
    assert names == sorted(names)
    row = next(line for line in program("models", "list").out.splitlines() if line.startswith("deepseek-v3 "))
    assert row.split()[1:4] == ["2024", "61", "671B"]


def test_a_year_without_models(program) -> None:
    answer = program("models", "list", "--year", "1999")
    assert answer.status == 2
    assert answer.err.startswith("error: --year: no listed model is of 1999; known: 2022, 2023, ")


def test_models(program) -> None:
    listed = json.loads(program("models", "list", "--json").out)["models"]
    sizes = {one["name"]: one["num_parameters"] for one in listed}
    assert sizes["bloom-7b1"] == 7_069_016_064
    shown = json.loads(program("models", "show", "bloom-7b1", "--json").out)
    assert sum(one["parameters"] * one["repeat"] for one in shown["modules"]) == sizes["bloom-7b1"]
    assert "self_attention.query_key_value" in program("models", "show", "bloom-7b1").out


def test_models_show_the_windows_of_layers(program) -> None:
    """Eight of 48 layers of Gemma 3 12B attend to all tokens before."""
    modules = json.loads(program("models", "show", "gemma-3-12b", "--json").out)["modules"]
    attend = [(one["repeat"], one.get("window")) for one in modules if one["kind"] == "attention"]
    assert attend == [(40, 1024), (8, None)]
    shown = program("models", "show", "gemma-3-12b").out
    assert {"attention, window", "1,024"} <= {cell.strip() for cell in re.split("  +|\n", shown)}
    assert shown.startswith("gemma-3-12b (gemma3_text), 11.8B: 11,766,034,176 parameters")


def test_a_model_by_its_config(program, tmp_path: Path) -> None:
    config = {"model_type": "bloom", "hidden_size": 64, "n_layer": 2, "n_head": 4, "vocab_size": 100}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert json.loads(program("models", "show", "config.json", "--json").out)["num_hidden_layers"] == 2
    status, out, _ = program("check", "config.json")
    assert (status, out.startswith("config.json: ok (model config: ")) == (0, True)
    assert ", bloom with 2 layers: 208 KiB (16 bits 208 KiB); all of it has room in " in out


@pytest.mark.parametrize("folder", ["hardware_profiles", "scenarios"])
def test_everything_shipped_passes(program, repository: Path, folder: str) -> None:
    files = sorted(map(str, (repository / folder).rglob("*.yaml")))
    answer = program("check", *files)
    # Some scenarios replay runs that did use DeepSpeed's own checkpoint function; one has its source's ratio.
    known = ["activation_checkpointing.cpu_checkpointing", "offload_optimizer.ratio 0.9 of 32"]
    # Four drives behind two ports, three behind a chipset, and two in slots of PCI Express 3.0, are faster.
    known += ["more than the 48 GB/s of 2 ports of hdr200", "more than the 13 GB/s of the cable of chipset"]
    known += [
        f"{one}.yaml: nvme: samsung-980-pro-2tb reads 7 GB/s"
        for one in ("rtx-2080-desktop", "titan-rtx-2gpu")
    ]
    # The model of a shipped scenario is larger than the memory of its machine.
    known += ["39.8 GB of files on nvme do not stay in the page cache"]
    # With more parts than key-value heads, vLLM keeps each head several times.
    known += ["qwen3-235b-a22b.yaml: each of 4 key-value heads is kept by 2 GPUs"]
    # A device map "auto" fills its GPUs.
    known += [
        f"{one}.yaml: hbm fits with"
        for one in ("serving/llama-3.1-70b", "serving/qwen3-235b-a22b", "accelerate/llama-3.1-70b")
    ]
    rendered = [line for line in answer.err.splitlines() if not any(text in line for text in known)]
    assert rendered == []
    assert answer.out.count(": ok (") == len(files)


def test_a_ds_config_is_recognized_and_warned_about(program, tmp_path: Path) -> None:
    config = {"zero_optimization": {"stage": 3}, "aio": {"thread_count": 8}}
    (tmp_path / "ds.json").write_text(json.dumps(config))
    answer = program("check", "ds.json")
    assert answer.out == "ds.json: ok (ds_config)\n"
    assert answer.err.startswith("warning: ds.json: ds_config aio.thread_count: 8 is ignored by DeepSpeed")
