"""The HTML pages: complete, self-contained, and safe to open."""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from simoffload.documents import parse_yaml
from simoffload.errors import InputError
from simoffload.report.comparison import Published
from simoffload.report.document import INTERVAL, Datum, ReportDocument, ReportSection, ReportTable
from simoffload.report.html import contents, with_intervals, write_comparison, write_report
from simoffload.results.result import ResultProvenance, SimulationResult
from simoffload.schedule import Cause
from tests.report.conftest import EVIL

Make = Callable[..., SimulationResult]
LOADING = {"src", "href", "srcset", "action", "formaction", "data", "poster", "background", "ping"}


class Page(HTMLParser):
    """Text outside scripts and styles, tags, attributes, and the chart data; links within a page load
    nothing."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.description: list[str] = []
        self.tags: list[str] = []
        self.loads: list[tuple[str, str | None]] = []
        self.handlers: list[str] = []
        self.labelled: list[tuple[str, str | None]] = []
        self.policy = ""
        self.scripts: list[str] = []
        self._inside = ""
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loads += [
            (name, one) for name, one in attrs if name in LOADING and not (one or "").startswith("#")
        ]
        self.labelled += attrs
        self.handlers += [name for name, _ in attrs if name.startswith("on")]
        if ("http-equiv", "Content-Security-Policy") in attrs:
            self.policy = dict(attrs)["content"] or ""
        self._inside = tag if tag in {"script", "style"} else ""

    def handle_endtag(self, tag: str) -> None:
        if tag in {"script", "style"}:
            self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts.append(data)
        elif not self._inside:
            self.description.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.description).split())

    @property
    def charts(self) -> int:
        return [name for name, value in self.labelled if value == "img"].count("role")


@pytest.fixture
def single(recorded: SimulationResult, tmp_path: Path) -> Page:
    path = tmp_path / "report.html"
    write_report(recorded, path, command="simoffload run small.yaml --output-dir out")
    return Page(path)


@pytest.fixture
def several(make_result: Make, make_refusal: Make, recorded: SimulationResult, tmp_path: Path) -> Page:
    path = tmp_path / "comparison.html"
    results = [make_refusal(target="hbm"), make_result(target="dram", warnings=("careful",)), recorded]
    published = {"raid": Published(1.8, "white paper, figure 3")}
    write_comparison(results, path, published=published, command="simoffload compare small.yaml")
    return Page(path)


def test_the_page_reads_without_scripts(single: Page) -> None:
    for description in (
        "with its weights on raid: 0.815 tokens/s of all 8 sequences (0.694 to 1.15; ",
        "9.81 s per token of each); raid read takes 98 %",
        "gathered parameters, peak",
        "ttft_s = time of the prefill pass",
        "Bottleneck: raid read, 98 % of decode 1, limited by raid.",
        "98 %: decode 1 takes 9.81 s; it would take 9.6 s if the busiest link (raid) never waited",
        "Steady state: repetition 7 of 12 of “layer” (decode 1, rank 0)",
        "mlp.weight read io 2 1.6 s 8 GB",
        "gpu0.pcie and 1 more like it 48 GB each",
        "pm1733 read.latency 90 us measured https://example.com/review 2021-02-03",
        "simoffload run small.yaml --output-dir out",
        "platform dgx-a100 " + "0" * 64,
        "simoffload 0.1.0, python 3.11.7",
        "nothing here has been calibrated",
    ):
        assert description in single.text


def test_the_sections_come_in_order(single: Page) -> None:
    heads = [
        "Speed",
        "Capacity",
        "Where the time goes",
        "Share of the bound",
        "Links",
        "Timeline",
        "Inputs and their origin",
        "Scenario",
        "Versions and profiles",
        "Limits",
    ]
    description = [word.strip() for word in single.description]
    assert [word for word in description if word in heads] == [*heads, *heads]  # of the contents, too


def test_contents_lead_to_the_sections(single: Page) -> None:
    links = [value for name, value in single.labelled if name == "href"]
    places = [f"#{value}" for name, value in single.labelled if name == "id"]
    assert len(links) > 5
    assert [one for one in places if one in links] == links
    assert "nav" in single.tags
    assert contents(ReportDocument(("short",), None, (), (), (ReportSection("Answer"),))) == []


def test_the_scenario_can_be_run_again(recorded: SimulationResult, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_report(recorded, path)
    (pre,) = re.findall("<pre[^>]*>(.*?)</pre>", path.read_text(), re.DOTALL)
    assert parse_yaml(pre, name="report").data == recorded.provenance.scenario


def test_what_does_not_fit_has_no_speed(make_refusal: Make, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_report(make_refusal(), path)
    page = Page(path)
    assert "does not fit on dgx-a100" in page.text
    assert "Speed" not in page.text
    assert page.charts == 1


def test_a_result_without_timelines_says_so(make_result: Make, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_report(make_result(), path)
    assert "No timeline was recorded." in Page(path).text


def test_the_comparison_reads_without_scripts(several: Page) -> None:
    for description in (
        "dram is fastest: 3.86 tokens/s of all 8 sequences (3.28 to 5.45), ",
        "raid takes 4.73× as long (",
        "dram 3.86 tokens/s [3.28 to 5.45], fastest",
        "dram 2.5 s [1.77 to 2.94] 2.01 s [1.42 to 2.37] 3.86 [3.28 to 5.45] 1× raid read 81 % ",
        "Warning: dram: careful",
        "hbm does not fit: raid needs 14 GB in all, has 10 GB",
        " 4.73× 1.8× raid read 98 % 98 %",
        "published for bloom-7b1, raid: white paper, figure 3",
        "Each result bloom-7b1, hbm",
    ):
        assert description in several.text
    assert several.charts == 3 + 1 + 3 + 5


def test_inputs_of_a_comparison_are_listed_once(several: Page) -> None:
    assert several.text.count("read.latency") == 1
    assert "1 measured, 1 spec, 1 estimate" in several.text


def test_comparing_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nothing to compare"):
        write_comparison([], tmp_path / "page.html")


@pytest.mark.parametrize("kind", ["single", "several"])
def test_nothing_is_loaded(kind: str, request: pytest.FixtureRequest) -> None:
    page: Page = request.getfixturevalue(kind)
    assert page.loads == []
    assert page.handlers == []
    assert not {"link", "img", "iframe", "object", "embed", "base", "form"} & set(page.tags)
    (script,) = page.scripts
    digest = b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert page.policy.startswith(f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'sha256-")
    assert "unsafe" not in page.policy
    assert "style" not in dict(page.labelled)


def evil(make_result: Make, recorded: SimulationResult) -> SimulationResult:
    """A result whose every name is an attack."""
    step = recorded.step
    assert step is not None
    step = step._replace(
        name=EVIL,
        shares=tuple(
            share._replace(cause=Cause.own(EVIL + share.cause_text), limit=EVIL) for share in step.shares
        ),
        links=tuple(use._replace(link=EVIL + use.link) for use in step.links),
        bounds={EVIL + name: time for name, time in step.bounds.items()},
    )
    terms = tuple(
        use._replace(tier=EVIL + use.tier, terms=tuple(term._replace(name=EVIL) for term in use.terms))
        for use in recorded.capacity
    )
    timeline = recorded.timelines["decode 1"]
    return make_result(
        name=EVIL,
        model=EVIL,
        dtype=EVIL,
        platform=EVIL,
        target=EVIL,
        capacity=terms,
        warnings=(EVIL,),
        provenance=ResultProvenance(
            scenario={"name": EVIL},
            profiles=((EVIL, EVIL, EVIL),),
            inputs=((EVIL,) * 7,),
            versions={EVIL: EVIL},
        ),
        prefill=step,
        first_pass=step,
        decode=(step,),
        timelines={EVIL: timeline},
    )


@pytest.fixture
def evil_pages(make_result: Make, recorded: SimulationResult, tmp_path: Path) -> tuple[Path, Path]:
    result = evil(make_result, recorded)
    paths = tmp_path / "report.html", tmp_path / "comparison.html"
    write_report(result, paths[0], command=EVIL)
    write_comparison([result, result], paths[1], published={EVIL: Published(2.0, EVIL)}, command=EVIL)
    return paths


def test_names_stay_text(evil_pages: tuple[Path, Path]) -> None:
    for path in evil_pages:
        page = Page(path)
        assert page.loads == []
        assert page.handlers == []
        assert "img" not in page.tags
        assert page.tags.count("script") == 1
        assert r'<img src=x onerror="document.title=1"></script>' in page.text
        assert "\u202e" not in page.text, "shown as an escape"


def test_charts_are_well_formed(evil_pages: tuple[Path, Path]) -> None:
    for path in evil_pages:
        drawn = re.findall("<svg role.*?</svg></div>", path.read_text(), re.DOTALL)
        assert drawn
        for one in drawn:
            ElementTree.fromstring(one.removesuffix("</div>"))


def test_the_page_stays_small(recorded: SimulationResult, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_comparison([recorded] * 6, path)
    assert path.stat().st_size < 1_500_000


def test_the_page_replaces_an_older_one_whole(make_result: Make, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("old")
    write_report(make_result(), path)
    assert path.read_text().startswith("<!DOCTYPE html>")
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.html"]


def test_an_interval_is_in_the_cell_of_its_value() -> None:
    speed = ReportTable("", ("metric", "value", INTERVAL), (("step", "21.3 s", "15.8 to 28.7"),), (1, 2))
    (joined,) = with_intervals([speed])
    assert (joined.head, joined.rows, joined.numbers) == (
        ("metric", "value"),
        (("step", "21.3 s [15.8 to 28.7]"),),
        (1,),
    )
    times = ReportTable(
        "", ("tier", "TTFT", "why"), (("hbm", "", "full"), ("dram", Datum("2 s", 2.0), "")), (1,)
    )
    ends = ReportTable(INTERVAL, ("tier", "TTFT"), (("dram", "1.5 to 3 s"),), (1,))
    (joined,) = with_intervals([times, ends])
    assert joined.rows == (("hbm", "", "full"), ("dram", Datum("2 s [1.5 to 3]", 2.0), ""))
    wide = ReportTable(INTERVAL, ("tier", "TTFT"), (("dram", "900 ms to 3 s"),), (1,))
    assert with_intervals([times, wide])[0].rows[1][1] == Datum("2 s [900 ms to 3 s]", 2.0)
    assert with_intervals([ends]) == [ends]
