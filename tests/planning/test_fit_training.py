"""What makes training fit on a small machine: ZeRO's stage, where states lie, adapters, and pairs of them."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

import simoffload
from simoffload.cli import main
from simoffload.planning.advise import advise
from simoffload.scenario import read_scenario
from simoffload.simulation import fit

STAGE = "strategy.ds_config.zero_optimization.stage"
LORA = "LoRA of rank 16 on all linear layers (trains adapters, not the model)"
QLORA = LORA.replace(" (trains", ", frozen weights in nf4 (QLoRA) (trains")
ADAPTERS = [LORA, QLORA, *(one.replace(" (trains", " under plain PEFT (trains") for one in (LORA, QLORA))]
EIGHT_B = """
name: 8b
model: llama-3.1-8b
platform: rtx-4090-desktop
workload: {kind: training, batch_size: 1, sequence_length: 2048, gradient_checkpointing: true}
profiles: {host/desktop-ddr5-128gb: {memory_capacity: 64 GB}}
strategy:
  kind: deepspeed
  ranks: 1
  weights: hbm
  optimizer: dram
  ds_config: {bf16: {enabled: true}, zero_optimization: {stage: 2, offload_optimizer: {device: cpu}}}
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "8b.yaml").write_text(EIGHT_B)
    monkeypatch.chdir(tmp_path)


def rendered(*overrides: str) -> dict[str, tuple[str, ...]]:
    found = simoffload.smallest_changes(read_scenario("8b.yaml", overrides=overrides))
    return {change.description: change.assignments for change in found}


def printed(text: str) -> list[list[str]]:
    """The options of each change, as a shell takes them from the screen."""
    lines = text.partition("each of these changes makes it fit")[2].partition("\nMemory")[0].splitlines()
    options: list[list[str]] = []
    for before, line in zip(["", *lines], lines, strict=False):
        if line.strip().startswith("--set"):
            options += [] if before.strip().startswith("--set") else [[]]
            options[-1] += shlex.split(line)
    return options


@pytest.mark.parametrize("stage", [1, 2])
def test_eight_billion_beside_64_gb_fit_in_stage_3_with_the_optimizer_on_the_drive(stage: int) -> None:
    found = rendered(f"{STAGE}={stage}")
    assert found["ZeRO stage 3, optimizer on nvme"] == (f"{STAGE}=3", "strategy.optimizer=nvme")
    assert list(found)[-4:] == ADAPTERS, "what trains something else comes last"
    assert found[QLORA] == ('strategy.lora={"r": 16}', 'model.quantization="nf4-dq"')
    assert not any("dram" in description for description in found), "it is where it lies already"


def test_what_is_printed_can_be_pasted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "8b.yaml"]) == 3
    options = printed(capsys.readouterr().out)
    assert len(options) == 6
    for one in options:
        assert main(["fit", "8b.yaml", *one]) == 0, one


def test_of_a_model_by_its_name_it_can_be_pasted_too(capsys: pytest.CaptureFixture[str]) -> None:
    name = ["fit", "llama-3.2-3b", "--set", "platform=rtx-4090-desktop"]
    name += ["--set", "workload={kind: training, batch_size: 1, sequence_length: 512}"]
    name += ["--set", "strategy={kind: deepspeed, weights: hbm, optimizer: hbm}"]
    assert main(name) == 3
    options = printed(capsys.readouterr().out)
    for one in options:
        assert main([*name, *one]) == 0, one


def test_where_no_pair_is_enough_without_buying_three_are_tried() -> None:
    small = ("model=llama-3.2-1b", "profiles.accelerator/rtx-4090.hbm_capacity=10 GiB")
    memory = "profiles.host/desktop-ddr5-128gb.memory_capacity=24 GB"
    found = rendered(f"{STAGE}=1", "workload.batch_size=8", *small, memory)
    description = "ZeRO stage 3, optimizer on nvme, batch 8 → 1 on each GPU, and sub_group_size "
    three = next(found[each] for each in found if each.startswith(description))
    assert three[:3] == (f"{STAGE}=3", "strategy.optimizer=nvme", "workload.batch_size=1")
    changed = [f"{STAGE}=1", "workload.batch_size=8", *small, memory, *three]
    assert fit(read_scenario("8b.yaml", overrides=changed)).fits
    assert not fit(read_scenario("8b.yaml", overrides=changed[:-1])).fits


def test_weights_go_to_a_drive_with_buffers_that_hold_the_largest() -> None:
    """32,000 x 5,120 elements of the embedding, where DeepSpeed's default is 1e8."""
    inference = "workload={batch_size: 1, prompt_length: 8, output_length: 2}"
    strategy = "strategy={weights: hbm}"
    found = rendered("model=llama-2-13b", inference, strategy)
    buffer = "strategy.ds_config.zero_optimization.offload_param.buffer_size=163840000"
    assert found["weights on nvme"] == ("strategy.weights=nvme", buffer)


def test_what_was_tried_in_vain_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    vain = [
        "--set=model=opt-125m",
        "--set=profiles.accelerator/rtx-4090.hbm_capacity=2 GiB",
        "--set=profiles.accelerator/rtx-4090.reserved=1900 MiB",
        "--set=profiles.host/desktop-ddr5-128gb.memory_capacity=9 GiB",
    ]
    assert main(["fit", "8b.yaml", *vain, "--json"]) == 3
    data = json.loads(capsys.readouterr().out)
    assert data["changes"] == []
    tried = (
        "optimizer on nvme",
        "weights on dram, optimizer on nvme",
        "ZeRO stage 3",
        LORA,
        "shorter sequences",
    )
    assert set(tried) <= set(data["changes_tried"])


def test_advice_says_the_same() -> None:
    description = {
        one.change.description: one.change.same_work for one in advise(read_scenario("8b.yaml")).helping
    }
    assert description["ZeRO stage 3, optimizer on nvme"]
    assert not description[LORA]


def test_from_host_memory_the_weights_go_to_the_gpu_and_the_optimizer_to_the_drive() -> None:
    found = rendered(f"{STAGE}=3", "strategy.weights=dram")
    assert found["weights on hbm, optimizer on nvme"] == ("strategy.weights=hbm", "strategy.optimizer=nvme")
    assert list(found)[-4:] == ADAPTERS
    assert found[QLORA][0] == "strategy.weights=hbm", "packed weights are not offloaded"


def test_beside_what_is_bought_something_free_is_told() -> None:
    """With longer sequences no single change is enough that costs nothing."""
    found = simoffload.smallest_changes(read_scenario("8b.yaml", overrides=["workload.batch_size=4"]))
    kinds = {change.kind for change in found}
    assert kinds - {"gpus", "machines", "capacity"}


def test_adapters_are_divided_under_fsdp() -> None:
    big = ("model=llama-3.1-70b", "platform=dgx-a100", "strategy.ranks=8", "workload.sequence_length=4096")
    text = {"profiles": None, "strategy.ds_config": '{"zero_optimization": {"stage": 2}}'}
    overrides = [*big, *(f"{key}={value or '{}'}" for key, value in text.items()), "strategy.optimizer=hbm"]
    found = rendered(*overrides)
    assert found[LORA.replace(" (trains", " under FSDP (trains")] == (
        'strategy={"kind": "fsdp", "ranks": 8, "lora": {"r": 16}}',
    )


def test_a_whole_copy_in_each_gpu_is_divided_first() -> None:
    overrides = ("platform=dgx-a100", 'strategy={"kind": "transformers", "ranks": 8}', "profiles={}")
    result = fit(read_scenario("8b.yaml", overrides=overrides))
    assert "set strategy.kind: deepspeed" in " ".join(result.advice)
    description, first = next(iter(rendered(*overrides).items()))
    assert description.startswith("ZeRO stage")
    assert first[0] == "strategy.kind=deepspeed"
