"""What the terminal shows."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from simoffload.report.columns import within
from simoffload.report.comparison import Published, groups
from simoffload.report.comparison_text import compare_text
from simoffload.report.text import result_text
from simoffload.results.result import SimulationResult
from tests.report.conftest import ANSI

Make = Callable[..., SimulationResult]

RESULT = """\
bloom-7b1 · float16 · batch 4 × 2 GPUs · 32 tokens in, 8 out · dgx-a100
Verdict   bloom-7b1 runs on dgx-a100 with its weights on raid: TTFT 2.5 s, TPOT 2.01 s, 3.86
          tokens/s of 8 sequences at once; largest part: raid read, 81 %.
Capacity  tier  needed     has      free
          hbm    4 GiB  40 GiB    36 GiB  per GPU   fits
            gathered parameters, peak 3 GiB, activations 1 GiB
          dram  12 GiB   1 TiB  1012 GiB  per host  fits
            swap buffers 12 GiB (pinned)
          raid   14 GB   15 TB     15 TB  in all    fits
            weights 14 GB
Speed     ttft_s                       2.5 s  time of the prefill pass, trace recorded and weights
                                              in their tier (time to first token)
          tpot_s                      2.01 s  sum of the decode steps / number of decode steps (time
                                              per output token of a sequence)
          tokens_per_s         3.86 tokens/s  output_length x batch_size x replicas / e2e_s, of all
                                              sequences together
          decode_tokens_per_s  3.97 tokens/s  batch_size x replicas / tpot_s
          e2e_s                       16.6 s  ttft_s + sum of the decode steps
          first_pass_s                   4 s  time of the very first prefill after loading:
                                              DeepSpeed has no trace yet, no prefetch
          per_token_s                 259 ms  e2e_s / (output_length x batch_size x replicas), time
                                              over the tokens of all sequences, as transformers-
                                              bloom-inference and DDN's white paper count it
Why       decode 1, 2 s  exposed  share    busy  held back by
          raid read       1.62 s   81 %   1.8 s  raid
          GPU compute     240 ms   12 %  300 ms
          host to GPU     140 ms  7.0 %     1 s  what one transfer reaches by itself
          in all     exposed  share  hidden
          storage     1.62 s   81 %  180 ms
          GPU         240 ms   12 %   60 ms
          transfers   140 ms  7.0 %  860 ms
Bound     raid read takes 81 % of decode 1, held back by raid; 74 % of the speed of light (1.48 s,
          set by raid).
Links     link                   moved  busy  full  capacity
          raid                   14 GB  90 %  80 %   25 GB/s
          gpu0.pcie and 1 alike   7 GB  50 %   0 %   25 GB/s
How sure  ±13.3 %, the mean error of 5 held-out runs of decode steps from drives in the host on 1 to
            4 GPUs (the worst +28 %)
Warning   thread_count is ignored before DeepSpeed 0.16.4
Inputs    1 measured, 1 spec, 1 estimate
"""

COMPARISON = """\
bloom-7b1 · float16 · batch 4 × 2 GPUs · 32 tokens in, 8 out · dgx-a100
weights    TTFT    TPOT  tokens/s  vs dram  published  bottleneck      bound
hbm      does not fit: raid needs 14 GB in all, has 10 GB; smallest tier that holds the weights: nfs
         (100 TB)
dram     1.25 s  1.01 s      7.71       1×             raid read 81 %   74 %
raid     2.25 s  1.81 s      4.28     1.8×         2×  raid read 81 %   74 %
nfs      23.8 s  19.1 s     0.406      19×        10×  raid read 81 %   74 %
held back: raid read by raid
TPOT = time per output token of a sequence, the mean decode step; tokens/s = output_length x
batch_size x replicas / e2e_s, of all sequences together; ratio: of TPOT; bound = fraction of the
speed of light that a step reaches; published: ratio of times over the tokens of all sequences
Warning   nfs: slow
"""


def test_a_result_in_full(make_result: Make) -> None:
    text = result_text(make_result(warnings=("thread_count is ignored before DeepSpeed 0.16.4",)))
    assert text == RESULT


def test_what_does_not_fit_says_what_would(make_refusal: Make) -> None:
    text = result_text(make_refusal())
    assert text.splitlines()[1:3] == [
        "Verdict   bloom-7b1 does not fit on dgx-a100 with its weights on raid: raid needs 14 GB in all, has",
        "          10 GB; smallest tier that holds the weights: nfs (100 TB).",
    ]
    assert "          raid   14 GB   10 GB     −4 GB  in all    does not fit\n" in text
    assert "Speed" not in text


def test_capacity_alone(make_result: Make) -> None:
    text = result_text(make_result(first_pass=None, prefill=None, decode=(), decode_total_s=0.0))
    assert "bloom-7b1 fits on dgx-a100 with its weights on raid." in text
    assert "Why" not in text


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
    assert text.splitlines()[1] == (
        "raid  fits: hbm 4 GiB of 40 GiB, dram 12 GiB of 1 TiB, raid 14 GB of 15 TB"
    )
    assert "TPOT" not in text


def test_one_table_a_model(make_result: Make) -> None:
    results = [make_result(model=model, target=target) for model in ("a", "b") for target in ("dram", "raid")]
    assert compare_text(results).count("vs dram") == 2


@pytest.mark.parametrize("width", [60, 80, 100, 160])
def test_lines_keep_to_the_width(make_result: Make, make_refusal: Make, width: int) -> None:
    warning = "offloading hurts here, and this is a long warning that goes on and on. " * 3
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
        assert ANSI.sub("", coloured).splitlines() == [
            line.rstrip() for line in result_text(result).splitlines()
        ]
    results = [make_result(), make_refusal(target="nfs")]
    assert ANSI.sub("", compare_text(results, color=True)) == compare_text(results)


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


def test_more_sequences_at_once_do_more_and_each_waits_as_long(make_result: Make) -> None:
    few, many = make_result(target="dram", time_s=1.0), make_result(target="raid", batch_size=32)
    head, *_, last = compare_text([few, many]).splitlines()[1:4]
    assert head.split()[:7] == ["weights", "TTFT", "TPOT", "tokens/s", "vs", "dram", "throughput"]
    assert last.split()[:8] == ["raid", "2.5", "s", "2.01", "s", "30.8", "2×", "4×"]


def test_one_token_has_no_time_per_output_token(make_result: Make) -> None:
    alone = {"output_length": 1, "decode": (), "decode_total_s": 0.0}
    text = compare_text(
        [make_result(target="dram", time_s=1.0, **alone), make_result(target="raid", **alone)]
    )
    _, head, _, last, held, *legend = text.splitlines()
    assert held == "held back: raid read by raid"
    assert head.split()[:5] == ["weights", "TTFT", "tokens/s", "vs", "dram"]
    assert last.split()[:5] == ["raid", "2.5", "s", "3.2", "2×"]
    assert " ".join(legend).startswith("one token is made, so that there is no time per output token;")
    assert "TPOT" not in text


def test_one_token_is_not_compared_with_many(make_result: Make) -> None:
    one = make_result(target="raid", output_length=1, decode=(), decode_total_s=0.0)
    assert [row.ratio for group in groups([make_result(), one]) for row in group.rows] == [1.0, 1.0]


def test_what_has_no_room_in_a_table_wraps_and_no_number_does() -> None:
    table = [
        ("name", "time", "vs a long name", "most of it", "bound"),
        ("a name of some length", "1,234 ms", "1.04×", "host to GPU, pageable 62 %", "≥ 67 %"),
        ("other", "does not fit: hbm needs 346 GiB"),
    ]
    (part,) = within(52, table, right=(1, 2, 4))
    assert [line for row in part for line in row] == [
        "name              time    vs a  most of it     bound",
        "                          long",
        "                          name",
        "a name of     1,234 ms   1.04×  host to GPU,  ≥ 67 %",
        "some length                     pageable",
        "                                62 %",
        "other         does not fit: hbm needs 346 GiB",
    ]
    parts = within(30, table, right=(1, 2, 4))
    assert [line for part in parts[1:] for row in part for line in row] == [
        "name            most of it",
        "a name of some  host to GPU,",
        "length          pageable 62 %",
        "name                    bound",
        "a name of some length  ≥ 67 %",
    ]


def test_an_empty_column_takes_no_room() -> None:
    (part,) = within(20, [("name", "", "much text that wraps"), ("a", "", "b")])
    assert part[0][0].startswith("name")
    assert part[1] == [f"a{' ' * 7}b"]
