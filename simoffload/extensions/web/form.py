"""The inputs of a page: made from the schemas of the sections of a scenario, and from its machine.

A program that is added has its inputs by the fields that it declares; nothing here knows programs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from pydantic import BaseModel

from simoffload.documents import Edit, read_option
from simoffload.documents.json_schema import json_schema
from simoffload.errors import InputError, Problem
from simoffload.extensions.web.scenarios import (
    FACTORS,
    LENGTHS,
    LOADS,
    NO_STREAM,
    RECORDED,
    TRACES,
    costs,
    drive_text,
    load,
    parameter,
    slots,
    stated_program,
    times,
)
from simoffload.extensions.web.state import USERS, State, Variant
from simoffload.hardware import STORAGE_KINDS, Library
from simoffload.models import QUANTIZATIONS, ModelSpec
from simoffload.planning.answers import Answer
from simoffload.planning.profile_parameters import deciding_parameters, profile_parameters
from simoffload.scenario import LoadedScenario
from simoffload.strategies import strategy_for
from simoffload.strategies.base import TierChoice, tier_paths
from simoffload.units import format_bytes
from simoffload.workload import Inference, Speculation

_SHORT = ("quantization", "dtype", "attention")
_LENGTHS = ("context", "sequence_length", "seq_length")
"""Keys of the length of a sequence, by kind of work."""
_PROPOSES = "speculation"
"""Section of a workload that has inputs of its own."""
_LIMITS = {
    "edit stream.slo.ttft": "at most, to the first token",
    "edit stream.slo.tpot": "at most, for each further token",
}
"""Limits of users, and what they are of."""
_GENERATIONS = ("gen3", "gen4", "gen5", "gen6")
_MOST = 18
"""Number of powers of two among which a slider chooses a whole number: our choice."""


class Input(NamedTuple):
    """An Input is one thing that a page lets a person change."""

    name: str
    """What it changes, as ``scenarios.changed`` reads it; unique on the page."""
    label: str
    value: str | int
    """Text of the value, or the position of a slider."""
    note: str = ""
    """What stands beside the label: the value of a slider, or what an empty field means."""
    choices: tuple[str, ...] = ()
    """All values that are valid, if these are few."""
    proposals: str = ""
    """Name of the list of values that are proposed while typing; others are valid, too."""
    most: int | None = None
    """Last position of a slider; None for other inputs."""
    about: str = ""
    """Explanation of the input, from the docstring of its field."""
    remark: str = ""
    """What stands below it: what the value does not do."""
    problem: str = ""
    """What is wrong with the value."""

    @property
    def fixed(self) -> tuple[Any, ...]:
        """What decides how the input looks, whatever its value is."""
        return self.name, self.label, self.choices, self.most


class Panel(NamedTuple):
    """A Panel is a group of inputs, some of which are shown at once and the others when it is opened."""

    title: str
    """Empty of the inputs that are asked first."""
    inputs: tuple[Input, ...]
    more: tuple[Input, ...] = ()


def panels(
    scenario: LoadedScenario, state: State, result: Answer | None, problems: Sequence[Problem]
) -> tuple[Panel, ...]:
    """Return the inputs for a scenario, those that what is asked needs first, with problems at the values
    that caused them."""
    work, strategy = scenario.scenario.workload, scenario.scenario.strategy
    data, variant = scenario.document.data, state.current
    model = data["model"] if isinstance(data["model"], dict) else {"name": data["model"]}
    own = _named(ModelSpec, "model", model, {"quantization": ("none", *dict.fromkeys(_formats(scenario)))})
    tiers = {key: tuple(_tiers(scenario, choice)) for key, choice in tier_paths(type(strategy)).items()}
    fields = _named(type(strategy), "strategy", data["strategy"], tiers)
    places = [one for one in fields if one.name.removeprefix("edit strategy.") in tiers]
    tasks = _named(type(work), "workload", data["workload"], {})
    tasks = [one for one in tasks if one.label != _PROPOSES]
    programs = Input("program", "program", stated_program(scenario), choices=strategy_for(work.kind))
    kinds = Input("work", "kind of work", work.kind, choices=("inference", "training", "checkpoint"))
    shown = Input("edit model", "model", str(model.get("name", scenario.model.name)), proposals="models")
    lengths = [one for one in tasks if one.label in _LENGTHS]
    stream = tuple(_stream(scenario))
    limits = [one for panel in stream for one in panel.inputs if one.name in _LIMITS]
    asked = [one._replace(remark=_LIMITS[one.name]) for one in limits] if state.asks == USERS else []
    first = (shown, *_machine(scenario, result), *lengths[:1], programs, *asked)
    there = {one.name for one in first}
    found = (
        Panel("", first),
        Panel("Model", tuple(one for one in own if one.label == "quantization"), _others(own, _SHORT[1:])),
        Panel("Program", tuple(places), tuple(one for one in fields if one not in places)),
        Panel("Work", (kinds,), (*(one for one in tasks if one not in first), *_speculation(scenario))),
        *(
            one._replace(inputs=tuple(each for each in one.inputs if each.name not in there))
            for one in stream
        ),
        Panel("Machine", tuple(_machine_as_whole(scenario))),
        Panel("Try", tuple(_sliders(scenario, variant, result))),
    )
    return tuple(_with_problems(panel, variant, problems) for panel in found)


def _speculation(scenario: LoadedScenario) -> Iterator[Input]:
    """Yield the inputs of speculative decoding: the model that proposes tokens, and what is accepted."""
    if isinstance(scenario.scenario.workload, Inference):
        data = scenario.document.data
        model = data["model"] if isinstance(data["model"], dict) else {}
        yield from (one for one in _named(ModelSpec, "model", model, {}) if one.label == "draft_model")
        section = data["workload"].get(_PROPOSES) or {}
        yield from _named(Speculation, f"workload.{_PROPOSES}", section, {})


def _others(found: Sequence[Input], labels: Sequence[str]) -> tuple[Input, ...]:
    return tuple(one for one in found if one.label in labels)


def _with_problems(panel: Panel, variant: Variant, problems: Sequence[Problem]) -> Panel:
    def mended(one: Input) -> Input:
        kind, _, path = one.name.partition(" ")
        text = "; ".join(problem.message for problem in problems if path and problem.key == path)
        about = any(f"{path}.".startswith(f"{problem.key}.") for problem in problems if problem.key)
        given = variant.given(path) if about and kind == "edit" else None
        return one._replace(problem=text, value=one.value if given is None else given)

    return panel._replace(inputs=tuple(map(mended, panel.inputs)), more=tuple(map(mended, panel.more)))


# ---- from schemas ------------------------------------------------------------------------------


@cache
def _schema(section: type[BaseModel]) -> Mapping[str, Any]:
    schema = json_schema(section, title="")
    if "properties" not in schema:  # of a section that is in itself
        schema = schema["$defs"][section.__name__]
    found: Mapping[str, Any] = schema["properties"]
    return found


def _named(
    section: type[BaseModel], at: str, data: Mapping[str, Any], choices: Mapping[str, tuple[str, ...]]
) -> list[Input]:
    """Return an input for each key of a section; ``choices`` are values that the schema does not list."""
    return [
        Input(
            f"edit {at}.{key}",
            key,
            written(data.get(key)),
            f"default {written(node['default'])}" if node.get("default") is not None else "",
            choices.get(key) or _choices(node),
            about=node.get("description", ""),
        )
        for key, node in _schema(section).items()
        if key != "kind"
    ]


def _choices(node: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the values of a key, if they are words or true and false."""
    if node.get("type") == "boolean":
        return "true", "false"
    parts = [one for one in node.get("anyOf", [node]) if one.get("type") != "null"]
    values = [str(value) for one in parts for value in one.get("enum", ())]
    return tuple(values) if all("enum" in one for one in parts) else ()


def written(value: Any) -> str:
    """Return a value as a person types it after ``--set KEY=``; "" for None."""
    if value is None:
        return ""
    if isinstance(value, str):
        try:
            if read_option(value, option="", key="").data == value:
                return value
        except InputError:
            pass
    return Edit(("value",), value).assignment.partition("=")[2]


def _formats(scenario: LoadedScenario) -> Iterator[str]:
    """Yield the formats of weights, those that the program loads first."""
    yield from scenario.scenario.strategy.traits.formats
    yield from QUANTIZATIONS


def _tiers(scenario: LoadedScenario, choice: TierChoice) -> Iterator[str]:
    for name, tier in scenario.machine.tiers.items():
        if tier.row.chosen_by(choice):
            yield name


def _stream(scenario: LoadedScenario) -> Iterator[Panel]:
    """Yield the inputs of requests that arrive one after the other, where these can be simulated."""
    if scenario.scenario.workload.kind != "inference":
        return
    options, data = scenario.scenario.stream, scenario.document.data.get("stream") or {}
    kind = NO_STREAM if options is None else (data.get("arrivals") or {}).get("kind", RECORDED)
    kinds = (NO_STREAM, *LOADS, RECORDED)
    shown, more = [Input("requests", "arrivals", kind, choices=kinds)], list[Input]()
    if options is None:
        yield Panel("Stream of requests", tuple(shown))
        return
    if options.arrivals is not None:
        for one in _named(type(options.arrivals), "stream.arrivals", data["arrivals"], {}):
            (more if one.note else shown).append(one)
    if options.trace is not None:
        own = _named(type(options.trace), "stream.trace", data["trace"], {"file": TRACES})
        for one in own:
            (shown if one.label in ("file", "rate_factor") else more).append(one)
    else:
        for key, length in (("prompt", options.prompt), ("output", options.output)):
            shown += _length(key, f"stream.{key}", length, data[key])
        talks, written = options.conversations, data.get("conversations") or {}
        more += _length("turns", "stream.conversations.turns", talks and talks.turns, written.get("turns"))
        if talks is not None:
            own = _named(type(talks), "stream.conversations", written, {})
            more += [one for one in own if one.label != "turns"]
    shown += _named(type(options.slo), "stream.slo", data.get("slo") or {}, {})
    apart = ("arrivals", "prompt", "output", "conversations", "slo", "trace")
    more += [one for one in _named(type(options), "stream", data, {}) if one.label not in apart]
    yield Panel("Stream of requests", tuple(shown), tuple(more))


def _length(label: str, at: str, length: BaseModel | None, data: Any) -> Iterator[Input]:
    """Yield the kind of a length and its numbers; what only conversations have can be taken away."""
    kind = NO_STREAM if length is None else data["kind"]
    without = (NO_STREAM,) if label == "turns" else ()
    yield Input(f"length {at}", label, kind, choices=(*without, *LENGTHS))
    if length is not None:
        numbers = {one.label: one for one in _named(type(length), at, data, {})}
        for name in dict.fromkeys((*LENGTHS[kind], *(key for key, one in numbers.items() if one.value))):
            yield numbers[name]._replace(label=f"{label}: {name}")


# ---- of the machine ----------------------------------------------------------------------------


def _machine(scenario: LoadedScenario, result: Answer | None) -> Iterator[Input]:
    """Yield the parts of the machine that are asked first."""
    platform, tiers = scenario.platform(), scenario.machine.tiers
    memory = format_bytes(platform.host.memory_capacity.value, binary=True)
    yield Input("part gpu", "GPU", platform.profile.accelerator or "", choices=_ids("accelerator"))
    yield Input("part gpus", "GPUs in use", str(scenario.scenario.strategy.gpus))
    yield Input("part memory", "host memory", memory)
    holding = [] if result is None else [use.tier for use in result.capacity if use.needed]
    storage = [name for name, tier in tiers.items() if tier.row.is_storage]
    used = next((name for name in storage if name in holding), next(iter(storage), ""))
    drive = platform.profile.tiers[used].profile if used in platform.profile.tiers else ""
    place = next((name for name in (*holding[1:], *holding) if name not in storage), "")
    is_unused = bool(drive and holding) and used not in holding
    remark = f"holds nothing: the weights are in {place.upper()}" if is_unused else ""
    yield Input("part drive", "drive or server", drive_text(drive), proposals="drives", remark=remark)
    if found := slots(scenario):
        own = platform.gpu_pcie_link.pcie.id
        slower = f"the GPU has {own}" if own not in found else ""
        choices = tuple(dict.fromkeys((*_GENERATIONS, *found)))
        yield Input("pcie", "PCIe", ", ".join(found), choices=choices, remark=slower)


def _machine_as_whole(scenario: LoadedScenario) -> Iterator[Input]:
    platform = scenario.platform().profile.id
    yield Input("edit platform", "machine", platform, proposals="platforms")
    yield Input("edit nodes", "hosts", str(scenario.scenario.nodes))


@cache
def _ids(*kinds: str) -> tuple[str, ...]:
    pairs = (name.split("/", 1) for name in Library().names())
    return tuple(sorted(name for kind, name in pairs if kind in kinds))


def proposals() -> dict[str, tuple[str, ...]]:
    """Return the lists of values that inputs propose, by the name of the list."""
    from simoffload.models import list_models
    from simoffload.scenario import list_scenarios

    return {
        "bases": (*list_scenarios(), *list_models()),
        "models": tuple(list_models()),
        "platforms": _ids("platform"),
        "drives": _ids(*STORAGE_KINDS),
    }


# ---- sliders -----------------------------------------------------------------------------------


def _sliders(scenario: LoadedScenario, variant: Variant, result: Answer | None) -> Iterator[Input]:
    """Yield what people ask: how much work, how many GPUs and drives, how fast the storage is, its price."""
    work = scenario.scenario.workload
    for key, field in type(work).model_fields.items():
        value = getattr(work, key)
        if field.is_required() and isinstance(value, int):
            yield _counted(f"edit workload.{key}", key.replace("_", " "), value, 2 ** (_MOST - 1))
    machine = scenario.machine
    if machine.gpus > 1:
        yield _counted("part gpus", "GPUs", scenario.scenario.strategy.gpus, machine.gpus)
    if result is None or not result.fits:
        return
    for number in deciding_parameters(machine, result):
        kind, _, name = number.profile.partition("/")
        if kind == "raid" and number.key == "count":
            path = f'edit profiles."{number.profile}".count'
            yield _counted(path, f"drives of {name}", int(number.text), 32)
        elif kind in STORAGE_KINDS and "read" in number.key and number.text.endswith("B/s"):
            found = multiple(variant, number.profile, number.key)
            yield from [found] if found else []
    if (economics := result.costs) is not None:
        items = [one for one in economics.bill.items if one.price and one.total and "/" in one.key]
        for item in sorted(items, key=lambda one: -(one.total or 0.0))[:1]:
            amount = item.price.value if item.price else 0.0
            start = dict(variant.prices).get(item.key, amount)
            base = _original(variant, item.key, start)
            stops = tuple(f"{base * factor:.6g}" for factor in FACTORS)
            shown = f"{start:,.6g} {economics.costs.currency}"
            yield _stopped(f"price {item.key}", f"price of {item.key}", f"{start:.6g}", stops, shown)


def slider(scenario: LoadedScenario, variant: Variant, result: Answer, name: str) -> Input | None:
    """Return the slider that has a name, whatever its stops are; None if the scenario has none such."""
    kind, _, rest = name.partition(" ")
    if kind == "scale":
        profile, _, key = rest.partition(" ")
        return multiple(variant, profile, key)
    found = _sliders(scenario, variant, result)
    return next((one for one in found if one.name.rpartition(" ")[0] == name.rpartition(" ")[0]), None)


def value_at(variant: Variant, name: str, note: str, place: int) -> str:
    """Return the text of the value that a slider has set at a place; ``note`` is that of the present one."""
    kind, _, rest = name.partition(" ")
    if kind == "scale":
        profile, _, key = rest.partition(" ")
        found = multiple(variant, profile, key)
        return found.note.partition(" (")[0] if found else ""
    return f"{float(rest.rpartition(' ')[2].split('|')[place]):,.6g} {note.partition(' ')[2]}".strip()


def short(text: str) -> str:
    """Return the text of a number, with or without a unit, with at most four digits if it is not whole."""
    number, space, unit = text.partition(" ")
    try:
        value = float(number.replace(",", ""))
    except ValueError:
        return text
    return f"{f'{value:,.0f}' if value.is_integer() else f'{value:,.4g}'}{space}{unit}"


def _original(variant: Variant, key: str, amount: float) -> float:
    """Return the price of a device before the variant changes it."""
    device = costs(variant._replace(prices=())).costs.devices.get(key)
    return amount if device is None or device.price is None else float(device.price.value)


def _counted(name: str, label: str, value: int, most: int) -> Input:
    powers = {2**power for power in range(_MOST) if 2**power <= most} | {most, value}
    stops = tuple(map(str, sorted(powers)))
    return _stopped(name, label, str(value), stops, f"{value:,}")


def _stopped(name: str, label: str, value: str, stops: tuple[str, ...], shown: str) -> Input:
    at = stops.index(value) if value in stops else len(stops) // 2
    return Input(f"slide {name} {'|'.join(stops)}", label, at, shown, most=len(stops) - 1)


def multiple(variant: Variant, profile: str, key: str) -> Input | None:
    """Return the slider of a number of the machine; None where it cannot be larger and smaller."""
    number = parameter(variant, profile, key)
    if number is None or times(number, 2.0) is None:
        return None
    given = {times(number, factor): at for at, factor in enumerate(FACTORS)}
    at = next((given[one] for one in variant.edits if one in given), len(FACTORS) // 2)
    now = next(
        one for one in profile_parameters(load(variant).machine) if (one.profile, one.key) == (profile, key)
    )
    shown = f"×{FACTORS[at]:.3g}" if ": " in now.text else short(now.text)
    name = profile.partition("/")[2]
    return Input(
        f"scale {profile} {key}", f"{key}, {name}", at, f"{shown} ({number.origin})", most=len(FACTORS) - 1
    )
