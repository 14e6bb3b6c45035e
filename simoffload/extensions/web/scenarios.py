"""Scenarios of a page: those that its variants name, what its inputs change, and what they cost."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from hashlib import sha256
from math import isfinite
from pathlib import Path
from string import ascii_uppercase
from typing import Any, NamedTuple, get_args

from pydantic import BaseModel

from simoffload.documents import (
    Edit,
    edited,
    hold_text,
    parse_json,
    parse_path,
    parse_yaml,
    read_document,
    read_option,
    split_assignment,
    yaml_text,
)
from simoffload.errors import InputError, Problem, WorkLimitError, printable, shortened
from simoffload.extensions.serving.traces import shipped_traces
from simoffload.extensions.web.state import BUY, RUN, TRILLIONS, TUNE, USERS, State, Variant
from simoffload.hardware import CPU, Tier
from simoffload.models import is_model, named_in_text
from simoffload.planning.costs import CostList, load_costs
from simoffload.planning.profile_parameters import ProfileParameter, edit_of, profile_parameters, scaled
from simoffload.planning.question import asked, chosen, is_choice, tier_of_drive, with_program
from simoffload.scenario import (
    USUAL_WORK,
    LoadedScenario,
    MachineParts,
    ScenarioCache,
    find_scenario,
    resolve,
)
from simoffload.shipped import shipped_folder
from simoffload.strategies import BEST, Strategy, strategy_for, strategy_of
from simoffload.strategies.base import tier_paths
from simoffload.units import plural
from simoffload.workload import Checkpointing, Inference, Workload

DESKTOP = "rtx-4090-desktop"
"""Platform of a model that is named alone."""
FILE = "scenario.yaml"
"""Name of the scenario of a page in messages and downloads."""
PRICES = "prices.yaml"
NO_STREAM, RECORDED = "none", "recorded"
"""Choices of arrivals: no requests, and those of a trace at their times."""
LOADS = {"poisson": "request_rate", "constant": "request_rate", "closed": "users"}
"""Ways in which requests arrive, and their key for the load, by which limits are searched."""
TRACES = shipped_traces()
"""Names of traces, as the page reads no files of the server."""
_DRAWN = ("arrivals", "prompt", "output", "prefixes", "conversations")
"""What is not drawn of the requests of a trace."""
LENGTHS: Mapping[str, Mapping[str, float]] = {
    "fixed": {"tokens": 1.0},
    "uniform": {"min": 0.5, "max": 1.5},
    "lognormal": {"median": 1.0, "sigma": 1.0, "max": 8.0},
    "exponential": {"mean": 1.0, "max": 8.0},
    "pareto": {"median": 1.0, "sigma": 1.0, "tail": 0.1, "scale": 2.0, "alpha": 2.0, "max": 8.0},
}
"""Kinds of lengths and the numbers with which they begin: multiples of the length before, or shapes (our
choice)."""
_SHAPES = ("sigma", "tail", "alpha")
_TYPICAL = ("tokens", "median", "mean", "max")
"""Keys of which the first that a length has is about its size."""
_TURNS = 4
"""Mean number of turns with which conversations begin (our choice)."""
_BLOCK = 16  # [tokens]
_FIRST_LIMITS = {"ttft": "2 s", "tpot": "200 ms"}
"""Limits with which a stream begins: of Llama 2 70B in MLPerf Inference (``inference_rules.adoc``)."""
_HELD = 8_000_000
"""[characters] of files that a page was given and its process keeps: our choice."""
_OPENED: set[str] = set()
"""Files of models that scenarios of this process may have, wherever they are."""
FACTORS = tuple(2.0 ** (step / 2) for step in range(-6, 7))
"""Multiples of a number of the machine that a slider sets: an eighth to eight times."""


def open_models(files: Sequence[str]) -> None:
    """Let the scenarios of this process have the models of files that who started the page named."""
    _OPENED.update(files)


def load(variant: Variant) -> LoadedScenario:
    """Return the scenario of a variant, under the program that is chosen where it states none. Raises
    InputError with the same problems as ``check``."""
    _hold_config(variant)
    return _load(variant)


def _hold_config(variant: Variant) -> None:
    if variant.config:
        hold_text(config_name(variant.config), variant.config, most=_HELD)


@lru_cache(maxsize=64)
def _load(variant: Variant) -> LoadedScenario:
    return chosen(_unchosen(variant))


@lru_cache(maxsize=64)
def _unchosen(variant: Variant) -> LoadedScenario:
    base, edits, cache = variant.base, variant.edits, ScenarioCache()
    for file in _OPENED:
        cache.allow_model(file)
    if "\n" in base:
        return resolve(parse_yaml(base, name=FILE, root=Path()), overrides=edits, cache=cache)
    shipped = find_scenario(base)
    if shipped is not None:  # where the server has its files is nobody's business
        document = replace(read_document(shipped), path=base, root=shipped.parent)
        return resolve(document, overrides=edits, cache=cache)
    if not is_model(base) and base not in _OPENED:
        text = "no shipped scenario and no model has this name; the page reads no files of the server"
        text += " but the model with which it was started: simoffload serve FILE.gguf"
        raise InputError.at("", text, path=shortened(base))
    named = base if base in _OPENED else base.rstrip("/").rpartition("/")[2]  # no folder
    return asked(named, DESKTOP, parts=MachineParts(), overrides=edits)


def problem_texts(problems: Sequence[Problem], labels: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Return problems as texts: with the ``labels`` of the inputs that set a key, or of the input in place of
    the option of a command, and without the folders of the server's installation."""
    folders = {str(shipped_folder(name).parent) for name in ("scenarios", "hardware_profiles")}
    texts = []
    for one in problems:
        label = (labels or {}).get(one.key or "") or FIELDS.get(one.path or "")
        text = f"{label}: {one.message}" if label else str(one).removeprefix("--set: ")
        for folder in folders:
            text = text.replace(f"{folder}/", "")
        texts.append(text)
    return tuple(texts)


FIELDS = {
    "--gpu": "GPU",
    "--gpus": "GPUs in use",
    "--memory": "host memory",
    "--drive": "drive or server",
    "--program": "program",
}
"""Labels of the inputs that do what an option does."""


def forget() -> None:
    """Forget the scenarios and prices that were asked for, of which large ones take much memory."""
    for one in (_load, _unchosen, costs):
        one.cache_clear()


def model_files(scenario: LoadedScenario) -> tuple[str, ...]:
    """Return the file of a scenario's model with its whole path; () if its model has a name."""
    model = scenario.document.data["model"]
    file = (model if isinstance(model, Mapping) else named_in_text(model)).get("config")
    return (str(((scenario.document.root or Path()) / file).resolve()),) if file else ()


def variant_of(scenario: LoadedScenario, name: str, edits: Sequence[str]) -> Variant:
    """Return the variant with the data of a scenario: what is shipped under the name with edits and sections
    that differ, otherwise its text. Raises InputError."""
    document, files = scenario.document, model_files(scenario)
    path = ("model",) if isinstance(document.data["model"], str) else ("model", "config")
    data = edited(document, [Edit(path, file) for file in files]).data
    if find_scenario(name) is None and not is_model(name):
        return Variant(yaml_text(data))
    variant = Variant(name).edited(*edits)
    for sections in (data.keys() - {"strategy"}, {"strategy"}):  # of which the program follows where it can
        shown = load(variant).document.data
        differing = (key for key in data if key in sections and data[key] != shown.get(key))
        variant = variant.edited(*(Edit((key,), data[key]).assignment for key in differing))
    return variant


def nearest(variant: Variant) -> LoadedScenario | None:
    """Return the scenario, if need be without an edit or those after one, so that there are inputs."""
    edits = variant.edits
    without = [(*edits[:at], *edits[at + 1 :]) for at in reversed(range(len(edits)))]
    for kept in (edits, *without, *(edits[:at] for at in reversed(range(len(edits))))):
        with suppress(InputError):
            return load(variant._replace(edits=kept))
    return None


def price_list(variant: Variant) -> str:
    """Return the variant's own prices as the file that ``--costs`` takes; "" if it has none."""
    if not variant.prices:
        return variant.price_list
    date = load_costs().today.isoformat()
    own: Any = {"kind": "costs", "id": "own", "name": "prices of the page", "date": date}
    if variant.price_list:
        own = parse_yaml(variant.price_list, name=PRICES, root=Path()).data
    devices = dict(own.get("devices") or {})
    for key, amount in variant.prices:
        devices[key] = {**devices.get(key, {}), "price": amount}
    return yaml_text({**own, "devices": devices})


@lru_cache(maxsize=16)
def costs(variant: Variant) -> CostList:
    """Return the shipped prices with those of the variant. Raises InputError."""
    text = price_list(variant)
    if text:
        hold_text(PRICES, text, most=_HELD)
    return load_costs(PRICES if text else None)


def parameter(variant: Variant, profile: str, key: str) -> ProfileParameter | None:
    """Return a number of the machine before the variant changes it; None if the machine has none such."""
    path = edit_of(profile, key, 0).assignment.removesuffix("=0")
    machine = load(variant.edited(path)).machine
    return next(
        (one for one in profile_parameters(machine) if (one.profile, one.key) == (profile, key)), None
    )


def times(number: ProfileParameter, factor: float) -> str | None:
    """Return the assignment that multiplies a number; None where it cannot be so."""
    found = scaled(number, factor)
    return None if found is None else edit_of(number.profile, number.key, found[0]).assignment


# ---- what inputs change ------------------------------------------------------------------------


def changed(state: State, name: str, value: Any) -> State:
    """Return the state after an input got a value; ``name`` is its kind and what the kind needs.

    Raises InputError for an input that does not exist and for a value that it cannot have.
    """
    kind, _, rest = name.partition(" ")
    change = _CHANGES.get(kind)
    if change is None or not isinstance(value, str | int | float) or isinstance(value, bool):
        raise InputError.at(shortened(name), "this page has no such input")
    try:
        return state.changed(change(state.current, rest, value))
    except (ValueError, LookupError, TypeError, OverflowError):
        raise InputError.at(shortened(rest or name), f"{shortened(str(value))} is no value of it") from None


def _now(variant: Variant) -> LoadedScenario:
    """Return the scenario to change, which may have mistakes. Raises InputError where nothing of it can be
    used."""
    return nearest(variant) or load(variant)


def _base(_variant: Variant, _rest: str, value: Any) -> Variant:
    return Variant(str(value))


def _edit(variant: Variant, path: str, value: Any) -> Variant:
    text = str(value).strip()
    placed = _tiers_of(variant, text) if path == "platform" and text else ()
    return variant.edited(f"{path}={text}" if text else path, *placed)


def _tiers_of(variant: Variant, platform: str) -> Iterator[str]:
    """Yield the assignments of tiers that another platform has, in place of those that it does not have."""
    scenario = _now(variant)
    strategy, now = type(scenario.scenario.strategy), scenario.document.data["strategy"]
    with suppress(InputError):  # an unknown platform is said where the scenario is loaded
        tiers = scenario.platform(Edit(("platform",), platform)).machine().tiers
        for key in tier_paths(strategy):
            if key in now and now[key] not in tiers:
                yield f"strategy.{key}={_storage(tiers)}"


def _storage(tiers: Mapping[str, Tier]) -> str:
    """Return the first tier on storage; host memory where there is none."""
    return next((name for name, tier in tiers.items() if tier.row.is_storage), CPU)


def _slide(variant: Variant, rest: str, value: Any) -> Variant:
    name, stops = rest.rsplit(" ", 1)
    kind, path = name.split(" ", 1)
    return _CHANGES[kind](variant, path, stops.split("|")[int(value)])


def _scale(variant: Variant, rest: str, value: Any) -> Variant:
    profile, key = rest.split(" ", 1)
    number, factor = parameter(variant, profile, key), FACTORS[int(value)]
    if number is None:
        raise InputError.at(shortened(key), f"this machine has no {shortened(profile)}")
    path = edit_of(profile, key, 0).assignment.removesuffix("=0")
    assignment = times(number, factor)
    return variant.edited(path if factor == 1 or assignment is None else assignment)


def _part(variant: Variant, rest: str, value: Any) -> Variant:
    """Return the variant with another part of its machine, as the options of commands have it."""
    given: dict[str, Any] = {rest: int(value) if rest == "gpus" else str(value)}
    parts = MachineParts(**given)
    if rest == "gpu" and is_model(variant.base):  # on the machine that a command takes for it
        stated, number = _stated_parts(variant), _open(variant).scenario.strategy.gpus
        parts = parts._replace(memory=stated.memory, drive=stated.drive)
        several = parts._replace(gpus=number if number > 1 else None)
        with suppress(InputError):  # no machine has so many of these
            several.platforms()
            parts = several
        variant = variant.edited("strategy.uses", f"platform={parts.platforms()[0]}")
        now = _open(variant)
        parts = parts.of_card(now)
    else:
        now = _open(variant)
    if rest == "gpus" and is_model(variant.base):
        asked_for = parts._replace(gpu=now.machine.accelerator.id)
        if now.machine.platform == asked_for._replace(gpus=None).platforms()[0]:  # it was not named
            stated = _stated_parts(variant)
            variant = variant.edited(f"platform={asked_for.platforms()[0]}")
            now, parts = _open(variant), parts._replace(memory=stated.memory, drive=stated.drive)
    edits = parts.edits(now)
    return variant.edited(*(one.assignment for one in edits), *_of_drive(now, edits))


def _stated_parts(variant: Variant) -> MachineParts:
    """Return the memory and the drive that a variant names, which go along to another machine."""
    memory = drive = None
    for assignment in variant.edits:
        path, edit = (
            parse_path(assignment.partition("=")[0]),
            read_option(assignment.partition("=")[2], option="", key=""),
        )
        match path, edit.data:
            case ("profiles", str(host), "memory_capacity"), size if host.startswith("host/"):
                memory = str(size)
            case ("equipment", "tiers", _), {"profile": str(profile)}:
                drive = profile
    return MachineParts(memory=memory, drive=drive)


def _of_drive(now: LoadedScenario, edits: Sequence[Edit]) -> Iterator[str]:
    """Yield the assignment with which a program uses the tier of a drive that was named: one that is yet to
    be chosen does, and one that has its weights on storage takes them from there."""
    if (tier := tier_of_drive(edits)) is None:
        return
    if is_choice(now):
        yield f"strategy.uses={tier}"
        return
    tiers, strategy = now.machine.tiers, now.document.data["strategy"]
    for key in tier_paths(type(now.scenario.strategy)):
        place = strategy.get(key)
        if place in tiers and tiers[place].row.is_storage and place != tier:
            yield f"strategy.{key}={tier}"


def slots(scenario: LoadedScenario) -> tuple[str, ...]:
    """Return the PCIe generations of the slots in which the GPUs are; () where they are in none."""
    platform = scenario.platform()
    found = (platform.slots.get(at) for at in platform.profile.gpus)
    return tuple(dict.fromkeys(one.id for one in found if one is not None))


def _pcie(variant: Variant, _rest: str, value: Any) -> Variant:
    """Return the variant with another PCIe generation in the slots of its GPUs and in all that are alike."""
    plain = variant.edited("equipment.pcie")
    before = slots(_open(plain))
    edits = [Edit(("equipment", "pcie", one), str(value)) for one in before if one != value]
    return plain.edited(*(one.assignment for one in edits))


def _open(variant: Variant) -> LoadedScenario:
    """Return the scenario of a variant before its program is chosen, or the nearest one that can be used."""
    _hold_config(variant)
    with suppress(InputError):
        return _unchosen(variant)
    return _now(variant)


def _price(variant: Variant, key: str, value: Any) -> Variant:
    amount = float(value)
    if not isfinite(amount) or amount < 0:
        raise ValueError(value)
    return variant.priced(key, amount)


def _program(variant: Variant, _rest: str = "", value: Any = "") -> Variant:
    """Return the variant with another program, in its best form for the work and the machine: where its
    states are said to be, if it can have them there."""
    now = _open(variant)
    if isinstance(now.scenario.workload, Checkpointing):
        section = _on_its_storage(now, str(value))
    else:
        there = with_program(now, str(value))
        section = there.document.data["strategy"]
        try:
            chosen(there)
        except InputError:
            places = {"weights", "optimizer", "uses"}
            section = {key: one for key, one in section.items() if key not in places}
    return variant.edited(Edit(("strategy",), section).assignment)


def _on_its_storage(now: LoadedScenario, kind: str) -> dict[str, Any]:
    """Return the section of a program that has no best form: as many GPUs, and the tiers that it needs."""
    program = strategy_of(kind) or Strategy
    needed = [key for key in tier_paths(program) if program.model_fields[key].is_required()]
    tiers = dict.fromkeys(needed, _storage(now.machine.tiers))
    return {"kind": kind, "ranks": now.scenario.strategy.gpus, **tiers}


def _work(variant: Variant, _rest: str, value: Any) -> Variant:
    """Return the variant with another kind of work, under the best program for it."""
    (kind,) = (one for one in get_args(get_args(Workload)[0]) if str(value) in _kinds(one))
    now, usual = _now(variant), USUAL_WORK.get(str(value), {})
    before = now.document.data["workload"]
    work = {key: before.get(key, one) for key, one in usual.items() if key in kind.model_fields}
    if usual:
        section = {"kind": BEST, "ranks": now.scenario.strategy.gpus}
    else:
        section = _on_its_storage(now, strategy_for(str(value))[0])
    does = Edit(("workload",), {**work, "kind": str(value)})
    return variant.edited(does.assignment, Edit(("strategy",), section).assignment)


def _requests(variant: Variant, _rest: str, value: Any) -> Variant:
    """Return the variant to which requests arrive in a way, or without a stream."""
    if value == NO_STREAM:
        without = variant.edited("stream")
        return without if _now(without).scenario.stream is None else without.edited("stream=null")
    now = _now(variant)
    begun = now.document.data.get("stream") or _like_the_batch(now)
    if value == RECORDED:
        kept = {key: one for key, one in begun.items() if key not in _DRAWN}
        return variant.edited(Edit(("stream",), {"trace": {"file": TRACES[0]}, **kept}).assignment)
    arrivals = {"kind": str(value), LOADS[str(value)]: 1}
    return variant.edited(Edit(("stream",), {**begun, "arrivals": arrivals}).assignment)


def _length(variant: Variant, path: str, value: Any) -> Variant:
    """Return the variant with another kind of a length, about as long as before; what has the length is taken
    away with :data:`NO_STREAM`."""
    *outer, key = parse_path(path)
    section = _now(variant).document.data
    for name in outer:
        section = section.get(name) or {}
    if value == NO_STREAM:
        return variant.edited(Edit(tuple(outer), None).assignment)
    before = section.get(key) or {"kind": "fixed", "tokens": _TURNS}
    begun = LENGTHS[before["kind"]]
    typical = next((before[one] / begun[one] for one in _TYPICAL if one in before), 1.0)
    numbers = {
        one: number if one in _SHAPES else max(1, round(number * typical))
        for one, number in LENGTHS[str(value)].items()
    }
    length = {"kind": str(value), **numbers}
    edit = Edit((*outer, key), length) if section else Edit(tuple(outer), {key: length})
    return variant.edited(edit.assignment)


def _like_the_batch(scenario: LoadedScenario) -> dict[str, Any]:
    """Return a stream of requests with the lengths of the batch; of a program that is no engine, with static
    batches as large as that one."""
    work = scenario.scenario.workload
    if not isinstance(work, Inference):
        raise ValueError(work.kind)
    size, prompt, output = work.batch_size, work.prompt_length, work.output_length
    lengths = {"prompt": prompt, "output": output}
    begun: dict[str, Any] = {"arrivals": {}}  # first, as it names the variant
    begun |= {key: {"kind": "fixed", "tokens": tokens} for key, tokens in lengths.items()}
    begun["slo"] = _FIRST_LIMITS
    if getattr(scenario.plan(), "serving_limits", None) is None:
        blocks = size * -(-(prompt + output) // _BLOCK)
        begun |= {"scheduler": "static", "max_num_seqs": size, "kv_blocks": blocks}
        begun |= {"block_size": _BLOCK, "max_num_batched_tokens": size * prompt}
    return begun


def _kinds(work: type[BaseModel]) -> tuple[str, ...]:
    return get_args(work.model_fields["kind"].annotation)


def _file(variant: Variant, name: str, value: Any) -> Variant:
    """Return the variant with the model of a config.json, or with the scenario that a file has."""
    text = str(value)
    if not name.endswith(".json"):
        return _prices(variant, text) if _is_price_list(text) else Variant(f"{text}\n")
    data = parse_json(text, name=shortened(name), root=Path(), of_python=True).data
    if "model_type" not in data:
        return Variant(f"{yaml_text(data)}\n")
    own = variant._replace(base=yaml_text(_now(variant).document.data), edits=(), config=text)
    return own.edited(f"model={json.dumps({'config': config_name(text)})}")


def _is_price_list(text: str) -> bool:
    with suppress(InputError):
        data = parse_yaml(text, name=PRICES, root=Path()).data
        return isinstance(data, Mapping) and data.get("kind") == "costs"
    return False  # what is wrong is said where the text is read as a scenario


def _prices(variant: Variant, text: str) -> Variant:
    """Return the variant with the prices of a list in place of its own. Raises InputError for a wrong one."""
    priced = variant._replace(prices=(), price_list=text)
    costs(priced)
    return priced


def config_name(text: str) -> str:
    """Return the name of the file that holds the text of a config.json, which becomes that of the model."""
    return f"config-{sha256(text.encode()).hexdigest()[:8]}.json"


_CHANGES: Mapping[str, Callable[[Variant, str, Any], Variant]] = {
    "base": _base,
    "edit": _edit,
    "slide": _slide,
    "scale": _scale,
    "part": _part,
    "pcie": _pcie,
    "price": _price,
    "program": _program,
    "work": _work,
    "requests": _requests,
    "length": _length,
    "file": _file,
}


# ---- what is asked -----------------------------------------------------------------------------


_TRILLION = 1e12


class Ask(NamedTuple):
    """An Ask is something that a person wants to know."""

    label: str
    base: str
    """The scenario or the model with which it begins."""
    steps: tuple[tuple[str, Any], ...] = ()
    """Inputs and their values that make of it what the question is about."""


ASKED = {
    RUN: Ask("Will it run on my machine", "gpt-oss-120b"),
    BUY: Ask(
        "Which storage or GPU to buy",
        "llama-3.1-405b",
        (("part gpu", "h100-sxm"), ("part gpus", 8), ("part drive", "4xmicron-9550-pro-7.68tb")),
    ),
    USERS: Ask("How many users", "llama-3.1-8b", (("part gpu", "h100-sxm"), ("requests", "closed"))),
    TUNE: Ask("Fine-tuning", "llama-3.1-8b", (("work", "training"),)),
    TRILLIONS: Ask("Trillions of parameters", "ddn/bloom-mod-2"),
}
"""The questions, in the order in which a page has them."""


@lru_cache(maxsize=len(ASKED))
def begun(asks: str) -> State:
    """Return the state with which a question begins."""
    ask = ASKED[asks]
    state = State((Variant(ask.base),), 0, asks)
    for name, value in ask.steps:
        state = changed(state, name, value)
    return state


def ask(state: State, asks: str) -> State:
    """Return the state in which something else is asked: about the same variants where a person has changed
    something and they can answer it, otherwise as it begins. Raises InputError."""
    if state == begun(state.asks):
        return begun(asks)
    scenario = load(state.current)
    if asks == TRILLIONS and scenario.model.num_parameters < _TRILLION:
        return begun(asks)
    state = state._replace(asks=asks)
    work = "training" if asks == TUNE else "inference"
    if scenario.scenario.workload.kind != work:
        state = changed(state, "work", work)
    if asks == USERS and load(state.current).scenario.stream is None:
        state = changed(state, "requests", "closed")
    elif asks != USERS and load(state.current).scenario.stream is not None:
        state = changed(state, "requests", NO_STREAM)
    return state


# ---- names of variants --------------------------------------------------------------------------
# What differs between them, in the words of the command line.


_LONGEST = 60
"""[characters] of a name: our choice."""
_ARRAY = re.compile(r"raid(\d+)-(\d+)x-(.+)")
_SHOWN = re.compile(
    r"model(\.name|\.quantization)?$|platform$|nodes$|equipment\.|workload|strategy$"
    r"|strategy\.(kind|among|uses)$|profiles\..*host/.*\.memory_capacity$"
)
"""Keys whose changes are seen in the scenario itself."""
_IMPLIED = {"gpu": ("platform", "memory", "pcie"), "drive": ("place",), "model": ("quantization",)}
"""What another thing brings along, which is told only of variants that are the same otherwise."""


def variant_names(variants: Sequence[Variant]) -> tuple[str, ...]:
    """Return the name of each variant: its model if there is one variant, otherwise a letter and what is not
    the same in all."""
    found = [dict(_described(one)) for one in variants]
    if len(found) == 1:
        return (_short(found[0]["model"]),)
    keys = dict.fromkeys(key for one in found for key in one)
    differing = [key for key in keys if len({one.get(key) for one in found}) > 1]
    implied = {key for one in differing for key in _IMPLIED.get(one.partition(" ")[0], ())}
    shown = [key for key in differing if key not in implied]
    if len({tuple(one.get(key) for key in shown) for one in found}) < len(found):
        shown = differing
    texts = [", ".join(filter(None, (one.get(key) for key in shown))) or one["model"] for one in found]
    return tuple(f"{letter} {_short(text)}" for letter, text in zip(ascii_uppercase, texts, strict=False))


def _short(text: str) -> str:
    return printable(text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…")


def drive_text(profile: str) -> str:
    """Return a drive, an array or a server as ``--drive`` takes it: "4xpm1733-3.84tb"."""
    array = _ARRAY.fullmatch(profile)
    if array is None:
        return profile
    level, number, drive = array.groups()
    return f"{number}x{drive}" if level == "0" else f"raid{level} {number}x {drive}"


def stated_program(scenario: LoadedScenario) -> str:
    """Return the program that is asked for, which may be the best one."""
    choice = scenario.choice
    return BEST if choice is not None and not choice.among else scenario.scenario.strategy.kind


def _described(variant: Variant) -> Iterator[tuple[str, str]]:
    base = "own scenario" if "\n" in variant.base else variant.base
    scenario = None
    with suppress(InputError, WorkLimitError):  # is said where it is simulated
        scenario = load(variant)
    if scenario is None:
        yield "model", base
    else:
        yield from _of_scenario(scenario)
    for assignment in variant.edits:
        key, text = split_assignment(assignment)
        if scenario is None or not _SHOWN.match(key):
            yield key, f"{key.rpartition('.')[2]} {_kind(str(text))}"
    for key, amount in variant.prices:
        yield f"price {key}", f"{key.rpartition('/')[2]} {amount:,.6g}"


def _of_scenario(scenario: LoadedScenario) -> Iterator[tuple[str, str]]:
    data, machine, strategy = scenario.document.data, scenario.machine, scenario.scenario.strategy
    model = data["model"] if isinstance(data["model"], dict) else {"name": data["model"]}
    platform = scenario.platform()
    yield "model", str(model.get("name", scenario.model.name))
    yield "quantization", str(model.get("quantization") or "")
    yield "gpu", machine.accelerator.id
    yield "platform", platform.profile.id
    yield "gpus", plural(strategy.gpus, "GPU")
    yield "nodes", plural(scenario.scenario.nodes, "host")
    yield "memory", f"{platform.host.memory_capacity.value / 2**30:,.6g}GB"
    tiers = platform.profile.tiers
    places = {key: str(data["strategy"].get(key, "")) for key in tier_paths(type(strategy))}
    used = next((tiers[one] for one in places.values() if one in tiers), None) or next(
        iter(tiers.values()), None
    )
    yield "drive", drive_text(used.profile) if used is not None else ""
    yield "place", next(filter(None, places.values()), "")
    yield "pcie", ", ".join(slots(scenario))
    yield "program", stated_program(scenario)
    for key, value in data["workload"].items():
        yield f"workload {key}", _work_text(key, value)


def _work_text(key: str, value: Any) -> str:
    if key == "kind":
        return str(value)
    if isinstance(value, dict):
        return f"{key} {value.get('kind', '…')}"
    return f"{key} {value:,}" if isinstance(value, int) and not isinstance(value, bool) else f"{key} {value}"


def _kind(text: str) -> str:
    """Return the text of a value; of a section its kind alone."""
    found = re.search(r"""\bkind["']?: *["']?(\w+)""", text)
    return found[1] if found else text.strip('"')
