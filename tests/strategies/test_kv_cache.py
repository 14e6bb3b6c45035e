"""The key-value cache: what each pass moves, in which order, and how much memory it takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import simoffload as so
from simoffload.calibration.launch import case_data
from simoffload.calibration.runs import request
from simoffload.cli import main
from simoffload.documents import Edit, parse_yaml, yaml_text
from simoffload.models import Sequences
from simoffload.results import cause_text
from simoffload.scenario import LoadedScenario, resolve
from simoffload.strategies.held import memory_stages

BATCH, PROMPT = 4, 1000
KINDS: dict[str, dict[str, Any]] = {
    "resident": {"kind": "resident"},
    "accelerate": {"kind": "accelerate", "device_map": "cuda"},
    "zero_inference": {"kind": "zero_inference", "weights": "hbm"},
}
FAMILIES = {
    "llama-2-7b": (32, 2 * 32 * 128 * 2),
    "llama-3.1-8b": (32, 2 * 8 * 128 * 2),
    "falcon-7b": (32, 2 * 1 * 64 * 2),
    "deepseek-v2-lite": (27, (512 + 64) * 2),
}
"""Layers, and bytes of a token in one: multi-head, grouped-query, multi-query and latent attention."""
OFFLOADED = {"tier": "dram"}
STATIC = {"tier": "dram", "implementation": "static"}


def text(*, model: Any = "llama-3.1-8b", steps: int = 3, **keys: Any) -> str:
    work = {"batch_size": BATCH, "prompt_length": PROMPT, "output_length": steps + 1}
    strategy = keys.pop("strategy", KINDS["resident"])
    if (cache := keys.pop("cache", None)) is not None:
        strategy = {**strategy, "kv_cache": cache}
    content = {"name": "cached", "model": model, "platform": "dgx-h200", "workload": work | keys}
    return yaml_text({**content, "strategy": strategy})


def scenario(engine: dict[str, Any] | None = None, **keys: Any) -> LoadedScenario:
    document = parse_yaml(text(**keys), name="s.yaml")
    if engine:
        document.data["engine"] = engine
    return resolve(document)


def operations(found: LoadedScenario, batch: Sequences) -> list[tuple[str, str, str, int]]:
    """Stream, kind, route and size of all operations of a pass of the first rank, in the order of writing."""
    schedule = found.plan().step([batch]).schedule({})  # type: ignore[attr-defined]
    return [
        (
            schedule.streams[op.stream],
            op.kind,
            cause_text(schedule.routes[op.route].cause) if op.size else "",
            op.size,
        )
        for block in schedule.blocks
        for _ in range(block.repeat)
        for op in block.ops
    ]


def moved(found: LoadedScenario, *, new: int, context: int) -> tuple[int, int]:
    """Bytes of the cache that a pass moves to the GPU and back."""
    copies = [one for one in operations(found, Sequences(BATCH, new, context)) if one[1] == "copy"]
    ways = [f"{way} (key-value cache on dram)" for way in ("host to GPU", "GPU to host")]
    assert {one[2] for one in copies} <= set(ways)
    return tuple(sum(one[3] for one in copies if one[2] == way) for way in ways)  # type: ignore[return-value]


# -- bytes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("model", FAMILIES)
def test_a_step_moves_the_whole_cache_both_ways(model: str, kind: str) -> None:
    """Each layer goes back with the new token; the last one fetches the first, which has it already."""
    layers, width = FAMILIES[model]
    found = scenario(model=model, strategy=KINDS[kind], cache=OFFLOADED)
    token = BATCH * width
    to_gpu, back = moved(found, new=1, context=PROMPT + 1)
    assert back == layers * token * (PROMPT + 1)
    assert to_gpu == token * ((layers - 1) * PROMPT + PROMPT + 1)
    assert moved(found, new=PROMPT, context=PROMPT) == (token * PROMPT, layers * token * PROMPT)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("model", FAMILIES)
def test_a_static_cache_moves_all_its_room(model: str, kind: str) -> None:
    layers, width = FAMILIES[model]
    found = scenario(model=model, strategy=KINDS[kind], cache=STATIC, steps=24)
    room = BATCH * width * (PROMPT + 24)
    assert moved(found, new=1, context=PROMPT + 1) == (layers * room, layers * room)
    assert moved(found, new=PROMPT, context=PROMPT) == (room, layers * room)


@pytest.mark.parametrize("kind", KINDS)
def test_sliding_layers_move_their_window_or_stay(kind: str) -> None:
    """``DynamicCache`` offloads them too, one token less than the window; ``StaticCache`` does not."""
    token, prompt = BATCH * 2 * 8 * 256 * 2, 5000
    keys = {"model": "gemma-2-9b", "strategy": KINDS[kind], "prompt_length": prompt}
    growing = scenario(**keys, cache=OFFLOADED)
    to_gpu, back = moved(growing, new=1, context=prompt + 1)
    assert back == 21 * token * (4095 + prompt + 1)
    assert to_gpu == 21 * token * (4095 + prompt), "layer 0 slides, so that it has no token more"
    fixed = scenario(**keys, cache=STATIC)
    assert moved(fixed, new=1, context=prompt + 1) == (21 * token * (prompt + 3),) * 2


@pytest.mark.parametrize("kind", KINDS)
def test_links_carry_what_is_moved(kind: str) -> None:
    """The cable of the GPU carries the copies and nothing else."""
    result: Any = so.simulate(scenario(strategy=KINDS[kind], cache=OFFLOADED))
    decode = next(one for one in result.passes if one.name == "decode 1")
    token = BATCH * 2 * 8 * 128 * 2
    carried = {one.link: one.size for one in decode.links if "gpu0" in one.link and "<->" not in one.link}
    assert sorted(carried.values()) == sorted([token * (32 * PROMPT + 1), token * 32 * (PROMPT + 1)])


def test_every_rank_moves_its_heads() -> None:
    """Under tensor parallelism two key-value heads are on each of four GPUs."""
    divided = {"kind": "tensor_parallel", "tensor_parallel_size": 4}
    token = BATCH * 2 * 2 * 128 * 2
    _, back = moved(scenario(strategy=divided, cache=OFFLOADED), new=1, context=PROMPT + 1)
    assert back == 32 * token * (PROMPT + 1)


def test_other_gpus_of_accelerate_copy_on_their_compute_stream() -> None:
    """The prefetch stream is one of the first GPU."""
    both = {
        "kind": "accelerate",
        "num_gpus": 2,
        "device_map": "auto",
        "max_memory": {"0": "8 GiB", "1": "12 GiB"},
    }
    found = scenario(strategy=both, cache=OFFLOADED)
    copies = [one for one in operations(found, Sequences(BATCH, 1, PROMPT + 1)) if "host to GPU" in one[2]]
    on = {
        route: {stream for stream, _, way, _ in copies if way == route}
        for route in {one[2] for one in copies}
    }
    cache = "(key-value cache on dram)"
    assert on == {f"host to GPU {cache}": {"cache"}, f"host to GPU 1 {cache}": {"compute"}}
    assert len(copies) == 32


@pytest.mark.parametrize(
    "cache",
    [
        OFFLOADED,
        {"implementation": "static"},
        {"format": "int4"},
        {"tier": "raid", "implementation": "streamed"},
        {"tier": "dram", "implementation": "streamed", "format": "fp8"},
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
    cache = {"tier": "raid", "implementation": "streamed"}
    found = scenario(model=model, strategy=several, cache=cache, prompt_length=100)
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
    inside, outside = (
        next(one for one in so.simulate(scenario(**keys, cache=cache)).passes if one.name == "decode 1")  # type: ignore[union-attr]
        for cache in ({}, OFFLOADED)
    )
    cache = 8 * 30_001 * 32 * 2 * 8 * 128 * 2
    gpu = scenario(**keys).machine.accelerator
    joining = 2 * cache / gpu.hbm_rate
    # While caches are joined, only the copy to the GPU runs; then both share 0.895 of both rates.
    shared = 0.895 * (55.5e9 + 55.4e9)
    ahead = 55.5e9 * joining
    together = 2 * (cache - ahead) / shared
    assert outside.time_s == pytest.approx(inside.time_s + together + ahead / 55.4e9, rel=0.01)
    assert outside.time_s > inside.time_s + cache / 55.4e9, "the copy back is never hidden"


def test_copies_of_the_cache_share_the_link_with_weights() -> None:
    weights = {"kind": "zero_inference", "weights": "dram"}
    plain, both = (
        next(
            one
            for one in so.simulate(scenario(strategy=weights, cache=cache, batch_size=32)).passes
            if one.name == "decode 1"
        )  # type: ignore[union-attr]
        for cache in ({}, OFFLOADED)
    )
    cache = 32 * PROMPT * 32 * 2 * 8 * 128 * 2
    stored = scenario().model.weight_bytes - scenario().model.vocab_size * 4096 * 2  # rows of the embedding
    assert both.time_s > plain.time_s + 0.5 * cache / 55.5e9
    assert both.time_s >= (stored + cache) / 55.5e9


def test_all_steps_of_a_static_cache_are_one() -> None:
    """Nothing grows, so that one step is simulated; it takes as long as the last one of a growing cache,
    less the joining."""
    result: Any = so.simulate(scenario(cache=STATIC, steps=500))
    assert [one.name for one in result.passes] == ["prefill", "decode 1"]
    growing: Any = so.simulate(scenario(cache=OFFLOADED, steps=500))
    assert result.passes[1].time_s < growing.passes[-1].time_s


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cache", [OFFLOADED, STATIC], ids=["dynamic", "static"])
def test_shortcuts_change_nothing(kind: str, cache: dict[str, Any]) -> None:
    """Steady states, and steps that are derived from others, which move more bytes."""
    checked = dict.fromkeys(("steady_state", "rank_symmetry", "decode_extrapolation"), "verify")
    so.simulate(scenario(engine=checked, strategy=KINDS[kind], cache=cache, steps=40))


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


def terms(**keys: Any) -> dict[tuple[str, str], int]:
    (stage,) = memory_stages(scenario(**keys).plan())
    return {(one.tier, one.name): one.size for one in stage.terms}


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


@pytest.mark.parametrize("cache", [OFFLOADED, {"tier": "dram", "implementation": "streamed"}])
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


def test_every_process_of_a_host_has_its_cache() -> None:
    one, four = (
        terms(strategy={"kind": "resident", "ranks": ranks}, cache=OFFLOADED)["dram", "key-value cache"]
        for ranks in (1, 4)
    )
    divided = {"kind": "tensor_parallel", "tensor_parallel_size": 4}
    assert four == 4 * one == 4 * terms(strategy=divided, cache=OFFLOADED)["dram", "key-value cache"]


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
    paged = {"kind": "tensor_parallel", "compiled": True}
    assert terms(strategy=paged, cache={"format": "fp8"}, steps=200)["hbm", "key-value cache"] == plain / 2


def test_fit_counts_the_cache_where_it_is() -> None:
    """A cache that does not fit a GPU fits host memory."""
    keys: dict[str, Any] = {"batch_size": 16, "prompt_length": 60_000}
    uses = [
        {one.tier: one.fits for one in so.simulate(scenario(**keys, cache=cache)).capacity}
        for cache in ({}, OFFLOADED)
    ]
    assert [one["hbm"] for one in uses] == [False, True]
    assert uses[1]["dram"]


# -- mistakes ------------------------------------------------------------------------------------

VLLM = {"kind": "vllm_cpu_offload"}
FLOAT32 = {"name": "llama-3.1-8b", "dtype": "float32"}


@pytest.mark.parametrize(
    ("keys", "key", "message"),
    [
        ({"cache": {"tier": "attic"}}, "tier", 'no tier "attic" on platform "dgx-h200"'),
        ({"cache": {"tier": "raid"}}, "tier", "transformers keeps no cache there; use hbm or dram"),
        ({"cache": OFFLOADED, "strategy": VLLM}, "tier", "vLLM keeps no cache there; use hbm"),
        (
            {"cache": {"format": "int8"}},
            "format",
            "no cache of this format; use fp8, int4 or int2, or leave",
        ),
        ({"cache": {"format": "int3"}}, "format", 'must be "fp16", "bf16", "fp8", "int8", "int4" or "int2"'),
        ({"cache": {"format": "bf16"}}, "format", "is in float16, and its cache too"),
        ({"cache": {"format": "bf16"}}, "format", "use fp16, fp8, int4 or int2, or leave it out"),
        ({"cache": {"format": "fp16"}, "model": FLOAT32}, "format", "use fp8, int4 or int2, or leave it out"),
        ({"cache": {"tier": 5}}, "tier", "must be the name of a tier of the platform, such as hbm, dram or"),
        (
            {"cache": {"implementation": 7}},
            "implementation",
            'must be "dynamic", "static", "cpu_attention" or',
        ),
        ({"cache": {"format": "int4", "tier": "dram"}}, "tier", "stays on the GPU; set it to hbm"),
        ({"cache": {"format": "int4", "implementation": "static"}}, "implementation", "set it to dynamic"),
        ({"cache": {"format": "int4"}, "model": "gemma-2-9b"}, "format", "sliding layers"),
        ({"cache": {"implementation": "ring"}}, "implementation", "must be"),
        ({"cache": STATIC, "model": "mistral-7b-v0.1"}, "implementation", "set it to dynamic"),
        ({"cache": STATIC, "strategy": VLLM}, "tier", "vLLM"),
        ({"cache": {"implementation": "static"}, "strategy": VLLM}, "implementation", "leave it out"),
        ({"cache": {"size": 4}}, "size", "unknown key"),
    ],
)
def test_mistakes_are_one_line(
    keys: dict[str, Any], key: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With file, line, key and value, and with what is valid."""
    file = tmp_path / "s.yaml"
    file.write_text(text(**keys))
    assert main(["run", str(file)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    number = next(
        at
        for at, one in enumerate(file.read_text().splitlines(), 1)
        if one.strip().startswith(f"{key}:") and at > 8
    )
    assert f"s.yaml:{number}:" in line
    assert f"strategy.kv_cache.{key}:" in line
    assert message in line


@pytest.mark.parametrize(("dtype", "form"), [("float16", "fp16"), ("bfloat16", "bf16")])
@pytest.mark.parametrize("kind", [*KINDS.values(), VLLM], ids=[*KINDS, "vllm"])
def test_a_format_may_state_the_data_type(kind: dict[str, Any], dtype: str, form: str) -> None:
    """It is the default, in reports and files, too."""
    model = {"name": "llama-3.1-8b", "dtype": dtype}
    plain, written = (scenario(model=model, strategy=kind, cache=cache) for cache in (None, {"format": form}))
    assert written.plan() == plain.plan()
    assert written.exports() == plain.exports()
    changes = [
        [one.key for one in found.scenario.strategy.caches(found.plan())] for found in (plain, written)
    ]
    assert changes[0] == changes[1]
    moved = next(
        one for one in written.scenario.strategy.caches(written.plan()) if one.key == "cache-hbm-fp8"
    )
    assert [str(edit) for edit in moved.edits] == [str(Edit.at("strategy.kv_cache.format", "fp8"))]


def test_flexgen_places_its_cache_with_other_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(text(model="opt-6.7b", strategy={"kind": "flexgen"}, cache=OFFLOADED))
    assert main(["run", str(file)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "s.yaml:" in line
    assert "strategy.kv_cache: unknown key: FlexGen" in line
    for key in ("cache_gpu_percent", "cache_cpu_percent", "compress_cache", "cpu_attention"):
        assert key in line
    assert "did you mean" not in line


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
    file.write_text(yaml_text({**content, "strategy": {"kind": "resident"}}))
    assert main([command, str(file)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"workload.{key}: a context of 2049 tokens does not fit into the 2048 learned positions" in line


def test_all_learned_positions_can_be_used() -> None:
    assert so.simulate(scenario(model="opt-125m", prompt_length=2040, cache={})).fits


def test_training_has_no_cache(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    work = {"kind": "training", "batch_size": 1, "sequence_length": 128}
    content = {"name": "t", "model": "llama-3.1-8b", "platform": "dgx-h200", "workload": work}
    file = tmp_path / "s.yaml"
    file.write_text(yaml_text({**content, "strategy": {"kind": "resident", "kv_cache": OFFLOADED}}))
    assert main(["run", str(file)]) == 2
    assert "training keeps no cache" in capsys.readouterr().err


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


@pytest.mark.parametrize("kind", ["accelerate", "zero_inference"])
def test_real_runs_get_the_cache(kind: str) -> None:
    """As the process with PyTorch reads it; a tier that transformers does not have is refused."""
    work = {"kind": "inference", "batch_size": 1, "prompt_length": 8, "output_length": 2}
    run = {"name": "r", "model": "opt-125m", "workload": work, "strategy": {"kind": kind, "kv_cache": STATIC}}
    data = case_data(0, request(run), trace=False)
    written = {"tier": "dram", "format": None, "implementation": "static"}
    assert data["kv_cache"] == written | {"pin_memory": False, "asynchronous": False, "connector": None}
    run["strategy"] = {"kind": kind, "kv_cache": {"tier": "nvme"}}
    with pytest.raises(so.InputError, match="keeps no cache there; use hbm or dram"):
        request(run)


def test_fit_moves_the_cache(tmp_path: Path) -> None:
    file = tmp_path / "long.yaml"
    file.write_text(
        "{name: long prompts, model: llama-3.1-8b, platform: dgx-h200, strategy: {kind: resident},"
        " workload: {batch_size: 16, prompt_length: 60000, output_length: 64}}"
    )
    changes = so.fit(file).remedies.changes
    (moved,) = (one for one in changes if one.description == "key-value cache on dram")
    (use,) = (one for one in moved.uses if one.kind == "dram")
    assert use.fits
    assert any(term.name == "key-value cache" for term in use.terms)
    again = so.fit(so.load_scenario(str(file), overrides=["strategy.kv_cache.tier=dram"]))
    assert again.fits
