"""What is told of advice, on a terminal, on a page and in Markdown."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from simoffload.cli.planning import recommended
from simoffload.extensions.purchases import search as purchases
from simoffload.extensions.purchases.search import Search, search_catalogue
from simoffload.extensions.purchases.search_report import front, purchase_verdict, search_document, searched
from simoffload.planning.advise import Advice, advise, evaluate
from simoffload.planning.bandwidth import StorageCurve, storage_curve
from simoffload.planning.service_levels import parse_service
from simoffload.report.charts import gains
from simoffload.report.document import Datum, ReportDocument
from simoffload.report.from_result import advice_document
from simoffload.report.html import write_html
from simoffload.report.markdown import write_markdown
from simoffload.report.plotting import CHANGES
from simoffload.report.sections.advice import advice_verdict, advised, by_answers
from simoffload.report.terminal import terminal_text
from simoffload.results.inference import InferenceResult
from tests.planning.advise.conftest import SPACE, STORAGE_BOUND, known, loaded
from tests.report.conftest import EVIL, checked
from tests.report.test_page import Page


@pytest.fixture(scope="module")
def advice() -> Advice:
    """Advice as if predictions were exact, so that every gain counts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluate, "margin", lambda *_, **__: 0.0)
        return advise(known(STORAGE_BOUND))


@pytest.fixture(scope="module")
def curve() -> StorageCurve:
    found = storage_curve(loaded(STORAGE_BOUND))
    assert found is not None
    return found


@pytest.fixture(scope="module")
def search() -> Search:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(purchases, "families", lambda *_: SPACE)
        return search_catalogue(known(STORAGE_BOUND), budget=250_000)


def document(advice: Advice, curve: StorageCurve | None, search: Search) -> ReportDocument:
    level = parse_service("ttft=2s", InferenceResult)
    command = "simoffload advise s.yaml"
    found = search_document(search, budget=250_000, service=[level], owned=advice.economics.purchase)
    return advice_document(advice, curve, beside=found, service=[level], command=command)


@pytest.mark.parametrize("width", [80, 100])
def test_a_terminal_shows_every_number_whole(
    advice: Advice, curve: StorageCurve, search: Search, width: int
) -> None:
    text = terminal_text(document(advice, curve, search), width=width)
    lines = text.splitlines()
    assert [line for line in lines if len(line) > width] == []
    (drives,) = (line for line in lines if line.strip().startswith("4 x Solidigm") and " hardware " in line)
    assert re.search(r" hardware +1\.32× \[1\.\d+ to 1\.\d+\] +10,015 USD +909 ms$", drives)
    assert "5 drives in raid" in text


def test_the_verdict_names_the_gain_the_money_and_the_setting(advice: Advice) -> None:
    assert advice_verdict(advice).in_full == (
        "26.7 tokens/s of all 32 sequences (22.7 to 37.7; 1.2 s per token of each), TTFT 1.2 s (849 ms to "
        "1.41 s); bottleneck: raid read; largest "
        "gain of throughput: weights divided among 8 GPUs (vLLM) (171× [171 to 171]); with other "
        "answers: weights divided among 8 GPUs (vLLM), stored as fp8 (answers change) "
        "(171× [171 to 171]; effectively lossless in published tests (arXiv 2411.02355)); "
        "largest gain per cost: 5 drives in raid instead of 4 (1.16× [1.16 to 1.16] for 1,252 USD); "
        "best setting: reads straight into the GPU (use_gds) (1.22× [1.22 to 1.22]); "
        "80 % intervals in brackets."
    )


def test_gains_within_their_interval_are_listed_apart(advice: Advice) -> None:
    """With an interval of ±25 %, 1.32 times is a gain and 1.22 and 1.16 times may be none."""
    wide = replace(advice, tried=tuple(replace(one, margin=0.25) for one in advice.tried))
    apart = next(one for one in advised(wide, None) if one.title == "Gains within the prediction error")
    (text,) = apart.sentences
    assert text == "the 80 % interval of each gain contains 1"
    assert ("reads straight into the GPU (use_gds)", "1.22× [0.98 to 1.53]") in apart.tables[0].texts
    assert [one.change.key for one in wide.helping] == [
        one.change.key for one in advice.helping if one.gain is None or one.gain >= 1.25
    ]
    assert "use_gds" not in advice_verdict(wide).in_full
    assert wide.to_dict()["uncertain"] == [one.change.key for one in wide.uncertain]
    assert not any("use_gds" in name for name in recommended(wide))


def test_values_of_one_setting_are_one_row(advice: Advice) -> None:
    """The best of them, with the range; plain values keep all."""
    gained, *others = advised(advice, None)
    (paid,) = (one for one in others if one.title == "Largest gain per cost")
    rows = [row[0].text for row in gained.tables[0].rows if isinstance(row[0], Datum)]
    assert [one for one in rows if "batch" in one] == ["batch 32 per GPU instead of 4 (tried 8 to 32)"]
    assert {"8 drives in raid instead of 4 (tried 5 to 8)", "weights on dram", "weights on ai400x2"} <= set(
        rows
    )
    first = paid.tables[0].rows[0][0]
    assert isinstance(first, Datum)
    assert first.text == "5 drives in raid instead of 4 (tried 5 to 8)"
    keys = {one["key"]: one["gain"] for one in advice.to_dict()["options"]}
    assert keys["batch-32"] > keys["batch-16"] > keys["batch-8"] > 1
    assert {"raid-5-drives", "raid-8-drives"} <= set(keys)


def test_no_table_of_changes_has_an_empty_column(
    advice: Advice, other_form: Advice, curve: StorageCurve, search: Search
) -> None:
    for one in (advice, other_form):
        for section in document(one, curve, search).sections[:4]:
            for table in section.tables:
                assert all(any(column) for column in zip(*table.texts, strict=True)), section.title


def test_what_was_looked_for_and_found(search: Search) -> None:
    level = parse_service("ttft=2s", InferenceResult)
    (section,) = searched(search, budget=250_000, service=[level])
    looked, counts, *_ = section.sentences
    best = purchase_verdict(search, budget=250_000, service=[level]).in_full
    kinds = "storage, drives, memory, program, format and batch"
    assert looked == f"15 combinations of {kinds}; at most 250,000 USD for a whole machine, ttft ≤ 2 s"
    assert best.startswith("highest throughput: weights on hbm, batch 16; ")
    assert re.search(r"; 730 tokens/s \[\d+ to [\d,]+\] for 200,000 USD; 80 % intervals in brackets\.$", best)
    assert counts == "1 simulated, 6 exceed the budget, 8 cannot be among the best"
    (table,) = section.tables
    assert len(table.rows) == len(search.front) == 1


def test_a_search_that_was_stopped_says_so(search: Search) -> None:
    (section,) = searched(replace(search, stopped="more than 2 s"), budget=None, service=[])
    assert "the search is not complete: more than 2 s" in section.sentences
    (section,) = searched(search, budget=None, service=[])
    assert not any("not complete" in one for one in section.sentences)


def test_settings_to_paste_are_those_of_the_best_file(advice: Advice) -> None:
    (pasted,) = (one for one in advised(advice, None) if one.title == "Settings to copy")
    files = recommended(advice)
    (name,) = (name for name in files if name.endswith("use_gds.ds_config.json"))
    assert pasted.listings[0].text == files[name]
    config = json.loads(files[name])
    assert config["aio"]["use_gds"] is True
    assert config["zero_optimization"]["offload_param"]["buffer_size"] == 3_000_000_000
    assert "3000000000," in files[name] or "3000000000\n" in files[name], "a whole number, not 3e9"


@pytest.fixture
def other_form(advice: Advice) -> Advice:
    """The same with a much larger gain of a change that stores the weights with fewer bits."""
    key = "vllm-int4-g128"
    tried = [replace(one, gain=900.0) if one.change.key == key else one for one in advice.tried]
    return replace(advice, tried=tuple(tried))


def test_the_same_answers_come_first_and_fewer_bits_second_with_a_word_on_quality(other_form: Advice) -> None:
    """However much fewer bits gain: in the verdict, in the tables, in files and in plain values."""
    verdict = advice_verdict(other_form).in_full
    same, other = (
        verdict.index("largest gain of throughput: weights divided among 8 GPUs (vLLM"),
        (verdict.index("with other answers: weights divided among 8 GPUs (vLLM), stored as int4-g128")),
    )
    assert same < other < verdict.index("rivals 8 bits in published tests")
    first, second = advised(other_form, None)[0].tables
    assert (first.caption, second.caption) == ("", "With other answers")
    assert not any("answers change" in row[0].text for row in first.rows if isinstance(row[0], Datum))
    assert second.head[-1] == "quality"
    assert all(row[-1] for row in second.rows)
    options = other_form.to_dict()["options"]
    answers = [one["same_answers"] for one in options]
    assert answers == sorted(answers, reverse=True)
    assert all(bool(one["quality"]) != one["same_answers"] for one in options)


def test_the_axis_says_throughput_where_it_is_that(advice: Advice) -> None:
    (first, *_) = advised(advice, None)
    assert first.tables[0].head[2] == "throughput gain"
    assert first.charts[0].label == "throughput gain of each change"
    assert checked(gains(advice.helping))["layout"]["xaxis"]["title"]["text"].startswith("throughput ")


def test_a_terminal_shows_what_to_type_for_the_same_answers_first(other_form: Advice) -> None:
    advice = other_form
    typed = [one for one in advised(advice, None) if one.title.startswith("What to type")]
    assert [one.title for one in typed] == ["What to type", "What to type for other answers"]
    assert not any(one.page_only for one in typed)
    files = recommended(advice)
    for one, (end, tail) in zip(typed, (("", ".\n"), ("-int4-g128", ",\n# with")), strict=True):
        (name,) = (name for name in files if name.endswith(f"-vllm{end}.vllm-serve.sh"))
        assert one.listings[0].text == files[name]
        assert f"one on the Hub{tail}" in files[name]
    only = [one for one in advice.helping if one.change.same_work]
    titles = [one.title for one in advised(replace(advice, tried=tuple(only)), None)]
    assert "What to type" in titles
    assert "What to type for other answers" not in titles


def test_charts_have_a_bar_for_each_gain_and_a_mark_for_each_purchase(advice: Advice, search: Search) -> None:
    bars = checked(gains(advice.helping))["data"]
    assert sum(len(trace["x"]) for trace in bars) == len(advice.helping)
    assert bars[0]["marker"]["color"] == [CHANGES[one.change.kind] for one in advice.helping]
    marks = {trace["name"]: trace for trace in checked(front(search))["data"]}
    assert len(marks["others"]["x"]) == len(search.points) - len(search.front)
    assert marks["best"]["y"] == [search.best.rate] if search.best else False


def test_what_has_no_price_is_in_no_chart(search: Search) -> None:
    """Endless amounts are no numbers of JSON."""
    dear = [
        replace(one, economics=replace(one.economics, bill=one.economics.bill._replace(items=())))
        for one in search.points
    ]
    unpriced = replace(search, points=tuple(dear), best=dear[0], missing=("host/mine",))
    json.dumps(checked(front(unpriced)), allow_nan=False)
    (section,) = searched(unpriced, budget=None, service=())
    assert "for an unknown price" in purchase_verdict(unpriced, budget=None, service=())
    assert section.sentences[-1].startswith("no price is known for host/mine: ")
    assert section.tables == ()


@pytest.fixture
def evil(advice: Advice, curve: StorageCurve, search: Search, tmp_path: Path) -> Path:
    """A page on which every name is an attack."""
    tried = tuple(
        replace(
            one, change=one.change._replace(key=EVIL, description=EVIL), result=replace(one.result, name=EVIL)
        )
        for one in advice.tried
    )
    points = tuple(
        replace(one, changes=tuple(each._replace(description=EVIL) for each in one.changes))
        for one in search.points
    )
    mine = replace(advice, result=replace(advice.result, name=EVIL, model=EVIL), tried=tried)
    looked = replace(search, points=points, best=points[0], currency=EVIL, missing=(EVIL,))
    storage = replace(curve, tier=EVIL, held_back=EVIL)
    rendered = document(mine, storage, looked)
    path = tmp_path / "report.html"
    write_html(rendered, path)
    write_markdown(rendered, tmp_path / "report.md")
    assert "\x1b" not in terminal_text(rendered)
    return path


def test_a_page_loads_nothing_and_names_stay_text(evil: Path) -> None:
    page = Page(evil)
    assert page.loads == page.handlers == []
    assert not {"link", "img", "iframe", "object", "embed", "base", "form"} & set(page.tags)
    assert page.policy.startswith("default-src 'none'")
    assert r'<img src=x onerror="document.title=1"></script>' in page.text
    assert "\u202e" not in page.text


def test_a_page_and_markdown_say_the_same(
    advice: Advice, curve: StorageCurve, search: Search, tmp_path: Path
) -> None:
    rendered = document(advice, curve, search)
    write_html(rendered, tmp_path / "a.html")
    write_markdown(rendered, tmp_path / "a.md")
    page, text = Page(tmp_path / "a.html").text, (tmp_path / "a.md").read_text()
    for description in ("Changes that help", "Largest gain per cost", "1.32×"):
        assert description in page
        assert description in text
    assert "Changes that do not help" in page
    assert "gain = time per unit of work without the change / with it" in page


def test_of_other_answers_that_are_about_as_fast_those_with_more_bits_come_first() -> None:
    def tried(name: str, time: float, size: int, *, same: bool = False) -> Any:
        change = SimpleNamespace(key=name, same_work=same)
        model = SimpleNamespace(weight_bytes=size)
        return SimpleNamespace(
            change=change,
            gain=None,
            result=SimpleNamespace(compared_s=time),
            scenario=SimpleNamespace(model=model),
        )

    found = [
        tried("int4", 1.0, 4),
        tried("fp8", 1.09, 8),
        tried("bf16 elsewhere", 1.2, 16),
        tried("batch", 5.0, 16, same=True),
    ]
    same, others = by_answers(found)
    assert [one.change.key for one in same] == ["batch"]
    assert [one.change.key for one in others] == ["fp8", "int4", "bf16 elsewhere"]
    assert by_answers([]) == ([], [])
