"""llama.cpp: what the CPU computes, what it takes, and what ``--fit`` chooses, against sums by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from math import hypot
from pathlib import Path
from typing import Any

import pytest

import simoffload as so
from simoffload.cli import main
from simoffload.errors import InputError
from simoffload.models.families import FAMILIES
from simoffload.models.shape import stored_bytes
from simoffload.results import SimulationResult
from simoffload.scenario import LoadedScenario, default_scenario
from simoffload.schedule import Op
from simoffload.strategies.hooks.device_memory import DeviceMemory
from simoffload.strategies.hooks.on_cpu import MappedWeights
from simoffload.strategies.memory import DISPLAY
from simoffload.strategies.programs.llama_cpp import LlamaPlan

GIB = 1 << 30


def scenario(model: str = "llama-3.1-8b", *sets: str, platform: str = "rtx-4090-desktop") -> LoadedScenario:
    work = "workload={kind: inference, batch_size: 1, prompt_length: 512, output_length: 32}"
    own = (work, "strategy.kind=llama_cpp", "model.quantization=q8_0", "model.dtype=float16", *sets)
    return default_scenario(model, platform, overrides=own)


def plan_of(one: LoadedScenario) -> LlamaPlan:
    plan = one.plan()
    assert isinstance(plan, LlamaPlan)
    return plan


def names(plan: LlamaPlan) -> tuple[frozenset[str], ...]:
    """Modules of each layer that the CPU computes, and of those outside."""
    return tuple(map(frozenset, plan.on_cpu.shares(plan.model)))


def busy(result: SimulationResult) -> dict[str, float]:
    """Time [s] of a decode step by cause."""
    assert result.token_pass is not None
    return {one.cause_text: one.busy_s for one in result.token_pass.shares}


def ops(plan: LlamaPlan, tokens: int) -> list[Op]:
    """Return the operations of a pass, those of repeated layers once."""
    return [op for block in plan.schedule(plan.forward("pass", tokens, 16)).blocks for op in block.ops]


def held(plan: LlamaPlan, tier: str) -> dict[str, int]:
    return {one.name: one.size for one in plan.held if one.tier == tier}


def test_all_on_the_gpu_leaves_only_embeddings_to_the_cpu() -> None:
    plan = plan_of(scenario("llama-3.1-8b", "strategy.gpu_layers=all"))
    embeddings = 525336576 * 34 // 32
    assert held(plan, "dram")["weights"] == embeddings
    assert held(plan, "hbm")["weights"] == plan.model.weight_bytes - embeddings
    assert names(plan)[-1] == {"model.embed_tokens"}
    assert not any(names(plan)[:-1])


@pytest.mark.parametrize(("layers", "on_cpu"), [(33, 0), (32, 1), (20, 13), (1, 32), (0, 32)])
def test_the_last_layers_and_the_head_are_on_the_gpu(layers: int, on_cpu: int) -> None:
    plan = plan_of(scenario("llama-3.1-8b", f"strategy.gpu_layers={layers}"))
    assert [bool(one) for one in names(plan)[:-1]] == [True] * on_cpu + [False] * (32 - on_cpu)
    assert ("lm_head" in names(plan)[-1]) == (layers == 0)


def test_more_threads_than_cores_are_slower() -> None:
    """Each core runs its threads in turn, and all wait for the one with the most at every meeting; 13 threads
    have as many turns on 12 cores as 24, with fewer at once."""
    model = ("strategy.cpu_moe=all", "model.quantization=q4_k_m")
    cores = scenario().machine.host.cpu_optimizer.cores.value
    rates = {
        threads: so.simulate(scenario("qwen3-30b-a3b", *model, f"strategy.threads={threads}")).metrics()[
            "decode_tokens_per_s"
        ]
        or 0.0
        for threads in (cores, cores + 1, 2 * cores, 128)
    }
    assert sorted(rates, key=rates.__getitem__) == [128, cores + 1, 2 * cores, cores]


def test_a_decode_step_reads_the_layers_of_the_cpu_once() -> None:
    """Bytes of 13 layers over the rate of threads and memory together, and meetings of all threads: 2 for
    each of 7 products, 3 for both norms, 5 in attention, 1 for the activation."""
    case = scenario("llama-3.1-8b", "strategy.gpu_layers=20", "workload.prompt_length=16")
    plan, products = plan_of(case), case.machine.host.products
    stored = sum(part.stored_bytes(2) for module in plan.model.layers[0] for part in module.parameters)
    threads = plan.cpu_settings.threads * products.thread.value
    memory = products.weights.value * case.machine.host.memory_bandwidth.value
    read = 13 * stored * (threads**-2 + memory**-2) ** 0.5
    expected = read + 13 * (7 * 2 + 2 * 3 + 5 + 1) * products.operation.value
    found = busy(so.simulate(case))["CPU compute"]
    assert found == pytest.approx(expected, rel=0.01)  # also hidden states, cache and the row of embeddings


def test_experts_cost_three_tensors_a_layer() -> None:
    """Hidden states and the numbers of the experts to the CPU, their results back; five inputs once."""
    one = scenario("qwen3-30b-a3b", "strategy.cpu_moe=36", "model.quantization=q4_k_m")
    plan = plan_of(one)
    assert [len(one) for one in names(plan)[:-1]] == [2] * 36 + [0] * 12  # products, activation
    switch = one.machine.host.products.switch.value
    times = busy(so.simulate(one))
    assert times["GPU to host"] == pytest.approx(2 * 36 * switch, rel=0.05)
    assert times["host to GPU"] == pytest.approx((37 + 5) * switch, rel=0.1)  # and after the embeddings
    first = next(op for op in ops(plan, 1) if op.label == "hidden states")
    assert first.fixed == pytest.approx((1 + 5) * switch * 1e12)


def test_bytes_and_arithmetic_of_a_product_overlap_in_part() -> None:
    """16 tokens and 14336 x 4096 weights of 8.5 bits, the largest product: the root of the sum of squares."""
    case = scenario("llama-3.1-8b", "strategy.gpu_layers=0", "workload.prompt_length=16")
    plan, host, weights = plan_of(case), case.machine.host, 14336 * 4096
    threads, products = plan.cpu_settings.threads, host.products
    rate = products.read_rate("blocked", host.memory_bandwidth.value, threads=threads, experts=False)
    arithmetic = 2 * 16 * weights / (threads * products.kernel_rate("blocked", 16))
    caps = [one.cap for one in plan.schedule(plan.forward("pass", 16, 16)).routes]
    found = next(op.size / caps[op.route] for op in ops(plan, 16) if op.size == weights * 34 // 32)
    assert found == pytest.approx(hypot(weights * 34 / 32 / rate, arithmetic))


@pytest.mark.parametrize(("prompt", "copied"), [(31, False), (32, True)])
def test_weights_are_copied_for_32_tokens(prompt: int, *, copied: bool) -> None:
    sets = ("strategy.gpu_layers=20", f"workload.prompt_length={prompt}", "strategy.load_mode=none")
    off = so.simulate(scenario("llama-3.1-8b", *sets, "strategy.op_offload=false")).ttft_s
    on = so.simulate(scenario("llama-3.1-8b", *sets)).ttft_s
    assert on is not None
    assert (on != off) == copied


def test_larger_parts_copy_weights_less_often() -> None:
    sets = ("strategy.gpu_layers=20", "workload.prompt_length=4096")
    few, many = (
        so.simulate(scenario("llama-3.1-8b", *sets, f"strategy.ubatch_size={size}")).ttft_s
        for size in (2048, 512)
    )
    assert few is not None
    assert many is not None
    assert few < 0.5 * many


@pytest.mark.parametrize("model", ["llama-3.3-70b", "gpt-oss-120b", "qwen3-235b-a22b"])
@pytest.mark.parametrize("cache", [None, "int4"])
def test_fit_leaves_its_margin_and_no_room_for_more(model: str, cache: str | None) -> None:
    """With one layer more on the GPU less than the margin of 1 GiB would be left."""
    own = ("strategy.kind=llama_cpp", "workload.prompt_length=16000", *_format(model))
    own += (f"strategy.kv_cache.format={cache}",) if cache else ()
    one = default_scenario(model, "rtx-4090-desktop", overrides=own)
    plan, machine = plan_of(one), one.machine
    chosen, layers = plan.on_cpu, plan.model.num_hidden_layers
    assert chosen.before or chosen.experts, "not all of it fits"
    first = chosen.experts.start
    more = {"experts": range(first + 1, layers)} if chosen.experts else {"before": chosen.before - 1}
    fuller = chosen._replace(**more)
    larger = replace(plan, on_cpu=fuller, homes=fuller.homes(plan.model))

    def left(placed: LlamaPlan) -> int:
        used = sum(part.size for part in placed.held if part.tier == "hbm")
        return machine.tiers["hbm"].capacity - used - DISPLAY

    assert left(larger) < GIB <= left(plan)


def _format(model: str) -> tuple[str, ...]:
    return () if model == "gpt-oss-120b" else ("model.quantization=q4_k_m",)


def test_a_released_mxfp4_is_its_mixture() -> None:
    """A file of gpt-oss-120b has 59.02 GiB (ggml-org/gpt-oss-120b-GGUF)."""
    one = default_scenario("gpt-oss-120b", "rtx-4090-desktop", overrides=("strategy.kind=llama_cpp",))
    assert plan_of(one).model.weight_bytes / GIB == pytest.approx(59.02, abs=0.005)
    assert [*one.exports().values()] == ["llama-server -m gpt-oss-120b-MXFP4_MOE.gguf -c 8192\n"]


def _faulted(plan: Any, matrix: float) -> float:
    found: float = plan.memory.pages.faulted(read=1e6, stored=64e6, matrix=matrix)
    return found


def test_pages_are_missing_where_memory_is_short() -> None:
    """Of a dense model all, as a cyclic scan evicts what comes next; of experts the share that has no room
    beside what every pass reads, with what Linux reads around them."""
    memory = "profiles.host/desktop-ddr5-128gb.memory_capacity=24 GiB"
    dense = plan_of(scenario("llama-3.3-70b", memory, "strategy.gpu_layers=8"))
    assert _faulted(dense, 0.0) == 1e6
    mixture = plan_of(scenario("qwen3-30b-a3b", memory, "strategy.cpu_moe=all"))
    pages = mixture.memory.pages
    assert pages.ahead == 128 * 1024, "Linux's usual one"
    missing = 1 - (pages.room - pages.dense) / pages.experts
    assert _faulted(mixture, 1e6) == pytest.approx(missing * (1 + 2 * 0.131072) * 1e6)
    assert not _faulted(plan_of(scenario("qwen3-30b-a3b", "strategy.cpu_moe=all")), 1e6)
    pinned = so.fit(scenario("qwen3-30b-a3b", memory, "strategy.cpu_moe=all", "strategy.load_mode=none"))
    assert not pinned.fits


@pytest.mark.parametrize(
    ("model", "matrix"),
    [("qwen3-30b-a3b", 2048 * 768), ("gpt-oss-20b", 2880 * 2880)],
)
def test_what_linux_reads_around_experts_is_read_with_them(model: str, matrix: int) -> None:
    """The share that has no room of what is chosen, and of twice the read-ahead for each of three matrices of
    an expert; at most the whole layer, as no page is read twice."""
    memory = "profiles.host/desktop-ddr5-128gb.memory_capacity=18 GiB"

    def one(ahead: str) -> LoadedScenario:
        stated = f"{{value: {ahead}, origin: measured, source: sysfs, date: 2026-11-28}}"
        known = f"profiles.host/desktop-ddr5-128gb.read_ahead={stated}"
        return scenario(model, memory, "strategy.cpu_moe=all", known)

    usual, most = (
        busy(so.simulate(one(ahead)))["nvme read (page faults of experts)"] for ahead in ("128 KiB", "1 GiB")
    )
    shape = plan_of(one("128 KiB")).model
    chosen = shape.experts_per_token / shape.num_experts
    size = 34 / 32 * matrix  # of q8_0
    assert usual / most == pytest.approx(chosen * (1 + 2 * 128 * 1024 / size), rel=0.02)


def test_a_token_becomes_slower_little_by_little_as_memory_shrinks() -> None:
    """Experts of 49 GiB of a file of 59, beside 8 GiB of memory for the system: none jumps at one GiB."""

    def time(memory: int) -> float:
        own = (f"profiles.host/desktop-ddr5-128gb.memory_capacity={memory} GiB", "strategy.cpu_moe=31")
        one = default_scenario(
            "gpt-oss-120b", "rtx-4090-desktop", overrides=("strategy.kind=llama_cpp", *own)
        )
        found = so.simulate(one).tpot_s
        assert found is not None
        return found

    times = [time(memory) for memory in range(70, 44, -1)]
    steps = [after - before for before, after in pairwise(times)]
    assert min(steps) >= 0
    assert times[0] == times[4] < 0.5 * times[-1]
    assert max(steps) < 0.5 * times[0]


@pytest.mark.parametrize(("room", "read"), [(1000, 0.0), (950, 0.5), (900, 1.0), (100, 1.0)])
def test_what_every_pass_reads_is_read_from_the_file_below_nine_tenths(room: int, read: float) -> None:
    """docs/measurements/mapped-files.md; between the two ends a straight line."""
    pages = MappedWeights(dense=1000, room=room)
    assert pages.faulted(read=1.0, stored=1.0, matrix=0.0) == pytest.approx(read)


def test_experts_have_the_room_that_what_every_pass_reads_leaves() -> None:
    """And not that of what a GPU has copied, or of embeddings."""
    plan = plan_of(scenario("qwen3-30b-a3b", "strategy.cpu_moe=all"))
    pages, model = plan.memory.pages, plan.model
    assert pages.dense == 0
    assert pages.experts == pytest.approx(48 * 3 * 128 * 2048 * 768 * 34 / 32, rel=1e-6)
    on_cpu = plan_of(scenario("qwen3-30b-a3b", "strategy.gpu_layers=0")).memory.pages
    embeddings = 151936 * 2048 * 34 / 32
    assert on_cpu.dense + on_cpu.experts == pytest.approx(model.weight_bytes - embeddings, rel=1e-6)


def test_without_a_drive_pages_have_nowhere_to_go() -> None:
    """What to add is said once; what is loaded needs memory, whatever drives there are."""
    need = "add memory, or a drive (--drive) from which pages of the mapped file"
    lacking = so.fit(scenario("llama-3.1-405b", platform="h100-1gpu-vm"))
    assert [need in one for one in lacking.advice] == [True]
    loaded = so.fit(scenario("llama-3.1-405b", "strategy.load_mode=none", platform="h100-1gpu-vm"))
    assert [need in one for one in loaded.advice] == [False]
    assert so.fit(scenario("llama-3.1-405b")).fits, "this machine has a drive"


@pytest.mark.parametrize(("memory", "fits"), [(64, True), (48, False)])
def test_without_a_drive_what_the_cpu_reads_has_room_or_is_refused(
    memory: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, fits: bool
) -> None:
    """The CPU reads a part of a file of 59 GiB; loaded or mapped, it needs as much."""
    (tmp_path / "box.yaml").write_text(f"id: box\ngpu: rtx-4080\nmemory: {memory} GB\ndrives: []\n")
    monkeypatch.chdir(tmp_path)
    kind = "strategy.kind=llama_cpp"
    mapped = so.fit(default_scenario("gpt-oss-120b", "box.yaml", overrides=(kind,)))
    assert mapped.fits == fits
    assert ["or a drive (--drive)" in one for one in mapped.advice] == [True] * (not fits)
    loaded = so.fit(default_scenario("gpt-oss-120b", "box.yaml", overrides=(kind, "strategy.load_mode=none")))
    assert loaded.fits == fits


@pytest.mark.parametrize(
    ("model", "memory", "told"),
    [
        ("qwen3-30b-a3b", "25 GiB", "keeps what the CPU computes in memory"),
        ("qwen3-30b-a3b", "18 GiB", "desktop-ddr5-128gb.read_ahead (read_ahead_kb of the drive)"),
        ("qwen3-30b-a3b", "64 GiB", ""),
        ("llama-3.1-8b", "10 GiB", ""),
    ],
)
def test_what_missing_pages_mean_is_told(model: str, memory: str, told: str) -> None:
    """Dense weights that do not fit are read anew, as measured; experts may be read several times."""
    quantization = "model.quantization=q4_k_m"
    host = f"profiles.host/desktop-ddr5-128gb.memory_capacity={memory}"
    chosen = "strategy.cpu_moe=all" if "a3b" in model else "strategy.gpu_layers=0"
    plan = plan_of(scenario(model, quantization, host, chosen))
    found = [one for one in plan.warnings if "mapped file" in one]
    assert [told in one for one in found] == [True] * bool(told)
    on_gpu = scenario(model, quantization, host.replace(memory, "14 GiB"), "strategy.gpu_layers=all")
    assert not plan_of(on_gpu).memory.lacks_pages, "the embeddings alone are in host memory"


def test_a_cache_in_host_memory_is_attended_to_there() -> None:
    plan = plan_of(scenario("llama-3.1-8b", "strategy.gpu_layers=all", "strategy.kv_offload=false"))
    assert all(len(one) == 1 for one in names(plan)[:-1])
    assert held(plan, "dram")["key-value cache"] == 32 * 768 * 2 * 1024 * 2  # 544 tokens, padded


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("threads", "0", "at least 1, got 0"),
        ("gpu_layers", "-3", "gpu_layers"),
        ("gpu_layers", "some", "gpu_layers"),
        ("cpu_moe", "1.5", "cpu_moe"),
        ("load_mode", "fast", "load_mode"),
        ("ubatch_size", "4096", "more than batch_size, 2,048; lower it"),
        ("file", "nowhere", "nowhere"),
        ("kv_cache.implementation", "streamed", "llama.cpp"),
        ("kv_cache.tier", "dram", "llama.cpp keeps no cache there"),
        ("kv_cache.format", "fp8", "llama.cpp has no cache of this format"),
        ("kv_cache.connector", "{tier: nvme}", "llama.cpp has no connector"),
    ],
)
def test_mistakes_get_one_message(
    key: str, value: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sets = ["--set", "strategy.kind=llama_cpp", "--set", f"strategy.{key}={value}"]
    assert main(["run", "llama-3.1-8b", "--gpu", "rtx-4090", *sets]) == 2
    assert message in capsys.readouterr().err


def test_locked_pages_are_never_missing() -> None:
    memory = "profiles.host/desktop-ddr5-128gb.memory_capacity=24 GiB"
    one = scenario("qwen3-30b-a3b", memory, "strategy.cpu_moe=all", "strategy.load_mode=mmap+mlock")
    assert not so.fit(one).fits


@pytest.mark.parametrize(
    ("model", "key"), [("llama-3.1-8b", "cpu_moe"), ("qwen3-30b-a3b", "cpu_ffn"), ("bloom-7b1", "cpu_moe")]
)
def test_layers_that_the_model_lacks_are_told(model: str, key: str) -> None:
    (warning,) = plan_of(scenario(model, f"strategy.{key}=4")).warnings
    assert warning.startswith(f"strategy.{key} has no effect: ")


_EXPERTS = "blk\\.([0-9]|1[01])\\.ffn_(up|down|gate|gate_up)_(ch|)exps=CPU"


@pytest.mark.parametrize("model", ["qwen3-30b-a3b", "deepseek-v2-lite", "gpt-oss-20b"])
def test_experts_of_the_first_layers_are_patterns(model: str) -> None:
    """``-ncmoe 12`` is twelve patterns of ``-ot`` (common/arg.cpp)."""
    sets = _format(model)
    one = scenario(model, "strategy.cpu_moe=12", *sets)
    other = scenario(model, f"strategy.override_tensor={json.dumps([_EXPERTS])}", *sets)
    for tier in ("hbm", "dram"):
        assert held(plan_of(one), tier) == held(plan_of(other), tier)
    assert names(plan_of(one)) == names(plan_of(other))
    assert so.simulate(one).metrics() == so.simulate(other).metrics()


def _overridden(*patterns: str, model: str = "qwen3-30b-a3b") -> LoadedScenario:
    return scenario(model, f"strategy.override_tensor={json.dumps(patterns)}")


_MATRIX = 128 * 768 * 2048 * 34 // 32
"""Bytes of one of the three tensors of the experts of a layer, in Q8_0."""


@pytest.mark.parametrize(
    ("patterns", "size"),
    [
        (["exps=CPU"], 48 * 3 * _MATRIX),
        (["ffn_up_exps=CPU"], 48 * _MATRIX),
        (["blk.(1|23).ffn_(up|gate)_exps=CPU"], 4 * _MATRIX),
        (["blk\\.[0-9]\\.=CUDA0", "exps=CPU"], 38 * 3 * _MATRIX),
        (["blk\\.[0-9]\\.=CUDA0,exps=CPU"], 38 * 3 * _MATRIX),
        (["^(?!blk\\.4)blk.*_exps=CPU"], 39 * 3 * _MATRIX),  # not 4 and 40 to 47
        (["attn_(q|output)\\.weight$=CPU"], 48 * 2 * 2048 * 4096 * 34 // 32),
        (["(a+)+$=CPU", "(.*.*.*)*_down_exps=CPU"], 48 * _MATRIX),
    ],
)
def test_what_patterns_find_is_in_host_memory(patterns: list[str], size: int) -> None:
    embeddings = 151936 * 2048 * 34 // 32
    if patterns[0].startswith("(a+)"):
        with pytest.raises(InputError, match="decides nothing"):
            _overridden(*patterns).plan()
        patterns = patterns[1:]
    assert held(plan_of(_overridden(*patterns)), "dram")["weights"] == embeddings + size


def test_a_part_of_the_experts_takes_its_part_of_the_time() -> None:
    """A third of the bytes on the CPU, and as many changes of device and meetings."""
    one, whole = (so.simulate(_overridden(f"{part}_exps=CPU")) for part in ("down", ""))
    fixed = 48 * 6 * scenario().machine.host.products.operation.value
    third = (busy(whole)["CPU compute"] - fixed) / 3
    assert busy(one)["CPU compute"] - fixed == pytest.approx(third, rel=0.01)
    assert busy(one)["host to GPU"] == busy(whole)["host to GPU"]


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        (
            ["ffn_banana=CPU"],
            '[0]": "ffn_banana=CPU" decides nothing: no tensor of qwen3_moe has such a name',
        ),
        (["exps=CPU", "up_exps=CPU"], '[1]": "up_exps=CPU" decides nothing'),
        (["exps=GPU0"], 'tensors cannot be on "GPU0"; the devices are CPU, CUDA0 (strategy.num_gpus)'),
        (["exps"], '"exps" is not PATTERN=DEVICE, such as'),
        (["=CPU"], "is not PATTERN=DEVICE"),
        (["(exps=CPU"], 'the pattern "(exps": missing ): (exps; valid is the syntax of RE2'),
        (["blk(?!a)=CPU"], 'the pattern "blk(?!a)": invalid perl operator: (?!'),
        (["x" * 1001 + "=CPU"], "has 1,001 characters; at most 1,000 may be"),
        (["token_embd=CUDA0"], "has embeddings on the GPU, which is not simulated"),
    ],
)
def test_wrong_patterns_get_one_message(patterns: list[str], message: str) -> None:
    with pytest.raises(InputError) as caught:
        _overridden(*patterns).plan()
    (problem,) = caught.value.problems
    assert message in str(problem)


@pytest.mark.parametrize(("key", "value"), [("gpu_layers", 20), ("cpu_moe", 10)])
def test_patterns_that_contradict_other_settings_are_refused(key: str, value: int) -> None:
    sets = (f"strategy.{key}={value}", 'strategy.override_tensor=["blk.1.ffn_up_exps=CUDA0"]')
    with pytest.raises(
        InputError, match=r"sends blk\.1\.ffn_up_exps\.weight to the GPU, but gpu_layers, cpu_moe"
    ):
        scenario("qwen3-30b-a3b", *sets).plan()


def test_patterns_keep_fit_from_choosing() -> None:
    one = _overridden("blk\\.0\\.ffn_.*_exps=CPU")
    (command,) = one.exports().values()
    assert command.endswith(" -c 768 -ot 'blk\\.0\\.ffn_.*_exps=CPU'\n")
    assert not so.fit(one).fits  # 48 layers in Q8_0 are more than 24 GB
    assert so.fit(scenario("qwen3-30b-a3b")).fits


def test_dense_networks_of_the_first_layers() -> None:
    """Of a mixture the shared experts and the layers without experts."""
    plan = plan_of(scenario("bloom-7b1", "strategy.cpu_ffn=3"))
    assert [len(one) for one in names(plan)[:4]] == [
        3,
        3,
        3,
        0,
    ]  # two products, the activation


def test_formats_that_are_not_in_gguf_are_refused() -> None:
    with pytest.raises(
        InputError, match=r"no tensors in int4-g128; set model.quantization to a type of GGUF"
    ):
        scenario("llama-3.1-8b", "model.quantization=int4-g128").plan()


def test_the_command_has_what_differs_from_the_defaults() -> None:
    sets = ("strategy.cpu_moe=25", "strategy.ubatch_size=1024", "strategy.load_mode=none")
    (command,) = scenario("qwen3-30b-a3b", *sets, "strategy.threads=8").exports().values()
    assert (
        command == "llama-server -m qwen3-30b-a3b-Q8_0.gguf -c 768 -ncmoe 25 -lm none -t 8 -b 2048 -ub 1024\n"
    )
    (fitted,) = scenario("qwen3-30b-a3b").exports().values()
    assert fitted == "llama-server -m qwen3-30b-a3b-Q8_0.gguf -c 768\n"


def test_advice_names_faster_memory_and_what_helps_prompts() -> None:
    """Memory that is a fifth faster, which the CPU reads, for less than the interval of a host that nobody
    measured; larger parts and pinned weights for prompts alone, and no larger parts for a prompt that is one
    part already."""
    sets = ("strategy.cpu_moe=all", "model.quantization=q4_k_m", "workload.prompt_length=4096")
    advice = so.advise(scenario("qwen3-30b-a3b", *sets), objective="tpot_s")
    (faster,) = (one for one in advice.uncertain if one.change.key == "faster-memory")
    assert 1.05 < (faster.gain or 0) < 1.15 < 1 + (faster.margin or 0)
    sooner = {one.change.key: one.first_token_gain(advice.result) for one in advice.sooner}
    assert sooner["ubatch-4096"] > sooner["ubatch-2048"] > sooner["ubatch-1024"] > 1.1
    assert sooner["load-mode-none"] > 1.1
    short = so.advise(scenario("qwen3-30b-a3b", *sets[:2], "workload.prompt_length=512"))
    tried = {one.change.key for one in short.tried}
    assert not any(key.startswith("ubatch") for key in tried)
    assert "faster-thread" not in tried


@pytest.mark.parametrize(
    ("platform", "channels", "experts"),
    [
        ("rtx-4090-threadripper", 8, 0.42),
        ("rtx-4090-epyc-8-channel", 8, 0.42),
        ("rtx-4090-epyc-12-channel", 12, 0.36),
        ("rtx-5090-xeon-mrdimm", 12, 0.36),
    ],
)
def test_machines_with_many_channels_have_their_class(platform: str, channels: int, experts: float) -> None:
    one = scenario("deepseek-v3", "model.quantization=q4_k_m", platform=platform)
    host = one.machine.host
    assert host.memory_channels is not None
    assert host.memory_channels.value == channels
    assert host.products.experts.value == experts


def test_what_the_first_tokens_read_again_is_said() -> None:
    """1.75 times what has no room of the file, or 1.33 times what the CPU reads if that is less; nothing if
    the file has room, or is not mapped."""

    def memory(gib: float, *sets: str) -> tuple[DeviceMemory, str]:
        own = ("model.quantization=q4_k_m", "strategy.cpu_moe=9", *sets)
        size = f"profiles.host/desktop-ddr4-64gb.memory_capacity={gib} GiB"
        plan = plan_of(scenario("qwen3-30b-a3b", *own, size, platform="rtx-3090-workstation"))
        return plan.memory, " ".join(plan.warnings)

    for gib in (25, 16):
        found, said = memory(gib)
        missing, read = found.model.weight_bytes - found.left, found.pages.dense + found.pages.experts
        expected = 1.75 * missing if gib == 25 else 1.33 * read
        assert found.settling == pytest.approx(expected)
        assert f"read about {expected / 1e9:.1f} GB of it again" in said
    for found, said in (memory(32), memory(25, "strategy.load_mode=none")):
        assert found.settling == 0
        assert "again" not in said


def test_cores_of_one_chiplet_read_no_faster_than_its_link() -> None:
    """Two channels of DDR5-5200 carry 83 GB/s, the link of the only chiplet 62.5: faster memory is of no use,
    a second chiplet is."""

    def one(**host: str) -> LoadedScenario:
        sets = (f"profiles.host/ryzen-7000-64gb.{key}={value}" for key, value in host.items())
        own = ("model.quantization=q4_k_m", "strategy.num_gpus=0", *sets)
        return scenario("qwen3-14b", *own, platform="rtx-4060-ti-16gb-desktop")

    def rate(**host: str) -> float:
        found = so.simulate(one(**host)).metrics()["decode_tokens_per_s"]
        assert found is not None
        return found

    host = one().machine.host
    for reads in (host.products.weights, host.products.experts):
        assert reads.value * host.memory_bandwidth.value == pytest.approx(62.5e9)
        assert reads.source.startswith("one chiplet of cores")
    assert rate(memory_bandwidth="112 GB/s") == pytest.approx(rate())
    assert rate(read_limit="125 GB/s") > 1.1 * rate()
    assert one(memory_bandwidth="51.2 GB/s").machine.host.products.weights.value == 0.9


def test_deepseek_v3_on_twelve_channels() -> None:
    """Per token the CPU reads 8 of 256 experts of all but one layer, at the rate of 32 threads and of 0.36 of
    the memory's peak together; all threads meet six times a layer."""
    memory = "profiles.host/epyc-9005-768gb.memory_capacity=512 GiB"
    one = scenario("deepseek-v3", "model.quantization=q4_k_m", memory, platform="rtx-4090-epyc-12-channel")
    plan, products = plan_of(one), one.machine.host.products
    held = (
        round(stored_bytes([one], plan.model) * plan.on_cpu.share(number, one))
        for number, layer in enumerate(plan.model.layers)
        for one in layer
        if one.share < 1 and plan.on_cpu.holds(number, one)
    )
    read = sum(held) * 8 / 256
    assert len(plan.on_cpu.experts) == 57  # of 58
    slowness = ((32 * products.thread.value) ** -2 + (0.36 * 614.4e9) ** -2) ** 0.5
    expected = read * slowness + 57 * 6 * products.operation.value
    assert busy(so.simulate(one))["CPU compute"] == pytest.approx(expected, rel=0.01)


def test_an_architecture_that_it_lacks_is_refused() -> None:
    with pytest.raises(InputError, match=r"strategy.kind: llama.cpp does not know OPTForCausalLM; choose"):
        scenario("opt-6.7b").plan()


def test_architectures_without_a_converter_are_in_no_file() -> None:
    """TEXT_MODEL_MAP in conversion/__init__.py of llama.cpp@00bdaa10; MiniMax-M3 and Kimi-K3 came later, in
    src/models at 1ded4cd3 and 38d39068."""
    lacks = {one.traits.architecture for one in FAMILIES.values() if not one.traits.in_gguf}
    assert lacks == {"OPTForCausalLM", "MiMoForCausalLM", "MiniMaxForCausalLM"}


def test_advice_names_fewer_experts_on_the_cpu_more_threads_and_the_placement_of_fit() -> None:
    """Fewer layers with experts on the CPU than ``--fit`` chooses use what it leaves, 1 GiB, but 256 MiB."""
    platform, formats = "rtx-3070-ti-desktop", "model.quantization=q4_k_m"
    chosen = scenario("qwen3-30b-a3b", formats, platform=platform)
    (fewer,) = [one.change for one in so.advise(chosen).tried if one.change.key == "cpu-moe"]
    least = next(edit.value for edit in fewer.edits if edit.path[-1] == "cpu_moe")
    assert least < len(plan_of(chosen).on_cpu.experts)
    left = [
        plan_of(scenario("qwen3-30b-a3b", formats, f"strategy.cpu_moe={count}", platform=platform)).memory
        for count in (least, least - 1)
    ]
    assert left[0].spare[0] + GIB >= GIB / 4 > left[1].spare[0] + GIB
    sets = ("strategy.cpu_moe=all", "strategy.threads=2", formats)
    keys = {one.change.key for one in so.advise(scenario("qwen3-30b-a3b", *sets)).helping}
    assert keys >= {"fit", "threads"}


def test_a_release_that_it_does_not_load_is_offered_in_a_type_of_gguf() -> None:
    """DeepSeek-V3 is released in FP8, which no GGUF file has."""
    memory = "profiles.host/epyc-9005-768gb.memory_capacity=512 GiB"
    one = default_scenario("deepseek-v3", "rtx-4090-epyc-12-channel", overrides=(memory,))
    assert "split-llama_cpp-1-q4_k_m" in {found.change.key for found in so.advise(one).tried}


def test_the_rate_of_prompts_is_a_number() -> None:
    result = so.simulate(scenario("llama-3.1-8b", "workload.prompt_length=400"))
    assert result.ttft_s is not None
    assert result.metrics()["prompt_tokens_per_s"] == pytest.approx(400 / result.ttft_s)
    other = so.simulate(default_scenario("llama-3.1-8b", "rtx-4090-desktop"))
    assert "prompt_tokens_per_s" not in other.metrics()
