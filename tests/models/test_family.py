"""A family from outside of the package: written in this file, and known to every command once registered."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from simoffload.cli import main
from simoffload.errors import InputError
from simoffload.models import load_model
from simoffload.models.families import FAMILIES, FamilyConfig, register
from simoffload.models.families.base import Derived, Extent, ModuleLists
from simoffload.models.families.llama import Llama
from simoffload.models.modules import (
    Operations,
    SavedActivations,
    Traits,
    activation,
    attention,
    container,
    embedding,
    head,
    layer_norm,
    linear,
)
from simoffload.scenario import read_scenario
from simoffload.simulation import simulate
from tests.examples import one_in

TRAITS = Traits(
    architecture="ToyForCausalLM",
    attention="sdpa",
    operations=Operations(block=4, mlp=0, norm=1, activation=0, attention=12, eager=8, rotary=0, router=0),
    saved=SavedActivations(kept=1, product=True, masks=0, wide=2, narrow=1, scores=12),
    leaf_modules=(),
)


class Toy(FamilyConfig):
    """Attention whose one projection makes queries, keys and values; no positions."""

    family: ClassVar[str] = "toy"
    traits: ClassVar[Traits] = TRAITS
    spellings: ClassVar[dict[str, str]] = {"depth": "num_hidden_layers"}

    toy_width: Extent

    def derived(self) -> Derived:
        """Every head has its own keys."""
        heads = self.num_attention_heads
        return Derived(heads, self.hidden_size // heads, self.toy_width, None)

    def modules(self) -> ModuleLists:
        """Five modules with weights."""
        hidden, wide = self.hidden_size, self.toy_width
        layer = (
            container("ToyLayer", reads=4 * hidden, writes=2 * hidden, touched=1),
            layer_norm("norm", hidden),
            linear("mix", hidden, 3 * hidden, parallel="fused"),
            attention("attention", query_width=hidden),
            linear("out", hidden, hidden, parallel="row"),
            linear("up", hidden, wide, parallel="column"),
            activation("act", wide, reads=1, writes=1),
            linear("down", wide, hidden, parallel="row"),
        )
        before = (container("ToyForCausalLM"), embedding("words", self.vocab_size, hidden))
        after = (layer_norm("last", hidden), head(hidden, self.vocab_size))
        return ModuleLists(before, (layer,) * self.num_hidden_layers, after)


SIZES = {"hidden_size": 1024, "num_attention_heads": 16, "toy_width": 4096, "vocab_size": 32000}
LAYER = 12 * 1024**2 + 2 * 1024
INFERENCE = {
    "name": "toy",
    "model": {"family": "toy", "depth": 6, **SIZES},
    "platform": "dgx-a100",
    "workload": {"batch_size": 2, "prompt_length": 8, "output_length": 3},
    "strategy": {
        "ranks": 2,
        "weights": "raid",
        "ds_config": {"zero_optimization": {"offload_param": {"buffer_size": 4_000_000_000}}},
    },
}
TRAINING = {
    **INFERENCE,
    "name": "toy-training",
    "workload": {"kind": "training", "batch_size": 1, "sequence_length": 64},
    "strategy": {
        "kind": "deepspeed",
        "ranks": 2,
        "ds_config": {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}},
    },
}
Program = Callable[..., Any]


@pytest.fixture
def program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Program]:
    """The command line in a folder with two scenarios and a config.json of the family, which it knows."""
    monkeypatch.chdir(tmp_path)
    for name, scenario in (("toy", INFERENCE), ("training", TRAINING)):
        (tmp_path / f"{name}.json").write_text(json.dumps(scenario))
    config = {"model_type": "toy", "num_hidden_layers": 6, **SIZES}
    (tmp_path / "config.json").write_text(json.dumps(config))
    register(Toy)

    def run(*embedding_name: str) -> Any:
        status = main(embedding_name)
        out, error = capsys.readouterr()
        assert status == 0, (out, error)
        return json.loads(out) if "--json" in embedding_name else out

    yield run
    del FAMILIES["toy"]


GATED = {"intermediate_size": 2816, "num_key_value_heads": 4}
KEYS: dict[str, dict[str, Any]] = {
    "bloom": {},
    "opt": {"ffn_dim": 4096},
    "gpt_neox": {"intermediate_size": 4096},
    "falcon": {},
    **dict.fromkeys(("llama", "mixtral", "qwen2", "qwen3"), GATED),
    **{name: {**GATED, "sliding_window": 12} for name in ("mistral", "gemma2", "gemma3_text", "phi3")},
    "olmo2": GATED,
    **{name: {**GATED, "num_experts": 8} for name in ("phimoe", "gpt_oss", "llama4_text", "minimax_m2")},
    **{
        name: {**GATED, "num_experts": 8, "num_experts_per_tok": 4}
        for name in ("qwen2_moe", "qwen3_moe", "qwen3_next", "qwen3_5_moe_text")
    },
    "qwen3_5_text": GATED,
    "mimo": GATED,
    "mimo_v2_flash": {**GATED, "n_routed_experts": 8, "num_experts_per_tok": 4, "sliding_window": 12},
    "step3p7": {**GATED, "n_routed_experts": 8, "num_experts_per_tok": 4, "sliding_window": 12},
    "gemma4_text": {**GATED, "sliding_window": 12, "vocab_size_per_layer_input": 100},
    "nemotron_h": {"num_key_value_heads": 4, "layers_block_type": "M-M*ME"},
    "granitemoehybrid": {**GATED, "layers_block_type": "MM*MM*", "num_local_experts": 8, "mamba_n_heads": 16},
    "falcon_h1": {**GATED, "mamba_n_heads": 16},
    "minimax": {**GATED, "num_local_experts": 8},
    "jamba": {**GATED, "num_experts": 8, "attn_layer_period": 3, "attn_layer_offset": 1},
    "bailing_hybrid": {**GATED, "num_experts": 8, "layer_group_size": 3},
    "bamba": {**GATED, "attn_layer_indices": [2, 5], "mamba_n_heads": 16},
    "lfm2": {**GATED, "full_attn_idxs": [2, 5]},
    "lfm2_moe": {**GATED, "full_attn_idxs": [2, 5], "num_experts": 8, "num_experts_per_tok": 4},
    "nemotron_nas": {
        "num_attention_heads": 4,
        "block_configs": 2
        * [
            {"attention": {"n_heads_in_group": 2}, "ffn": {"ffn_mult": 2.0}},
            {"attention": {"no_op": True}, "ffn": {"intermediate_size": 64}},
            {"attention": {"replace_with_linear": True}, "ffn": {"no_op": True}},
        ],
    },
    "kimi_linear": {**GATED, "num_experts": 8, "num_experts_per_tok": 4},
    **{
        name: {**GATED, "n_routed_experts": 8, "num_experts_per_tok": 4, "first_k_dense_replace": 1}
        for name in ("deepseek_v2", "deepseek_v3", "kimi_k2", "glm4_moe")
    },
    **{
        name: {**GATED, "n_routed_experts": 8, "num_experts_per_tok": 4, "first_k_dense_replace": 1}
        for name in ("deepseek_v32", "glm_moe_dsa")
    },
    "minimax_m3": {"num_experts": 8, "num_experts_per_tok": 4, "moe_layer_freq": [0, 0, 1, 1, 1, 1]},
    **{name: {**GATED, "n_routed_experts": 8} for name in ("glm4_moe_lite", "mistral4")},
    "dots1": {**GATED, "n_routed_experts": 8, "num_experts_per_tok": 4, "max_window_layers": 3},
    **dict.fromkeys(("hunyuan_v1_dense", "smollm3", "ernie4_5", "seed_oss", "apertus"), GATED),
    "olmo3": {**GATED, "sliding_window": 12},
    **{name: {**GATED, "sliding_window": 12} for name in ("exaone4", "cohere2")},
    "glm4": GATED,
    "olmoe": {**GATED, "num_experts": 8, "num_experts_per_tok": 4},
    "hunyuan_v1_moe": {**GATED, "num_experts": 8, "num_experts_per_tok": 4},
    "exaone_moe": {**GATED, "num_experts": 8, "num_experts_per_tok": 4, "sliding_window": 12},
    "ernie4_5_moe": {**GATED, "num_experts": 8, "moe_k": 4},
    "deepseek_v4": {"head_dim": 64, "n_routed_experts": 8, "num_experts_per_tok": 4, "sliding_window": 12},
}
"""What a shape of each family needs beside the sizes that all have; windows end during generation."""
VERIFIED = dict.fromkeys(("rank_symmetry", "steady_state", "decode_extrapolation"), "verify")
"""With and without every shortcut; a difference is an error."""


@pytest.mark.parametrize(
    ("family", "scenario"),
    [
        *(pytest.param(name, INFERENCE, id=f"{name}-inference") for name in FAMILIES),
        *(pytest.param(name, TRAINING, id=f"{name}-training") for name in one_in(2, FAMILIES)),
    ],
)
def test_every_family_runs_with_and_without_shortcuts(
    family: str, scenario: dict[str, Any], tmp_path: Path
) -> None:
    sizes = {"num_hidden_layers": 6, **SIZES, **KEYS[family]}
    del sizes["toy_width"]
    path = tmp_path / "scenario.json"
    work = {**scenario["workload"], "output_length": 8} if scenario is INFERENCE else scenario["workload"]
    model = {"family": family, **sizes}
    path.write_text(json.dumps({**scenario, "model": model, "workload": work, "engine": VERIFIED}))
    if scenario is TRAINING and load_model(model).state_bytes:
        with pytest.raises(InputError, match="linear attention, of whose training neither time nor memory"):
            simulate(read_scenario(path))
        return
    result = simulate(read_scenario(path))
    assert result.fits


def test_decode_steps_grow_until_the_window_is_full(tmp_path: Path) -> None:
    """Eight layers of Mistral 7B v0.1 in HBM: keys of at most 4096 tokens; else they go on growing."""

    def times(window: int | None, tokens: str) -> tuple[float, float]:
        path = tmp_path / "long.json"
        model = {"name": "mistral-7b-v0.1", "num_hidden_layers": 8, "sliding_window": window}
        work = {"batch_size": 32, "prompt_length": 4000, "output_length": 300}
        path.write_text(
            json.dumps(
                {
                    "name": "long",
                    "model": model,
                    "platform": "dgx-a100",
                    "workload": work,
                    "strategy": {"kind": "transformers"},
                    "engine": {"decode_extrapolation": tokens},
                }
            )
        )
        metrics = simulate(read_scenario(path)).metrics()
        return metrics["tpot_s"], metrics["ttft_s"]

    bounded, first = times(4096, "verify")
    full, same = times(None, "on")
    assert first == same
    # 299 steps from 4001 keys on: 96 of them grow, the others move 4096 keys of each sequence, three times.
    shape = load_model({"name": "mistral-7b-v0.1", "num_hidden_layers": 8})
    kept = sum(min(4000 + step, 4096) for step in range(1, 300)) / 299
    more = sum(4000 + step for step in range(1, 300)) / 299 - kept
    moved = 3 * more * shape.kv_cache_bytes(batch=32, tokens=1)
    rate = read_scenario(tmp_path / "long.json").machine.accelerator.hbm_rate
    assert full - bounded == pytest.approx(moved / rate, rel=0.001)


def test_its_shape_from_a_scenario_and_from_a_file(program: Program) -> None:
    shape = load_model({"config": "config.json"})
    assert shape.num_parameters == 6 * LAYER + 2 * 32000 * 1024 + 2 * 1024
    assert load_model(INFERENCE["model"]).layers[0] == shape.layers[0]
    assert "ok" in program("check", "config.json", "toy.json", "training.json")


@pytest.mark.parametrize("name", ["toy.json", "training.json"])
def test_run_fit_and_compare(name: str, program: Program, tmp_path: Path) -> None:
    result = program("run", name, "--json", "--output-dir", "result")
    pages = {path.name for path in (tmp_path / "result").iterdir()}
    assert {"report.html", "report.md", "result.json"} <= pages
    assert result["metrics"]["e2e_s"] > 0 if name == "toy.json" else result["metrics"]["step_s"] > 0
    assert program("fit", name, "--json")["fits"]
    rows = program("compare", name, "--on", "dram,raid", "--json")
    weights = ["vllm"] if name == "toy.json" else []  # without offloading
    assert [one["label"] for one in rows["compared"]] == ["dram", "raid", *weights]


def test_advise(program: Program) -> None:
    assert program("advise", "toy.json", "--json")["options"]


def test_adapters_go_where_it_says(program: Program) -> None:
    lora = {"strategy.lora.r": 4, "strategy.lora.target_modules": "[mix]"}
    embedding_name = [word for key, value in lora.items() for word in ("--set", f"{key}={value}")]
    assert program("run", "training.json", "--json", *embedding_name)["metrics"]["step_s"] > 0


def test_sweep_in_processes_of_their_own(program: Program, tmp_path: Path) -> None:
    """A worker is a fresh interpreter, which imports this file to know the family."""
    axis = ("--axis", "workload.batch_size=1,2")
    program("sweep", "toy.json", *axis, "--workers", "2", "-o", "apart.csv")
    program("sweep", "toy.json", *axis, "--workers", "1", "-o", "here.csv")
    here, apart = ((tmp_path / f"{name}.csv").read_text().splitlines() for name in ("here", "apart"))
    assert len(here) == 3
    assert [line.split(",")[1] for line in here] == [line.split(",")[1] for line in apart]
    assert "error" not in "".join(apart[1:])


def test_schema_and_messages(program: Program) -> None:
    model = json.loads(program("schema", "scenario"))["$defs"]["ModelSpec"]["properties"]
    assert "toy" in model["family"]["anyOf"][0]["enum"]
    assert model["toy_width"]["description"] == "Key of a config.json of toy."
    with pytest.raises(InputError, match=r"supported: .*, toy; "):
        load_model({"family": "tooy", "toy_width": 5})


def test_another_family_of_that_name_is_refused(program: Program) -> None:  # noqa: ARG001
    class Another(Toy):
        family: ClassVar[str] = "toy"
        traits: ClassVar[Traits] = TRAITS

    assert register(Toy) is Toy
    with pytest.raises(ValueError, match="toy is already registered, as Toy"):
        register(Another)


def test_a_family_states_its_own_traits() -> None:
    """Not those of the family it derives from: the class itself is refused."""
    with pytest.raises(TypeError, match="the family of class Bare lacks traits"):

        class Bare(Llama):
            family: ClassVar[str] = "bare"

    with pytest.raises(TypeError, match="the family of class Nameless lacks family, traits"):

        class Nameless(Llama):
            pass

    with pytest.raises(TypeError, match="the family of class Shapeless lacks derived, modules"):

        class Shapeless(FamilyConfig):
            family: ClassVar[str] = "shapeless"
            traits: ClassVar[Traits] = TRAITS

    with pytest.raises(TypeError, match="missing 1 required positional argument: 'norm'"):
        Operations(block=1, mlp=1, activation=0, attention=1, eager=1, rotary=0, router=0)  # type: ignore[call-arg]
