"""This module writes recorded runs and their predictions as Markdown tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from simoffload_calibrate.compare import ComparedRun, Errors, errors
from simoffload_calibrate.records import RecordedRun
from validation.accuracy import accuracy_table, held_out, limit_table, table
from validation.measured import (
    PARTS,
    PASSES,
    MeasuredMachine,
    MeasuredRun,
    Profile,
    changed,
    counted,
    setting_pairs,
)

_SETS = {"holdout": "Held-out runs", "fit": "Runs of the fit set"}
_NOT_SIZES = ("name", "family", "dtype", "attention", "tie_word_embeddings")
_SHORT = {"num_hidden_layers": "layers", "n_layer": "layers"}
_INFERENCE = ("decode", "prefill")
_TRAINING = ("forward", "backward", "optimizer", "step")
_COMPARED = ("decode", "prefill", "step")

_LEGEND = (
    "In the tables of runs, times are in ms: measured, simulated with its error, and the error of the naive "
    "prediction (bytes over bandwidth). Layers: the largest deviation of the begin of a layer in one decode "
    "step, as a share of the step."
)
_ABOUT_FSDP = (
    "Steps of PyTorch's FSDP, predicted with the machine's own microbenchmarks; the tables above exclude "
    "them. Complete steps were timed separately from their parts, which have a wait after each."
)
_ABOUT_OTHERS = (
    "Runs of transformers without DeepSpeed, predicted with the machine's own microbenchmarks "
    "([measurements/hugging-face.md](../measurements/hugging-face.md)); the tables above exclude them."
)
_ABOUT_ACCURACY = (
    "Each cell: number of runs · mean absolute error · worst error · share of measured times inside the 80 % "
    "interval · median half-width of the interval, (P90 - P10) / 2 over the prediction. *Another machine of "
    "the kind* is one of `fit/` with the same GPU and at least as many GPUs, on which the host thread was "
    "measured: the one with the fewest GPUs, then with the most sections measured, then the first by name. "
    "FSDP was measured on one machine of each kind only. Runs from drives are in the first column only, "
    "because drives differ."
)
_ABOUT_MACHINES = (
    "Components are the sections of a machine's record of `calibrate micro`; `h200-i` has none and uses the "
    "profile of `h200-f`."
)
_ABOUT_LIMITS = (
    "Limits. Intervals are as wide as the errors of these held-out runs, of other machines than that of the "
    "run ([explanations.md](../explanations.md))."
)
_ABOUT_PROFILES = (
    "Errors of each run by the profile that predicts it; measured times outside the 80 % interval have their "
    "error in bold."
)
Rows = Sequence[MeasuredRun]


def measured_tables(
    by_profile: Mapping[Profile, Rows],
    machines: Iterable[MeasuredMachine] = (),
    images: Iterable[tuple[str, str]] = (),
) -> str:
    """Write all tables; ``by_profile`` has the same runs with each profile, ``images`` pairs (path, text)."""
    runs = by_profile["own"]
    zero = [run for run in runs if run.group == "zero"]
    inference = [run for run in zero if not run.compared.run.training]
    sections = ["### Machines", _ABOUT_MACHINES, _machines(machines, runs)]
    sections += ["### Errors and intervals by profile", f"{held_out(runs)}. {_ABOUT_ACCURACY}"]
    sections += [accuracy_table(by_profile), _ABOUT_LIMITS, limit_table(by_profile)]
    sections += ["### Errors with own profiles", _set_errors(runs)]
    sections += [f"![{text}]({path})" for path, text in images]
    sections += ["Errors by offload of the parameters:", _errors_by("offload", runs, lambda run: run.offload)]
    sections += ["By number of GPUs:", _errors_by("GPUs", runs, lambda run: str(run.ranks)), _LEGEND]
    for part, title in _SETS.items():
        set_runs = [run for run in inference if run.part == part]
        sections += [f"### {title}", _inference(set_runs), *_reasons(set_runs)]
    training = [run for run in zero if run.compared.run.training]
    sections += ["### Training", _training(training), *_reasons(training)]
    fsdp = [run for run in runs if run.group == "fsdp"]
    sections += ["### FSDP", _ABOUT_FSDP, _fsdp_errors(fsdp), _fsdp(fsdp), *_reasons(fsdp)]
    other = [run for run in runs if run.group in ("accelerate", "tensor_parallel")]
    sections += ["### Accelerate and tensor parallelism", _ABOUT_OTHERS, _others(other), *_reasons(other)]
    sections += ["### Each run by profile", _ABOUT_PROFILES, _run_errors(by_profile)]
    sections += [
        "### Settings",
        "Time after a change of one setting over the time before it, on one machine:",
        _setting_effects(zero),
    ]
    return "\n\n".join(sections) + "\n"


def _machines(machines: Iterable[MeasuredMachine], runs: Rows) -> str:
    rows = []
    for one in machines:
        sets = [
            _counts([run for run in runs if (run.part, run.machine) == (part, one.name)]) for part in PARTS
        ]
        rows.append((one.name, one.gpu, str(one.gpus), one.date, ", ".join(one.sections), *sets))
    return table(
        "machine | GPU | GPUs | day | components measured | runs in fit | held-out runs", rows, right=7
    )


def _counts(runs: Rows) -> str:
    """Return the number of runs by kind: "6 inference, 4 training"."""
    kinds = [
        "FSDP" if run.group == "fsdp" else "training" if run.compared.run.training else "inference"
        for run in runs
    ]
    return ", ".join(f"{count} {kind}" for kind, count in Counter(kinds).items())


# -- errors ---------------------------------------------------------------------------------------


def _set_errors(runs: Rows) -> str:
    rows = []
    for part in PARTS:
        mine = counted(runs, part=part)
        for name in PASSES:
            ours, naive = errors(mine, name), errors(mine, name, naive=True)
            if ours:
                rows.append((part, name, str(ours.runs), *_mean_worst(ours), *_mean_worst(naive)))
    return table("set | pass | runs | mean | worst | naive, mean | naive, worst", rows, right=2)


def _mean_worst(found: Errors | None) -> tuple[str, str]:
    return (f"{found.mean:.1%}", f"{found.worst:+.1%}") if found else ("", "")


def _errors_by(what: str, runs: Rows, key: Callable[[RecordedRun], str]) -> str:
    rows = []
    for value in sorted({key(one.run) for one in counted(runs)}, key=lambda text: (len(text), text)):
        for part in PARTS:
            mine = [one for one in counted(runs, part=part) if key(one.run) == value]
            found = [(errors(mine, name), errors(mine, name, naive=True)) for name in _INFERENCE]
            number = max(ours.runs if ours else 0 for ours, _ in found)
            cells = [cell for ours, naive in found for cell in (*_mean_worst(ours), _mean_worst(naive)[0])]
            if number:
                rows.append((value, part, str(number), *cells))
    head = "set | runs | decode, mean | worst | naive, mean | prefill, mean | worst | naive, mean"
    return table(f"{what} | {head}", rows, right=2)


def _reasons(runs: Rows) -> list[str]:
    """List the runs that could not be predicted."""
    lines = [f"- {row.compared.run.name}: {row.compared.reason}" for row in runs if row.compared.reason]
    return ["Without a prediction:\n\n" + "\n".join(dict.fromkeys(lines))] if lines else []


# -- runs -----------------------------------------------------------------------------------------


def _times(compared: ComparedRun, names: Iterable[str], *, naive: bool = False) -> list[str]:
    """Return the measured time, predicted time and error of each pass, and with ``naive`` its naive error."""
    cells: list[str] = []
    for name in names:
        one = compared.find(name)
        if one is None:
            cells += [""] * (3 + naive)
        else:
            cells += [_ms(one.measured), _ms(one.predicted), _percent(one.error)]
            cells += [_percent(one.naive_error)] * naive
    return cells


def _head(names: Iterable[str], ours: str) -> str:
    return " | ".join(f"{name} | {ours}" for name in names)


def _sizes(run: RecordedRun, *keys: str) -> list[str]:
    return [str(run.ranks), *(str(run.workload.get(key, "")) for key in keys)]


def _inference(runs: Rows) -> str:
    rows = []
    for row in runs:
        run, layers = row.compared.run, row.compared.layers
        settings = ", ".join(f"{name}={_value(value)}" for name, value in changed(run).items())
        sizes = _sizes(run, "batch_size", "prompt_length")
        times = _times(row.compared, _INFERENCE, naive=True)
        deviation = f"{layers.largest:.1%}" if layers else ""
        rows.append((row.machine, _model(run), run.offload, settings, *sizes, *times, deviation))
    times_head = _head(_INFERENCE, "simulated | error | naive")
    head = f"machine | model | offload | settings | GPUs | batch | prompt | {times_head} | layers"
    return table(head, rows, right=4)


def _training(runs: Rows) -> str:
    rows = []
    for row in runs:
        run = row.compared.run
        sizes = _sizes(run, "batch_size", "sequence_length", "gradient_accumulation_steps")
        about = (row.part, row.machine, _model(run), run.offload, run.optimizer, *sizes)
        rows.append((*about, *_times(row.compared, _TRAINING)))
    head = "set | machine | model | parameters | optimizer | GPUs | batch | sequence | steps"
    return table(f"{head} | {_head(_TRAINING, 'simulated | error')}", rows, right=5)


def _fsdp_errors(runs: Rows) -> str:
    rows = []
    for part, machine in dict.fromkeys((run.part, run.machine) for run in runs):
        mine = [run.compared for run in runs if (run.part, run.machine) == (part, machine)]
        for name in _TRAINING:
            found = errors(mine, name)
            rows.append((part, machine, name, str(found.runs if found else 0), *_mean_worst(found)))
    return table("set | machine | pass | runs | mean | worst", rows, right=3)


def _fsdp(runs: Rows) -> str:
    head = f"set | machine | run: batch x sequence | {_head(_TRAINING, 'simulated | error')}"
    return table(head, (_named(row, _TRAINING) for row in runs), right=3)


def _others(runs: Rows) -> str:
    head = f"set | machine | run | {_head(_INFERENCE, 'simulated | error')}"
    return table(head, (_named(row, _INFERENCE) for row in runs), right=3)


def _named(row: MeasuredRun, names: Iterable[str]) -> list[str]:
    return [row.part, row.machine, row.compared.run.name, *_times(row.compared, names)]


def _run_errors(by_profile: Mapping[Profile, Rows]) -> str:
    """Write the errors of every run with each profile, in the order of the runs with their own."""
    found = {
        profile: {(run.part, run.machine, run.compared.run.name): run.compared for run in runs}
        for profile, runs in by_profile.items()
    }
    rows = []
    for key, own in found["own"].items():
        if not own.reason:
            others = [found[profile].get(key) for profile in by_profile]
            rows.append((*key, *(_error(one, name) for name in _COMPARED for one in others)))
    head = _head(_COMPARED, " | ".join(list(by_profile)[1:]))
    return table(f"set | machine | run | {head}", rows, right=3)


def _error(compared: ComparedRun | None, name: str) -> str:
    """Return the error of a pass, in bold if the measured time is outside the interval."""
    one = compared.find(name) if compared is not None else None
    if one is None or one.error is None:
        return ""
    return f"**{one.error:+.1%}**" if one.inside is False else f"{one.error:+.1%}"


def _setting_effects(runs: Rows) -> str:
    machines: dict[tuple[str, str], list[ComparedRun]] = {}
    for row in runs:
        if not row.compared.reason:
            machines.setdefault((row.part, row.machine), []).append(row.compared)
    rows = []
    for place, compared in machines.items():
        for pair in setting_pairs(compared):
            run, ratios = pair.base.run, [pair.ratio(name) for name in _INFERENCE]
            change = f"{_value(pair.before)} → {_value(pair.after)}"
            cells = [f"{value:.3f}" for ratio in ratios if ratio for value in ratio]
            if all(ratios):
                rows.append((*place, _model(run), run.offload, pair.setting, change, str(run.ranks), *cells))
    head = f"set | machine | model | offload | setting | change | GPUs | {_head(_INFERENCE, 'simulated')}"
    return table(head, rows, right=6)


# -- cells ----------------------------------------------------------------------------------------


def _model(run: RecordedRun) -> str:
    """Return the model and the sizes that differ from it: "opt-66b, layers 12"."""
    model = run.model
    sizes = [f"{_SHORT.get(key, key)} {value}" for key, value in model.items() if key not in _NOT_SIZES]
    if model.get("name") is None:  # every size is given
        return ", ".join((str(model.get("family") or model.get("config")), *sizes[:1]))
    return ", ".join((str(model["name"]), *sizes))


def _value(value: object) -> str:
    """Write the value of a setting as in a file, with separators of thousands."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:,}" if isinstance(value, int) else str(value)


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1e3:,.1f}"


def _percent(error: float | None) -> str:
    return "" if error is None else f"{error:+.1%}"
