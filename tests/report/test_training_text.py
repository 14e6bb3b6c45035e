"""What the terminal shows of a step of training."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise

import pytest

from simoffload.report.formatting import causes_by_phase, stage_needs
from simoffload.report.presentation import presentation
from simoffload.report.sections.performance import storage
from simoffload.results.training import StorageTraffic, TimedPhase, TrainingResult
from simoffload.schedule import Cause
from tests.report.conftest import ANSI, result_text

Make = Callable[..., TrainingResult]

RESULT = """\
llama-2-7b · bfloat16 · batch 4 × 4 GPUs × accumulation 4 · 2,048 tokens · dgx-a100
Verdict: llama-2-7b trains with its weights in HBM and its optimizer on raid: 40 s per step (28.3 to
  47 s), 3,277 tokens/s; raid write takes 24 %.
Warning: pinned memory is scarce

Capacity
  tier  part                         needed  capacity     free  scope           peak stage
  hbm   total                        30 GiB    40 GiB   10 GiB  per GPU   fits  forward and backward
        gathered parameters, peak    30 GiB
  dram  total                        64 GiB     1 TiB  960 GiB  per host  fits  initialisation
        optimizer swap buffers,      64 GiB
        pinned
  raid  total                        100 GB     15 TB  14.9 TB  in all    fits  optimizer step
        optimizer states             100 GB
  Memory needed at each stage
  stage                 hbm per GPU  dram per host  raid in all
  initialisation              2 GiB         64 GiB          0 B
  forward and backward       30 GiB         16 GiB        80 GB
  optimizer step              8 GiB         48 GiB       100 GB

Speed
  metric                                  value   80 % interval  share  formula
  time per step                            40 s      28.3 to 47         step_s = forward_s +
                                                                        backward_s + optimizer_s:
                                                                        one optimizer step
  forward passes                            8 s    7.72 to 9.46   20 %  forward_s = forward passes
                                                                        of all micro-steps of a step
  backward passes                          13 s    11.6 to 15.7   32 %  backward_s = backward passes
                                                                        of all micro-steps, with
                                                                        recomputation and reduction
                                                                        of gradients
  optimizer step                           19 s    13.4 to 22.3   48 %  optimizer_s = from the end
                                                                        of the last backward pass to
                                                                        the end of the step
  throughput                     3,277 tokens/s  2,791 to 4,632         tokens_per_s = batch_size x
                                                                        sequence_length x
                                                                        gradient_accumulation_steps
                                                                        x replicas / step_s
  throughput in sequences         1.6 samples/s    1.36 to 2.26         samples_per_s = batch_size x
                                                                        gradient_accumulation_steps
                                                                        x replicas / step_s
  model FLOP/s per GPU               75 TFLOP/s     63.9 to 106         tflops_per_gpu = FLOP of
                                                                        forward and backward /
                                                                        step_s / 1e12 (recomputation
                                                                        is not counted)
  FLOP/s per GPU, with               99 TFLOP/s     84.3 to 140         hardware_tflops_per_gpu =
  recomputation                                                         FLOP carried out,
                                                                        recomputation included /
                                                                        step_s / 1e12

Phases of a step
  phase          count  each  total  share  bottleneck
  forward          4 ×   2 s    8 s   20 %  host to GPU 75 %
  backward         3 ×   3 s    9 s   22 %  GPU compute 60 %
  last backward    1 ×   4 s    4 s   10 %  GPU compute 50 %
  optimizer        1 ×  19 s   19 s   48 %  raid write 45 %

Where the time goes
  bottleneck: raid write, 24 % of the step, limited by raid
  step: 40 s
  cause                 exposed  share  in forward  in backward  in optimizer    busy  limited by
  raid write              9.8 s   24 %                    1.2 s         8.6 s  19.6 s  raid
  host to GPU             9.5 s   24 %         6 s        3.5 s                  19 s  gpu.pcie
  GPU compute             9.4 s   24 %         2 s        7.4 s                18.8 s
  raid read               8.5 s   21 %                                  8.5 s    17 s  raid
  optimizer on the CPU    1.9 s  4.8 %                                  1.9 s   3.8 s
  GPU to host            900 ms  2.2 %                   900 ms                 1.8 s  gpu.pcie
  Time by resource group
  group      exposed  share  hidden
  storage     18.3 s   46 %  18.3 s
  transfers   10.4 s   26 %  10.4 s
  GPU          9.4 s   24 %   9.4 s
  host         1.9 s  4.8 %   1.9 s

Share of the bound
  50 %: the step takes 40 s; it would take 20 s if the busiest link (raid) never waited

Links
  step
  link  carried  capacity  in use, share of the step   load  saturated
  raid    63 GB   25 GB/s                       50 %  6.3 %       25 %
  in use: share of the step in which something is transferred; load = bytes carried / (capacity x
  time); saturated: share of the time at full capacity

Storage
  One step, all ranks
  tier   read  written  read per parameter  written per parameter
  raid  84 GB   168 GB                12 B                   24 B

Confidence
  80 % interval of the time per step: 28.3 to 47 s (raid, 46 % of the time, estimated)
  error on real runs: too few real runs were like it; expect more than ±13.8 %, the mean error of 10
    held-out times of DeepSpeed ZeRO on 2 machines, limited by storage and predicted with any
    profile (the worst +28 %)

Inputs and their origin
  numbers from profiles: 1 measured, 1 spec, 1 estimate
"""


def sections(text: str) -> list[str]:
    """Titles of the sections."""
    return [after for line, after in pairwise(text.splitlines()) if not line]


def test_a_step_in_full(make_training: Make) -> None:
    assert result_text(make_training(warnings=("pinned memory is scarce",))) == RESULT


def test_one_of_each_phase_needs_no_table_of_phases(make_training: Make) -> None:
    forward, _, last, update = make_training().phases
    once = (forward._replace(times=Fraction(1)), last, update)
    assert "Phases of a step" not in sections(result_text(make_training(phases=once)))
    every_fourth = (*once[:2], update._replace(times=Fraction(1, 4)))
    text = result_text(make_training(phases=every_fourth))
    assert re.search(r"optimizer\s+1/4 ×  19 s  4.75 s", text)


def test_what_does_not_fit_says_when(make_training_refusal: Make) -> None:
    text = result_text(make_training_refusal())
    assert sections(text) == ["Capacity", "Storage", "Inputs and their origin"]
    description = " ".join(text.split())
    assert "does not fit on dgx-a100: raid lacks 10 GB in all. Capacity raid needs" in description
    assert re.search(
        r"raid  total +100 GB     90 GB   −10 GB  in all    does not fit  optimizer step\n", text
    )
    coloured = result_text(make_training_refusal(), color=True)
    red = [line for line in coloured.splitlines() if "\x1b[31m" in line and "GiB" in line]
    assert [ANSI.sub("", line).split()[0] for line in red] == ["optimizer"], "the moment that is too much"


def test_capacity_alone(make_training: Make) -> None:
    text = result_text(make_training(phases=()))
    assert "llama-2-7b fits on dgx-a100 with its weights in HBM and its optimizer on raid: " in text
    assert sections(text) == ["Capacity", "Storage", "Inputs and their origin"]
    assert "Memory needed at each stage" in text


def test_a_run_that_holds_the_same_all_the_time_has_no_table_of_moments(make_training: Make) -> None:
    result = make_training(memory_stages=make_training().memory_stages[:1])
    assert "Memory needed at each stage" not in result_text(result)


def test_one_place_is_said_once(make_training: Make) -> None:
    text = result_text(make_training(target="raid"))
    assert "with its weights and optimizer on raid: 40 s per step" in " ".join(text.split())


def test_no_accumulation_is_not_mentioned(make_training: Make) -> None:
    result = make_training(gradient_accumulation_steps=1, sequence_length=1)
    assert presentation(result).work == ("batch 4 × 4 GPUs", "1 token")


def test_causes_add_up_within_each_phase(make_training: Make) -> None:
    result = make_training()
    forward, backward, update = (
        sum(column) for column in zip(*causes_by_phase(result).values(), strict=True)
    )
    assert (forward, backward, update) == pytest.approx((8.0, 13.0, 19.0))
    assert result.step is not None
    causes = {cause: sum(times) for cause, times in causes_by_phase(result).items()}
    assert causes == pytest.approx({share.cause: share.exposed_s for share in result.step.shares})


def test_hidden_work_is_in_no_phase(make_training: Make) -> None:
    (forward, *rest) = make_training().phases
    share = forward.result.shares[0]._replace(cause=Cause("all-gather"), exposed_ps=0)
    hidden = forward.result._replace(shares=(*forward.result.shares, share))
    lines = result_text(
        make_training(phases=(TimedPhase("forward", Fraction(4), hidden), *rest))
    ).splitlines()
    (row,) = (number for number, line in enumerate(lines) if line.strip().startswith("all-gather"))
    assert lines[row].split() == ["all-gather", "0", "s", "0", "%", "12", "s", "gpu.pcie"]


def test_a_tier_that_is_empty_at_a_moment_is_shown_empty(make_training: Make) -> None:
    needs = [[use.needed for use in uses] for _, uses in stage_needs(make_training())]
    assert needs == [
        [2 << 30, 64 << 30, 0],
        [30 << 30, 16 << 30, 80 * 10**9],
        [8 << 30, 48 << 30, 100 * 10**9],
    ]


def test_bytes_per_parameter_are_those_of_the_model(make_training: Make) -> None:
    """xinnor.io: 158.93 GiB read and 317.87 GiB written for 14.22e9 parameters."""
    numel = 14_220_000_000
    traffic = (StorageTraffic("raid", 12 * numel, 24 * numel), StorageTraffic("nfs", 0, 2 * numel))
    (table,) = storage(make_training(parameters=numel, traffic=traffic)).tables
    assert table.texts == (
        ("raid", "171 GB", "341 GB", "12 B", "24 B"),
        ("nfs", "0 B", "28.4 GB", "0 B", "2 B"),
    )


@pytest.mark.parametrize("width", [60, 80, 100, 160])
def test_lines_keep_to_the_width(make_training: Make, width: int) -> None:
    text = result_text(make_training(warnings=("a long warning that goes on and on. " * 5,)), width=width)
    assert max(map(len, text.splitlines())) <= max(width, 80), "the numbers of the tables stay whole"


def test_colour_changes_nothing_else(make_training: Make, make_training_refusal: Make) -> None:
    for result in (make_training(), make_training_refusal()):
        coloured = ANSI.sub("", result_text(result, color=True)).splitlines()
        assert [line.rstrip() for line in coloured] == result_text(result).splitlines()


def test_names_do_not_command_the_terminal(make_training: Make) -> None:
    evil = "a\x1b[2J\r\n\u202eb"
    result = make_training()
    phases = tuple(
        phase._replace(name=evil, result=phase.result._replace(name=evil)) for phase in result.phases
    )
    stages = tuple((evil, uses) for _, uses in result.memory_stages)
    traffic = (StorageTraffic(evil, 1, 2),)
    text = result_text(
        make_training(
            optimizer_target=evil, phases=phases, memory_stages=stages, traffic=traffic, target=evil
        )
    )
    assert text.count(r"a\x1b[2J\r\n\u202eb") > 8
    assert text.replace("\n", "").isprintable()
