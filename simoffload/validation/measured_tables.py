"""Recorded runs beside their predictions as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from simoffload.calibration.compare import ComparedRun, Errors, errors
from simoffload.calibration.records import RecordedRun
from simoffload.validation.measured import PARTS, MeasuredRun, Verdict, counted, verdicts
from simoffload.validation.setting_pairs import SettingPair, changed, setting_pairs

__all__ = ["MEASURED_BEGIN", "MEASURED_END", "measured_tables"]

MEASURED_BEGIN = "<!-- measured: written by python -m simoffload.validation -->"
MEASURED_END = "<!-- end of measured -->"
_NONE = "No recorded runs lie in `simoffload/validation/measured/`.\n"
_LABELS = {"fit": "Runs that were in view", "holdout": "Held-out runs"}
_NOT_SIZES = ("name", "family", "dtype", "attention", "tie_word_embeddings")
_SHORT = {"num_hidden_layers": "layers", "n_layer": "layers"}

_LEGEND = (
    "In the tables of runs times are in ms: measured, ours and its error, the error of the naive prediction "
    "(bytes over bandwidth). Layers: the largest deviation of the begin of a layer in one decode step, as a "
    "share of the step."
)

_FSDP = (
    "Steps of PyTorch's FSDP, predicted with the machine's own microbenchmarks; they count nowhere above. "
    "Whole steps were timed by themselves, their parts with a wait after each."
)
_TRAINING_PASSES = ("forward", "backward", "optimizer", "step")
_TRAINING_SIZES = ("batch_size", "sequence_length", "gradient_accumulation_steps")

Grouping = Callable[[ComparedRun], str]


def measured_tables(
    runs: Sequence[MeasuredRun], shipped: Sequence[MeasuredRun], images: Sequence[tuple[str, str]] = ()
) -> str:
    """All tables; ``shipped`` are the same runs with the shipped profile, ``images`` pairs (path, text)."""
    if not runs:
        return _NONE
    parts = ["### Errors", _verdicts(verdicts(runs)), *_without_profile(runs)]
    parts += [f"![{text}]({path})" for path, text in images]
    parts += ["Errors by offload of the parameters:", _grouped(runs, "offload", lambda one: one.run.offload)]
    parts += ["By number of GPUs:", _grouped(runs, "GPUs", lambda one: str(one.run.ranks))]
    parts.append(_LEGEND)
    inference = [run for run in runs if not run.compared.run.training]
    for part in reversed(PARTS):
        mine = [run for run in inference if run.part == part and not run.host_thread_only]
        if mine:
            parts += [f"### {_LABELS[part]}", _runs(mine), *_reasons(mine)]
    training = [run for run in runs if run.compared.run.training and run.group == "zero"]
    if training:
        parts += ["### Training", _training(training), *_reasons(training)]
    fsdp = [run for run in runs if run.group == "fsdp"]
    if fsdp:
        parts += ["### FSDP", _FSDP, _fsdp_errors(fsdp), _fsdp(fsdp), *_reasons(fsdp)]
    parts += _shipped(runs, shipped)
    pairs = _pairs(runs)
    if pairs:
        parts += [
            "### Knobs",
            "Time after a change over time before it, on one machine:",
            _setting_effects(pairs),
        ]
    small = [run for run in inference if run.host_thread_only]
    if small:
        about = "Small models that measure what the host thread costs; they count nowhere above."
        parts += ["### Host thread", about, _runs(small), *_reasons(small)]
    return "\n\n".join(parts) + "\n"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], *, right: int) -> str:
    """A Markdown table; the columns from number ``right`` on are numbers."""
    rule = ["---" if number < right else "---:" for number in range(len(head))]
    lines = [head, rule, *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _verdicts(found: Sequence[Verdict]) -> str:
    head = ("set", "pass", "bar", "holds", "runs", "mean", "worst", "naive, mean", "naive, worst")
    rows = []
    for one in found:
        bar = f"mean {one.bar.mean:.0%}, worst {one.bar.worst:.0%}" if one.bar else ""
        holds = {True: "yes", False: "**no**", None: ""}[one.holds]
        numbers = (str(one.ours.runs), *_error_cells(one.ours), *_error_cells(one.naive))
        rows.append((one.part, one.name, bar, holds, *numbers))
    return _table(head, rows, right=4)


def _error_cells(found: Errors | None) -> tuple[str, str]:
    return (f"{found.mean:.1%}", f"{found.worst:+.1%}") if found else ("", "")


def _grouped(runs: Sequence[MeasuredRun], what: str, key: Grouping) -> str:
    head = (
        what,
        "set",
        "runs",
        "decode, mean",
        "worst",
        "naive, mean",
        "prefill, mean",
        "worst",
        "naive, mean",
    )
    rows = []
    for value in sorted({key(one) for one in counted(runs)}, key=lambda text: (len(text), text)):
        for part in PARTS:
            mine = [one for one in counted(runs, part=part) if key(one) == value]
            decode, prefill = errors(mine, "decode"), errors(mine, "prefill")
            if decode is None and prefill is None:
                continue
            naive = [_error_cells(errors(mine, name, naive=True))[0] for name in ("decode", "prefill")]
            number = str(max(one.runs for one in (decode, prefill) if one))
            rows.append(
                (value, part, number, *_error_cells(decode), naive[0], *_error_cells(prefill), naive[1])
            )
    return _table(head, rows, right=2)


_RUNS_HEAD = (
    *("machine", "model", "offload", "knobs", "GPUs", "batch", "prompt"),
    *("decode", "ours", "error", "naive", "prefill", "ours", "error", "naive", "layers"),
)


def _runs(runs: Sequence[MeasuredRun]) -> str:
    return _table(_RUNS_HEAD, map(_line, runs), right=4)


def _line(row: MeasuredRun) -> tuple[str, ...]:
    run, layers = row.compared.run, row.compared.layers
    settings = ", ".join(f"{name}={_value(value)}" for name, value in changed(run).items())
    work = run.workload
    sizes = (str(run.ranks), _count(work, "batch_size"), _count(work, "prompt_length"))
    times = (*_times(row.compared, "decode"), *_times(row.compared, "prefill"))
    shown = f"{layers.largest:.1%}" if layers else ""
    return (row.machine, _model(run), run.offload, settings, *sizes, *times, shown)


def _times(compared: ComparedRun, name: str) -> tuple[str, ...]:
    """Measured, ours, error and naive error of a pass."""
    one = compared.find(name)
    if one is None:
        return "", "", "", ""
    return _ms(one.measured), _ms(one.predicted), _percent(one.error), _percent(one.naive_error)


def _training(runs: Sequence[MeasuredRun]) -> str:
    passes = _TRAINING_PASSES
    head = ("set", "machine", "model", "parameters", "optimizer", "GPUs", "batch", "sequence", "steps")
    rows = [
        (
            *(row.part, row.machine, _model(row.compared.run), row.compared.run.offload),
            *(row.compared.run.optimizer, str(row.compared.run.ranks)),
            *(_count(row.compared.run.workload, key) for key in _TRAINING_SIZES),
            *(cell for name in passes for cell in _times(row.compared, name)[:3]),
        )
        for row in runs
    ]
    return _table((*head, *(cell for name in passes for cell in (name, "ours", "error"))), rows, right=5)


def _fsdp_errors(runs: Sequence[MeasuredRun]) -> str:
    rows = []
    for part in PARTS:
        machines = dict.fromkeys(run.machine for run in runs if run.part == part)
        for machine in machines:
            mine = [run.compared for run in runs if (run.part, run.machine) == (part, machine)]
            for name in _TRAINING_PASSES:
                found = errors(mine, name)
                rows.append((part, machine, name, str(found.runs if found else 0), *_error_cells(found)))
    return _table(("set", "machine", "pass", "runs", "mean", "worst"), rows, right=3)


def _fsdp(runs: Sequence[MeasuredRun]) -> str:
    rows = [
        (
            *(row.part, row.machine, row.compared.run.name),
            *(cell for name in _TRAINING_PASSES for cell in _times(row.compared, name)[:3]),
        )
        for row in runs
    ]
    head = (cell for name in _TRAINING_PASSES for cell in (name, "ours", "error"))
    return _table(("set", "machine", "run: batch x sequence", *head), rows, right=3)


def _without_profile(runs: Sequence[MeasuredRun]) -> list[str]:
    """Names machines whose runs had to be predicted with a shipped profile."""
    names = dict.fromkeys(f"{run.part}/{run.machine}" for run in runs if not run.own_profile)
    return [f"No profile was measured on {', '.join(names)}: a shipped one stands in."] if names else []


def _reasons(runs: Sequence[MeasuredRun]) -> list[str]:
    """One list of what could not be predicted."""
    lines = [f"- {row.compared.run.name}: {row.compared.reason}" for row in runs if row.compared.reason]
    return ["Without a prediction:\n\n" + "\n".join(dict.fromkeys(lines))] if lines else []


def _shipped(runs: Sequence[MeasuredRun], shipped: Sequence[MeasuredRun]) -> Iterator[str]:
    """Both predictions of runs that have both."""
    both = [
        (own, other)
        for own, other in zip(runs, shipped, strict=True)
        if own.group == "zero"
        and not own.host_thread_only
        and not own.compared.reason
        and not other.compared.reason
    ]
    if not both:
        return
    yield "### With shipped profiles alone"
    yield (
        "The same runs predicted with the shipped platform of the same GPU, as one would predict a machine "
        "of this kind that nobody measured (its host costs are means over the machines of the fit set); "
        "storage is left out, since drives differ."
    )
    head = ("set", "pass", "runs", "shipped, mean", "worst", "measured profile, mean", "worst")
    rows = []
    for part in PARTS:
        pairs = [pair for pair in both if pair[0].part == part]
        for name in ("decode", "prefill"):
            own = errors((pair[0].compared for pair in pairs), name)
            other = errors((pair[1].compared for pair in pairs), name)
            if own and other:
                rows.append((part, name, str(other.runs), *_error_cells(other), *_error_cells(own)))
    yield _table(head, rows, right=2)
    yield _table(
        ("set", "machine", "run", "decode", "shipped", "error", "prefill", "shipped", "error"),
        (
            (
                *(other.part, other.machine, other.compared.run.name),
                *_times(other.compared, "decode")[:3],
                *_times(other.compared, "prefill")[:3],
            )
            for _, other in both
        ),
        right=3,
    )


def _pairs(runs: Sequence[MeasuredRun]) -> list[tuple[MeasuredRun, SettingPair]]:
    """Pairs of runs within each machine, with one of its rows."""
    machines: dict[tuple[str, str], list[MeasuredRun]] = {}
    for row in runs:
        if row.group == "zero" and not row.host_thread_only and not row.compared.reason:
            machines.setdefault((row.part, row.machine), []).append(row)
    return [
        (rows_of_group[0], pair)
        for rows_of_group in machines.values()
        for pair in setting_pairs([row.compared for row in rows_of_group])
    ]


def _setting_effects(pairs: Sequence[tuple[MeasuredRun, SettingPair]]) -> str:
    rows = []
    for row, pair in pairs:
        run = pair.base.run
        ratios = [pair.ratio(name) for name in ("decode", "prefill")]
        cells = [f"{value:.3f}" for ratio in ratios if ratio for value in ratio]
        change = f"{_value(pair.before)} → {_value(pair.after)}"
        rows.append(
            (row.part, row.machine, _model(run), run.offload, pair.setting, change, str(run.ranks), *cells)
        )
    head = (
        "set",
        "machine",
        "model",
        "offload",
        "knob",
        "change",
        "GPUs",
        "decode",
        "ours",
        "prefill",
        "ours",
    )
    return _table(head, (row for row in rows if len(row) == len(head)), right=6)


def _model(run: RecordedRun) -> str:
    """ "opt-66b, layers 12": the model's name and what differs from it."""
    model = run.model
    sizes = [f"{_SHORT.get(key, key)} {value}" for key, value in model.items() if key not in _NOT_SIZES]
    if model.get("name") is None:  # every size is given
        return ", ".join((str(model.get("family") or model.get("config")), *sizes[:1]))
    return ", ".join((str(model["name"]), *sizes))


def _count(work: dict[str, Any], key: str) -> str:
    return str(work.get(key, ""))


def _value(value: object) -> str:
    """A knob as a file has it: true and false, numbers with their digits in threes."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:,}" if isinstance(value, int) else str(value)


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:,.1f}"


def _percent(error: float | None) -> str:
    return "" if error is None else f"{error:+.1%}"
