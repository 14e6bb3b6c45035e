"""The key-value cache: what each pass moves, in which order, and how much memory it takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import simoffload as so
from simoffload.cli import main
from simoffload.documents import Edit, yaml_text
from simoffload.models import Sequences
from simoffload.planning.evaluator import Evaluator
from tests.strategies.scenarios import (
    BATCH,
    COMPILED,
    KINDS,
    OFFLOADED,
    PROMPT,
    STATIC,
    VLLM,
    decode,
    moved,
    operations,
    scenario,
    streamed,
    terms,
)

FAMILIES = {
    "llama-2-7b": (32, 2 * 32 * 128 * 2),
    "llama-3.1-8b": (32, 2 * 8 * 128 * 2),
    "falcon-7b": (32, 2 * 1 * 64 * 2),
    "deepseek-v2-lite": (27, (512 + 64) * 2),
}
"""Layers, and bytes of a token in one: multi-head, grouped-query, multi-query and latent attention."""


# -- bytes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", FAMILIES)
def test_a_step_moves_the_whole_cache_both_ways(model: str) -> None:
    """Each layer goes back with the new token; the last one fetches the first, which has it already. A static
    cache moves all its room."""
    layers, width = FAMILIES[model]
    token = BATCH * width
    found = scenario(model=model, cache=OFFLOADED)
    there = token * ((layers - 1) * PROMPT + PROMPT + 1)
    assert moved(found, "", new=1, context=PROMPT + 1) == (there, layers * token * (PROMPT + 1))
    assert moved(found, "", new=PROMPT, context=PROMPT) == (token * PROMPT, layers * token * PROMPT)
    fixed, room = scenario(model=model, cache=STATIC, steps=24), token * (PROMPT + 24)
    assert moved(fixed, "", new=1, context=PROMPT + 1) == (layers * room, layers * room)
    assert moved(fixed, "", new=PROMPT, context=PROMPT) == (room, layers * room)


@pytest.mark.parametrize("kind", KINDS)
def test_sliding_layers_move_their_window_or_stay(kind: str) -> None:
    """``DynamicCache`` offloads them too, one token less than the window; ``StaticCache`` does not."""
    token, prompt = BATCH * 2 * 8 * 256 * 2, 5000
    keys = {"model": "gemma-2-9b", "strategy": KINDS[kind], "prompt_length": prompt}
    growing = scenario(**keys, cache=OFFLOADED)
    to_gpu, back = moved(growing, "", new=1, context=prompt + 1)
    assert back == 21 * token * (4095 + prompt + 1)
    assert to_gpu == 21 * token * (4095 + prompt), "layer 0 slides, so that it has no token more"
    fixed = scenario(**keys, cache=STATIC)
    assert moved(fixed, "", new=1, context=prompt + 1) == (21 * token * (prompt + 3),) * 2


def test_other_gpus_of_accelerate_copy_on_their_compute_stream() -> None:
    """The prefetch stream is one of the first GPU."""
    both = {
        "kind": "accelerate",
        "num_gpus": 2,
        "device_map": "auto",
        "max_memory": {"0": "8 GiB", "1": "12 GiB"},
    }
    found = scenario(strategy=both, cache=OFFLOADED)
    copies = [one for one in operations(found, Sequences(BATCH, 1, PROMPT + 1)) if "host to GPU" in one.way]
    on = {one.way: {other.stream for other in copies if other.way == one.way} for one in copies}
    cache = "(key-value cache on dram)"
    assert on == {f"host to GPU {cache}": {"cache"}, f"host to GPU 1 {cache}": {"compute"}}
    assert len(copies) == 32


@pytest.mark.parametrize(
    "cache",
    [
        OFFLOADED,
        {"implementation": "static"},
        {"format": "int4"},
        streamed(),
        streamed("dram", "fp8"),
    ],
)
def test_a_gpu_without_layers_has_no_cache(cache: dict[str, Any]) -> None:
    """The fullest GPU and the host need what they need without it."""
    one = {"kind": "accelerate", "num_gpus": 1, "device_map": {"": 0}}
    found, expected = (
        so.simulate(scenario(strategy={**one, "num_gpus": gpus}, cache=cache)).capacity for gpus in (2, 1)
    )
    assert {use.tier: use.needed for use in found} == {use.tier: use.needed for use in expected}


@pytest.mark.parametrize(("model", "gpus"), [("opt-125m", 3), ("gemma-3-1b", 3), ("opt-1.3b", 8)])
def test_layers_may_be_on_fewer_gpus_than_there_are(model: str, gpus: int) -> None:
    """As Accelerate puts those of small models."""
    several = {"kind": "accelerate", "num_gpus": gpus}
    found = scenario(model=model, strategy=several, cache=streamed(), prompt_length=100)
    plan: Any = found.plan()
    on_gpus = map(plan._on_gpu, range(plan.driven))
    assert any(all("cache" not in term.name for term in one if term.tier == "hbm") for one in on_gpus)
    so.simulate(found)


# -- times ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_in_hbm_it_is_as_without_the_section(kind: str) -> None:
    """To the picosecond and to the byte, and no copy is written."""
    plain = so.simulate(scenario(strategy=KINDS[kind])).to_dict()
    written = so.simulate(scenario(strategy=KINDS[kind], cache={"tier": "hbm"})).to_dict()
    assert (plain["passes"], plain["capacity"]) == (written["passes"], written["capacity"])


def test_the_period_of_a_long_context() -> None:
    """max(t_cat + KV / down + t_attn + t_rest, KV / up) for each layer, with half of what the cable carries
    both ways together, because both copies are of the same size."""
    keys: dict[str, Any] = {"prompt_length": 30_000, "batch_size": 8, "steps": 1}
    inside, outside = (decode(**keys, cache=cache) for cache in ({}, OFFLOADED))
    cache = 8 * 30_001 * 32 * 2 * 8 * 128 * 2
    gpu = scenario(**keys).machine.accelerator
    joining = 2 * cache / gpu.hbm_rate
    # While caches are joined, only the copy to the GPU runs; then both share 0.895 of both rates.
    shared = 0.895 * (55.5e9 + 55.4e9)
    ahead = 55.5e9 * joining
    together = 2 * (cache - ahead) / shared
    assert outside.time_s == pytest.approx(inside.time_s + together + ahead / 55.4e9, rel=0.01)
    assert outside.time_s > inside.time_s + cache / 55.4e9, "the copy back is never hidden"


@pytest.mark.parametrize(("cache", "shown"), [(OFFLOADED, 0.5), (streamed("dram"), 0.75)])
def test_copies_of_the_cache_share_the_link_with_weights(cache: dict[str, Any], shown: float) -> None:
    keys: dict[str, Any] = {"strategy": {"kind": "deepspeed", "weights": "dram"}, "batch_size": 32}
    plain, both = (decode(**keys, cache=one).time_s for one in (None, cache))
    size = 32 * PROMPT * 32 * 2 * 8 * 128 * 2
    stored = scenario().model.weight_bytes - scenario().model.vocab_size * 4096 * 2  # rows of the embedding
    assert both > plain + shown * size / 55.5e9
    assert both >= (stored + size) / 55.5e9


def test_all_steps_of_a_static_cache_are_one() -> None:
    """Nothing grows, so that one step is simulated; it takes as long as the last one of a growing cache,
    less the joining."""
    result: Any = so.simulate(scenario(cache=STATIC, steps=500))
    assert [one.name for one in result.passes] == ["prefill", "decode 1"]
    growing: Any = so.simulate(scenario(cache=OFFLOADED, steps=500))
    assert result.passes[1].time_s < growing.passes[-1].time_s


def test_a_quantized_cache_is_decoded_in_every_step() -> None:
    """0.5625 B of an element are read and 2 B written, and after 128 tokens 2 B read and 0.5625 B written."""
    keys: dict[str, Any] = {"batch_size": 16, "prompt_length": 8000, "steps": 1}
    found = [scenario(**keys, cache=cache).plan() for cache in ({}, {"format": "int4"}, {"format": "fp8"})]
    times = [
        sum(one.durations(one.forward("decode", 1, 8001)))
        for one in found  # type: ignore[attr-defined]
    ]
    rate = found[0].machine.accelerator.hbm_rate
    elements = 16 * 8001 * 2 * 8 * 128
    assert times[1] - times[0] == pytest.approx(1e12 * elements * (2.5625 + 2.5625 / 128) / rate, rel=1e-4)
    assert times[2] - times[0] == pytest.approx(1e12 * elements * 17 / rate, rel=1e-4)


# -- memory --------------------------------------------------------------------------------------


def test_host_memory_is_pinned_in_powers_of_two() -> None:
    """Keys of the prompt are 128 MiB in each of 32 layers, and those of one token more need 256 MiB, twice: a
    pass writes new tensors while those of the pass before are read."""
    keys: dict[str, Any] = {"batch_size": 16, "prompt_length": 4096}
    found = terms(**keys, cache=OFFLOADED)
    layer = 2 * 16 * 8 * 128 * 2 * 4099
    assert found["dram", "key-value cache"] == 32 * layer
    assert found["dram", "rounding of pinned allocations"] == 64 * (256 << 20) - 32 * layer
    assert found["dram", "pinned blocks of earlier passes"] == 64 * (384 << 20)
    assert found["hbm", "key-value cache of two layers"] == 2 * layer
    assert found["hbm", "joined keys and values of a layer"] == layer
    fixed = terms(**keys, cache=STATIC)
    assert fixed["dram", "pinned blocks of earlier passes"] == 64 * (256 << 20)
    assert ("hbm", "joined keys and values of a layer") not in fixed


@pytest.mark.parametrize("cache", [OFFLOADED, streamed("dram")])
def test_a_sliding_layer_joins_the_whole_prompt(cache: dict[str, Any]) -> None:
    """Mistral 7B 0.1 keeps 4,095 of 30,000 tokens of each layer, after attention."""
    keys: dict[str, Any] = {"model": "mistral-7b-v0.1", "batch_size": 16, "prompt_length": 30_000}
    found, token = terms(**keys, cache=cache), 16 * 2 * 8 * 128 * 2
    assert found["hbm", "key-value cache of two layers"] == 2 * 4095 * token
    whole = ("joined keys and values of a layer", "keys and values of a prompt in a layer")
    assert [found["hbm", name] for name in whole if ("hbm", name) in found] == [30_000 * token]


def test_a_sliding_layer_joins_its_window_in_later_steps() -> None:
    """4,095 tokens are kept and one is new."""
    keys: dict[str, Any] = {"model": "mistral-7b-v0.1", "prompt_length": 2000, "steps": 3000}
    joined = terms(**keys, cache=OFFLOADED)["hbm", "joined keys and values of a layer"]
    assert joined == BATCH * 4096 * 2 * 8 * 128 * 2


@pytest.mark.parametrize(
    ("steps", "quantized", "recent", "joined"),
    [
        (0, PROMPT, 0, 0),
        (1, PROMPT, 1, 2 * PROMPT + 1),
        (127, PROMPT, 127, 2 * PROMPT + 127),
        (128, PROMPT, 127, 2 * PROMPT + 128),
        (129, PROMPT, 127, 2 * PROMPT + 128),
        (256, PROMPT + 128, 127, 2 * PROMPT + 384),
        (383, PROMPT + 256, 127, 2 * PROMPT + 639),
    ],
)
@pytest.mark.parametrize(("form", "element"), [("int4", 0.5625), ("int2", 0.3125)])
def test_a_quantized_cache_keeps_the_last_tokens(
    steps: int, quantized: int, recent: int, joined: int, form: str, element: float
) -> None:
    """Until they would be 128: that update decodes what is quantized, joins all, and quantizes them."""
    found = terms(cache={"format": form}, steps=steps)
    token = BATCH * 32 * 2 * 8 * 128 * 2
    assert found["hbm", "key-value cache"] == quantized * token * element / 2
    assert found.get(("hbm", "tokens that are not quantized yet"), 0) == recent * token
    assert found.get(("hbm", "decoded keys and values of a layer"), 0) == joined * token / 32


def test_no_token_of_a_quantized_cache_counts_twice() -> None:
    """Replayed step by step as ``QuantizedLayer.update``."""
    token = BATCH * 32 * 2 * 8 * 128 * 2
    quantized, recent, most = PROMPT, 0, 0.0
    for step in range(1, 301):
        joined = quantized + PROMPT + step
        most = max(most, token * (quantized * 0.28125 + min(recent + 1, 127) + joined / 32))
        quantized, recent = (PROMPT + step, 0) if recent == 127 else (quantized, recent + 1)
        found = terms(cache={"format": "int4"}, steps=step) if step % 50 < 3 else {}
        names = ("key-value cache", "tokens that are not quantized yet", "decoded keys and values of a layer")
        assert sum(found["hbm", name] for name in names if found) == (most if found else 0)


def test_a_cache_in_eight_bit_is_decoded_in_single_precision() -> None:
    """Keys are in the model's type when values are multiplied by their scale."""
    plain = terms(steps=200)["hbm", "key-value cache"]
    found = terms(cache={"format": "fp8"}, steps=200)
    assert found["hbm", "key-value cache"] == plain / 2
    assert found["hbm", "decoded keys and values of a layer"] == BATCH * (PROMPT + 200) * 8 * 128 * (
        2 + 4 + 4
    )
    assert terms(strategy=COMPILED, cache={"format": "fp8"}, steps=200)["hbm", "key-value cache"] == plain / 2


# -- reports and files ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "form"), [("float16", "fp16"), ("bfloat16", "bf16")])
@pytest.mark.parametrize("kind", [*KINDS.values(), VLLM], ids=[*KINDS, "vllm"])
def test_a_format_may_state_the_data_type(kind: dict[str, Any], dtype: str, form: str) -> None:
    """It is the default, in reports and files, too."""
    model = {"name": "llama-3.1-8b", "dtype": dtype}
    plain, written = (scenario(model=model, strategy=kind, cache=cache) for cache in (None, {"format": form}))
    assert written.plan() == plain.plan()
    assert written.exports() == plain.exports()
    changes = [[one.key for one in Evaluator(found).changes("cache")] for found in (plain, written)]
    assert changes[0] == changes[1]
    moved = next(one for one in Evaluator(written).changes("cache") if one.key == "cache-hbm-fp8")
    assert [str(edit) for edit in moved.edits] == [str(Edit.at("strategy.kv_cache.format", "fp8"))]


def test_contexts_beyond_the_positions_are_noticed() -> None:
    """As without the section: the model was not trained for them."""
    result = so.simulate(scenario(model="llama-2-7b", prompt_length=4096, cache=STATIC))
    assert any("4099" in one and "4096" in one for one in result.warnings)


@pytest.mark.parametrize(
    ("work", "key"),
    [
        ({"batch_size": 1, "prompt_length": 2048, "output_length": 2}, "prompt_length"),
        ({"batch_size": 1, "prompt_length": 1000, "output_length": 1050}, "output_length"),
        ({"kind": "training", "batch_size": 1, "sequence_length": 2049}, "sequence_length"),
    ],
)
@pytest.mark.parametrize("command", ["check", "run", "advise"])
def test_contexts_beyond_learned_positions_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], work: dict[str, Any], key: str, command: str
) -> None:
    """OPT looks up each position in a table of 2048."""
    content = {"name": "t", "model": "opt-125m", "platform": "dgx-h200", "workload": work}
    file = tmp_path / "s.yaml"
    file.write_text(yaml_text({**content, "strategy": {"kind": "transformers"}}))
    assert main([command, str(file)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"workload.{key}: a context of 2049 tokens does not fit into the 2048 learned positions" in line


def test_all_learned_positions_can_be_used() -> None:
    assert so.simulate(scenario(model="opt-125m", prompt_length=2040, cache={})).fits


@pytest.mark.parametrize(
    ("cache", "written"),
    [
        (OFFLOADED, {"cache_implementation": "offloaded"}),
        (STATIC, {"cache_implementation": "offloaded_static"}),
        ({"implementation": "static"}, {"cache_implementation": "static"}),
        (
            {"format": "int2"},
            {"cache_implementation": "quantized", "cache_config": {"backend": "quanto", "nbits": 2}},
        ),
        ({"format": "fp8"}, {"cache_implementation": "quantized", "cache_config": {"backend": "fp8"}}),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_generate_makes_the_same_cache(kind: str, cache: dict[str, Any], written: dict[str, Any]) -> None:
    exports = scenario(strategy=KINDS[kind], cache=cache).exports()
    assert exports["generation_config.json"] == written
    assert "generation_config.json" not in scenario(strategy=KINDS[kind]).exports()


def test_vllm_gets_its_option() -> None:
    (command,) = scenario(strategy=VLLM, cache={"format": "fp8"}).exports().values()
    assert "--kv-cache-dtype fp8" in command


def test_fit_moves_the_cache(tmp_path: Path) -> None:
    file = tmp_path / "long.yaml"
    file.write_text(
        "{name: long prompts, model: llama-3.1-8b, platform: dgx-h200, strategy: {kind: transformers},"
        " workload: {batch_size: 16, prompt_length: 60000, output_length: 64}}"
    )
    changes = so.fit(file).remedies.changes
    (moved,) = (one for one in changes if one.description == "key-value cache on dram")
    (use,) = (one for one in moved.uses if one.kind == "dram")
    assert use.fits
    assert any(term.name == "key-value cache" for term in use.terms)
    again = so.fit(so.load_scenario(str(file), overrides=["strategy.kv_cache.tier=dram"]))
    assert again.fits
