"""The examples for authors run, each alone, and what they compute is true."""

from __future__ import annotations

import csv
import json
import runpy
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import pytest

import simoffload as so
from simoffload import extending
from simoffload.cli import main
from simoffload.extensions.sweep.run import check_workers_can_import
from simoffload.extensions.web.questions import answer
from simoffload.extensions.web.state import State, Variant
from simoffload.hardware import KINDS, STORAGE_KINDS, TIER_KINDS, TierKind, library, targets, tiers_outside
from simoffload.models.families import FAMILIES
from simoffload.planning.bandwidth import storage_curve
from simoffload.report.formatting import place
from simoffload.strategies import register, registry, strategy_for
from simoffload.strategies.authoring import Prefetched
from simoffload.strategies.base import memory_stages, tier_paths
from simoffload.strategies.cache import kv_cache
from simoffload.strategies.passes.pass_writer import DEPTH, REQUEST, PassWriter
from tests.test_metric_from_outside import forget_metrics

EXAMPLES = Path(__file__).parents[1] / "examples"
PROGRAMS = (
    *("three_tiers", "checked_layers", "cache_format", "wide_family"),
    *("expert_cache", "cxl_expander", "object_store"),
)
"""Examples with a scenario of the same name."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder with the scenarios of the examples, whose modules can be imported."""
    monkeypatch.setattr(registry, "registered", dict(registry.registered))
    monkeypatch.setattr(kv_cache, "_ELEMENTS", dict(kv_cache._ELEMENTS))
    monkeypatch.syspath_prepend(str(EXAMPLES))
    for name in PROGRAMS:
        sys.modules.pop(name, None)
        (tmp_path / f"{name}.yaml").write_text((EXAMPLES / f"{name}.yaml").read_text())
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in PROGRAMS:
        sys.modules.pop(name, None)
    forget_metrics()
    forget_tiers()
    if "wide" in FAMILIES:
        del FAMILIES["wide"]


def forget_tiers() -> None:
    """Take the kinds of tiers that were registered from all tables."""
    for name in [one.model_fields["kind"].annotation.__args__[0] for one in tiers_outside()]:
        for table in (KINDS, STORAGE_KINDS, TIER_KINDS, targets.TARGETS):
            del table[name]
    library.DEVICES.clear()


def simulated(name: str, *overrides: str) -> tuple[so.LoadedScenario, Any]:
    """Import an example and simulate its scenario."""
    __import__(name)
    scenario = so.load_scenario(f"{name}.yaml", overrides=overrides)
    return scenario, so.simulate(scenario)


# -- each runs alone -----------------------------------------------------------------------------


def test_the_list_of_examples_is_whole() -> None:
    written = {path.relative_to(EXAMPLES).parts[0].partition(".")[0] for path in EXAMPLES.rglob("*.*ml")}
    written |= {path.stem for path in EXAMPLES.glob("*.py")}
    assert written == {*PROGRAMS, "own_metric", "own_command", "device", "cxl", "objects"}


@pytest.mark.parametrize(
    "words",
    [
        *((f"{name}.py", "run", f"{name}.yaml") for name in PROGRAMS),
        ("own_metric.py", "run", "ddn/bloom-7b1"),
    ],
    ids=lambda words: words[0],
)
def test_an_example_runs_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: Sequence[str]
) -> None:
    monkeypatch.setattr(sys, "argv", list(words))
    with suppress(SystemExit):
        runpy.run_path(str(EXAMPLES / words[0]), run_name="__main__")
    shown, complaints = capsys.readouterr()
    assert "tokens/s" in shown, complaints


def test_a_command_of_your_own_is_one_like_all(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import own_command

    monkeypatch.setattr(extending, "found", lambda: extending.Found({"own": own_command.EXTENSION}, {}))
    assert main(["overnight", "ddn/bloom-7b1", "--tokens", "3600", "--json"]) == 0
    hours = json.loads(capsys.readouterr().out)["hours"]
    assert hours == pytest.approx(1 / so.simulate("ddn/bloom-7b1").tokens_per_s)
    assert main(["overnite", "ddn/bloom-7b1"]) == 2
    assert 'did you mean "overnight"?' in " ".join(capsys.readouterr().err.split())
    assert main(["overnight", "ddn/bloom-176b", "--set", "strategy.weights=hbm"]) == 3
    with suppress(SystemExit):
        main([])
    assert "How many users?                            overnight" in capsys.readouterr().out


# -- a program: three_tiers.py -------------------------------------------------------------------

WHOLE = ("model=opt-6.7b", 'strategy.kv_cache={"tier":"hbm"}')
"""Weights in 16 bit, and the cache on the GPU."""


def expected_time(scenario: so.LoadedScenario) -> float:
    """The time [s] of the last decode step: what is slowest of its copies, reads and kernels.

    Copies from pageable memory take the host thread, which launches the kernels of a layer between them;
    others go on beside it. A drive is read from the layer that is two layers before the first one on it.
    """
    plan: Any = scenario.plan()
    machine, last = scenario.machine, scenario.scenario.workload.output_length - 1
    timing = plan.timings.timing(plan.decode_step(last).batch)
    costs = machine.host.eager_costs
    copies = reads = held = 0.0
    for modules, layer in zip(plan.model.layers, plan.homes.layers, strict=True):
        for home, sizes in layer.items():
            stored = home.tier != "dram"
            path = machine.host_to_device(0, pinned=home.pinned or stored)
            copy = sum(size / path.curve.rate(size) + path.latency for size in sizes)
            if stored:
                size, drive = sum(sizes), machine.storage_read(home.tier, 0)
                in_flight = min(size, DEPTH * REQUEST)
                reads += drive.latency + size / drive.file_rate(size, outstanding=in_flight, block=REQUEST)
                rest = copy  # the last copy has no later read beside it
            else:
                copies += copy
            if not stored and not home.pinned:
                host = machine.host.deepspeed
                held += sum(timing.launch_s(one) for one in modules if timing.compute(one))
                held += len(sizes) * costs.operation.value
                held += min(host.cold_limit.value, host.cold_share.value * copy)
    kernels = sum(timing.compute(one) for modules in plan.model.layers for one in modules) * 1e-12
    return max(kernels, copies + held + (reads + rest if reads else 0.0))


@pytest.mark.parametrize(
    ("pinned", "pageable"), [(32, 0), (0, 32), (0, 0), (10, 10)], ids=["pinned", "pageable", "nvme", "mixed"]
)
def test_three_tiers_take_the_time_of_the_closed_form(
    monkeypatch: pytest.MonkeyPatch, pinned: int, pageable: int
) -> None:
    monkeypatch.setattr(PassWriter, "verify", True)
    split = f"strategy.pinned={pinned}", f"strategy.pageable={pageable}"
    scenario, result = simulated("three_tiers", *WHOLE, *split)
    assert result.decode[-1].time_s == pytest.approx(expected_time(scenario), rel=0.02)


def test_a_layer_brought_for_itself_takes_the_place_of_the_one_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With room for one layer its copy waits for the computation of the layer before."""
    import three_tiers

    monkeypatch.setattr(PassWriter, "verify", True)
    work = (*WHOLE, "strategy.pinned=32", "workload.batch_size=8")
    ahead = simulated("three_tiers", *work)[1]
    program = three_tiers.ThreeTiers
    monkeypatch.setattr(program, "hooks", lambda _, plan, __: [Prefetched(plan.homes, ahead=0)])
    scenario, alone = simulated("three_tiers", *work)
    plan: Any = scenario.plan()
    timing = plan.timings.timing(plan.forward("prefill", 64, 64).batch)
    kernels = sum(timing.compute(one) for modules in plan.model.layers for one in modules) * 1e-12
    assert alone.ttft_s - ahead.ttft_s == pytest.approx(kernels, rel=0.1)


def test_three_tiers_count_their_memory() -> None:
    scenario, result = simulated("three_tiers", *WHOLE)
    plan: Any = scenario.plan()
    layer = sum(map(sum, plan.homes.layers[0].values()))
    ((_, terms),) = [(one.name, one.terms) for one in memory_stages(plan)]
    needed = {(one.tier, one.name, one.pinned): one.size for one in terms}
    assert needed["dram", "weights", True] == needed["dram", "weights", False] == 10 * layer
    assert needed["raid", "weights", False] == 12 * layer
    assert needed["hbm", "layers on their way", False] == 3 * layer
    assert result.fits


COMMANDS: Sequence[Sequence[str]] = (
    ("check",),
    ("run", "--output-dir", "out"),
    ("fit",),
    ("compare", "--on", "raid,nfs"),
    ("advise",),
    ("sweep", "--axis", "workload.batch_size=1,2", "-o", "s.csv", "--workers", "1"),
    ("schema",),
)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_knows_three_tiers(words: Sequence[str], capsys: pytest.CaptureFixture[str]) -> None:
    """With weights in 4 bits and the cache in host memory."""
    __import__("three_tiers")
    command, *options = words
    source = "scenario" if command == "schema" else "three_tiers.yaml"
    assert main([command, source, *options]) == 0, capsys.readouterr().err
    reported = capsys.readouterr().out
    if command == "schema":
        assert "three_tiers" in reported
    if "--output-dir" in words:
        assert "three_tiers" in Path("out/report.html").read_text()
    if command == "sweep":
        assert len(Path("s.csv").read_text().splitlines()) == 3


# -- kinds of tiers, and an expert cache ---------------------------------------------------------

FASTER: Sequence[tuple[str, str, str]] = (
    ("cxl_expander", "dram,cxl,raid8", 'profiles."cxl/cxl-256gb".read=12 GB/s,24 GB/s'),
    ("object_store", "connector=dram,connector=store", 'profiles."objects/cloud-store".connections=16,128'),
    ("expert_cache", "nvme", "strategy.cached=0.1,0.6"),
)
"""Examples with places of what they move, and an axis along which they become faster."""
of_each = pytest.mark.parametrize(("name", "places", "axis"), FASTER, ids=[one[0] for one in FASTER])


@of_each
def test_every_command_knows_an_example(
    name: str, places: str, axis: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Workers of the sweep import its module."""
    __import__(name)
    for command, *words in (
        ["check"],
        ["run"],
        ["fit"],
        ["compare", "--on", places],
        ["advise"],
        ["sweep", "--axis", axis, "-o", "s.csv", "--workers", "2"],
    ):
        assert main([command, f"{name}.yaml", *words]) == 0, capsys.readouterr().err
        shown = capsys.readouterr().out
        assert command != "compare" or not [one for one in places.split(",") if one not in shown]
    slow, fast = (float(row["ttft_s"]) for row in csv.DictReader(Path("s.csv").read_text().splitlines()))
    assert fast < slow


@of_each
def test_python_functions_and_the_page_know_an_example(name: str, places: str, axis: str) -> None:
    __import__(name)
    result = so.simulate(f"{name}.yaml")
    compared = so.compare(f"{name}.yaml", places.split(","))
    assert result.ttft_s in [one.ttft_s for one in compared.results.values()]
    assert so.advise(f"{name}.yaml").result.ttft_s == result.ttft_s
    slow, fast = so.sweep(f"{name}.yaml", axis, workers=1).to_frame()["ttft_s"]
    assert fast < slow
    shown = answer(State((Variant(Path(f"{name}.yaml").read_text()),)))
    assert dict(one[:2] for one in shown.metrics)["throughput"] == f"{result.tokens_per_s:.3g} tokens/s"


def moved(result: Any, name: str) -> Any:
    """What went over the link of a name in the first decode step, or in the prefill without any."""
    found = [one for step in (result.prefill, *result.decode[:1]) for one in step.links if one.link == name]
    return found[-1]


def test_gpus_copy_memory_behind_cxl_at_its_rate_and_not_by_way_of_dram() -> None:
    scenario, result = simulated("cxl_expander")
    held = {(one.tier, one.name): one.size for one in memory_stages(scenario.plan())[0].terms}
    weights = held["cxl", "weights"]
    assert moved(result, "cxl read").size == weights
    assert result.tpot_s == pytest.approx(weights / 24e9, rel=0.02)
    assert "dram" not in {one.link for one in result.decode[0].links if one.size > weights / 100}
    assert not any(tier == "dram" and "buffers" in name for tier, name in held)
    in_dram = simulated("cxl_expander", "strategy.offload_tier=dram")[1]
    assert moved(in_dram, "dram").size == pytest.approx(weights)
    assert [one.key for one in scenario.machine.parts if one.tier == "cxl"] == ["cxl/cxl-256gb"]


def test_reports_call_memory_behind_cxl_memory() -> None:
    scenario, result = simulated("cxl_expander")
    assert [place(one, result.capacity) for one in ("hbm", "cxl", "raid8")] == [
        "in HBM",
        "in cxl",
        "on raid8",
    ]
    curve = storage_curve(scenario)
    assert curve is not None
    assert curve.sentences[0] == "the memory (cxl) reads 24 GB/s"
    assert "drive" not in "".join(curve.sentences)


def test_a_copy_from_pageable_memory_behind_cxl_goes_through_dram() -> None:
    scenario, _ = simulated("cxl_expander")
    machine = scenario.machine
    paths = [machine.host_to_device(0, pinned=pinned, tier="cxl") for pinned in (True, False)]
    for path, traffic in zip(paths, (0, 2), strict=True):
        crossed = {machine.resources[at].name: share for at, share in path.hops}
        assert crossed.get("dram", 0) == traffic
        assert crossed["cxl read"] == 1
    back = machine.device_to_host(0, pinned=True, tier="cxl")
    assert back.curve.rate(10**9) == 12_000_000_000


def test_an_object_store_gives_a_client_what_its_parts_in_flight_reach() -> None:
    (_, few), (_, many) = (
        simulated("object_store", f'profiles."objects/cloud-store".connections={count}')
        for count in (16, 128)
    )
    part = 8 * 2**20
    for result, count in ((few, 16), (many, 128)):
        read = moved(result, "store read")
        rate = min(8e9, count * part / (0.03 + part / 87e6))
        assert (
            read.size == 8192 * 2 * 8 * 128 * 2 * 32
        )  # tokens, keys and values, heads, width, bytes, layers
        assert result.ttft_s > read.size / rate
    assert few.ttft_s - many.ttft_s == pytest.approx(read.size * (1 / (rate / 8) - 1 / rate), rel=0.2)


SECTIONS: Sequence[tuple[str, dict[str, Any]]] = (
    *(("inference", {"kind": kind}) for kind in ("best", "vllm", "transformers", "gpt_fast", "llama_cpp")),
    ("inference", {"kind": "vllm", "cpu_offload_gb": 8}),
    ("inference", {"kind": "vllm", "offload_group_size": 1}),
    ("inference", {"kind": "deepspeed", "weights": "dram"}),
    *(("inference", {"kind": "accelerate", "device_map": one}) for one in ("auto", "cpu", 16)),
    (
        "inference",
        {"kind": "accelerate", "device_map": "disk", "offload_folder": "raid0", "page_cache": False},
    ),
    ("inference", {"kind": "flexgen", "weights_gpu_percent": 0, "weights_cpu_percent": 100}),
    ("inference", {"kind": "flexgen", "weights_gpu_percent": 0, "disk": "raid0", "page_cache": False}),
    *(("training", {"kind": kind}) for kind in ("best", "transformers")),
    ("training", {"kind": "deepspeed", "weights": "dram", "optimizer": "dram"}),
    ("training", {"kind": "fsdp", "cpu_offload": True, "ranks": 2}),
    ("checkpoint", {"kind": "checkpoint", "ranks": 8, "tier": "raid0"}),
)
"""Programs with something outside HBM, where they can have that."""
WAYS = {
    "inference": (
        'strategy.kv_cache={"tier": "TIER", "implementation": "streamed"}',
        'strategy.kv_cache={"connector": {"tier": "TIER", "prefix": 256}}',
    ),
    "training": ('checkpoint={"tier": "TIER"}',),
    "checkpoint": (),
}
"""Ways to name a tier beside those that each key of a program is."""
WORK: dict[str, dict[str, Any]] = {
    "inference": {"batch_size": 2, "prompt_length": 512, "output_length": 4},
    "training": {"batch_size": 1, "sequence_length": 512},
    "checkpoint": {},
}


@pytest.mark.parametrize("tier", ["cxl", "store"])
@pytest.mark.parametrize(("work", "section"), SECTIONS, ids=str)
def test_programs_refuse_a_tier_or_keep_bytes_there_and_take_its_time(
    work: str, section: dict[str, Any], tier: str
) -> None:
    """Whichever key names it."""
    for name in ("cxl_expander", "object_store"):
        __import__(name)
    tiers = {
        "cxl": {"profile": "cxl-256gb", "at": ["cpu"]},
        "store": {"profile": "cloud-store", "through": ["eth0"]},
    }
    whole = {
        "name": "a program and a tier",
        "model": "opt-6.7b" if section["kind"] == "flexgen" else "llama-3.1-8b",
        "platform": "h100-storage-choices",
        "equipment": {"tiers": tiers},
        "workload": {"kind": work, **WORK[work]},
        "strategy": section,
    }
    slower = [f'profiles."objects/cloud-store".{key}=1 MB/s' for key in ("read", "write")]
    slower += [f'profiles."cxl/cxl-256gb".{key}=1 MB/s' for key in ("read", "write")]
    program = registry.strategy_of(section["kind"], work)
    assert program is not None
    named = [f"strategy.{key}=TIER" for key in tier_paths(program) if "connector" not in key]
    for way in ("", *named, *WAYS[work]):
        words = [way.replace("TIER", tier)] if way else []

        def simulate(changes: Sequence[str], words: Sequence[str] = words) -> Any:
            scenario = so.load_scenario(whole, overrides=[*words, *changes])
            return so.simulate(scenario if words else scenario.on(tier))

        refusal = ""
        try:
            result, slow = map(simulate, ([], slower))
        except so.InputError as error:
            refusal = str(error)
        if refusal:
            assert tier in refusal or (way and way.partition("=")[0] in refusal)
            assert len(refusal.splitlines()) == 1
        else:
            assert tier in {use.tier for use in result.capacity if use.needed}, way
            assert slow.metrics() != result.metrics(), way


def test_every_program_is_tried_on_a_tier_of_your_own() -> None:
    kinds = {(work, kind) for work in WORK for kind in strategy_for(work)}
    assert kinds == {(work, section["kind"]) for work, section in SECTIONS}


def test_an_expert_cache_reads_what_it_has_not() -> None:
    scenario, result = simulated("expert_cache", "workload.prompt_length=1")
    model = scenario.model
    each = 3 * 2048 * 768 * 2
    chances = model.routing.probabilities(128, 8)
    hits, misses = round(sum(chances[:49])), round(sum(chances[49:]))
    assert (hits + misses, result.fits) == (8, True)
    assert moved(result, "nvme read").size == 48 * misses * each
    held = {(one.tier, one.name): one.size for one in memory_stages(scenario.plan())[0].terms}
    assert held["dram", "cached experts"] == 48 * 49 * each
    for cached, size in ((1.0, 0), (0.0, 48 * 8 * each)):
        links = simulated("expert_cache", f"strategy.cached={cached}")[1].decode[0].links
        assert sum(one.size for one in links if one.link == "nvme read") == size


def test_what_a_tier_cannot_be_is_refused(tmp_path: Path) -> None:
    import cxl_expander as example

    def registered(name: str) -> None:
        targets.register_tier(TierKind(name, "memory"), example.Expander, example.target, tmp_path)

    with pytest.raises(ValueError, match="nvme is a kind of simoffload; give the tier another name"):
        registered("nvme")
    with pytest.raises(ValueError, match=r"Expander.kind must be Literal\['other'\], got \('cxl',\)"):
        registered("other")
    for strategy in (
        "{kind: deepspeed, weights: cxl}",
        "{kind: deepspeed, weights: dram, kv_cache: {tier: cxl}}",
    ):
        text = Path("cxl_expander.yaml").read_text().partition("strategy:")[0]
        Path("other.yaml").write_text(f"{text}strategy: {strategy}\n")
        with pytest.raises(
            so.InputError, match=r"no device for the tier cxl; use hbm, dram|keeps no cache there"
        ):
            so.simulate("other.yaml")


def test_the_main_program_cannot_give_a_tier_to_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    import object_store

    monkeypatch.setattr(object_store.ObjectStore, "__module__", "__main__")
    with pytest.raises(so.InputError, match="workers cannot import ObjectStore"):
        check_workers_can_import()


# -- a hook, a cache format, a family, a device, a metric ---------------------------------------


def test_checked_layers_take_the_time_of_the_slowest_of_copy_check_and_host() -> None:
    scenario, copied = simulated("checked_layers", "strategy.lookup_s=0")
    plan: Any = scenario.plan()
    sizes = [size for layer in plan.homes.layers for found in layer.values() for size in found]
    checked = simulated("checked_layers", "strategy.check_rate=1e10")[1]
    looked = simulated("checked_layers", "strategy.lookup_s=0.002")[1]
    path = scenario.machine.host_to_device(0, pinned=True)
    copies = sum(size / path.curve.rate(size) + path.latency for size in sizes)
    assert copied.tpot_s == pytest.approx(copies, rel=0.02)
    assert checked.tpot_s == pytest.approx(sum(sizes) / 1e10, rel=0.03)
    assert looked.tpot_s == pytest.approx(len(sizes) * 0.002, rel=0.05)
    held = next(one for one in memory_stages(plan)[0].terms if one.name == "layers on their way")
    assert held.size == 2 * sum(sizes) // 32


def test_a_cache_in_another_format_moves_as_many_bytes_as_it_has() -> None:
    """0.53125 B for an element in place of 2."""
    moved = [
        one.size
        for name in ("mxfp4", "fp16")
        for one in simulated("cache_format", f"strategy.kv_cache.format={name}")[1].decode[0].links
        if one.link == "plx0 -> gpu0"
    ]
    assert moved[0] / moved[1] == pytest.approx(0.53125 / 2, rel=1e-3)
    with pytest.raises(so.InputError, match="transformers has no cache of this format"):
        simulated("cache_format", "strategy.kv_cache.implementation=dynamic", "strategy.kv_cache.tier=hbm")
    with pytest.raises(ValueError, match="mxfp4 is known already"):
        kv_cache.register_cache_format("mxfp4", 1.0)
    for size in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="a number of bytes above 0"):
            kv_cache.register_cache_format("odd", size)
    assert "odd" not in kv_cache.formats_from_outside()


def test_a_program_of_your_own_can_keep_the_format_on_the_gpu() -> None:
    """Its cache is then as large as the format says, beside the tokens that are not quantized yet."""
    __import__("cache_format")
    base = __import__("checked_layers").CheckedLayers
    engine = kv_cache.TRANSFORMERS._replace(formats=("mxfp4",))
    body = {"__module__": __name__, "__annotations__": {"kind": Literal["kept"]}, "kind": "kept"}
    register(type("Kept", (base,), {**body, "cache_engine": engine}))
    keys = "strategy.kind=kept", "strategy.kv_cache.format=mxfp4"
    plan: Any = so.load_scenario(
        "checked_layers.yaml", overrides=["workload.prompt_length=1000", *keys]
    ).plan()
    sizes = {one.name: one.size for one in memory_stages(plan)[0].terms}
    kept = 2 * 2 * 32 * 4096  # elements of a token of two sequences
    whole = (sizes["key-value cache"]) / (0.53125 * kept)
    assert 1000 - 128 <= whole <= 1004
    assert sizes["tokens that are not quantized yet"] > 0


def test_workers_know_the_format(capsys: pytest.CaptureFixture[str]) -> None:
    __import__("cache_format")
    words = ["--axis", "workload.batch_size=1,2", "-o", "s.csv", "--workers", "2"]
    check_workers_can_import()
    assert main(["sweep", "cache_format.yaml", *words]) == 0, capsys.readouterr().err
    assert "known formats" not in Path("s.csv").read_text()


def test_a_family_has_the_parameters_of_its_modules() -> None:
    scenario, result = simulated("wide_family")
    hidden, wide, vocabulary = 1024, 4096, 32000
    layer = 4 * hidden**2 + 2 * hidden * wide + 2 * hidden
    assert scenario.model.num_parameters == 6 * layer + 2 * vocabulary * hidden + 2 * hidden
    assert result.fits


def test_a_drive_of_your_own_is_read_at_its_rate(capsys: pytest.CaptureFixture[str]) -> None:
    device = EXAMPLES / "device"
    assert main(["profiles", "check", str(device / "machine.yaml"), str(device / "drive.yaml")]) == 0
    assert "drive.yaml" in capsys.readouterr().out
    scenario = so.load_scenario(device / "scenario.yaml")
    result: Any = so.simulate(scenario)
    (drive,) = (one for one in result.step.links if one.link == "drive read")
    assert drive.size / drive.busy_s == pytest.approx(7e9, rel=0.01)
    assert drive.size == pytest.approx(2 * scenario.model.num_parameters, rel=0.05)  # also the head
