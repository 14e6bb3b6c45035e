"""What a page asks about its state; each answer is plain data, which another process can show."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, partial
from math import inf, isfinite
from shlex import join
from typing import Any, NamedTuple

from markupsafe import Markup

from simoffload.documents import Edit, ds_config_text, either, split_assignment, yaml_text
from simoffload.errors import InputError, Problem, WorkLimitError, printable
from simoffload.extensions.serving.report import stream_document
from simoffload.extensions.serving.simulate import StreamSimulation
from simoffload.extensions.serving.streams import StreamResult, simulated_stream
from simoffload.extensions.web import scenarios
from simoffload.extensions.web.form import Input, Panel, multiple, panels, short, slider, value_at
from simoffload.extensions.web.scenarios import (
    ASKED,
    DESKTOP,
    FILE,
    PRICES,
    TRACES,
    ask,
    changed,
    costs,
    load,
    nearest,
    price_list,
    problem_texts,
    variant_names,
)
from simoffload.extensions.web.state import TUNE, USERS, State, Variant
from simoffload.models import is_model
from simoffload.planning.advise import EvaluatedChange, advise
from simoffload.planning.answers import Answer, simulate
from simoffload.planning.confidence import confidence
from simoffload.planning.evaluator import Evaluator
from simoffload.planning.explanation import Sensitivity, sensitivity
from simoffload.progress import stage
from simoffload.report.comparison import CurvePoint, Group, causes_compared, curve_of, groups
from simoffload.report.document import (
    Chart,
    ReportDocument,
    ReportSection,
    ReportTable,
    Verdict,
    VerdictPart,
)
from simoffload.report.formatting import sentence, span, uncapitalized
from simoffload.report.from_comparison import comparison_document, side_by_side
from simoffload.report.from_result import result_document
from simoffload.report.html import html_text, with_numbers
from simoffload.report.presentation import headline, ranged, speed_text
from simoffload.report.sections.advice import described, gain_text
from simoffload.report.sections.capacity import capacity
from simoffload.report.sections.costs import costs as cost_sections
from simoffload.report.sections.costs import money
from simoffload.report.sections.performance import causes
from simoffload.report.summary import facts, group_summary, result_summary
from simoffload.results import Metric
from simoffload.scenario import LoadedScenario, find_scenario
from simoffload.simulation.metrics import refused
from simoffload.units import format_number, format_seconds, percent

_MOST_CHANGES, _MOST_SLIDERS, _MOST_WAYS = 5, 5, 3
_MEANT = re.compile(r'did you mean "([^"]+)"')
_MILLION = 1e6
ASKS = "ask"
"""Input by which a person says what is asked."""
_MOST_POINTS = 9
"""Number of points of a curve, besides the first and the present one."""


class PageAnswer(NamedTuple):
    """A PageAnswer is all that a page shows of its state at once."""

    state: State
    problems: tuple[str, ...]
    """What is wrong with the scenario, which then has no results."""
    fixes: tuple[tuple[str, str], ...]
    """What can be taken back so that it is right: its name, and the state without it as text."""
    panels: tuple[Panel, ...]
    labels: tuple[str, ...]
    """Names of the variants, in their order."""
    sentence: str = ""
    facts: str = ""
    """What stands in small type below the sentence."""
    metrics: tuple[tuple[str, str, str], ...] = ()
    """Name, value and 80 % interval of each number."""
    sections: tuple[str, ...] = ()
    """Parts of the answer as elements of HTML, in which all text from data is escaped."""
    warnings: tuple[str, ...] = ()
    further: tuple[Input, ...] = ()
    """Sliders that the page has beside those of the panels."""
    scenario: str = ""
    """The current scenario as a file."""
    command: str = ""
    """The command line with the same answer."""
    following: tuple[tuple[str, str], ...] = ()
    """Parts that follow the answer, and what each is about; "" for one that it does not have."""


class NextChange(NamedTuple):
    """A NextChange is something to change, with what it gains."""

    description: str
    rate: str
    """How fast it then is, with the interval."""
    gain: str
    cost: str
    assignments: tuple[str, ...]


class Next(NamedTuple):
    """What to change next, and the inputs that matter most here."""

    changes: tuple[NextChange, ...]
    sliders: tuple[Input, ...]
    note: str


# ---- the answer --------------------------------------------------------------------------------


def answer(state: State, name: str = "", value: Any = None, further: tuple[str, ...] = ()) -> PageAnswer:
    """Return what a page shows, after an input got a value if ``name`` says which. Raises InputError.

    ``further`` are the names of sliders that the page has beside those of the panels.
    """
    state = _changed(state, name, value) if name else state
    variant, problems, labels = state.current, tuple[Problem, ...](), variant_names(state.variants)
    result: Answer | None = None
    try:
        result = _named(variant, labels[state.at])
    except InputError as error:
        problems = error.problems
    except WorkLimitError as error:
        problems = (Problem("", None, None, "", str(error)),)
    scenario = nearest(variant)
    if scenario is None:
        return PageAnswer(state, problem_texts(problems), (), (), labels)
    shown = panels(scenario, state, result, problems)
    inputs = [one for panel in shown for one in (*panel.inputs, *panel.more)]
    named = {one.name.removeprefix("edit "): one.label for one in inputs}
    found = PageAnswer(
        state,
        problem_texts(problems, named),
        tuple(_fixes(state, problems, named)),
        shown,
        labels,
        scenario=yaml_text(scenario.document.data),
        command=command(variant),
        following=tuple(
            (name, one.section if not problems and getattr(scenario.scenario, one.section) else "")
            for name, one in FOLLOWING.items()
            if one.section
        ),
    )
    if not problems:
        found = found._replace(further=tuple(_again(variant, further)))
    return found if result is None else _shown(found, scenario, result)


def _changed(state: State, name: str, value: Any) -> State:
    """Return the state after an input got a value, or after something else was asked."""
    return ask(state, str(value)) if name == ASKS and value in ASKED else changed(state, name, value)


def _fixes(state: State, problems: Sequence[Problem], labels: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield ways out of problems: names that may be meant, and the edits without which the scenario is right,
    the last one first."""
    variant = state.current
    edits, number = variant.edits, 0
    for one in problems:
        for meant in _MEANT.findall(one.message) if variant.given(one.key) else ():
            yield meant, state.changed(variant.edited(f"{one.key}={meant}")).text
    for at in reversed(range(len(edits))) if problems else ():
        without = variant._replace(edits=(*edits[:at], *edits[at + 1 :]))
        with suppress(InputError):
            load(without)
            key = split_assignment(edits[at])[0]
            yield f"Undo: {labels.get(key) or key.rpartition('.')[2]}", state.changed(without).text
            number += 1
        if number == _MOST_WAYS:
            return


@lru_cache(maxsize=64)
def _result(variant: Variant) -> Answer:
    """Return the answer without a search for changes that make it fit: ``next_changes`` follows with them."""
    return replace(simulate(load(variant), costs=costs(variant)), searches=False)


@lru_cache(maxsize=64)
def _named(variant: Variant, name: str) -> Answer:
    """Return a result under the name of its variant; what it works out on demand is kept, too."""
    return replace(_result(variant), name=name, label=name)


def forget() -> None:
    """Forget the results that were asked for, which take much memory after a large scenario."""
    for one in (_result, _named, _streamed, _carried):
        one.cache_clear()
    scenarios.forget()


def _again(variant: Variant, names: Sequence[str]) -> Iterator[Input]:
    for name in names[:_MOST_SLIDERS]:
        kind, profile, key, *_ = (*name.split(" "), "", "")
        found = multiple(variant, profile, key) if kind == "scale" else None
        if found is not None:
            yield found


def _shown(found: PageAnswer, scenario: LoadedScenario, result: Answer) -> PageAnswer:
    results = tuple(_each(found.state))
    compared = groups(results)
    priced = result.costs
    warnings = (*result.all_warnings, *(priced.warnings if priced else ()))
    return found._replace(
        sentence=_sentence(found.state.asks, compared, results[found.state.at]),
        facts=_facts(results, result),
        metrics=tuple(_metrics(result)),
        sections=tuple(_sections(compared, results[found.state.at])),
        warnings=tuple(map(printable, (*warnings, *scenario.context_warnings))),
    )


def _each(state: State) -> Iterator[Answer]:
    """Yield the results of all variants that are scenarios, named by their numbers; why one has none is a
    result, too."""
    for name, variant in zip(variant_names(state.variants), state.variants, strict=True):
        try:
            yield _named(variant, name)
        except (InputError, WorkLimitError) as error:
            yield Answer.of(refused(load(state.current), error), name=name, label=name)


def _sentence(asks: str, compared: Sequence[Group], current: Answer) -> str:
    """Return the answer to what is asked in one sentence, as reports begin with it: of the variants that can
    be compared with the current one, or of that one alone."""
    if asks == USERS and current.fits and not current.refused:
        number = sum(len(group.rows) for group in compared)
        about = _model_on(current.model, current.platform) if number == 1 else f"{number} variants"
        return f"{about}: how many users … is being found out"
    group = next(one for one in compared if any(row.result is current for row in one.rows))
    alone = len(group.rows) == 1 or not current.fits
    if alone and asks == TUNE and (tuning := _of_tuning(current)) is not None:
        return tuning
    return result_summary(current) if alone else group_summary(group, titled=len(compared) > 1)


def _of_tuning(result: Answer) -> Verdict | None:
    """Return the time and the cost of training with a million tokens; None of what trains nothing."""
    rate = result.metrics().get("tokens_per_s")
    if not rate or result.step is None:
        return None
    low, high = result.intervals().get("tokens_per_s") or (rate, rate)
    value = format_seconds(_MILLION / rate)
    ends = span(format_seconds(_MILLION / high), format_seconds(_MILLION / low), value=value)
    name = printable(result.model.partition(" (")[0])
    parts = [f"{name} on {printable(result.platform)}: a million tokens take {value} ({ends})"]
    costs = result.costs
    if costs is not None and (cost := costs.at_least()["cost_per_million_tokens"]) is not None:
        least = "at least " if costs.missing else ""
        parts.append(f" and cost {least}{cost:,.3g} {costs.costs.currency}".rstrip())
    program = f"; {result.choice.programs[0].title}" if result.choice is not None else ""
    share = percent(result.step.bottleneck.exposed_s / result.step.time_s)
    slow = f"; {printable(result.step.bottleneck.cause_text)} takes {share}"
    return Verdict.of("".join(parts), VerdictPart(program, 1), VerdictPart(slow))


def _model_on(model: str, platform: str) -> str:
    return f"{printable(model.partition(' (')[0])} on {printable(platform)}"


def _facts(results: Sequence[Answer], current: Answer) -> str:
    return "; ".join((", ".join(map(printable, headline(current))), *facts(results)))


def _metrics(result: Answer) -> Iterator[tuple[str, str, str]]:
    known = result.intervals()
    for metric, amount in result.valued():
        yield metric.label, *_measured(metric, amount, known.get(metric.name))
    if (priced := result.costs) is not None:
        found, currency = priced.at_least(), priced.costs.currency
        for key, text in (("cost_per_million_tokens", "per million tokens"), ("purchase", "purchase")):
            if found[key] is not None:
                least = "at least " if priced.missing else ""
                yield text, f"{least}{_plain(money(found[key], currency))}", ""


def _measured(metric: Metric, amount: float, ends: tuple[float, float] | None) -> tuple[str, str]:
    """Return the value and the interval of a metric."""
    value = metric.text(amount)
    return value, span(*map(metric.text, ends), value=value) if ends else ""


def numbers(metrics: Sequence[tuple[str, str, str]]) -> Markup:
    """Return the elements of names, values and intervals."""
    one = Markup("<div><dt>{}</dt><dd><strong>{}</strong> <small>{}</small></dd></div>")
    return Markup("<dl>{}</dl>").format(Markup("").join(one.format(*each) for each in metrics))


def _plain(cell: Any) -> str:
    return cell if isinstance(cell, str) else str(cell.text)


def _sections(compared: Sequence[Group], result: Answer) -> Iterator[str]:
    if any(row.result.compared_s for group in compared for row in group.rows):
        yield from map(_section, side_by_side(compared, title="Variants"))
    if result.refused:
        return
    yield _section(capacity(result))
    if result.step is not None:
        chart = Chart("time by cause of each variant", partial(causes_compared, compared))
        yield _section(causes(result, result.step)._replace(charts=(chart,)))
    for one in cost_sections(result, result.costs) if result.costs is not None else ():
        yield _section(one)


def _section(one: ReportSection) -> str:
    """Return a section as elements; a screen reader says its sentences with its charts."""
    texts = list(map(sentence, one.sentences))
    charts = [chart._replace(label=" ".join((sentence(chart.label), *texts))) for chart in one.charts]
    return with_numbers(one._replace(charts=tuple(charts)))


def command(variant: Variant, verb: str = "run", *options: str) -> str:
    """Return the command line that gives the same numbers."""
    name = FILE if "\n" in variant.base else variant.base
    alone = is_model(name) and find_scenario(name) is None and variant.given("platform") is None
    edits = (f"platform={DESKTOP}", *variant.edits) if alone else variant.edits
    given = [word for one in edits for word in ("--set", one)]
    prices = ["--costs", PRICES] if price_list(variant) else []
    return join(["simoffload", verb, name, *given, *options, *prices])


# ---- the curve ---------------------------------------------------------------------------------


def curve(state: State, name: str) -> tuple[str, ...]:
    """Return the answer over the values of a slider; nothing where the scenario does not have it or there are
    no times. Raises InputError."""
    variant = state.current
    one = slider(load(variant), variant, _result(variant), name)
    if one is None or one.most is None:
        return ()
    now, every = int(one.value), -(-one.most // _MOST_POINTS)
    places = range(now % every, one.most + 1, every)
    results = dict[int, Answer]()
    with stage(len(places)) as parts:
        for at in places:
            with suppress(InputError, WorkLimitError):
                place = changed(state, one.name, at).current
                results[at] = replace(_result(place), name=value_at(place, one.name, one.note, at))
            parts.step(one.label)
    timed = {at: result for at, result in results.items() if result.step is not None}
    if len(timed) < 2:
        return ()
    points, up, seconds = (
        _costs_over(timed) if one.name.startswith("slide price ") else _times_over(timed, one.name)
    )
    across, points = _united(one.label, points)
    lacking = [result.name for result in results.values() if not result.fits]
    drawn = partial(curve_of, points, now, across=across, up=up, seconds=seconds)
    present = [f"diamond: now, at {results[now].name}: {point.text}" for point in points if point.at == now]
    chart = Chart(f"{up} over {one.label}", drawn, "".join(present))
    rows = tuple((point.name, point.text) for point in points)
    table = ReportTable("", (across, up), rows, (0, 1))
    texts = (f"it does not fit with {', '.join(lacking)}",) if lacking else ()
    return (_section(ReportSection(f"Over {one.label}", texts, (table,), charts=(chart,))),)


_Points = tuple[list[CurvePoint], str, bool]
"""Points, what they are, and whether it is a time [s]."""


def _times_over(results: Mapping[int, Answer], name: str) -> _Points:
    """Return the time by which results are compared, or the throughput where more work takes longer."""
    group = max(groups(tuple(results.values())), key=lambda one: len(one.rows))
    measure, in_group = group.measure, [row.result for row in group.rows]
    if " workload." in name and all(one.metrics().get("tokens_per_s") for one in in_group):
        measure = in_group[0].declared["tokens_per_s"]
    points = [
        CurvePoint(
            at,
            result.name,
            result.metrics()[measure.name] or 0.0,
            ranged(result, measure.name),
            confidence(result).interval(measure.name),
        )
        for at, result in results.items()
        if any(result is one for one in in_group)
    ]
    return points, uncapitalized(measure.title), not measure.larger


def _costs_over(results: Mapping[int, Answer]) -> _Points:
    points, up = list[CurvePoint](), ""
    for at, result in results.items():
        if (priced := result.costs) is None:
            continue
        value = priced.at_least()["cost_per_million_tokens"]
        up = f"cost per million tokens [{priced.costs.currency}]"
        if value is not None:
            points.append(CurvePoint(at, result.name, value, _plain(money(value, priced.costs.currency))))
    return points, up, False


def _united(label: str, points: Sequence[CurvePoint]) -> tuple[str, list[CurvePoint]]:
    """Return the title of an axis with the unit that all values have, and the points without it."""
    texts = [point.name.partition(" ") for point in points]
    units = {unit for _, _, unit in texts}
    if len(units) > 1:
        return label, list(points)
    named = [point._replace(name=short(text)) for point, (text, _, _) in zip(points, texts, strict=True)]
    return f"{label} [{unit}]" if (unit := units.pop()) else label, named


# ---- the stream --------------------------------------------------------------------------------


def requests(state: State, _section_of: str) -> Iterator[tuple[str, ...]]:
    """Yield the answer to requests that arrive one after the other, and with limits the loads at which they
    are kept; where it is asked how many users there can be, first what one replication says of them. Raises
    InputError."""
    variant, asks = state.current, state.asks == USERS
    if load(variant).scenario.stream is None:
        return
    if asks and _limits_of(variant):
        yield (_requests_head(_users(state, brief=True)),)
    users = _users(state) if asks else ""
    found = _streamed(variant)
    document = stream_document(found)
    texts = (*document.verdicts, *document.warnings)
    remarks = Markup("").join(map(Markup("<p>{}</p>").format, map(printable, map(sentence, texts))))
    line = command(variant, "stream", *(word for one in _limits_of(variant) for word in ("--slo", one)))
    yield (
        Markup("{}{}{}").format(_requests_head(users), remarks, numbers(tuple(_of_requests(found)))),
        *map(_section, document.sections),
        Markup("<p>The same answer: <code>{}</code></p>").format(printable(line)),
    )


def _requests_head(headline: str) -> Markup:
    return Markup('<h2 data-headline="{}">Stream of requests</h2>').format(headline)


def _limits_of(variant: Variant) -> list[str]:
    """Return the option by which the loads within the limits are searched; none without limits."""
    options = load(variant).scenario.stream
    return [f"attain={options.slo.attain}"] if options is not None and options.slo.any else []


@lru_cache(maxsize=1)
def _streamed(variant: Variant, *, brief: bool = False) -> StreamResult:
    """Return what becomes of the requests of a variant, if ``brief`` in one replication and without
    intervals. Raises InputError."""
    scenario = load(variant)
    options = scenario.scenario.stream
    if options is not None and options.trace is not None and options.trace.file not in TRACES:
        text = f"the page reads no files of the server; traces by name are {either(TRACES)}"
        raise InputError.at("stream.trace.file", text)
    if brief:
        scenario = scenario.edited(Edit.at("stream.replications", 1))
    search, prices = bool(_limits_of(variant)), costs(variant)
    return simulated_stream(StreamSimulation(scenario), search=search, intervals=not brief, costs=prices)


class _MostUsers(NamedTuple):
    """What a variant carries: its largest load, 0 if none is known, whether it is the largest that was tried,
    its interval, and all in words."""

    load: float
    least: bool
    ends: tuple[float, float]
    verdict: str


@lru_cache(maxsize=64)
def _carried(variant: Variant, *, brief: bool = False) -> _MostUsers:
    found = _streamed(variant, brief=brief)
    best = 0.0 if found.best is None else found.best.load
    machine = _model_on(found.scenario.model.name, found.scenario.machine.platform)
    verdict = stream_document(found).verdicts[0].rstrip(".")
    least = bool(found.trials) and found.trials[-1].load == best
    return _MostUsers(best, least, found.capacity or (best, best), f"{machine}: {verdict}")


def _users(state: State, *, brief: bool = False) -> Verdict:
    """Return the answer to how many users there can be: which variant carries most, and how many times as
    many as others. Raises InputError."""
    found = dict[str, _MostUsers]()
    for name, variant in zip(variant_names(state.variants), state.variants, strict=True):
        if variant != state.current:
            with suppress(InputError, WorkLimitError):  # is said where it is the current one
                found[name] = _carried(variant, brief=brief)
    mine = _carried(state.current, brief=brief)
    found[variant_names(state.variants)[state.at]] = mine
    (best, most), *others = sorted(found.items(), key=lambda pair: -pair[1].load)
    if not others or not most.load:
        return Verdict.of(mine.verdict)
    parts = list[VerdictPart]()
    for name, one in others:
        ratio = format_number(most.load / (one.load or 1.0), digits=2)
        less = f"{'at least ' if most.least else ''}{ratio} times the {format_number(one.load)} of {name}"
        tied = f"{name} carries as many within the uncertainty ({format_number(one.load)})"
        behind = less if one.ends[1] < most.ends[0] else tied
        parts.append(VerdictPart(f"; {behind if one.load else f'{name} carries none'}", min(1, len(parts))))
    text = most.verdict.partition(": ")[2].partition(";")[0]
    return Verdict.of(f"{best} carries most: {uncapitalized(text)}", *parts)


def _of_requests(found: StreamResult) -> Iterator[tuple[str, str, str]]:
    """Yield the medians and 99th percentiles of latencies, rates, and what tokens cost."""
    for name in _OF_STREAM:
        if isfinite(value := found.estimates[name].value):
            metric = found.measures[0].declared[name]
            yield metric.title, *_measured(metric, value, found.intervals.get(name))
    cost = found.priced().get("cost_per_million_tokens")
    if cost is not None and found.costs is not None:
        least = "at least " if found.costs.missing else ""
        yield "Cost per million tokens", f"{least}{_plain(money(cost, found.costs.costs.currency))}", ""


_OF_STREAM = (
    *(f"{kind}_{part}_s" for kind in ("ttft", "tpot", "e2el") for part in ("p50", "p99")),
    *("requests_per_s", "output_tokens_per_s"),
)


# ---- what follows ------------------------------------------------------------------------------


class Following(NamedTuple):
    """A Following is a part of a page that is looked for once its state has not changed for a moment."""

    question: Callable[[State, str], tuple[str, ...] | Iterator[tuple[str, ...]]]
    """Returns its elements for a state and what the part is about, nothing where there is nothing; or yields
    them, each time better."""
    section: str = ""
    """Section of scenarios that it is about; "": the slider that was moved last."""
    nice: int = 10
    """How far its processes give way to others; 0 of what may be the answer to what is asked."""


FOLLOWING = {"curve": Following(curve), "stream": Following(requests, section="stream", nice=0)}
"""Parts that follow the answer, in their order; each has workers of its own."""


def next_changes(state: State) -> Next:
    """Return what to change next, and the sliders of the inputs that matter most; nothing of a scenario with
    mistakes, which the answer says."""
    variant = state.current
    with stage(2) as parts:
        try:
            result = _result(variant)
        except InputError:
            return Next((), (), "")
        evaluator = Evaluator(load(variant), result=result.result)
        parts.step("what to change")
        advice = advise(evaluator, costs=costs(variant))
        parts.step("what matters")
        matters = sensitivity(evaluator) if result.fits else None
    found = sorted(advice.decisions(advice.helping), key=_time_of)[:_MOST_CHANGES]
    currency = advice.economics.costs.currency
    changes = tuple(
        NextChange(
            printable(described(one, advice)),
            speed_text(one.result) if one.result.compared_s else "",
            "makes it fit" if one.gain is None else gain_text(one),
            "price unknown" if one.extra is None else _plain(money(one.extra, currency)) if one.extra else "",
            one.change.assignments,
        )
        for one in found
    )
    note = "" if changes else "nothing that was tried gains more than the predictions may be wrong"
    if matters and matters.stopped:
        note = f"for what matters most {matters.untried} numbers were not tried: {matters.stopped}"
    return Next(changes, tuple(_sliders(variant, matters)) if matters else (), advice.extent or note)


def _time_of(one: EvaluatedChange) -> float:
    return one.result.compared_s or inf


def _sliders(variant: Variant, matters: Sensitivity) -> Iterator[Input]:
    """Yield sliders of the numbers that change most, one of each part of the machine."""
    parts: dict[str, Input | None] = {}
    for row in matters.rows:
        profile, key = row.number.profile, row.number.key
        if profile not in parts and len(parts) < _MOST_SLIDERS:
            parts[profile] = multiple(variant, profile, key)
    yield from filter(None, parts.values())


def check(variant: Variant) -> tuple[str, ...]:
    """Return what is wrong with a scenario, as ``check`` says it."""
    try:
        load(variant)
    except InputError as error:
        return problem_texts(error.problems)
    return ()


def file(state: State, kind: str) -> tuple[str, str]:
    """Return the name and the text of a file to take away. Raises InputError."""
    variant = state.current
    if kind == "scenario":
        return FILE, yaml_text(load(variant).document.data)
    if kind == "prices" and not price_list(variant):
        raise InputError.at("", "no price was changed; the shipped ones are those of reference")
    if kind == "prices":
        return PRICES, price_list(variant)
    if kind == "settings":
        exports = load(variant).exports()
        texts = [f"# {name}\n{ds_config_text(content)}" for name, content in exports.items()]
        return "settings.txt", "\n".join(texts) or "# this program needs no file of settings\n"
    if kind != "report":
        raise InputError.at("", "there is no such file")
    return "report.html", html_text(_report(state))


def _report(state: State) -> ReportDocument:
    shown = [replace(one, searches=True) for one in _each(state)]
    if len(state.variants) == 1:
        return result_document(shown[0], command=command(state.current))
    return comparison_document(shown)


QUESTIONS: Mapping[str, Callable[..., Any]] = {
    "answer": answer,
    "next": next_changes,
    **{name: one.question for name, one in FOLLOWING.items()},
    "check": check,
    "file": file,
}
"""What may be asked, by name."""
START = State((Variant("gpt-oss-120b"),))
"""What a page shows at first: a model that no desktop holds in its GPU."""
