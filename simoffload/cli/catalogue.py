"""``simoffload profiles``, ``scenarios``, ``models``, ``detect``: what scenarios refer to."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from simoffload.cli.console import Console, ExitCode
from simoffload.cli.sources import find_profile
from simoffload.errors import InputError, printable
from simoffload.units import plural

if TYPE_CHECKING:
    from simoffload.hardware import Entry, ProfileInput
    from simoffload.models import ModelShape, Module, StatePart
    from simoffload.scenario import LoadedScenario

# -- ``simoffload profiles``, ``scenarios`` and ``models`` -----------------------------------------
# List, show and import what scenarios refer to.


Command = Callable[[Namespace, Console], ExitCode]


_WIDTH = 80
"""[characters] of a line of a list, at most: our choice."""


def _table(
    console: Console,
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Iterable[int] = (),
    below: Sequence[str] = (),
    keys: int = 1,
) -> str:
    from simoffload.report.document import ReportTable
    from simoffload.report.terminal import table_text

    table = ReportTable("", tuple(head), tuple(map(tuple, rows)), tuple(right), keys)
    return table_text(table, below=below, color=console.color, width=min(_WIDTH, console.width))


def _wrapped(lines: Iterable[str], console: Console) -> list[str]:
    """Return lines, each wrapped where it is longer than a line of a list."""
    width = min(_WIDTH, console.width)
    return [piece for line in lines for piece in wrap(printable(line), width, subsequent_indent="  ") or [""]]


def list_profiles(arguments: Namespace, console: Console) -> ExitCode:
    """List the shipped profiles of one kind or of all, and where their numbers are from."""
    from simoffload.hardware import evidence_sentence, profile_evidence
    from simoffload.hardware import list_profiles as found

    listed: list[dict[str, Any]] = []
    for one in found(arguments.kind):
        parts = profile_evidence(one.kind, one.id)
        listed.append({"kind": one.kind, "id": one.id, "name": one.name, "numbers_from": parts})
    rows = [(one["kind"], one["id"], one["name"]) for one in listed]
    numbers = [evidence_sentence(one["numbers_from"]) for one in listed]
    text = _table(console, ("KIND", "ID", "NAME"), rows, keys=2, below=numbers)
    console.answer(text, {"schema": "simoffload/profiles/1", "profiles": listed})
    return ExitCode.OK


def show_profile(arguments: Namespace, console: Console) -> ExitCode:
    """Print every number of a profile with its spread, origin and source."""
    entry = find_profile(arguments.profile)
    numbers = _numbers(entry)
    title = f"{entry.use.kind} {entry.profile.id}: {entry.profile.name}"
    lines = [title, f"{entry.use.path}, sha256 {entry.use.sha256}", *entry.profile.notes.strip().splitlines()]
    text = "\n".join(_wrapped(lines, console))
    for profile, mine in groupby(numbers, key=lambda one: one.profile):
        if profile != entry.profile.id:
            text += f"\n\n{printable(profile)}"
        text += f"\n{_numbers_table(tuple(mine), console)}"
    data: dict[str, Any] = {
        "schema": "simoffload/profile/1",
        "kind": entry.use.kind,
        "id": entry.profile.id,
        "name": entry.profile.name,
        "path": entry.use.path,
        "sha256": entry.use.sha256,
        "notes": entry.profile.notes,
        "numbers": [one._asdict() for one in numbers],
    }
    console.answer(text, data)
    return ExitCode.OK


def _numbers_table(numbers: Sequence[ProfileInput], console: Console) -> str:
    rows = [(one.key, one.text, one.spread, one.origin, one.date) for one in numbers]
    head = ("KEY", "VALUE", "SPREAD", "ORIGIN", "DATE")
    return _table(console, head, rows, below=[one.source for one in numbers])


def _numbers(entry: Entry) -> tuple[ProfileInput, ...]:
    """Return the numbers of a profile; for a platform also those of all its parts."""
    from simoffload.hardware import load_platform

    if entry.use.kind != "platform":
        return entry.inputs()
    return load_platform(Path(entry.document.path)).inputs


def list_scenarios(_arguments: Namespace, console: Console) -> ExitCode:
    """List the shipped scenarios with the first sentence of their descriptions."""
    from simoffload.scenario import list_scenarios as names
    from simoffload.scenario import read_scenario

    listed = [{"name": name, "description": _sentence(read_scenario(name))} for name in names()]
    descriptions = [one["description"] for one in listed]
    table = _table(console, ("NAME",), [(one["name"],) for one in listed], below=descriptions)
    console.answer(table, {"schema": "simoffload/scenarios/1", "scenarios": listed})
    return ExitCode.OK


def _sentence(scenario: LoadedScenario) -> str:
    """Return the first sentence of a description."""
    text = " ".join(scenario.scenario.description.split())
    return text.split(". ")[0].rstrip(".")


def _billions(number: int) -> str:
    """Return a number of parameters in billions: "70.6B"."""
    from simoffload.units import format_number

    return f"{format_number(number / 1e9)}B"


def list_models(arguments: Namespace, console: Console) -> ExitCode:
    """List the models that have a name, those of one year or all."""
    from simoffload.models import find_model, load_model
    from simoffload.models import list_models as names
    from simoffload.units import format_bytes

    found = [(name, find_model(name).size.year) for name in names()]
    _check_year(arguments.year, [year for _, year in found if year])
    listed = [
        {**_size(load_model(name)), "name": name, "year": year}
        for name, year in found
        if arguments.year in (None, year)
    ]
    listed.sort(key=_ORDERS[arguments.sort])
    head = ("NAME", "YEAR", "LAYERS", "SIZE", "ACTIVE", "WEIGHTS", "CACHE")
    rows = [
        (
            one["name"],
            str(one["year"] or ""),
            str(one["num_hidden_layers"]),
            _billions(one["num_parameters"]),
            _billions(one["active_parameters"]),
            format_bytes(one["weight_bytes"]),
            format_bytes(one["cache_bytes_per_token"]),
        )
        for one in listed
    ]
    table = _table(console, head, rows, right=range(1, 7))
    unit = (
        "year of the release; parameters in billions (B), those of a mixture also as active for a token; "
        "weights: as released; cache: of a token"
    )
    table = "\n".join([table.rstrip("\n"), *_wrapped([unit], console)])
    console.answer(table, {"schema": "simoffload/models/1", "models": listed})
    return ExitCode.OK


_ORDERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "year": lambda one: (-(one["year"] or 0), -one["num_parameters"]),
    "size": lambda one: -one["num_parameters"],
    "name": lambda one: one["name"],
}
"""Orders of the list of models: the newest, the largest, or the first name comes first."""


def _check_year(year: int | None, known: Sequence[int]) -> None:
    """Raise InputError for a year without models."""
    if year is not None and year not in known:
        text = f"no listed model is of {year}; known: {', '.join(map(str, sorted(set(known))))}"
        raise InputError.at("", text, path="--year")


def _size(model: ModelShape) -> dict[str, Any]:
    return {
        "name": model.name,
        "family": model.family,
        "quantization": model.quantization,
        "num_hidden_layers": model.num_hidden_layers,
        "hidden_size": model.hidden_size,
        "num_parameters": model.num_parameters,
        "active_parameters": model.active_parameters,
        "weight_bytes": model.weight_bytes,
        "cache_bytes_per_token": _cached(model),
        **({"cache_bytes_beyond_windows": _cached(model, windows=False)} if _windows(model) else {}),
        **({"state_bytes_per_sequence": states} if (states := _served(model).state_bytes) else {}),
        **({"further_tokens": _further(model)} if model.mtp else {}),
    }


def _served(model: ModelShape) -> ModelShape:
    """Return the model with what it keeps in the types of serving engines, and keys for as many heads as
    transformers."""
    return replace(model.as_served(), num_key_value_heads=model.num_key_value_heads)


def _further(model: ModelShape) -> dict[str, int]:
    """Return the size of the modules that predict further tokens, which count with speculation only."""
    assert model.mtp is not None
    number = len(model.predictors)
    return {
        "modules": number,
        "parameters": number * model.mtp.num_parameters,
        "bytes": number * model.mtp.weight_bytes,
    }


def _cached(model: ModelShape, *, windows: bool = True) -> float:
    """Return the bytes that all layers keep of a token, as a serving engine does where it has a type of its
    own, or without ``windows`` those that remain when it has left them; a row of several tokens counts as its
    part of one."""
    shape = _served(model)
    rows = [(one, count) for layer, count in shape.kinds for one in shape.growing(layer)]
    kept = [(one, count) for one, count in rows if windows or one.window is None]
    size = sum(count * shape.row_bytes(one) / one.every for one, count in kept)
    return int(size) if size == int(size) else round(size, 3)


def _windows(model: ModelShape) -> dict[int, int]:
    """Return the number of layers that keep the tokens of a window, by its length."""
    found: dict[int, int] = {}
    for layer, count in model.kinds:
        for window in {one.window for one in model.growing(layer) if one.window is not None}:
            found[window] = found.get(window, 0) + count
    return found


def _parts(model: ModelShape) -> list[dict[str, Any]]:
    """Return what is kept of a sequence, with the number of layers that keep it."""
    shape = _served(model)
    found: dict[StatePart, int] = {}
    for layer, count in shape.kinds:
        for part in (one for module in layer for one in shape.parts_of(module)):
            found[part] = found.get(part, 0) + count
    rows = []
    for part, layers in found.items():
        row: dict[str, Any] = {"name": part.name, "layers": layers}
        if part.fixed:
            row["bytes_per_sequence"] = part.fixed
        else:
            row["bytes_per_row"] = round(shape.row_bytes(part), 3)
        numbers = {"window": part.window, "tokens_of_a_row": part.every, "rows_read": part.chosen}
        row |= {key: value for key, value in numbers.items() if value not in (None, 1)}
        rows.append(row | ({"shared": True} if part.borrowed else {}))
    return rows


def show_model(arguments: Namespace, console: Console) -> ExitCode:
    """Print the modules of one model in the order in which they run."""
    from simoffload.models import load_model, model_file

    named = model_file(arguments.model) or arguments.model
    model = load_model(named)
    layers = [("layer", count, layer) for layer, count in model.kinds]
    parts = [("before", 1, model.modules_before), *layers, ("after", 1, model.modules_after)]
    modules = [_module(module, part, repeat) for part, repeat, group in parts for module in group]
    stored = f"{model.quantization} and {model.dtype}" if model.quantization else model.dtype
    size, weights = f"{model.num_parameters:,} parameters", f"{model.weight_bytes:,} bytes as {stored}"
    counts = f"{_billions(model.num_parameters)}: {size}, {weights}"
    rows = [
        (
            one["part"],
            one["name"],
            one["kind"] + (f", window {one['window']:,}" if "window" in one else ""),
            f"{one['parameters']:,}",
            f"x {one['repeat']}",
        )
        for one in modules
    ]
    table = _table(console, ("PART", "MODULE", "KIND", "PARAMETERS", "TIMES"), rows, right=(3, 4))
    kept = _parts(model)
    data = {
        "schema": "simoffload/model/1",
        **_size(model),
        "keeps": kept,
        "notes": list(model.notes),
        "modules": modules,
    }
    lines = [f"{model.name} ({model.family}), {counts}", _per_token(model)]
    if len(kept) > 1:
        lines.append("of a sequence: " + "; ".join(map(_in_words, kept)))
    if model.mtp is not None:
        more = _further(model)
        text = f"not counted but with workload.speculation: {plural(more['modules'], 'module')} that"
        text += f" {'predict' if more['modules'] > 1 else 'predicts'} further tokens"
        lines.append(f"{text}, {more['parameters']:,} parameters, {more['bytes']:,} bytes")
    text = "\n".join(_wrapped([*lines, *(f"note: {one}" for one in model.notes)], console))
    console.answer(f"{text}\n\n{table}", data)
    return ExitCode.OK


def _per_token(model: ModelShape) -> str:
    """Return what one token passes through and what the cache keeps of it."""
    active = f"{model.active_parameters:,} parameters active per token"
    cache = f"{_cached(model):,} bytes of cache per token"
    if windows := _windows(model):
        each = (f"{plural(count, 'layer')} of at most {window:,} tokens" for window, count in windows.items())
        rest = _cached(model, windows=False)
        cache += f" (in {' and '.join(each)}; beyond them {rest:,} bytes)"
    if states := _served(model).state_bytes:
        cache += f" and {states:,} bytes of states per sequence"
    return f"{active}, {cache}"


def _in_words(kept: Mapping[str, Any]) -> str:
    """Return one of the things that are kept of a sequence, as a clause."""
    layers = plural(kept["layers"], "layer")
    if "bytes_per_sequence" in kept:
        return f"{kept['name']} of {layers}, {kept['bytes_per_sequence']:,} bytes each"
    tokens = kept.get("tokens_of_a_row", 1)
    text = f"{kept['name']} of {layers}, {kept['bytes_per_row']:,} bytes for "
    text += "each token" if tokens == 1 else f"every {tokens} tokens"
    if "window" in kept:
        text += f" of the last {kept['window']:,}"
    if "rows_read" in kept:
        text += f", of which {kept['rows_read']:,} rows are read"
    return text + (" (those of an earlier layer)" if "shared" in kept else "")


def _module(module: Module, part: str, repeat: int) -> dict[str, Any]:
    """Return one row; tied parameters are counted with the module that owns them."""
    own = sum(parameter.numel for parameter in module.parameters if not parameter.tied)
    row = {"part": part, "name": module.name, "kind": module.kind, "parameters": own, "repeat": repeat}
    return row if module.window is None else row | {"window": module.window}
