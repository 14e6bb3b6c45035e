"""What a page shows of a state."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import get_args

import pytest

from simoffload.documents import yaml_text
from simoffload.errors import InputError
from simoffload.extensions.serving.answers import StreamMeasures
from simoffload.extensions.serving.report import stream_document
from simoffload.extensions.serving.requests import drawn
from simoffload.extensions.serving.streams import stream
from simoffload.extensions.serving.traces import shipped_traces
from simoffload.extensions.web import form
from simoffload.extensions.web.questions import (
    ASKS,
    PageAnswer,
    answer,
    check,
    curve,
    file,
    next_changes,
    requests,
)
from simoffload.extensions.web.scenarios import ASKED, LENGTHS, changed, load, problem_texts
from simoffload.extensions.web.state import State, Variant
from simoffload.planning.answers import simulate
from simoffload.planning.question import question
from simoffload.report.formatting import sentence
from simoffload.scenario import list_scenarios, read_scenario
from simoffload.scenario.streams import Length
from simoffload.strategies import BEST, Strategy, strategies
from simoffload.units import format_seconds
from tests.report.conftest import EVIL

START = State((Variant("llama-3.3-70b", ("strategy.weights=nvme",)),))
"""An answer that a drive decides."""
DDN = State((Variant("ddn/bloom-7b1"),))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a worker, beside which a secret lies."""
    (tmp_path / "secret.json").write_text('{"model_type": "llama", "hidden_size": 4711}')
    own = tmp_path / "own"
    own.mkdir()
    monkeypatch.chdir(own)
    return own


def inputs(found: PageAnswer) -> dict[str, form.Input]:
    return {one.name: one for panel in found.panels for one in (*panel.inputs, *panel.more)}


def all_requests(state: State) -> tuple[str, ...]:
    """Return the last answer to requests."""
    *_, found = requests(state, "stream")
    return found


def test_numbers_are_those_of_run() -> None:
    found = answer(DDN, "edit workload.batch_size", "8")
    assert found.command == "simoffload run ddn/bloom-7b1 --set workload.batch_size=8"
    result = simulate(read_scenario("ddn/bloom-7b1", overrides=["workload.batch_size=8"]))
    shown = {name: value for name, value, _ in found.metrics}
    assert {one.label: one.text(value) for one, value in result.valued()}.items() <= shown.items()
    costs = result.costs
    assert costs is not None
    assert shown["per million tokens"] == f"{costs.metrics()['cost_per_million_tokens']:.3g} USD"


def test_a_price_list_is_dropped() -> None:
    text = (
        "{kind: costs, id: mine, name: mine, date: 2026-01-02, devices: {accelerator/rtx-4090: {price: %s}}}"
    )
    found = answer(START, "file prices.yaml", text % 100)
    assert found.command.endswith("--costs prices.yaml")
    assert "accelerator/rtx-4090: {price: 100}" in file(found.state, "prices")[1]
    assert found.metrics[-1] != answer(START).metrics[-1], "the purchase"
    again = answer(found.state, "price accelerator/rtx-4090", 200)
    assert "price: 200.0" in file(again.state, "prices")[1]
    with pytest.raises(InputError, match="accelerator/rtx-4090"):
        answer(START, "file prices.yaml", text % "many")


@pytest.mark.parametrize("name", list_scenarios()[::4])
def test_every_scenario_has_inputs_and_an_answer(name: str) -> None:
    found = answer(State((Variant(name),)))
    assert found.problems == ()
    titles = ["", "Model", "Program", "Work", "Stream of requests", "Machine", "Try"]
    if inputs(found)["work"].value != "inference":
        titles.remove("Stream of requests")
    assert [one.title for one in found.panels] == titles
    assert len(found.sentence) <= 200
    names = [one.name for panel in found.panels for one in (*panel.inputs, *panel.more)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("program", strategies())
def test_a_program_has_an_input_for_each_of_its_fields(program: type[Strategy]) -> None:
    """A program that is registered needs no other declaration; the best has those of what it chooses."""
    (work,) = [one for one in ("inference", "training", "checkpoint") if one in program.serves][:1]
    kind = program.model_fields["kind"].default
    state = changed(START if work == "inference" else changed(START, "work", work), "program", kind)
    found = inputs(answer(state))
    assert found["program"].value == kind
    asked = type(load(state.current).scenario.strategy)
    assert (asked is program) == (kind != BEST)
    assert {f"edit strategy.{key}" for key in asked.model_fields if key != "kind"} <= found.keys()


def test_checkpoints_of_a_model_go_to_the_storage_of_its_machine() -> None:
    found = answer(State((Variant("llama-3.1-8b"),)), "work", "checkpoint")
    assert found.problems == ()
    assert load(found.state.current).document.data["strategy"] == {
        "kind": "checkpoint",
        "ranks": 1,
        "tier": "nvme",
    }
    assert inputs(found)["edit strategy.tier"].value == "nvme"


def test_a_slider_sets_what_its_name_says() -> None:
    first = answer(DDN)
    name = next(one for one in inputs(first) if one.startswith("slide edit workload.batch_size"))
    found = answer(DDN, name, 3)
    assert found.state.current.edits == ("workload.batch_size=8",)
    assert (inputs(found)[name].value, inputs(found)[name].note) == (3, "8")


def test_a_number_of_the_machine_is_multiplied_and_set_back() -> None:
    name = next(one for one in inputs(answer(START)) if one.startswith("scale "))
    twice = answer(START, name, 8)
    assert inputs(twice)[name].note == "14,000 MB/s (spec)"
    assert answer(twice.state, name, 6).state == START


def test_a_price_changes_the_cost_and_goes_along() -> None:
    found = answer(START, "price accelerator/rtx-4090", 100.0)
    assert "--costs prices.yaml" in found.command
    assert "accelerator/rtx-4090:\n    price: 100.0" in file(found.state, "prices")[1]
    assert found.metrics != answer(START).metrics


def test_another_machine_has_the_data_on_a_tier_of_its_own() -> None:
    found = answer(START, "edit platform", "dgx-a100")
    assert found.problems == ()
    assert found.state.current.edits == ("platform=dgx-a100", "strategy.weights=raid")


def test_a_mistake_stands_at_its_input_and_can_be_mended() -> None:
    wrong = answer(DDN, "edit workload.batch_size", "many")
    one = inputs(wrong)["edit workload.batch_size"]
    assert (one.value, one.problem) == ("many", 'must be a whole number, got "many"')
    assert (wrong.sentence, wrong.sections) == ("", ())
    assert answer(wrong.state, "edit workload.batch_size", "8").problems == ()


def test_a_mistake_does_not_say_where_the_server_has_its_files() -> None:
    stage = "strategy.ds_config.zero_optimization.stage=1"
    (text,) = answer(State((Variant("training/bloom-7b1", (stage,)),))).problems
    assert text == "weights: parameters leave the GPU only in stage 3, not 1"


def test_charts_have_the_names_of_the_basket() -> None:
    """Also where the variants differ in what would name them elsewhere: the tier."""
    found = answer(changed(START.kept(), "edit strategy.weights", "dram")._replace(at=0))
    times, causes = (one for one in found.sections if "Variants" in one or "Where the time goes" in one)
    assert all(label in times for label in found.labels)
    assert found.labels[0] in causes


def test_variants_are_compared_in_one_sentence() -> None:
    state = changed(State((START.current,)).kept(), "edit model.quantization", "int4-g128")
    found = answer(state)
    assert found.labels == ("A llama-3.3-70b", "B int4-g128")
    tied = answer(changed(State((START.current,)).kept(), "part memory", "256GB"))
    assert "; B 256GB is as fast within the uncertainty but costs 1.3 times as much." in tied.sentence


# ---- what is asked -----------------------------------------------------------------------------


HEADLINES = {
    "run": r"gpt-oss-120b, mxfp4 runs .* tokens/s \(",
    "buy": r"llama-3.1-405b runs with its weights on raid: .* USD per million tokens",
    "users": r"llama-3.1-8b on h100-1gpu-vm: how many users … is being found out",
    "fine-tune": r"llama-3.1-8b on rtx-4090-desktop: a million tokens take .* \(.*\) and cost .* USD",
    "trillions": r"bloom-mod-2 runs .* per token of each\)",
}


@pytest.mark.parametrize("asks", ASKED)
def test_what_is_asked_decides_the_headline(asks: str) -> None:
    found = answer(State((Variant("gpt-oss-120b"),)), ASKS, asks)
    assert (found.problems, found.state.asks) == ((), asks)
    assert re.match(HEADLINES[asks], found.sentence), found.sentence
    assert State.of(found.state.text) == found.state
    first = [one.label for one in found.panels[0].inputs]
    assert first[:6] == ["model", "GPU", "GPUs in use", "host memory", "drive or server", "PCIe"]
    assert "program" in first
    assert ("ttft" in first) == (asks == "users")


def test_what_was_changed_stays_where_something_else_is_asked() -> None:
    own = answer(State((Variant("gpt-oss-120b"),)), "edit model", "qwen3-8b").state
    for asks in ("users", "fine-tune", "buy"):
        own = answer(own, ASKS, asks).state
        assert load(own.current).model.name == "qwen3-8b"
    assert load(answer(own, ASKS, "trillions").state.current).model.name == "bloom-mod-2"


def test_how_many_users_is_the_headline_of_the_page() -> None:
    state = with_stream(ENGINE, *FEW, kind="closed")._replace(asks="users")
    brief, (first, *_) = requests(state, "stream")
    for one in (*brief, first):
        assert 'data-headline="llama-3.1-8b on h100-1gpu-vm: ' in one
        assert re.search("users.* with ttft ≤ 2 s and tpot ≤ 200 ms", one)
    assert 'data-headline=""' in all_requests(state._replace(asks="run"))[0]


def test_how_many_users_compares_the_variants() -> None:
    one = with_stream(ENGINE, *FEW, "stream.slo.tpot=20 ms", kind="closed")._replace(asks="users")
    found = answer(one.kept(), "part gpu", "rtx-4090")
    assert found.sentence == "2 variants: how many users … is being found out"
    large, small = (
        stream(load(each), slo=["attain=0.9"]).to_dict()["best_load"] for each in found.state.variants
    )
    assert large > small > 0
    headline = all_requests(found.state)[0].partition("</h2>")[0]
    assert re.search(f'"A h100-sxm carries most: at least {large:.0f} users with ttft', headline)
    assert f"; at least {large / small:.2g} times the {small:.0f} of B rtx-4090" in headline


def test_the_fine_tuning_of_the_headline_is_that_of_run() -> None:
    state = answer(State((Variant("gpt-oss-120b"),)), ASKS, "fine-tune").state
    result = simulate(load(state.current))
    rate = result.metrics()["tokens_per_s"]
    assert f"take {format_seconds(1e6 / (rate or 1))} (" in answer(state).sentence


def test_variants_are_named_by_what_differs() -> None:
    """In the words of the command line: no JSON, and no name of the scenario the page began with."""
    state = answer(State((Variant("gpt-oss-120b"),)), ASKS, "buy").state
    state = answer(state.kept(), "part drive", "ddn-ai400x2").state
    found = answer(answer(state.kept(), "part gpu", "h200-sxm").state)
    assert found.labels == (
        "A h100-sxm, 4xmicron-9550-pro-7.68tb",
        "B h100-sxm, ddn-ai400x2",
        "C h200-sxm, ddn-ai400x2",
    )
    assert "{" not in found.sentence
    pcie = answer(State((Variant("ddn/bloom-mod-2"),)).kept(), "pcie", "gen5")
    assert pcie.labels == ("A gen4", "B gen5")
    other = answer(DDN, "edit model", "opt-13b")
    assert other.labels == ("opt-13b",)
    title = file(other.state, "report")[1].partition("<title>")[2].partition("</title>")[0]
    assert "opt-13b" in title
    assert "bloom" not in title


def test_a_gpu_that_is_named_is_the_one_of_the_command_line() -> None:
    """One card where its machine has eight, with the memory and the drive that were named before."""
    state = answer(State((Variant("qwen3-8b"),)), "part memory", "64GB").state
    found = load(answer(state, "part gpu", "a100-80g-sxm").state.current)
    same = question("qwen3-8b", gpu="a100-80g-sxm", memory="64GB")
    assert simulate(found).metrics() == simulate(same).metrics()
    assert found.scenario.strategy.gpus == 1
    drive = answer(State((Variant("qwen3-8b"),)), "part drive", "samsung-990-pro-2tb").state
    same = question("qwen3-8b", "rtx-4090-desktop", drive="samsung-990-pro-2tb")
    assert simulate(load(drive.current)).metrics() == simulate(same).metrics()


@pytest.mark.parametrize("gpu", form._ids("accelerator")[::5])
def test_every_gpu_can_be_chosen(gpu: str) -> None:
    assert answer(State((Variant("qwen3-8b"),)), "part gpu", gpu).problems == ()


def test_a_drive_acts_or_says_where_the_weights_are() -> None:
    begun = answer(State((Variant("gpt-oss-120b"),)))
    assert inputs(begun)["part drive"].remark == "holds nothing: the weights are in DRAM"
    found = answer(begun.state, "part drive", "samsung-990-pro-2tb")
    assert inputs(found)["part drive"].remark == ""
    assert found.sentence != begun.sentence
    served = answer(DDN, "part drive", "2xmicron-9550-pro-7.68tb")
    assert load(served.state.current).document.data["strategy"]["weights"] == "raid"


def test_another_pcie_generation_is_that_of_the_slots() -> None:
    state = State((Variant("ddn/bloom-mod-2"),))
    found = answer(state, "pcie", "gen5")
    assert found.state.current.edits == ("equipment.pcie.gen4=gen5",)
    assert inputs(found)["pcie"][2:4] == ("gen5", "")
    assert inputs(found)["pcie"].remark == "the GPU has gen4"
    assert answer(found.state, "pcie", "gen4").state == state


def test_a_mistake_has_fixes_out() -> None:
    state = answer(State((Variant("gpt-oss-120b"),)), "edit workload.context", "4096").state
    wrong = answer(state, "edit workload.batch_size", "many")
    assert wrong.problems == ('batch_size: must be a whole number, got "many"',)
    labels = [label for label, _ in wrong.fixes]
    assert labels == ["Undo: batch_size"]
    assert State.of(wrong.fixes[0][1]) == state
    meant, *_ = answer(state, "edit model", "gpt-oss-121b").fixes
    assert meant[0] == "gpt-oss-120b"
    assert answer(State.of(meant[1])).problems == ()
    with pytest.raises(InputError) as error:
        answer(state, "part memory", "many")
    assert problem_texts(error.value.problems)[0].startswith("host memory: ")


def test_advice_is_sorted_and_has_its_rates() -> None:
    found = next_changes(START).changes
    assert all(re.search(r"tokens/s .*\(", one.rate) for one in found)
    rates = [float(one.rate.partition(" ")[0].replace(",", "")) for one in found]
    assert rates == sorted(rates, reverse=True)


def test_a_dropped_config_is_read_as_any_other(folder: Path) -> None:
    sizes = {"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "intermediate_size": 14336}
    sizes |= {"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256}
    limits = {"time_step_limit": [0.0, float("inf")]}
    found = answer(START, "file config.json", json.dumps(sizes | limits))
    assert found.sentence.startswith("config-")
    assert State.of(found.state.text) == found.state
    with refused("not valid JSON"):
        answer(START, "file config.json", "{")
    assert answer(START, "file x.yaml", "name: x").problems[0].startswith("scenario.yaml:1:1:")
    assert load(found.state.current).model.name.startswith("config-")
    assert list(folder.iterdir()) == [], "texts are in memory"


@contextmanager
def refused(text: str) -> Iterator[None]:
    with pytest.raises(InputError, match=text):
        yield


PATHS = (
    "../secret.json",
    "{folder}/../secret.json",
    "/etc/passwd",
    "/proc/self/environ",
    "file:///etc/passwd",
)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "name",
    [
        *("base", "edit platform", "edit strategy.ds_config", "edit model.config", "edit model"),
        *("part gpu", "part drive", "edit equipment.accelerator", "edit equipment.host"),
    ],
)
def test_nothing_reads_files_of_the_server(name: str, path: str, folder: Path) -> None:
    try:
        found = answer(START, name, path.format(folder=folder))
    except InputError as error:
        text = str(error)
    else:
        assert found.problems, found.sentence
        text = "\n".join(found.problems)
    assert not any(word in text for word in ("4711", "root:", "HOME="))


def test_a_scenario_of_ones_own_reads_no_files() -> None:
    text = "name: x\nmodel: {config: ../secret.json}\nplatform: dgx-a100\nworkload: {batch_size: 1}\n"
    assert "outside the scenario's folder" in "\n".join(check(Variant(text)))


def test_a_name_is_text_wherever_it_comes() -> None:
    text = load(DDN.current).document.data | {"name": EVIL, "description": EVIL}
    found = answer(State((Variant(json.dumps(text) + "\n"),)))
    assert found.problems == ()
    page = file(found.state, "report")[1]
    assert "<img src=x" not in page


def test_what_to_change_is_what_advise_says() -> None:
    found = next_changes(START)
    best = found.changes[0]
    state = State((START.current.edited(*best.assignments),))
    assert answer(state).problems == ()
    assert len({one.name.split(" ")[1] for one in found.sliders}) == len(found.sliders) > 2


@pytest.mark.parametrize("kind", ["scenario", "settings", "report"])
def test_files_are_those_of_the_command_line(kind: str) -> None:
    name, text = file(DDN, kind)
    assert name.partition(".")[0] == kind
    assert {"scenario": "name: ", "settings": "zero_optimization", "report": "<title>"}[kind] in text


def test_an_input_that_does_not_exist_is_refused() -> None:
    for name, value in (
        ("", 1),
        ("open /etc", "x"),
        ("part nothing", 1),
        ("slide edit a", 9),
        ("price x", "nan"),
    ):
        with pytest.raises(InputError):
            changed(START, name, value)


def metrics(found: PageAnswer) -> dict[str, str]:
    return {name: value for name, value, _ in found.metrics}


CURVES = {
    "slide edit workload.batch_size 1|2|4": "throughput",
    "scale pfs/ddn-ai400x2 read": "throughput",
    "slide price pfs/ddn-ai400x2 1|2": "per million tokens",
}


@pytest.mark.parametrize("name", CURVES)
def test_a_curve_goes_through_the_present_point(name: str) -> None:
    (drawn,) = curve(DDN, name)
    assert re.search(f"diamond: now, at [^:]*: {re.escape(metrics(answer(DDN))[CURVES[name]])}", drawn)
    assert drawn.count("<circle") >= 5
    assert "<table>" in drawn


SHORT = "workload={kind: inference, batch_size: 1, prompt_length: 512, output_length: 32}"
VLLM = ("platform=h100-1gpu-vm", "strategy={kind: vllm}", SHORT)
ENGINE = State((Variant("llama-3.1-8b", VLLM),))


def with_stream(state: State, *edits: str, kind: str = "poisson") -> State:
    begun = answer(state, "requests", kind)
    assert begun.problems == ()
    return begun.state.changed(begun.state.current.edited(*edits))


FEW = ("stream.num_prompts=30", "stream.replications=2")


def test_requests_have_the_answer_of_stream() -> None:
    state = State.of(
        with_stream(ENGINE, *FEW, "stream.arrivals.request_rate=4", "stream.slo.ttft=60 ms").text
    )
    shown = inputs(answer(state))
    assert shown["edit stream.arrivals.request_rate"].value == "4"
    assert shown["edit stream.prompt.tokens"].value == "512"
    assert shown["edit stream.slo.tpot"].value == "200 ms"
    assert dict(answer(state).following)["stream"] == "stream"
    first, *sections, command = all_requests(state)
    found = stream(load(state.current), slo=["attain=0.9"])
    assert sentence(stream_document(found).verdicts[0]) in first
    for name in ("ttft_p50_s", "ttft_p99_s", "tpot_p50_s", "tpot_p99_s"):
        metric = StreamMeasures.declared[name]
        assert f"<dt>{metric.title}</dt><dd><strong>{metric.text(found.estimates[name].value)}" in first
    assert "Loads that were tried" in sections[0]
    assert "simoffload stream llama-3.1-8b" in command
    assert command.endswith("--slo attain=0.9</code></p>")


def test_users_instead_of_a_rate_and_no_limits() -> None:
    state = with_stream(ENGINE, *FEW, "stream.slo={}", kind="closed")
    assert inputs(answer(state))["edit stream.arrivals.users"].value == "1"
    first, metrics, *_ = all_requests(state)
    assert "<p>p99 of TTFT" in first
    assert "What requests meet" in metrics


@pytest.mark.parametrize("kind", LENGTHS)
def test_a_length_of_another_kind_is_about_as_long(kind: str) -> None:
    begun = with_stream(ENGINE, *FEW, "stream.slo={}")
    found = answer(begun, "length stream.prompt", kind)
    assert found.problems == ()
    shown = {name: one.value for name, one in inputs(found).items() if name.startswith("edit stream.prompt.")}
    assert list(shown) == [f"edit stream.prompt.{key}" for key in LENGTHS[kind]]
    options = load(found.state.current).scenario.stream
    assert options is not None
    assert 300 < drawn(options).prompt.mean() < 1500
    assert (
        answer(found.state, "length stream.prompt", "fixed").state
        == answer(begun, "length stream.prompt", "fixed").state
    )


def test_every_kind_of_a_length_can_be_chosen() -> None:
    (union, _) = get_args(Length)
    assert list(LENGTHS) == [get_args(one.model_fields["kind"].annotation)[0] for one in get_args(union)]


def test_a_mistake_in_a_length_is_said_at_its_number() -> None:
    begun = answer(with_stream(ENGINE), "length stream.output", "uniform").state
    wrong = inputs(answer(begun, "edit stream.output.min", "900"))
    assert wrong["length stream.output"].problem == "min 900 is above max 48; lower min, or raise max"
    assert wrong["length stream.output"].value == "uniform"
    assert wrong["edit stream.output.min"].value == "900"
    followed = answer(begun, "edit stream.output.min", "900")
    assert dict(followed.following)["stream"] == ""  # the answer alone says it
    assert next_changes(followed.state) == ((), (), "")
    wrong = inputs(answer(begun, "edit stream.output.max", "many"))
    assert "many" in wrong["edit stream.output.max"].problem
    assert wrong["edit stream.output.max"].value == "many"
    with pytest.raises(InputError, match="odd is no value of it"):
        answer(begun, "length stream.output", "odd")


def test_conversations_begin_with_turns_and_can_be_taken_away() -> None:
    begun = with_stream(ENGINE)
    talking = answer(begun, "length stream.conversations.turns", "exponential").state
    paused = answer(talking, "edit stream.conversations.think_time", "5 s")
    assert paused.problems == ()
    assert inputs(paused)["edit stream.conversations.turns.mean"].value == "4"
    changed = load(answer(paused.state, "length stream.conversations.turns", "fixed").state.current)
    assert changed.document.data["stream"]["conversations"] == {
        "turns": {"kind": "fixed", "tokens": 4},
        "think_time": "5 s",
    }
    alone = answer(paused.state, "length stream.conversations.turns", "none")
    assert inputs(alone)["length stream.conversations.turns"].value == "none"
    again = answer(alone.state, "length stream.conversations.turns", "fixed")
    assert again.problems == ()


def test_a_trace_has_its_file_and_its_rate() -> None:
    found = answer(State((Variant("serving/llama-3.1-8b-mooncake"),)), "edit stream.trace.rate_factor", "0.5")
    shown = inputs(found)
    assert found.problems == ()
    assert shown["edit stream.trace.file"].choices == shipped_traces()
    assert shown["edit stream.trace.rate_factor"].value == "0.5"
    assert "length stream.prompt" not in shown
    sent = answer(found.state, "requests", "poisson")
    assert inputs(sent)["edit stream.arrivals.request_rate"].value == "1"
    assert (
        load(answer(sent.state, "requests", "recorded").state.current).document.data
        == load(found.state.current).document.data
    )
    begun = answer(
        answer(with_stream(ENGINE), "length stream.conversations.turns", "fixed").state,
        "requests",
        "recorded",
    )
    assert begun.problems == ()
    assert inputs(begun)["edit stream.trace.file"].value == shipped_traces()[0]


def test_a_program_that_is_no_engine_serves_batches_like_its_own() -> None:
    state = with_stream(START, "stream.num_prompts=4", "stream.replications=1", "stream.slo={}")
    options = load(state.current).scenario.stream
    assert options is not None
    assert (options.scheduler, options.max_num_seqs, options.kv_blocks) == ("static", 1, 160)
    assert len(all_requests(state)) > 3


def test_without_a_stream_there_is_no_part_and_it_can_be_taken_away() -> None:
    assert list(requests(DDN, "stream")) == []
    assert dict(answer(DDN).following)["stream"] == ""
    assert answer(with_stream(DDN), "requests", "none").state == DDN
    written = yaml_text(load(with_stream(ENGINE).current).document.data)
    without = answer(State((Variant(f"{written}\n"),)), "requests", "none")
    assert without.problems == ()
    assert load(without.state.current).scenario.stream is None
    training = answer(with_stream(DDN), "work", "training")
    assert training.problems == ()
    assert "requests" not in inputs(training)
    with pytest.raises(InputError, match="is no value of it"):
        answer(DDN, "requests", "never")


@pytest.mark.parametrize("path", ["../secret.json", "/etc/passwd", "{folder}/../secret.json"])
def test_a_trace_of_the_server_is_not_read(path: str, folder: Path) -> None:
    trace = f"stream={{trace: {{file: {path.format(folder=folder)}}}}}"
    state = ENGINE.changed(ENGINE.current.edited(trace))
    with pytest.raises(InputError, match="the page reads no files of the server") as caught:
        all_requests(state)
    assert "4711" not in str(caught.value)


def test_a_name_of_a_release_is_its_model_and_no_folder_of_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "unsloth" / "gpt-oss-20b-GGUF").mkdir(parents=True)
    (tmp_path / "unsloth" / "gpt-oss-20b-GGUF" / "config.json").write_text('{"model_type": "llama"}')
    assert load(Variant("unsloth/gpt-oss-20b-GGUF")).model.name == "gpt-oss-20b, mxfp4"
    edited = Variant("qwen3-8b", ("model=llama3.3:70b-instruct-q8_0",))
    assert load(edited).model.name == "llama-3.3-70b, q8_0"


def test_a_slider_that_is_not_there_has_no_curve() -> None:
    assert curve(DDN, "scale drive/none read") == ()
    assert curve(DDN, "slide edit workload.none 1|2") == ()
