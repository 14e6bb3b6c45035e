"""Speculative decoding: what a step yields, what it costs, what it holds, and who has it."""

from __future__ import annotations

import json
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import Any

import pytest

from simoffload.errors import InputError
from simoffload.models import load_model, module_cost
from simoffload.results import InferenceResult
from simoffload.scenario import LoadedScenario, default_scenario, read_scenario
from simoffload.simulation import simulate
from simoffload.strategies.plan import InferencePlan
from simoffload.workload import Inference, Speculation

OUTPUT = 65
PROGRAMS = {
    "vllm": ("h100-1gpu-vm", ()),
    "vllm offloading": ("h100-1gpu-vm", ("strategy.cpu_offload_gb=8",)),
    "llama_cpp": ("rtx-4090-desktop", ("model.quantization=q8_0", "strategy.cpu_ffn=8")),
    "transformers": ("h100-1gpu-vm", ()),
    "deepspeed": ("h100-1gpu-vm", ()),
    "accelerate": ("h100-1gpu-vm", ()),
    "gpt_fast": ("h100-1gpu-vm", ()),
}


def scenario(program: str, *sets: str, model: str = "llama-3.1-8b") -> LoadedScenario:
    platform, own = PROGRAMS[program]
    work = f"workload={{kind: inference, batch_size: 1, prompt_length: 512, output_length: {OUTPUT}}}"
    kind = program.partition(" ")[0]
    return default_scenario(model, platform, overrides=(work, f"strategy.kind={kind}", *own, *sets))


def proposing(count: int, accepted: str = "acceptance=0.7", method: str = "ngram") -> tuple[str, ...]:
    key = "workload.speculation"
    more = (f"{key}.method={method}",) if method else ()
    return (f"{key}.num_speculative_tokens={count}", f"{key}.{accepted}", *more)


def with_draft(count: int, accepted: str = "acceptance=0.7") -> tuple[str, ...]:
    return (*proposing(count, accepted, ""), "model.draft_model=llama-3.2-1b")


def simulated(one: LoadedScenario) -> InferenceResult:
    result = simulate(one)
    assert isinstance(result, InferenceResult)
    return result


def plan_of(one: LoadedScenario) -> InferencePlan:
    plan = one.plan()
    assert isinstance(plan, InferencePlan)
    return plan


# -- what a step yields ----------------------------------------------------------------------------


def test_a_share_of_accepted_tokens_yields_what_leviathan_et_al_expect() -> None:
    """arXiv 2211.17192, equation 1, and their values for 0.8 and 5 tokens: 3.69."""
    for share in (0.0, 0.25, 0.8):
        for count in (1, 3, 5):
            found = Speculation(num_speculative_tokens=count, acceptance=share).tokens_per_step
            assert found == pytest.approx((1 - share ** (count + 1)) / (1 - share))
    assert Speculation(num_speculative_tokens=5, acceptance=0.8).tokens_per_step == pytest.approx(
        3.689, abs=1e-3
    )


def test_shares_by_position_and_lengths_are_those_that_vllm_logs() -> None:
    listed = Speculation(num_speculative_tokens=3, acceptance=(0.8, 0.6, 0.3))
    assert listed.tokens_per_step == pytest.approx(2.7)
    assert Speculation(num_speculative_tokens=3, acceptance_length=2.7).tokens_per_step == 2.7


@pytest.mark.parametrize("share", [0.0, 0.3, 0.7, 1.0])
def test_no_more_tokens_are_counted_than_asked_for(share: float) -> None:
    asked = Speculation(num_speculative_tokens=3, acceptance=share)
    work = Inference(batch_size=1, prompt_length=10, output_length=50, speculation=asked)
    assert work.decode_steps == ceil(49 / asked.tokens_per_step)
    contexts = [work.context_at(step) for step in range(1, work.decode_steps + 1)]
    assert contexts[0] == 10 + 1 + 3
    assert contexts[-1] <= work.max_context == 10 + 49 + 3
    assert all(earlier < later for earlier, later in pairwise(contexts))


# -- laws ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("program", PROGRAMS)
def test_nothing_accepted_costs_time_and_yields_nothing(program: str) -> None:
    if program == "gpt_fast":
        plain, vain = scenario(program), scenario(program, *with_draft(3, "acceptance=0"))
    else:
        plain, vain = scenario(program), scenario(program, *proposing(3, "acceptance=0"))
    before, after = simulated(plain), simulated(vain)
    assert after.decode_steps == before.decode_steps == OUTPUT - 1
    assert before.tokens_per_s is not None
    assert after.tokens_per_s is not None
    assert after.tokens_per_s < before.tokens_per_s


@pytest.mark.parametrize("program", [one for one in PROGRAMS if one != "gpt_fast"])
def test_a_free_draft_of_accepted_tokens_takes_fewer_steps_by_as_many(program: str) -> None:
    result = simulated(scenario(program, *proposing(3, "acceptance=1")))
    assert result.decode_steps == (OUTPUT - 1) // 4
    assert result.draft_s == 0.0
    assert result.tokens_per_step == 4


@pytest.mark.parametrize("program", PROGRAMS)
def test_verification_takes_longer_with_each_token(program: str) -> None:
    """Measured tables of kernels are not quite monotone: 4 rows of a product took 0.6 % more than 6."""
    table = 0.99 if program.startswith("vllm") or program == "gpt_fast" else 1
    times = []
    for count in (1, 2, 4, 8, 16):
        found = simulated(scenario(program, *with_draft(count, "acceptance=0")))
        times.append((found.verify_s or 0.0, found.draft_s or 0.0))
    for earlier, later in pairwise(times):
        assert later[0] >= table * earlier[0]
        assert later[1] > earlier[1]


def test_steps_that_stream_weights_take_as_long_for_several_tokens() -> None:
    """From host memory over the link, 8B of weights take some 100 times as long as the work on them."""
    plain, more = simulated(scenario("deepspeed")), simulated(scenario("deepspeed", *proposing(4)))
    assert plain.tpot_s is not None
    assert more.verify_s == pytest.approx(plain.tpot_s, rel=0.01)
    assert more.tpot_s == pytest.approx(plain.tpot_s / (more.tokens_per_step or 1), rel=0.05)


# -- the parts of a step ---------------------------------------------------------------------------


def test_a_draft_model_takes_as_long_as_its_own_steps() -> None:
    """Eager code: the passes of the draft are decode steps of it alone."""
    alone = simulated(scenario("transformers", model="llama-3.2-1b"))
    found = simulated(scenario("transformers", *with_draft(4)))
    assert alone.tpot_s is not None
    assert found.draft_s == pytest.approx(4 * alone.tpot_s, rel=0.01)
    assert found.tpot_s is not None
    steps = found.decode_steps * ((found.draft_s or 0.0) + (found.verify_s or 0.0))
    assert found.tpot_s * (OUTPUT - 1) == pytest.approx(steps)


def test_all_verified_tokens_have_logits() -> None:
    plan = plan_of(scenario("vllm", *proposing(3)))
    (one,) = plan.decode_step(1).batch
    assert (one.new_tokens, one.context, one.scored) == (4, 512 + 4, 4)
    head = plan.model.modules_after[-1]
    assert head.last_only
    timing = plan.timings.timing((one,))
    each = module_cost(plan.model, head, batch=4, new_tokens=1, context=1)
    assert timing.cost(head).flops == each.flops


def test_vllm_feeds_its_draft_all_verified_tokens_first() -> None:
    plan = plan_of(scenario("vllm", *with_draft(3)))
    passes = [(batch[0].new_tokens, times) for batch, times in plan.drafts(plan.decode_step(1).batch)]
    assert passes == [(4, 1), (1, 2)]
    plan = plan_of(scenario("accelerate", *with_draft(3)))
    passes = [(batch[0].new_tokens, times) for batch, times in plan.drafts(plan.decode_step(1).batch)]
    assert passes == [(1, 3)]


# -- memory ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("program", ["transformers", "accelerate", "deepspeed", "llama_cpp"])
def test_the_draft_holds_its_weights_and_a_cache(program: str) -> None:
    form = ":q8_0" if program == "llama_cpp" else ""
    sets = (*proposing(3, method=""), f"model.draft_model=llama-3.2-1b{form}")
    plan = plan_of(scenario(program, *sets))
    draft = [(one.name, one.size) for one in plan.held if one.name.startswith("draft: ")]
    assert plan.drafting is not None
    weights = plan.drafting.model.weight_bytes
    tokens = 512 + OUTPUT - 1
    cache = 16 * tokens * 2 * 8 * 64 * 2
    if program == "llama_cpp":  # 256 tokens at a time, and a copy of the tied embeddings as the head
        cache = 16 * 768 * 2 * 8 * 64 * 2
        weights = sum(one.size for one in plan.drafting.held if one.kind == "weights")
    assert sum(size for name, size in draft if name == "draft: weights") == weights
    assert sum(size for name, size in draft if name == "draft: key-value cache") == cache


def test_states_are_kept_after_each_proposed_token() -> None:
    """A recurrent layer forgets what it had before: of two tokens of eight sequences 16 more states."""
    sets = (
        *proposing(2, method="mtp"),
        "workload.batch_size=8",
        "strategy.tensor_parallel_size=2",
        "platform=dgx-h200",
    )
    plan = plan_of(scenario("vllm", *sets, model="qwen3-next-80b-a3b"))
    held = {one.name: one.size for one in plan.held}
    assert held["states of proposed tokens"] == 8 * 2 * plan.fullest.state_bytes > 0
    assert "states of proposed tokens" not in {
        one.name for one in plan_of(scenario("vllm", *proposing(2))).held
    }


def test_blocks_of_vllm_have_the_rows_of_a_draft_too() -> None:
    before, after = plan_of(scenario("vllm")), plan_of(scenario("vllm", *with_draft(3)))
    assert before.serving_limits is not None
    assert after.serving_limits is not None
    row, more = 32 * 2 * 8 * 128 * 2, 16 * 2 * 8 * 64 * 2
    weights = load_model("llama-3.2-1b").weight_bytes
    room = before.serving_limits.blocks * 16 * row - weights
    assert after.serving_limits.blocks == pytest.approx(room / (16 * (row + more)), rel=1e-3)


# -- modules that predict further tokens -----------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "parameters"),
    [
        ("deepseek-v3", 11_610_067_968),
        ("glm-4.5-air", 2_375_059_456),
        ("qwen3-next-80b-a3b", 1_650_471_424),
    ],
)
def test_the_modules_are_those_of_hugging_face(model: str, parameters: int) -> None:
    """Parameters that ``MtpModel`` of transformers 5.23.0 has of its own on the meta device, and for
    Qwen3-Next those of ``mtp.*`` in its checkpoint."""
    shape = load_model(model)
    assert shape.mtp is not None
    assert len(shape.predictors) == 1
    assert shape.mtp.num_parameters == parameters
    assert shape.num_parameters == load_model({"name": model, "num_nextn_predict_layers": 0}).num_parameters


@pytest.mark.parametrize("key", ["num_nextn_predict_layers", "mtp_num_hidden_layers"])
def test_their_number_has_several_names(key: str) -> None:
    assert len(load_model({"name": "glm-4.5-air", key: 3}).predictors) == 3
    assert load_model({"name": "llama-3.1-8b"}).mtp is None


def test_a_module_reads_its_own_layer_and_the_models_head() -> None:
    sets = (*proposing(1, method="mtp"), "strategy.tensor_parallel_size=1")
    plan = plan_of(scenario("vllm", *sets, model="glm-4.5-air:fp8"))
    assert plan.drafting is not None
    names = [one.name for one in plan.drafting.model.distinct_modules if one.parameters]
    assert {"enorm", "hnorm", "eh_proj", "lm_head", "mlp.experts"} <= set(names)
    held = {one.name: one.size for one in plan.held}
    assert held["draft: weights"] == plan.drafting.model.weight_bytes < 0.03 * held["weights"]


# -- commands, and refusals ------------------------------------------------------------------------


def command(one: LoadedScenario) -> str:
    return "".join(map(str, one.exports().values()))


def test_the_commands_have_the_options_of_both_programs() -> None:
    text = command(scenario("vllm", *with_draft(3)))
    config = json.loads(text.partition("--speculative-config '")[2].partition("'")[0])
    assert config == {"method": "draft_model", "num_speculative_tokens": 3, "model": "llama-3.2-1b"}
    text = command(scenario("llama_cpp", *with_draft(3), "model.draft_model=llama-3.2-1b:q8_0"))
    assert "--spec-type draft-simple -md llama-3.2-1b-Q8_0.gguf --spec-draft-n-max 3" in text
    text = command(scenario("llama_cpp", *with_draft(3), "strategy.gpu_layers_draft=4"))
    assert "-ngld 4" in text
    assert "--spec-type ngram-mod --spec-ngram-mod-n-max 8" in command(scenario("llama_cpp", *proposing(8)))


SPECULATION = "workload.speculation={num_speculative_tokens: 3, %s}"


@pytest.mark.parametrize(
    ("program", "sets", "text"),
    [
        ("vllm", (SPECULATION % "acceptance: 1.5",), "acceptance"),
        ("vllm", (SPECULATION % "acceptance: -0.1",), "acceptance"),
        ("vllm", (SPECULATION % "acceptance_length: 4.5",), "more than a step can yield"),
        ("vllm", (SPECULATION % "acceptance_length: 0.5",), "acceptance_length"),
        ("vllm", (SPECULATION % "acceptance: [0.5, 0.4]",), "lists 2 positions"),
        ("vllm", (SPECULATION % "acceptance: [0.5, 0.6, 0.1]",), "rises"),
        ("vllm", (SPECULATION % "acceptance: 0.5, acceptance_length: 2",), "give one of"),
        ("vllm", (SPECULATION % "method: ngram",), "give one of"),
        ("vllm", ("workload.speculation={num_speculative_tokens: 0, acceptance: 1}",), "num_speculative"),
        ("vllm", (SPECULATION % "acceptance: 0.5",), "has no module that predicts further tokens"),
        ("vllm", proposing(3, method="draft_model"), "name it in model.draft_model"),
        ("vllm", (*proposing(3), "model.draft_model=llama-3.2-1b"), "not used by method ngram"),
        ("vllm", ("model.draft_model=llama-3.2-1b",), "add one, or remove it"),
        ("vllm", (*with_draft(3), "model.draft_model=qwen2.5-0.5b"), "151,936 tokens in its vocabulary"),
        ("vllm", (*with_draft(3), "model.draft_model=llama-9"), "llama-9"),
        ("accelerate", proposing(3, method="mtp"), "has no method mtp"),
        ("gpt_fast", proposing(3), "gpt-fast has no method ngram"),
        ("transformers", (*proposing(3), "workload.batch_size=2"), "one sequence at a time"),
    ],
)
def test_what_cannot_be_is_refused(program: str, sets: tuple[str, ...], text: str) -> None:
    with pytest.raises(InputError, match=text):
        scenario(program, *sets).plan()


def test_transformers_cannot_take_back_what_recurrent_layers_have_seen() -> None:
    with pytest.raises(InputError, match="recurrent layers of qwen3-next"):
        scenario("transformers", *proposing(2), model="qwen3-next-80b-a3b").plan()


def test_programs_without_it_name_those_that_have_it() -> None:
    sets: tuple[Any, ...] = ("strategy.kind=flexgen", *proposing(3))
    with pytest.raises(InputError, match=r"has no speculative decoding.*llama_cpp.*vllm"):
        scenario("transformers", *sets, model="opt-6.7b").plan()


def test_a_draft_of_a_file_counts_by_its_content(tmp_path: Path) -> None:
    """Two drafts of one path in two folders are two models, for the shape as for the key of results."""
    found = []
    for layers in (2, 4):
        folder = tmp_path / str(layers)
        folder.mkdir()
        config = {"model_type": "llama", **SMALL, "num_hidden_layers": layers}
        (folder / "head.json").write_text(json.dumps(config))
        text = (
            "name: n\nmodel: {name: llama-3.1-8b, draft_model: {config: head.json}}\nplatform: h100-1gpu-vm\n"
            "strategy: {kind: vllm}\nworkload: {kind: inference, batch_size: 1, prompt_length: 9, "
            "output_length: 9, speculation: {num_speculative_tokens: 2, acceptance_length: 2}}\n"
        )
        (folder / "s.yaml").write_text(text)
        found.append(read_scenario(folder / "s.yaml"))
    sizes = [one.model.draft_model.num_hidden_layers for one in found if one.model.draft_model]
    assert sizes == [2, 4]
    keys = [one.cache.cache_key(one.document.data, root=one.document.root) for one in found]
    assert keys[0] != keys[1]


SMALL = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}


@pytest.mark.parametrize("program", ["vllm", "llama_cpp", "transformers", "deepspeed", "accelerate"])
def test_only_commands_that_have_it_are_exported(program: str) -> None:
    found = command(scenario(program, *proposing(2)))
    assert ("ngram" in found) == (program in ("vllm", "llama_cpp"))
    assert bool(found) == (program in ("vllm", "llama_cpp"))


@pytest.mark.parametrize("program", ["vllm", "llama_cpp", "deepspeed"])
def test_a_few_steps_stand_for_all(program: str) -> None:
    """Times of decode steps that are not simulated follow from others exactly, or within their bound."""
    sets = (*with_draft(3), 'engine.decode_extrapolation="verify"')
    assert simulated(scenario(program, *sets)).decode_steps == ceil(64 / 2.533)
