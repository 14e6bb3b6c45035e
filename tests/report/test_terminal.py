"""What the terminal shows."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import takewhile

import pytest

from simoffload.planning.answers import simulate
from simoffload.report.comparison import Published, groups
from simoffload.report.document import ReportDocument, ReportSection, ReportTable
from simoffload.report.from_result import result_document
from simoffload.report.terminal import terminal_text
from simoffload.results.result import SimulationResult
from simoffload.scenario import read_scenario
from tests.report.conftest import ANSI, compare_text, result_text

Make = Callable[..., SimulationResult]

RESULT = """\
bloom-7b1 · float16 · batch 4 × 2 GPUs · 32 tokens in, 8 out · dgx-a100
Verdict: bloom-7b1 runs with its weights on raid: 3.86 tokens/s of all 8 sequences (3.28 to 5.45;
  2.08 s per token of each); raid read takes 81 %.
Warning: thread_count is ignored before DeepSpeed 0.16.4

Capacity
  tier  part                       needed  capacity      free  scope
  hbm   total                       4 GiB    40 GiB    36 GiB  per GPU   fits
        gathered parameters, peak   3 GiB
        activations                 1 GiB
  dram  total                      12 GiB     1 TiB  1012 GiB  per host  fits
        swap buffers, pinned       12 GiB
  raid  total                       14 GB     15 TB     15 TB  in all    fits
        weights                     14 GB

Speed
                                                          80 %
  metric                                   value      interval  formula
  time to first token                      2.5 s  1.77 to 2.94  ttft_s = time of the prefill pass,
                                                                after a warm-up pass
  time per output token                   2.01 s  1.42 to 2.37  tpot_s = sum of the decode steps /
                                                                (output_length - 1) (time per output
                                                                token of a sequence)
  throughput                       3.86 tokens/s  3.28 to 5.45  tokens_per_s = output_length x
                                                                batch_size x replicas / e2e_s, of
                                                                all sequences together
  decode throughput                3.97 tokens/s  3.38 to 5.61  decode_tokens_per_s = batch_size x
                                                                replicas / tpot_s
  end-to-end time                         16.6 s  11.7 to 19.5  e2e_s = ttft_s + sum of the decode
                                                                steps
  first pass after loading                   4 s                first_pass_s = time of the warm-up
                                                                pass: DeepSpeed does not know the
                                                                order of modules yet and cannot
                                                                prefetch
  time per token of all sequences         259 ms    183 to 305  per_token_s = e2e_s / (output_length
                                                                x batch_size x replicas), time over
                                                                the tokens of all sequences, as
                                                                transformers-bloom-inference and
                                                                DDN's white paper count it

Where the time goes
  a request of 16.6 s: prefill 2.5 s (15 %), 7 decode steps 14.1 s (85 %)
  bottleneck: raid read, 81 % of decode 1, limited by raid
  decode 1: 2 s, 1 new token per sequence, context 33
  cause        exposed  share    busy  limited by
  raid read     1.62 s   81 %   1.8 s  raid
  GPU compute   240 ms   12 %  300 ms
  host to GPU   140 ms  7.0 %     1 s  the rate of a single transfer
  Time by resource group
  group      exposed  share  hidden
  storage     1.62 s   81 %  180 ms
  GPU         240 ms   12 %   60 ms
  transfers   140 ms  7.0 %  860 ms

Share of the bound
  74 %: decode 1 takes 2 s; it would take 1.48 s if the busiest link (raid) never waited

Links
  decode 1
  link                            carried  capacity  in use, share of the pass  load  saturated
  raid                              14 GB   25 GB/s                       90 %  28 %       80 %
  gpu0.pcie and 1 more like it  7 GB each   25 GB/s                       50 %  14 %        0 %
  in use: share of the pass in which something is transferred; load = bytes carried / (capacity x
  time); saturated: share of the time at full capacity

Confidence
  80 % interval of the throughput: 3.28 to 5.45 tokens/s (raid, 81 % of the time, estimated)
  error on real runs: too few real runs were like it; expect more than ±13.8 %, the mean error of 10
    held-out times of DeepSpeed ZeRO on 2 machines, limited by storage and predicted with any
    profile (the worst +28 %)

Inputs and their origin
  numbers from profiles: 1 measured, 1 spec, 1 estimate
"""

COMPARISON = """\
bloom-7b1 · float16 · batch 4 × 2 GPUs · 32 tokens in, 8 out · dgx-a100
Verdict: dram is fastest: 7.71 tokens/s of all 8 sequences (6.57 to 10.9), raid takes 1.8× as long
  (1.53 to 2.11); hbm does not fit.
Warning: nfs: slow

Comparison
  hbm does not fit: raid needs 14 GB in all, has 10 GB; smallest tier that holds the weights: nfs
    (100 TB)
  raid read is limited by raid
  weights    TTFT    TPOT  tokens/s  time vs dram  published  bottleneck      share of the bound
  hbm                                                         does not fit
  dram     1.25 s  1.01 s      7.71            1×             raid read 81 %                74 %
  raid     2.25 s  1.81 s      4.28          1.8×         2×  raid read 81 %                74 %
  nfs      23.8 s  19.1 s     0.406           19×        10×  raid read 81 %                74 %
  80 % interval
  weights              TTFT              TPOT        tokens/s
  dram     884 ms to 1.47 s  712 ms to 1.18 s    6.57 to 10.9
  raid       1.59 to 2.64 s    1.28 to 2.13 s    3.65 to 6.06
  nfs        16.8 to 27.9 s    13.5 to 22.5 s  0.346 to 0.574
  ttft_s = time of the prefill pass, after a warm-up pass
  tpot_s = sum of the decode steps / (output_length - 1) (time per output token of a sequence)
  tokens_per_s = output_length x batch_size x replicas / e2e_s, of all sequences together
  ratio: time per token of all sequences over that of the baseline; share of the bound: time of the
  step if its busiest link, GPU or host thread never waited, over its time
  published: published ratio of the times per token of all sequences
  published for bloom-7b1, raid: white paper

Inputs and their origin
  numbers from profiles: 1 measured, 1 spec, 1 estimate
"""


def test_a_result_in_full(make_result: Make) -> None:
    text = result_text(make_result(warnings=("thread_count is ignored before DeepSpeed 0.16.4",)))
    assert text == RESULT


def test_what_does_not_fit_says_what_would(make_refusal: Make) -> None:
    text = result_text(make_refusal())
    assert text.splitlines()[1:6] == [
        "Verdict: bloom-7b1 does not fit on dgx-a100: raid lacks 4 GB in all.",
        "",
        "Capacity",
        "  raid needs 14 GB in all, has 10 GB; smallest tier that holds the weights: nfs (100 TB)",
        "  tier  part                       needed  capacity      free  scope",
    ]
    assert "  raid  total                       14 GB     10 GB     −4 GB  in all    does not fit\n" in text
    assert "Speed" not in text


def test_capacity_alone(make_result: Make) -> None:
    text = result_text(make_result(first_pass=None, prefill=None, decode=(), decode_total_s=0.0))
    assert "bloom-7b1 fits on dgx-a100 with its weights on raid: " in text
    assert "Where the time goes" not in text


def test_a_comparison_in_full(make_result: Make, make_refusal: Make) -> None:
    results = [
        make_refusal(target="hbm"),
        make_result(target="dram", time_s=1.0),
        make_result(target="raid", time_s=1.8),
        make_result(target="nfs", time_s=19.0, warnings=("slow",)),
    ]
    published = {"raid": Published(2.0, "white paper"), "nfs": Published(10.0)}
    assert compare_text(results, published=published) == COMPARISON


def test_capacity_of_several(make_result: Make, make_refusal: Make) -> None:
    untimed = make_result(target="raid", first_pass=None, prefill=None, decode=(), decode_total_s=0.0)
    text = compare_text([untimed, make_refusal(target="nfs")])
    assert "  raid     fits\n  nfs      does not fit\n" in text
    assert "\n  raid     hbm    4 GiB    40 GiB    10 %  per GPU   fits\n" in text
    assert "TPOT" not in text


def test_one_table_of_all_models(make_result: Make) -> None:
    results = [make_result(model=model, target=target) for model in ("a", "b") for target in ("dram", "raid")]
    shown = compare_text(results)
    assert shown.count("vs dram") == 1
    table = shown.partition("\n  model")[2].partition("80 % interval")[0]
    assert re.findall(r"^  ([ab ]) +(dram|raid) ", table, re.MULTILINE) == [
        ("a", "dram"),
        (" ", "raid"),
        ("b", "dram"),
        (" ", "raid"),
    ]


def test_a_model_that_does_not_fit_is_a_row_with_what_it_lacks(make_result: Make, make_refusal: Make) -> None:
    shown = compare_text([make_result(model="a"), make_refusal(model="b", target="nfs")])
    assert re.search(r"^  b +nfs +lacks [\d.]+ GB of \w+$", shown, re.MULTILINE), shown


@pytest.mark.parametrize("width", [60, 80, 100, 160])
def test_lines_keep_to_the_width(make_result: Make, make_refusal: Make, width: int) -> None:
    warning = "offloading is slower here, and this is a long warning that goes on and on. " * 3
    results = [make_result(warnings=(warning,)), make_refusal(target="nfs")]
    text = result_text(results[0], width=width)
    assert max(map(len, text.splitlines())) <= max(width, 72), (
        "the numbers of the table of metrics stay whole"
    )
    assert max(map(len, compare_text(results, width=width).splitlines())) <= max(width, 80)


def test_colour_changes_nothing_else(make_result: Make, make_refusal: Make) -> None:
    for result in (make_result(warnings=("careful",)), make_refusal()):
        coloured = result_text(result, color=True)
        assert "\x1b[1m" in coloured
        lines = [line.rstrip() for line in ANSI.sub("", coloured).splitlines()]
        assert lines == result_text(result).splitlines()
    results = [make_result(), make_refusal(target="nfs")]
    lines = [line.rstrip() for line in ANSI.sub("", compare_text(results, color=True)).splitlines()]
    assert lines == compare_text(results).splitlines()


def test_names_do_not_command_the_terminal(make_result: Make, make_refusal: Make) -> None:
    evil = "a\x1b[2J\r\n\u202eb"
    changed = {"name": evil, "model": evil, "target": evil, "platform": evil, "warnings": (evil,)}
    for text in (
        result_text(make_result(**changed)),
        result_text(make_refusal(**changed, advice=(evil,))),
        compare_text([make_result(**changed), make_refusal(**changed, advice=(evil,))]),
    ):
        assert r"a\x1b[2J\r\n\u202eb" in text
        assert text.replace("\n", "").isprintable()


def table_of(text: str) -> list[str]:
    """The head and the two rows of a comparison."""
    lines = text.splitlines()
    first = next(at for at, line in enumerate(lines) if line.startswith("  weights"))
    return lines[first : first + 3]


def test_more_sequences_at_once_do_more_and_each_waits_as_long(make_result: Make) -> None:
    few, many = make_result(target="dram", time_s=1.0), make_result(target="raid", batch_size=32)
    head, *_, last = table_of(compare_text([few, many]))
    assert head.split()[:7] == ["weights", "TTFT", "TPOT", "tokens/s", "time", "vs", "dram"]
    assert last.split()[:8] == ["raid", "2.5", "s", "2.01", "s", "30.8", "0.25×", "raid"]


def test_one_token_has_no_time_per_output_token(make_result: Make) -> None:
    alone = {"output_length": 1, "decode": (), "decode_total_s": 0.0}
    text = compare_text(
        [make_result(target="dram", time_s=1.0, **alone), make_result(target="raid", **alone)]
    )
    head, _, last = table_of(text)
    assert "\n  raid read is limited by raid\n" in text
    assert head.split()[:5] == ["weights", "TTFT", "tokens/s", "TTFT", "vs"]
    assert last.split()[:5] == ["raid", "2.5", "s", "3.2", "2×"]
    assert "only one token is generated, so there is no time per output token;" in text
    assert "TPOT" not in text


def test_one_token_is_not_compared_with_many(make_result: Make) -> None:
    one = make_result(target="raid", output_length=1, decode=(), decode_total_s=0.0)
    assert [row.ratio for group in groups([make_result(), one]) for row in group.rows] == [1.0, 1.0]


def shown(*sections: ReportSection, width: int = 100) -> list[str]:
    """What a terminal shows of sections, without the title of the document."""
    document = ReportDocument((), None, (), (), sections)
    return terminal_text(document, width=width).splitlines()[2:]


def test_what_has_no_room_in_a_table_wraps_and_no_number_does() -> None:
    head = ("name", "time", "vs a long name", "most of it", "bound")
    rows = (
        ("a name of some length", "1,234 ms", "1.04×", "host to GPU, pageable 62 %", "≥ 67 %"),
        ("other", "1 ms", "", "", ""),
    )
    table = ReportTable("", head, rows, (1, 2, 4))
    wide = ReportTable("", (*head, "x" * 20), tuple((*row, "") for row in rows), (1, 2, 4))
    assert shown(ReportSection("Table", tables=(table,)), width=60) == [
        "                               vs a",
        "                               long",
        "  name                  time   name  most of it        bound",
        "  a name of some    1,234 ms  1.04×  host to GPU,     ≥ 67 %",
        "  length                             pageable 62 %",
        "  other                 1 ms",
    ]
    parts = [line for line in shown(ReportSection("Table", tables=(wide,)), width=60) if "name" in line]
    assert len(parts) >= 2, "what has no room follows below"


def test_an_empty_column_takes_no_room() -> None:
    table = ReportTable("", ("name", "", "text"), (("a", "", "b"),), ())
    assert shown(ReportSection("Table", tables=(table,))) == ["  name  text", "  a     b"]


def test_rows_that_belong_together_name_it_once() -> None:
    table = ReportTable(
        "", ("tier", "part"), (("hbm", "all"), ("hbm", "a"), ("dram", "all")), (), grouped=True
    )
    assert shown(ReportSection("Table", tables=(table,))) == [
        "  tier  part",
        "  hbm   all",
        "        a",
        "  dram  all",
    ]


def test_what_a_terminal_leaves_out() -> None:
    folded = ReportTable("", ("folded",), (("1",),), (), folded="More")
    page = ReportTable("", ("page",), (("1",),), (), page_only=True)
    some = ReportTable("", ("here", "page"), (("1", "2"), ("3", "4")), (), page_columns=(1,), most=1)
    noted = ReportSection("Noted", ("told",), notes=("Noted.",))
    assert shown(
        ReportSection("One", tables=(folded, page)),
        ReportSection("Two", ("never",), page_only=True),
        ReportSection("Three", tables=(some,)),
        noted,
        noted._replace(title="Legend", notes_on_terminal=True),
    ) == [
        *["  here", "  1", "  and 1 more", ""],
        *["Noted", "  told", ""],
        *["Legend", "  told", "  Noted."],
    ]


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize(
    "name", ["accelerate/llama-3.1-70b", "xinnor/llama-16b-optimizer", "checkpoint/mlperf-1t"]
)
def test_the_verdict_has_two_lines(name: str, width: int) -> None:
    lines = terminal_text(result_document(simulate(read_scenario(name))), width=width).splitlines()
    rest = lines[next(at for at, line in enumerate(lines) if line.startswith("Verdict: ")) :]
    verdict = [rest[0], *takewhile(lambda line: line.startswith("  "), rest[1:])]
    assert len(verdict) <= 2
    assert re.search(r"( tokens/s| (s|ms) per (step|checkpoint)) .*\(", " ".join(" ".join(verdict).split()))
    assert verdict[-1].endswith(".")
