"""Search over one number of a scenario: which values keep service levels, and which batch is the best."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial
from itertools import cycle, pairwise
from math import inf, log
from typing import Any, Literal, NamedTuple, Unpack

from simoffload.brief import brief
from simoffload.documents import (
    Edit,
    Location,
    candidates,
    key_path,
    listing,
    parse_path,
    quoted,
    same_name,
    suggest,
)
from simoffload.errors import InputError, SimulationError, WorkLimitError, shortened
from simoffload.hardware import Library, spelled
from simoffload.planning.confidence import confidence
from simoffload.planning.evaluator import Evaluator, EvaluatorSource, evaluator_of
from simoffload.planning.profile_parameters import ProfileParameter, edit_of, profile_parameters, scaled
from simoffload.planning.question import QuestionOptions
from simoffload.planning.reported import ReportedAnswer
from simoffload.planning.service_levels import ServiceLevel, most_missed, parse_services
from simoffload.planning.sizing import LargestValue, batch_limit
from simoffload.progress import Watcher, stage, step, watched_by
from simoffload.results import SimulationResult, by_name
from simoffload.scenario import LoadedScenario, Scenario
from simoffload.simulation import fit
from simoffload.simulation.metrics import refused
from simoffload.strategies import Strategy
from simoffload.units import in_unit, is_unit
from simoffload.workload import Checkpointing

# -- quantities ------------------------------------------------------------------------------------

BY, WITHIN = "--by", "--within"
_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?) *([^\W\d_]\S*)?")
_SPAN = 1000
"""Ratio of the largest value that is tried to the present one, and of that to the smallest: our choice."""
_INSTEAD = {"users": "simoffload stream --slo ttft=2s finds how many there can be"}
_EXAMPLE = "write a path such as workload.batch_size, nodes or 'profiles.\"drive/ID\".read'"
_RANGE = 'write MIN..MAX, such as 1..64 or "1 GB/s..20 GB/s"'
_DECADE = 900
"""Number of values with three significant digits between a power of ten and the next one."""
_FINE = 12
"""Number of values of a range that are tried first, beside its ends."""


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """A Quantity is a number of a scenario that a search changes.

    Its values are numbered: whole numbers by themselves, others by their order among all numbers of three
    significant digits, so that a search over values is one over whole numbers.
    """

    path: str
    now: float | None
    """Present value [unit]; None where the scenario does not state one."""
    unit: str
    """Unit as written; empty for a plain number."""
    is_count: bool
    """Whether it counts something, so that it is a whole number."""
    edits: Callable[[Any], tuple[Edit, ...]]
    """Function that returns the edits to a value as a scenario writes it."""
    series: Callable[[tuple[Edit, ...]], Hashable] | None = None
    """Function that returns what edits to several values have in common, within which more is about evenly
    more: the number of parts of a batch; None where that is so for all values."""
    step: int = 1
    """Number by which a count grows from one value to the next."""

    def written(self, index: int) -> Any:
        """Return a value as a scenario writes it."""
        if self.is_count:
            return index * self.step
        number = _number(index)
        return f"{number:f} {self.unit}" if self.unit else float(number)

    def text(self, index: int) -> str:
        """Return a value for people."""
        return f"{self.written(index):,}" if self.is_count else f"{_number(index):,f} {self.unit}".rstrip()

    @property
    def now_text(self) -> str:
        """Return the present value for people; empty where there is none."""
        if self.now is None:
            return ""
        return f"{int(self.now):,}" if self.is_count else f"{self.now:,.6g} {self.unit}".rstrip()

    def index(self, value: float) -> int:
        """Return the number of the largest value up to the given one [unit]."""
        if self.is_count:
            return int(value)
        exponent = Decimal(value).adjusted()
        rest = Decimal(value).scaleb(2 - exponent)
        return exponent * _DECADE + int(rest + Decimal("1e-9")) - 100

    def ends(self, within: str | None) -> tuple[int, int]:
        """Return the numbers of the first and the last value of a range ``MIN..MAX``, by default a thousandth
        and a thousand times the present value. Raises InputError."""
        if within is None:
            if self.is_count and self.now is not None:
                return min(1, int(self.now)), _SPAN * max(1, int(self.now))
            if not self.now:
                raise _refusal(
                    self.path, f"is 0, of which there is no multiple; give a range: {WITHIN} 1..64"
                )
            return self.index(self.now / _SPAN), self.index(self.now * _SPAN)
        low, high = (self.index(self._bound(one)) for one in _bounds(within))
        if low >= high:
            raise _refusal(within, f"MIN must be below MAX; {_RANGE}", WITHIN)
        return low, high

    def _bound(self, text: str) -> float:
        """Return an end of a range [unit]. Raises InputError."""
        try:
            value = in_unit(text, self.unit) if is_unit(self.unit) else float(text)
        except ValueError as error:
            why = str(error) if is_unit(self.unit) else f"{quoted(text)} is not a number; {_RANGE}"
            raise _refusal(self.path, why, WITHIN) from None
        if self.is_count and not value.is_integer():
            raise _refusal(self.path, f"must be a whole number, got {quoted(text)}", WITHIN)
        if not (0 <= value < float("inf")) or (value == 0 and not self.is_count):
            raise _refusal(self.path, f"must be above 0 and finite, got {quoted(text)}", WITHIN)
        return value

    def coarse(self, low: int, high: int) -> list[int]:
        """Return the numbers of values from one end to the other, both included: counts double from one to
        the next, others have the same ratio."""
        if high - low <= _FINE:
            return list(range(low, high + 1))
        if self.is_count:
            powers = (1 << power for power in range(high.bit_length()))
            found = {low, high, *(one for one in powers if low < one < high)}
        else:
            found = {low + (high - low) * part // _FINE for part in range(_FINE + 1)}
        if self.now is not None and low <= self.index(self.now) <= high and self.now > 0:
            found.add(self.index(self.now))
        return sorted(found)


def _number(index: int) -> Decimal:
    """Return a number of three significant digits, without zeros at its end."""
    power, rest = divmod(index, _DECADE)
    number = Decimal(100 + rest).scaleb(power - 2).normalize()
    return number if number.as_tuple().exponent <= 0 else number.quantize(Decimal(1))  # type: ignore[operator]


def _bounds(within: str) -> tuple[str, str]:
    low, dots, high = (part.strip() for part in within.partition(".."))
    if not (low and dots and high):
        raise _refusal(within, f"is not a range; {_RANGE}", WITHIN)
    unit = _QUANTITY.fullmatch(high)
    if unit and unit[2] and re.fullmatch(r"[0-9.eE+-]+", low):
        low = f"{low} {unit[2]}"
    return low, high


def quantity_at(evaluator: Evaluator, path: str, *, within: str | None = None) -> Quantity:
    """Return the number of a scenario at a path.

    The number of GPUs, of hosts and of sequences brings along the keys that depend on it. Raises InputError
    for a path that leads nowhere or to no number, and for one without a value where ``within`` gives none.
    """
    try:
        location = parse_path(path)
    except InputError:
        raise _refusal(path, f"is not the path of a key; {_EXAMPLE}") from None
    if location[0] == "profiles":
        return _of_profile(evaluator, location)
    if location[0] == "engine":
        raise _refusal(path, f"is an option of the simulator, which changes no answer; {_EXAMPLE}")
    value = _value_at(evaluator, location)
    now, unit, counts = _read(value, location, within)
    divided = location == ("workload", "batch_size") and evaluator.sizes.divided is not None
    return Quantity(
        path=key_path(location),
        now=now,
        unit=unit,
        is_count=counts,
        edits=_edits(evaluator, location, now),
        series=(lambda edits: repr(edits[1:])) if divided else None,
    )


def _read(value: Any, location: Location, within: str | None) -> tuple[float | None, str, bool]:
    """Return a value as a number, with its unit and whether it counts something. Raises InputError."""
    path, given = key_path(location), value
    if value is None and within is not None:
        value = _bounds(within)[1]
        value = int(value) if value.isdecimal() else value
    elif value is None:
        raise _refusal(path, f"is not set, so there is no value to start from; give a range: {WITHIN} 1..64")
    if isinstance(value, int | float) and not isinstance(value, bool):
        return (None if given is None else float(value)), "", isinstance(value, int)
    match = _QUANTITY.fullmatch(value.strip()) if isinstance(value, str) else None
    if match and (match[2] is None or is_unit(match[2])):
        return (None if given is None else float(match[1])), match[2] or "", False
    what = f"{value if isinstance(value, str | bool) else 'a section'}"
    inner = [key_path((*location, *one)) for one in _numbers(value)]
    text = f"is not a number but {quoted(what)}" if not inner else "contains several numbers"
    raise _refusal(path, f"{text}; {'name one of ' + listing(inner) if inner else _EXAMPLE}")


def _edits(evaluator: Evaluator, location: Location, now: float | None) -> Callable[[Any], tuple[Edit, ...]]:
    """Return the function that makes the edits to a value, with those of the keys that depend on it."""
    strategy, machine = evaluator.strategy, evaluator.scenario.machine
    match location:
        case ("nodes",):
            each = machine.ranks_per_node(strategy.gpus)
            return lambda value: evaluator.spread(value, per_node=each)
        case ("workload", "batch_size"):
            return partial(_batch, evaluator)
        case ("workload", "gradient_accumulation_steps" as key):
            return lambda value: (Edit(location, value), *strategy.sizes().along(key))
        case ("model", str(key)):
            return lambda value: (evaluator.model(key, value),)
        case ("strategy", str(key)) if key in {"ranks", *strategy.traits.gpu_keys} and now:
            return lambda value: _spread_over(strategy, location, value, int(now))
    return lambda value: (Edit(location, value),)


def _batch(evaluator: Evaluator, count: int) -> tuple[Edit, ...]:
    """Return the edits to a batch in the fewest equal parts that fit."""
    divided = evaluator.sizes.divided
    *more, last = (evaluator.batch(count),) if divided is None else divided(count)
    with suppress(WorkLimitError):  # which whoever asks about the edits is told
        return next((one for one in more if evaluator.fits(*one)), last)
    return last


def _spread_over(strategy: Strategy, location: Location, value: int, now: int) -> tuple[Edit, ...]:
    """Return the edits for another number of GPUs, if those of the strategy set this key."""
    edits = strategy.sizes().gpus(strategy.gpus * value // now)
    return edits if Edit(location, value) in edits else (Edit(location, value),)


# -- values of the scenario ----------------------------------------------------------------------


def _tree(evaluator: Evaluator) -> dict[str, Any]:
    """Return everything that a scenario says, and the defaults of what it does not say."""
    scenario = evaluator.scenario
    defaults = scenario.scenario.model_dump(mode="json", exclude={"profiles", "engine"})
    tree: dict[str, Any] = _merged(defaults, scenario.document.data)
    if not isinstance(tree["model"], dict):
        tree["model"] = defaults["model"]
    shape = {key: getattr(scenario.model, key) for key in ("num_hidden_layers",)}
    tree["model"] = {**shape, **{key: one for key, one in tree["model"].items() if one is not None}}
    return tree


def _merged(node: Any, other: Any) -> Any:
    if not (isinstance(node, Mapping) and isinstance(other, Mapping)):
        return other
    return {**node, **{key: _merged(node.get(key), value) for key, value in other.items()}}


def _value_at(evaluator: Evaluator, location: Location) -> Any:
    """Return what the scenario has at a location. Raises InputError where it has nothing."""
    node: Any = _tree(evaluator)
    for depth, part in enumerate(location):
        if isinstance(node, Mapping) and part in node:
            node = node[part]
        elif isinstance(node, list) and str(part).isdecimal() and int(part) < len(node):
            node = node[int(part)]
        else:
            raise _unknown(evaluator, location, depth, node)
    return node


def _unknown(evaluator: Evaluator, location: Location, depth: int, node: Any) -> InputError:
    """Return the error for a key that does not exist, with the paths that may be meant."""
    paths = {key_path(one): str(one[-1]) for one in _numbers(_tree(evaluator))}
    wanted = str(location[-1])
    same = [path for path, key in paths.items() if key == wanted]
    inside = list(map(str, node)) if isinstance(node, Mapping) and depth else []
    hint = suggest(key_path(location), same) if same else suggest(str(location[depth]), inside)
    if same and not hint:
        hint = f"; did you mean {quoted(same[0])}?"
    if advice := _INSTEAD.get(wanted) or Scenario.elsewhere.get(wanted):
        hint = hint or f": {advice}"
    hint = hint or suggest(key_path(location), paths) or f"; {_EXAMPLE}"
    return _refusal(key_path(location), f"the scenario has no such key{hint}")


def _numbers(node: Any, at: Location = ()) -> Iterator[Location]:
    """Yield the location of every number and quantity below a node."""
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield from _numbers(value, (*at, key))
    elif isinstance(node, str):
        match = _QUANTITY.fullmatch(node.strip())
        if match and match[2] and is_unit(match[2]):
            yield at
    elif isinstance(node, int | float) and not isinstance(node, bool):
        yield at


# -- numbers of profiles -------------------------------------------------------------------------


def _of_profile(evaluator: Evaluator, location: Location) -> Quantity:
    """Return a number of a profile, by ``id`` or ``kind/id``; dots of the id need no quotes here."""
    number = _parameter(evaluator, location)
    name = evaluator.named(number.profile)
    path = key_path(edit_of(name, number.key, None).path)
    if ": " in number.text:  # a curve, of which all rates change by a factor

        def faster(value: float) -> tuple[Edit, ...]:
            change = scaled(number, value)
            return (edit_of(name, number.key, None if change is None else change[0]),)

        return Quantity(path=path, now=1.0, unit="", is_count=False, edits=faster)
    match = _QUANTITY.fullmatch(number.text)
    assert match is not None, number.text
    return Quantity(
        path=path,
        now=float(match[1]),
        unit=match[2] or "",
        is_count=number.text.isdecimal(),
        edits=lambda value: (edit_of(name, number.key, value),),
    )


def _parameter(evaluator: Evaluator, location: Location) -> ProfileParameter:
    """Return the number of a profile that a location names. Raises InputError."""
    known = [*profile_parameters(evaluator.scenario.machine), *_counts(evaluator)]
    text = ".".join(map(str, location[1:]))
    meant = [
        one
        for one in known
        if any(same_name(text.removesuffix(f".{one.key}"), form) for form in _forms(one))
        and text.endswith(f".{one.key}")
    ]
    if len({one.profile for one in meant}) == 1:
        return meant[0]
    path = key_path(location)
    if meant:
        names = ", ".join(dict.fromkeys(one.profile for one in meant))
        raise _refusal(path, f"several profiles have that name: {names}")
    profiles = {form: one.profile for one in known for form in _forms(one)}
    own = next((one for form, one in profiles.items() if _begins(text, form)), None)
    if own is None:
        name = str(location[1]) if len(location) > 1 else ""
        hint = candidates(name, profiles) if name else ""
        has = f" (has: {', '.join(dict.fromkeys(profiles.values()))})"
        raise _refusal(path, f"this platform uses no profile of that name{hint or has}")
    keys = [one.key for one in known if one.profile == own]
    key = max((text[len(form) + 1 :] for form in profiles if _begins(text, form)), key=len, default="")
    hint = suggest(key, keys) if key else ""
    raise _refusal(path, f"{own} has no such number{hint or f'; it has {listing(keys)}'}")


def _counts(evaluator: Evaluator) -> Iterator[ProfileParameter]:
    """Yield the numbers of profiles that need no origin, such as that of the drives of an array, and the
    power limit of GPUs, which without one is their power."""
    scenario = evaluator.scenario
    library, section = Library(scenario.document.root), scenario.document.data.get("profiles") or {}
    for use in scenario.machine.profiles:
        name = f"{use.kind}/{use.id}"
        with suppress(InputError):  # a file outside the folders of profiles
            changed = section.get(spelled(section, name)) or {}
            data = library.find(use.id, (use.kind,)).document.data
            if use.kind == "accelerator" and "power" in data:
                limit = changed.get("power_limit", data.get("power_limit", data["power"]))
                text = str(limit["value"] if isinstance(limit, Mapping) else limit)
                yield ProfileParameter(name, "power_limit", text, "", "")
            for key, value in data.items():
                if isinstance(value, int | float) and not isinstance(value, bool):
                    yield ProfileParameter(name, key, str(changed.get(key, value)), "", "")


def _forms(number: ProfileParameter) -> tuple[str, str]:
    """Return both names of the profile of a number: ``kind/id`` and ``id``."""
    return number.profile, number.profile.partition("/")[2]


def _begins(text: str, name: str) -> bool:
    """Return whether a path below ``profiles`` begins with the name of a profile."""
    return same_name(text[: len(name)], name) and text[len(name) :][:1] in {"", "."}


def _refusal(path: str, message: str, option: str = BY) -> InputError:
    return InputError.at(shortened(path), message, path=option)


# -- reach -----------------------------------------------------------------------------------------

SCHEMA = "simoffload/reach/1"
_TIMED = 7
"""Number of values that are simulated before the search begins; of counts that double it is the least."""
_HALVINGS = 8
"""Steps of the search between values that all miss, for one in the middle: our choice."""
_FLAT = 1.001
"""Ratio by which a service level is missed by more, from which a value counts as worse: our choice."""
_EQUAL = 1.001
"""Ratio of throughputs up to which the smaller batch is the better one: our choice."""
_HALVINGS_OF_BEST = 4
"""Steps of the search around a batch that is better than its neighbours: our choice."""
_ASIDE = 32
"""Number of refused values beside which one is looked for that is not refused: our choice."""


class EvaluatedValue(NamedTuple):
    """An EvaluatedValue is one value that was tried, with its result or the reason why it has none."""

    value: str
    """Value of the number as text, with its unit."""
    edits: tuple[Edit, ...]
    """Edits that give the scenario this value."""
    result: SimulationResult | None
    """Result of the simulation; None for a value that is refused or does not fit."""
    missed: float
    """How many times too long a time is, or too small a rate: the largest ratio of all service levels. At
    most 1 if all are kept, infinite without a result."""
    status: Literal["", "does not fit", "missed", "refused", "stopped"] = ""
    """What became of a value without a result."""
    why: str = ""
    """Reason why there is no result; empty where there is one."""

    def __repr__(self) -> str:
        return brief(self)

    @property
    def kept(self) -> bool:
        """Whether all service levels are kept."""
        return self.missed <= 1

    @property
    def options(self) -> tuple[str, ...]:
        """What ``--set`` takes to get this value."""
        return tuple(one.assignment for one in self.edits)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values; ``set`` is what ``--set`` takes."""
        found: dict[str, Any] = {"value": self.value, "set": list(self.options), "kept": self.kept}
        if self.result is None:
            return {**found, "status": self.status, "reason": self.why}
        intervals = confidence(self.result).intervals()
        return {
            **found,
            "metrics": self.result.metrics(),
            "intervals": {name: list(ends) for name, ends in intervals.items()},
            **by_name(self.result, "bottleneck bottleneck_share limit"),
        }


@dataclass(frozen=True, kw_only=True, repr=False)
class Reach(ReportedAnswer):
    """A Reach holds the values of one number that keep all service levels, and those around them that do
    not."""

    report = "simoffload.report.from_reach:reach_document"

    scenario: LoadedScenario
    service: tuple[ServiceLevel, ...]
    path: str
    """Path of the number, as ``--set`` names it."""
    now: EvaluatedValue
    """Trial of the unchanged scenario, with its present value."""
    trials: tuple[EvaluatedValue, ...]
    """All values that were tried, in their order; the first and the last are the ends of the range."""
    least: EvaluatedValue | None
    """Smallest value that keeps them; None if none was found."""
    most: EvaluatedValue | None
    """Largest value up to which all values that were tried from ``least`` on keep them."""
    below: EvaluatedValue | None
    """Next smaller value than ``least``, which does not; None at the end of the range."""
    above: EvaluatedValue | None
    """Next larger value than ``most``, which does not; None at the end of the range."""
    others: tuple[EvaluatedValue, ...] = ()
    """Values elsewhere that keep them, too."""
    best: EvaluatedValue
    """Value that comes nearest; one that keeps them where there is one."""

    stopped: str = ""
    """Limit that a value reached, or that ended the search; empty if there was none."""

    @property
    def reached(self) -> bool:
        """Whether a value keeps all service levels."""
        return self.least is not None

    @property
    def rises(self) -> bool:
        """Whether larger values are better: the limit that matters is the smallest value and not the largest
        one."""
        below, above = self.below, self.above
        if below is None:
            return above is None
        return above is None or above.result is None or below.result is not None

    @property
    def value(self) -> EvaluatedValue | None:
        """The least demanding value that keeps them: the smallest one, or if smaller values are better, the
        largest one."""
        return self.least if self.rises else self.most

    @property
    def beyond(self) -> EvaluatedValue | None:
        """The value next to it that does not; None at the end of the range."""
        return self.below if self.rises else self.above

    @property
    def matters(self) -> bool:
        """Whether the service levels are missed by more with some values than with others."""
        found = [one.missed for one in self.trials if one.result is not None]
        return not found or max(found) > _FLAT * min(found)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {
            "schema": SCHEMA,
            "scenario": self.scenario.name,
            "by": self.path,
            "slo": [one.text for one in self.service],
            "reached": self.reached,
            **({"stopped": self.stopped} if self.stopped else {}),
            **by_name(self, "value beyond least most below above best now trials"),
        }


class BestBatch(NamedTuple):
    """A BestBatch is the batch of a placement with the highest throughput, all other settings unchanged."""

    name: str
    model: str
    platform: str
    target: str
    """Tiers of the weights, and of training of the optimizer."""
    service: tuple[ServiceLevel, ...]
    """Service levels that the batch keeps."""
    batch: LargestValue
    """Number of sequences on each GPU, and the largest one that fits."""
    best: EvaluatedValue | None
    """Batch with the highest throughput; None if none fits and keeps the service levels."""
    nearest: EvaluatedValue | None
    """Batch that misses the service levels least, where none keeps them; None if none fits."""
    stopped: str = ""
    """Limit that a batch reached, or that ended the search; empty if there was none."""

    def __repr__(self) -> str:
        return brief(self)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return {
            **by_name(self, "name model platform target batch_size=batch"),
            "slo": [one.text for one in self.service],
            **by_name(self, "best nearest stopped"),
        }


def reach(
    scenario: EvaluatorSource,
    *,
    slo: str | Sequence[str],
    by: str,
    within: str | None = None,
    progress: Watcher | None = None,
    **machine: Unpack[QuestionOptions],
) -> Reach:
    """Find the values of one number of a scenario that keep service levels.

    ``slo`` is a limit such as ``tpot=1s``, or several that are all kept; ``by`` is the path of the number,
    such as ``workload.batch_size`` or ``profiles.drive/ID.read``, and ``within`` its range, such as ``1..64``
    or ``1 GB/s..20 GB/s``: by default from a thousandth of the present value to a thousand times that.
    Counts are found exactly, other numbers to three significant digits. Nothing is assumed about which
    direction is better: values from the whole range are tried first, and then those between one that keeps
    the service levels and one that does not. A value that is refused, does not fit or needs more work than
    allowed does not keep them. ``machine`` as in ``simulate``.

    Raises InputError for a path that is no number, a unit that does not match and an unknown service level.
    """
    evaluator = evaluator_of(scenario, **machine)
    service = parse_services(slo, _kind(evaluator.scenario))
    if not service:
        raise InputError.at("", "no service level is given; write e.g. tpot=1s", path="--slo")
    quantity = quantity_at(evaluator, by, within=within)
    low, high = quantity.ends(within)
    search = _Search(evaluator, quantity, service)
    # Two ends of the range that keeps them are between values that were tried.
    most = len(quantity.coarse(low, high)) + 2 * (high - low).bit_length()
    with watched_by(progress), stage(most):
        return search.from_to(low, high)


def best_batch(
    scenario: EvaluatorSource,
    *,
    slo: str | Sequence[str] = (),
    progress: Watcher | None = None,
    **machine: Unpack[QuestionOptions],
) -> BestBatch:
    """Find the batch with the highest throughput that fits and keeps service levels such as ``tpot=1s``.

    Batches that double from one to the next are simulated up to the largest one that fits, then those around
    the best one; of equal ones the smallest counts. ``machine`` as in ``simulate``. Raises InputError for a
    scenario of checkpoints, for what its program refuses, and for an unknown service level.
    """
    evaluator = evaluator_of(scenario, **machine)
    scenario, workload = evaluator.scenario, evaluator.workload
    if isinstance(workload, Checkpointing):
        raise InputError([scenario.document.problem(("workload", "kind"), "checkpoints have no batch")])
    service = parse_services(slo, type(fit(scenario)))
    limit, target = batch_limit(evaluator, workload), evaluator.target
    best, nearest, stopped = None, None, ""
    if limit.most is not None:
        unit = evaluator.sizes.unit if limit.most >= evaluator.sizes.unit else 1
        quantity = replace(quantity_at(evaluator, "workload.batch_size"), step=unit)
        search, last = _Search(evaluator, quantity, service), limit.most // unit
        # Counts that double, and those between them.
        with watched_by(progress), stage(2 * last.bit_length() + 2 * _HALVINGS_OF_BEST):
            best, nearest = search.fastest(last, limit.now // unit)
        stopped = search.stopped
    return BestBatch(
        name=scenario.name,
        model=scenario.model.name,
        platform=scenario.machine.platform,
        target=target,
        service=service,
        batch=limit,
        best=best,
        nearest=nearest,
        stopped=stopped,
    )


def _kind(scenario: LoadedScenario) -> type[SimulationResult]:
    """Return the kind of result of a scenario, whose program may refuse it as it is."""
    try:
        return type(fit(scenario))
    except InputError as error:
        return type(refused(scenario, error))


class _Search:
    """A _Search tries values of a quantity, each once: first whether it fits, then how fast it is."""

    def __init__(self, evaluator: Evaluator, quantity: Quantity, service: tuple[ServiceLevel, ...]) -> None:
        self._evaluator, self._service = evaluator, service
        self.quantity = quantity
        self._tried: dict[int, EvaluatedValue] = {}
        self.stopped = ""
        """Limit that a value reached, or that ended the search; empty if there was none."""

    def refused(self, index: int) -> bool:
        """Return whether a value is refused, which says nothing about its neighbours."""
        try:
            return bool(self._evaluator.refusal(*self._edits(index)))
        except WorkLimitError as error:
            self.stopped = str(error)
            return True

    def fits(self, index: int) -> bool:
        """Return whether a value is not refused and everything fits with it."""
        try:
            return self._evaluator.fits(*self._edits(index))
        except WorkLimitError as error:
            self.stopped = str(error)
            return False

    def _edits(self, index: int) -> tuple[Edit, ...]:
        return self.quantity.edits(self.quantity.written(index))

    def at(self, index: int) -> EvaluatedValue:
        """Return the trial of a value, simulated if it fits."""
        if index not in self._tried:
            text = self.quantity.text(index)
            step(f"{self.quantity.path} = {text}")
            self._tried[index] = self.of(text, *self._edits(index))
        return self._tried[index]

    def of(self, value: str, *edits: Edit) -> EvaluatedValue:
        """Return the trial of a value given by its edits."""
        try:
            uses = self._evaluator.needs(*edits)
            if uses is None:
                return EvaluatedValue(value, edits, None, inf, "refused", self._evaluator.refusal(*edits))
            if lacking := [use.sentence() for use in uses if not use.fits]:
                return EvaluatedValue(value, edits, None, inf, "does not fit", "; ".join(lacking))
            _, result = self._evaluator.answer(*edits)
        except InputError as error:
            return EvaluatedValue(value, edits, None, inf, "refused", error.problems[0].message)
        except WorkLimitError as error:
            self.stopped = str(error)
            return EvaluatedValue(value, edits, None, inf, "stopped", self.stopped)
        except SimulationError as error:
            return EvaluatedValue(value, edits, None, inf, "refused", str(error))
        if lacking := [one.name for one in self._service if one.of(result) is None]:
            return EvaluatedValue(
                value, edits, None, inf, "missed", f"there is no {' and no '.join(lacking)}"
            )
        limit = max(self._service, key=lambda one: one.missed(result), default=None)
        judged = replace(result, asked=limit.metric.name) if limit else result
        return EvaluatedValue(value, edits, judged, most_missed(self._service, result))

    # -- where something holds ------------------------------------------------------------------

    def up_to_refusal(self, coarse: Sequence[int]) -> list[int]:
        """Return some values, and beside those that are refused the outermost ones that are not: a share of
        memory is at most 1, however wide the range is."""
        found = set(coarse)
        for pair in pairwise(coarse):
            for inner, outer in (pair, pair[::-1]):
                if self.refused(outer) and not self.refused(inner):
                    towards = range(inner, outer, 1 if outer > inner else -1)
                    found.add(towards[bisect_left(towards, True, key=self.refused) - 1])
        return sorted(found)

    def that_fit(self, coarse: Sequence[int]) -> list[int]:
        """Return those of some values that fit, and the outermost values that fit between them and those that
        do not, or that are of another series."""

        def in_series(inner: int) -> Callable[[int], bool]:
            series = self.quantity.series
            own = series and series(self._edits(inner))
            return lambda at: self.fits(at) and (series is None or series(self._edits(at)) == own)

        edges = [
            self.edge(inner, outer, in_series(inner))[0]
            for pair in pairwise(coarse)
            for inner, outer in (pair, pair[::-1])
            if self.fits(inner) and not in_series(inner)(outer)
        ]
        return sorted({*filter(self.fits, coarse), *edges})

    def edge(self, inner: int, outer: int, holds: Callable[[int], bool]) -> tuple[int, int]:
        """Return the two values between ``inner``, for which a condition holds, and ``outer``, for which it
        does not, where that changes; refused values between them are passed over."""
        for halves in cycle((False, False, True)):  # what is no line over its numbers is halved at least
            middle = self.between(inner, outer, None if halves else self.crossing(inner, outer))
            if middle is None:
                break
            inner, outer = (middle, outer) if holds(middle) else (inner, middle)
        return inner, outer

    def crossing(self, inner: int, outer: int) -> int | None:
        """Return where the service levels are just kept, between a value that keeps them and one that does
        not, if they are missed by more and more on the way; None where this is not known."""
        kept, missed = (self._tried[at].missed if at in self._tried else inf for at in (inner, outer))
        if not 0 < kept <= 1 < missed < inf:
            return None
        return round(outer + (inner - outer) * log(missed) / log(missed / kept))

    def between(self, one: int, other: int, guess: int | None = None) -> int | None:
        """Return the value nearest to a guess between two, by default their middle, that is not refused; None
        if there is none."""
        low, high = sorted((one, other))
        middle = (low + high) // 2 if guess is None else min(max(guess, low + 1), high - 1)
        steps = (middle + sign * step for step in range(_ASIDE) for sign in (1, -1))
        return next((at for at in steps if low < at < high and not self.refused(at)), None)

    def end(self, start: int, step: Literal[-1, 1], holds: Callable[[int], bool]) -> tuple[int, int | None]:
        """Return the last value in a direction from ``start`` on for which a condition holds, and the next
        one, for which it does not; None at the end of what was tried."""
        inner, outer = start, None
        for index in sorted((at for at in self._tried if (at - start) * step > 0), reverse=step < 0):
            if holds(index):
                inner, outer = index, None
                continue
            outer = index if outer is None else outer
            if not self.refused(index):
                break
        if outer is None:
            return inner, None
        inner, outer = self.edge(inner, outer, holds)
        return inner, inner + step if self.refused(outer) else outer

    # -- values that keep service levels --------------------------------------------------------

    def from_to(self, low: int, high: int) -> Reach:
        """Return the values from ``low`` to ``high`` that keep the service levels."""
        coarse = self.up_to_refusal(self.quantity.coarse(low, high))
        fitting, now = self.that_fit(coarse), self._now
        near = {min(fitting, key=lambda index: abs(index - now))} if fitting else set()
        edges = {*fitting} - {*coarse}
        for index in sorted({*coarse} - {*fitting} | _spread(fitting, _TIMED) | near | edges):
            self.at(index)
        kept = self._kept() or self._in_the_middle()
        if kept:
            found = self._found(kept[0], self._keeps, ends=(low, high))
            if found.rises or not found.others:
                return found
            return self._found(self._kept()[-1], self._keeps, ends=(low, high))
        if not self._timed:
            return self._found(max(self._tried, key=self._room), self.fits, ends=(low, high))
        least = min(self.at(index).missed for index in self._timed)
        nearest = [index for index in self._timed if self.at(index).missed <= _FLAT * least]
        start = min(nearest, key=lambda index: abs(index - now))
        return self._found(start, self.fits, ends=(low, high))

    def _room(self, index: int) -> float:
        """Return the share that the fullest tier has free, negative where it does not fit; as little as
        possible for a value that is refused."""
        one = self._tried[index]
        room = self._evaluator.room(*one.edits) if one.status in {"does not fit", "missed"} else None
        return min(room.values()) if room else -inf

    @property
    def _now(self) -> int:
        return self.quantity.index(self.quantity.now) if self.quantity.now else 0

    @property
    def _timed(self) -> list[int]:
        """Values with a result, in order."""
        return sorted(index for index, one in self._tried.items() if one.result is not None)

    def _keeps(self, index: int) -> bool:
        return self.at(index).kept

    def _kept(self) -> list[int]:
        return sorted(index for index, one in self._tried.items() if one.kept)

    def _in_the_middle(self) -> list[int]:
        """Return values that keep the service levels between values that do not: beside the one that comes
        nearest, unless the others only miss the same service level by more."""
        for _ in range(_HALVINGS):
            timed = self._timed
            if not timed:
                break
            best = min(timed, key=lambda index: self.at(index).missed)
            beside = _beside(timed, best)
            fresh = [] if self._is_end(best, beside) else self._middles(best, beside)
            if not fresh:
                break
            for index in fresh:
                self.at(index)
            if kept := self._kept():
                return kept
        return []

    def _middles(self, best: int, beside: Sequence[int]) -> list[int]:
        """Return the middles between a value and those beside it that were not tried."""
        middles = (self.between(best, other) for other in beside)
        return [one for one in middles if one is not None and one not in self._tried]

    def _is_end(self, best: int, beside: Sequence[int]) -> bool:
        """Return whether the service levels are kept nowhere between the value that comes nearest and those
        beside it: one service level alone decides, and it gets no worse towards one side."""
        results = [one.result for one in map(self.at, (best, *beside)) if one.result is not None]
        metrics = {max((level.missed(one), level.name) for level in self._service)[1] for one in results}
        rises = [self.at(index).missed > _FLAT * self.at(best).missed for index in beside]
        return len(metrics) == 1 and not (len(rises) > 1 and all(rises))

    def _found(self, start: int, holds: Callable[[int], bool], ends: tuple[int, int]) -> Reach:
        """Return the answer: the values around ``start`` for which a condition holds."""
        if holds(start):
            least, below = self.end(start, -1, holds)
            most, above = self.end(start, 1, holds)
        else:  # nothing fits: what may be in the way is a refusal
            least = most = start
            below, above = (
                at if ends[0] <= at <= ends[1] and self.refused(at) else None for at in (start - 1, start + 1)
            )
        shown = {start, *self._timed, *ends, *(one for one in (below, above) if one is not None)}
        reached = self.at(start).kept
        return Reach(
            scenario=self._evaluator.scenario,
            service=tuple(self._service),
            path=self.quantity.path,
            now=self.of(self.quantity.now_text),
            trials=tuple(self.at(index) for index in sorted(shown)),
            least=self.at(least) if reached else None,
            most=self.at(most) if reached else None,
            below=None if below is None else self.at(below),
            above=None if above is None else self.at(above),
            others=tuple(self.at(index) for index in self._kept() if reached and not least <= index <= most),
            best=self.at(start),
            stopped=self.stopped,
        )

    # -- the highest throughput -----------------------------------------------------------------

    def fastest(self, most: int, now: int) -> tuple[EvaluatedValue | None, EvaluatedValue | None]:
        """Return the count up to ``most`` with the highest throughput that keeps the service levels, or where
        none does, the one that misses them least."""
        counts = {*(1 << power for power in range(most.bit_length())), most, *([now] if now <= most else [])}
        tried = sorted(counts)
        for _ in range(_HALVINGS_OF_BEST):
            best = self._fastest_of(tried)
            if best in {None, tried[-1]}:
                break
            beside = _beside(tried, best)
            if not self.at(beside[-1]).kept:
                tried.append(self.edge(best, beside[-1], self._keeps)[0])
                break
            fresh = self._middles(best, beside)
            if not fresh:
                break
            tried = sorted({*tried, *fresh})
        best = self._fastest_of(tried)
        if best is not None:
            return self.at(best), None
        answered = (one for one in map(self.at, tried) if one.status in {"", "missed"})
        return None, min(answered, key=lambda one: one.missed, default=None)

    def _fastest_of(self, counts: Sequence[int]) -> int | None:
        """Return the smallest count whose throughput is about the highest; None if none keeps the service
        levels."""
        results = {count: self.at(count).result for count in counts if self.at(count).kept}
        times = {count: (one and one.unit_s) or inf for count, one in results.items()}
        least = min(times.values(), default=inf)
        return min((count for count, time in times.items() if time <= _EQUAL * least), default=None)


def _beside(values: Sequence[int], one: int) -> list[int]:
    """Return the values next to one of some values in order."""
    at = values.index(one)
    return [*values[max(0, at - 1) : at], *values[at + 1 : at + 2]]


def _spread(indices: Sequence[int], most: int) -> set[int]:
    """Return up to ``most`` of some values, with both ends, at equal distances."""
    if len(indices) <= most:
        return set(indices)
    return {indices[(len(indices) - 1) * part // (most - 1)] for part in range(most)}
