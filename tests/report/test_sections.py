"""Checkpoints, data and wear as terminal and page tell them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from markupsafe import Markup

from simoffload.extensions.storage.data_loading import DataLoading, Epoch
from simoffload.extensions.storage.endurance import DriveLifetime, TierLifetime
from simoffload.extensions.storage.result import (
    CheckpointPhase,
    CheckpointResult,
    Checkpoints,
    Outlook,
    SavedPart,
)
from simoffload.planning.answers import Answer
from simoffload.report.comparison import groups
from simoffload.report.html import write_comparison, write_report
from simoffload.report.sections.performance import added
from simoffload.report.summary import group_summary
from simoffload.results.capacity import MemoryTerm, TierUse
from simoffload.results.passes import LinkUse, PassResult, Share
from simoffload.results.result import SimulationResult
from simoffload.results.training import TrainingResult
from simoffload.schedule import Cause, CauseKind
from simoffload.workload import Dataset
from tests.report.conftest import S, compare_text, provenance, result_text

GB, TB, HOUR = 10**9, 10**12, 3600.0


def phase(name: str, time: float, kind: CauseKind, limit: str = "pfs write") -> PassResult:
    link = LinkUse(limit, 100 * GB, time, time, 10 * GB, time)
    part = round(time * S / 5)
    share = Share(Cause(kind, "pfs"), "storage", 4 * part, 5 * part, limit, 100 * GB)
    rest = Share(Cause("crc32"), "host", part, part, "")
    return PassResult(name, 0, 0, 5 * part, (share, rest), (link,), {limit: 0.9 * time})


SAVED = Checkpoints(
    tier="pfs",
    contents="zero",
    writer="fast",
    mode="blocking",
    keep=3,
    size=96 * GB,
    written_by_host=(96 * GB,),
    parts=(SavedPart("optimizer states", 12 * GB, 8, "hbm", 8),),
    saving=(
        CheckpointPhase(phase("save optimizer states", 9.6, "write"), background=False),
        CheckpointPhase(phase("write back", 2.4, "write"), background=True),
    ),
    restoring=(phase("read optimizer states", 6.0, "read", "pfs read"),),
    outlook=Outlook(
        stall_s=9.6, blocking_s=9.6, background_s=2.4, commit_s=12.0, restore_s=6.0, restart_s=606.0,
        interval_s=HOUR, share=9.6 / 3609.6, mtbf_s=1000 * HOUR, young_s=2.31 * HOUR, daly_s=2.3 * HOUR,
        efficiency=0.9968, best_efficiency=0.9977, lost_work_s=1807.0,
    ),
)  # fmt: skip
WORN = TierLifetime(
    "raid",
    "step",
    DriveLifetime(8, 100 * GB, 400 * TB, 50 * TB, 13.0, 7 * 10**15, 1.0, 5.0, 0.38, "within_a_year"),
)


def checkpoint(**changes: Any) -> CheckpointResult:
    terms = (MemoryTerm("pfs", "saved checkpoints", 288 * GB),)
    values: dict[str, Any] = {
        "name": "saved",
        "model": "llama-3.1-8b",
        "parameters": 8 * GB,
        "dtype": "float16",
        "platform": "dgx-h100",
        "target": "pfs",
        "ranks": 8,
        "gpus": 8,
        "replicas": 8,
        "capacity": (TierUse("pfs", "pfs", "in all", 288 * GB, 140 * TB, terms),),
        "advice": (),
        "warnings": (),
        "provenance": provenance(),
        "added": {"checkpoint": SAVED, "drive_lifetime": (WORN._replace(unit="checkpoint"),)},
    }
    return Answer.of(CheckpointResult(**{**values, **changes}))


def refused() -> CheckpointResult:
    none = replace(SAVED, saving=(), restoring=(), outlook=None)
    use = checkpoint().capacity[0]._replace(needed=300 * TB)
    advice = ("pfs needs 300 TB; lower keep: 3",)
    return checkpoint(name="full", added={"checkpoint": none}, capacity=(use,), advice=advice)


DATA = Dataset.model_validate(
    {"tier": "nfs", "sample_size": "1 MB", "samples": 1000, "workers": 2, "epochs": 3, "decode_time": "5 ms"}
)


def data_loading() -> DataLoading:
    cold = Epoch(1, 1, 0.0, 2.0 * GB, 1.5 * GB, 0.1, 0.02, 1.25, 0.2, "link", "nfs read", 100.0)
    warm = cold._replace(first=2, repeats=2, hit_ratio=1.0, needed=0.0, starvation=0.0, limit="gpu", link="")
    return DataLoading(GB, GB, True, 80, 50 << 30, 1 << 20, 0.04, (cold, warm), None, "link")


def flat(result: SimulationResult) -> str:
    return re.sub(r"\s+", " ", result_text(result))


def test_a_checkpoint_alone_is_told() -> None:
    text = flat(checkpoint())
    assert text.startswith(
        "llama-3.1-8b · float16 · ZeRO checkpoint of 8 GPUs · FastPersist · 96 GB · dgx-h100"
    )
    assert "llama-3.1-8b is saved with its checkpoints on pfs: 12 s per checkpoint (" in text
    assert "; pfs write takes 80 %; drives of raid wear out in 139 days." in text
    assert "bottleneck: pfs write, 80 % of the checkpoint, limited by pfs write" in text
    assert "efficiency 99.68 %" in text
    assert "tokens" not in text


@pytest.mark.parametrize(
    "sentence",
    [
        "96 GB in 8 files on pfs, 3 kept",
        (
            "saving takes 12 s (8 GB/s), 2.4 s of it in the background; training stalls for 9.6 s, "
            "0.3 % of the time at a checkpoint interval of 1 h"
        ),
        "restoring takes 6 s",
        (
            "with a failure every 41.7 d the best interval is 2.31 h (Young), 2.3 h (Daly); the "
            "efficiency is then 99.77 %, and 99.68 % at 1 h"
        ),
        "a failure loses 1807 s of training on average, and the restart takes 606 s",
    ],
)
def test_sentences_about_checkpoints(sentence: str, make_training: Callable[..., TrainingResult]) -> None:
    for result in (checkpoint(), make_training(added={"checkpoint": SAVED})):
        (rendered, *_) = added(result)
        assert sentence in rendered.sentences
        assert sentence in flat(result)


def test_phases_and_parts_are_tables() -> None:
    parts, phases = next(added(checkpoint())).tables
    assert parts.texts == (("optimizer states", "12 GB", "8", "8", "GPU"),)
    assert [row[:3] for row in phases.texts] == [
        ("save optimizer states", "save", "9.6 s"),
        ("write back", "background", "2.4 s"),
        ("read optimizer states", "restore", "6 s"),
    ]


def test_what_does_not_fit_has_no_times() -> None:
    text = flat(refused())
    assert "llama-3.1-8b does not fit on dgx-h100: pfs lacks " in text
    assert "Capacity pfs needs 300 TB" in text
    assert "saving takes" not in text
    assert "96 GB in 8 files on pfs" in text


def test_training_tells_data_and_wear(make_training: Callable[..., TrainingResult]) -> None:
    more = {"checkpoint": SAVED, "data_loading": data_loading(), "drive_lifetime": (WORN,)}
    result = make_training(dataset=DATA, added=more)
    assert [one.title for one in added(result)] == ["Checkpoint", "Data", "Drive endurance"]
    text = flat(result)
    assert "1,000 samples of 1 MB on nfs (1 GB stored); an epoch has 80 steps and takes 100 s" in text
    assert "the GPUs wait for data in 20.0 % of the time: 2 GB/s needed, 1.5 GB/s reachable" in text
    assert "nfs read is saturated" in text
    assert re.search(r"2 to 3\s+100 %\s+nothing\s+1.5 GB/s\s+20 ms\s+0 %", result_text(result))
    assert re.search(
        r"raid\s+8\s+100 GB per step\s+400 TB\s+50 TB \(13\)\s+1\s+139 days", result_text(result)
    )


def test_plain_training_has_none_of_it(make_training: Callable[..., TrainingResult]) -> None:
    assert [*added(make_training())] == []
    assert "Saving" not in result_text(make_training())


def test_the_page_has_the_sections(tmp_path: Path, make_training: Callable[..., TrainingResult]) -> None:
    more = {"checkpoint": SAVED, "data_loading": data_loading(), "drive_lifetime": (WORN,)}
    result = make_training(dataset=DATA, added=more)
    write_report(result, tmp_path / "run.html")
    page = (tmp_path / "run.html").read_text()
    heads = re.findall(r"<h2>([^<]*)</h2>", page)
    assert heads.index("Checkpoint") < heads.index("Data") < heads.index("Drive endurance")
    assert "Restoring takes 6 s." in Markup(page).striptags()
    assert re.search(r'<th scope="row"[^>]*>optimizer states</th><td class="number"[^>]*>12 GB</td>', page)
    assert re.search(r'<td class="number" [^>]*data-value="0.38">139 days</td>', page)


def test_names_cannot_break_the_page(tmp_path: Path) -> None:
    bad = "<script>alert(1)</script>"
    part = SavedPart(bad, 1, 1, "hbm", 1)
    write_report(
        checkpoint(added={"checkpoint": replace(SAVED, tier=bad, parts=(part,))}), tmp_path / "bad.html"
    )
    assert bad not in (tmp_path / "bad.html").read_text()
    assert "\x1b" not in result_text(checkpoint(added={"checkpoint": replace(SAVED, tier="\x1b[31m")}))


def test_results_side_by_side(tmp_path: Path) -> None:
    slow = replace(SAVED, tier="nfs", outlook=SAVED.outlook and SAVED.outlook._replace(commit_s=48.0))
    other = checkpoint(name="slow", target="nfs", added={"checkpoint": slow})
    text = re.sub(r"\s+", " ", compare_text([checkpoint(), other, refused()]))
    assert "checkpoints saved rate stall restored" in text
    assert "slow 48 s 2 GB/s 9.6 s 6 s 4×" in text
    assert "does not fit" in text
    (group,) = groups([checkpoint(), other])
    assert group_summary(group) == (
        "pfs is fastest: 12 s per checkpoint (6.56 to 18.8 s), nfs takes 4× as long (2.87 to 5.58)."
    )
    write_comparison([checkpoint(), other], tmp_path / "both.html")
    page = (tmp_path / "both.html").read_text()
    assert "<figcaption>Time per checkpoint, with 80 % intervals</figcaption>" in page
    assert "time per checkpoint [s]" in page


def test_metrics_shown_have_formulas() -> None:
    result = checkpoint()
    assert [metric.name for metric, _ in result.valued()] == list(result.formulas())
