"""The page: a layout, and callbacks that turn what a person does into questions and answers into elements."""

from __future__ import annotations

import base64
import binascii
import json
import re
import uuid
from collections.abc import Mapping, Sequence
from functools import partial
from hashlib import sha256
from html import escape, unescape
from typing import Any

from dash import ALL, Dash, Input, Output, State, ctx, dcc, html, no_update
from dash.exceptions import PreventUpdate
from markupsafe import Markup

from simoffload.errors import InputError
from simoffload.extensions.web import form
from simoffload.extensions.web.jobs import JobOutcome, Jobs, Kind
from simoffload.extensions.web.questions import ASKS, FOLLOWING, START, Next, NextChange, PageAnswer, numbers
from simoffload.extensions.web.scenarios import ASKED, begun
from simoffload.extensions.web.state import MOST_VARIANTS, Variant
from simoffload.extensions.web.state import State as PageState
from simoffload.limits import Limits
from simoffload.report.html import style
from simoffload.report.svg import hatches

LARGEST_FILE = 1_000_000
"""[B] of a file that is dropped on the page: that of the largest document."""
_PATIENCE = 0.4
"""Time [s] after which progress is shown instead of the answer: our choice."""
_TICK, _NEXT_TICK = 300, 600
"""Time [ms] between two questions whether an answer is there, and from a change to the search."""
_SHORT_NAME = 12  # [characters] that half the width of the inputs has room for
_HEADLINE = re.compile('data-headline="([^"]+)"')
"""The headline that a part has for the whole page."""
_FILE_TIME = 25.0  # [s]
_CHECK = Limits(timeout=10.0)
_FILES = {"scenario": "Scenario", "settings": "Settings", "prices": "Prices", "report": "Report"}


def kinds(processors: int, limits: Limits) -> dict[str, Kind]:
    """Return the kinds of questions, with workers for a number of processors."""
    each = max(2, min(8, processors))
    return {
        "quick": Kind(each, limits),
        "check": Kind(1, limits.within(_CHECK)),
        "slow": Kind(each, limits, nice=10),
        **{name: Kind(each, limits, one.nice) for name, one in FOLLOWING.items()},
    }


# ---- layout ------------------------------------------------------------------------------------


def index(head: str) -> str:
    """Return the page around the elements: the style of reports, and what would slow down Dash, the lists of
    proposals and the patterns of charts."""
    lists = [str(hatches())]
    for name, values in form.proposals().items():
        options = "".join(f'<option value="{escape(value)}"></option>' for value in values)
        lists.append(f'<datalist id="{name}">{options}</datalist>')
    styled = head.replace("<html>", '<html lang="en">').replace(
        "{%css%}", f"<style>{style()}</style>{{%css%}}"
    )
    return styled.replace("{%app_entry%}", "{%app_entry%}" + "".join(lists))


def layout() -> Any:
    """Return the elements of a new page."""
    return html.Div(
        [
            dcc.Location(id="url", refresh=False),
            *(dcc.Store(id=name, data=data) for name, data in _stores().items()),
            dcc.Interval(id="tick", interval=_TICK, disabled=True),
            dcc.Interval(id="next-tick", interval=_NEXT_TICK, disabled=True),
            *(dcc.Interval(id=f"{one}-tick", interval=_NEXT_TICK, disabled=True) for one in FOLLOWING),
            dcc.Download(id="download"),
            html.Header([html.H1("simoffload"), _start()]),
            html.Main([_asks(), _top(), html.Div([_choices(), _answer()], className="columns")]),
        ],
        id="page",
    )


def _stores() -> dict[str, Any]:
    return {
        "me": uuid.uuid4().hex,
        "shape": [],
        "asked": None,
        "made": "",
        **{f"{one}-of": "" for one in FOLLOWING},
    }


def _start() -> Any:
    return html.Div(
        [
            html.Label(["Start from ", _typed("base", "", "bases", "scenario or model")]),
            dcc.Upload(
                html.Button("Drop a scenario, config.json or price list (up to 1 MB)"),
                id="upload",
                max_size=LARGEST_FILE,
            ),
            html.Button("Start again", id="again"),
        ],
        className="start",
    )


def _asks() -> Any:
    buttons = [html.Button(one.label, id={"ask": name}) for name, one in ASKED.items()]
    group = html.Div(buttons, role="group", **{"aria-label": "What do you want to know?"})
    early = html.Div(dcc.Dropdown([]), hidden=True)  # what draws lists is fetched while the answer is made
    return html.Section([group, html.Div(early, id="first", className="first")], id="asks")


def _top() -> Any:
    """Return the places of the answer that is read first."""
    files = [html.Button(text, id={"get": kind}) for kind, text in _FILES.items()]
    copies = [html.Button("Copy command", id="copy-command"), html.Button("Copy link", id="copy-link")]
    return html.Section(
        [
            html.Div([html.P(id="sentence"), html.P(id="facts")], id="said", **{"aria-live": "polite"}),
            html.P(id="progress", role="status"),
            html.P(id="stream-progress", role="status", className="following"),
            html.P(id="too-large", role="alert", **{"data-most": str(LARGEST_FILE)}),
            html.Div([html.Ul(id="problems"), html.Div(id="fixes", role="group")], id="wrong", role="alert"),
            html.Div([*copies, *files], role="group", className="files", **{"aria-label": "Take along"}),
            html.Section(
                [
                    html.H2("What would be better"),
                    html.P(id="next-progress", role="status"),
                    html.Div(id="next"),
                ],
                id="better",
            ),
        ],
        id="top",
    )


def _choices() -> Any:
    return html.Aside(
        [
            html.Div(id="form"),
            html.Section([html.H2("What matters most here"), html.Div(id="sliders")]),
        ],
        **{"aria-label": "Inputs"},
    )


def _answer() -> Any:
    basket = [
        dcc.RadioItems(id="basket", className="basket"),
        html.Button("Compare another", id="keep"),
        html.Button("Remove", id="remove"),
    ]
    text = dcc.Textarea(id="yaml", spellCheck=False, rows=20, className="yaml")
    return html.Article(
        [
            html.Fieldset([html.Legend(f"Variants (up to {MOST_VARIANTS})"), *basket]),
            html.Div(id="charts"),
            html.Div(id="metrics"),
            *(html.Div(id=name) for name in FOLLOWING),
            html.P(id="curve-progress", role="status", className="following"),
            html.Div(id="details"),
            html.Details(
                [
                    html.Summary("Scenario as YAML"),
                    html.Label(["Scenario", text]),
                    html.Ul(id="yaml-problems", role="alert"),
                    html.Button("Use it", id="use"),
                ]
            ),
        ],
        id="answer",
    )


# ---- inputs ------------------------------------------------------------------------------------


def _typed(name: str, value: Any, proposals: str, placeholder: str) -> Any:
    more = {"list": proposals} if proposals else {}
    return dcc.Input(
        id={"set": name}, value=value, type="text", debounce=True, placeholder=placeholder, **more
    )


def _control(one: form.Input) -> Any:
    if one.most is not None:
        return dcc.Input(id={"set": one.name}, value=one.value, type="range", min=0, max=one.most, step=1)
    if one.choices:
        options = list(dict.fromkeys((*one.choices, *([one.value] if one.value else []))))
        return dcc.Dropdown(
            options,
            one.value or None,
            id={"set": one.name},
            placeholder=one.note or "default",
            clearable=one.name.startswith("edit "),
        )
    return _typed(one.name, one.value, one.proposals, one.note)


def _input(one: form.Input) -> Any:
    wide = one.proposals or any(len(choice) > _SHORT_NAME for choice in one.choices)
    kind = "slider" if one.most is not None else "wide" if wide else "field"
    head = [html.Span(one.label, title=one.about), html.Span(_note(one), id={"note": one.name})]
    return html.Label([html.Span(head, className="head"), _control(one)], className=kind)


def _note(one: form.Input) -> Any:
    if one.problem:
        return html.Span(one.problem, className="problem", role="alert")
    return f" {one.note}" if one.most is not None else one.remark


def _panel(panel: form.Panel) -> Any:
    more = [html.Details([html.Summary("More"), *map(_input, panel.more)])] if panel.more else []
    shown = html.Div([_input(one) for one in panel.inputs], className="inputs")
    return html.Section([html.H2(panel.title), shown, *more])


# ---- the answer as elements --------------------------------------------------------------------


def _drawn(elements: str) -> Any:
    """Return a place where ``assets/page.js`` puts elements, which is much faster than to make them one by
    one; all text from data in them must be escaped."""
    return html.Section(**{"data-drawn": elements})


def _details(found: PageAnswer) -> list[Any]:
    warnings = Markup("").join(map(Markup("<li>{}</li>").format, found.warnings))
    text = Markup("<details><summary>Warnings ({})</summary><ul>{}</ul></details>")
    folded = _drawn(text.format(len(found.warnings), warnings)) if found.warnings else None
    return [folded, html.P(["The same answer: ", html.Code(found.command)])]


def _metrics(found: PageAnswer) -> Any:
    return _drawn(numbers(found.metrics))


def _next(found: Next) -> Any:
    rows = [html.Li(_change(one)) for one in found.changes]
    return [html.Ol(rows) if rows else None, html.P(found.note) if found.note else None]


def _change(one: NextChange) -> list[Any]:
    """Return a change with the rate that it leads to, what it gains and costs, and a button that makes it."""
    more = ", ".join(filter(None, (one.gain, one.cost)))
    say = {"aria-label": f"Try {one.description}"}
    return [
        html.Button("Try", id={"try": json.dumps(one.assignments)}, **say),
        html.Span(
            [f"{one.description}: ", html.Strong(one.rate or one.gain), f", {more}" if one.rate else ""]
        ),
    ]


# ---- callbacks ---------------------------------------------------------------------------------


_CHANGED = {
    "hash": Output("url", "hash"),
    "form": Output("form", "children"),
    "first": Output("first", "children"),
    "asks": Output({"ask": ALL}, "className"),
    "fixes": Output("fixes", "children"),
    "shape": Output("shape", "data"),
    "values": Output({"set": ALL}, "value"),
    "notes": Output({"note": ALL}, "children"),
    "sentence": Output("sentence", "children"),
    "facts": Output("facts", "children"),
    "metrics": Output("metrics", "children"),
    "charts": Output("charts", "children"),
    "details": Output("details", "children"),
    "yaml": Output("yaml", "value"),
    "made": Output("made", "data"),
    "basket": Output("basket", "options"),
    "at": Output("basket", "value"),
    "problems": Output("problems", "children"),
    "progress": Output("progress", "children"),
    "dimmed": Output("answer", "className"),
    "asked": Output("asked", "data"),
    **{name: Output(f"{name}-of", "data") for name in FOLLOWING},
    "ticking": Output("tick", "disabled"),
}
"""What an answer changes on the page, by the names that ``_updated`` uses."""
_GIVEN = {
    "address": Input("url", "hash"),
    "values": Input({"set": ALL}, "value"),
    "_tries": Input({"try": ALL}, "n_clicks"),
    "_fixes": Input({"fix": ALL}, "n_clicks"),
    "_asks": Input({"ask": ALL}, "n_clicks"),
    "at": Input("basket", "value"),
    "_clicks": [Input(name, "n_clicks") for name in ("keep", "remove", "use", "again")],
    "content": Input("upload", "contents"),
    "_ticks": Input("tick", "n_intervals"),
    "me": State("me", "data"),
    "file": State("upload", "filename"),
    "text": State("yaml", "value"),
    "shape": State("shape", "data"),
    "notes": State({"note": ALL}, "children"),
    "asked": State("asked", "data"),
}
"""What happens on the page, and what is there when it does."""


def add_callbacks(app: Dash, jobs: Jobs) -> None:
    """Let a page ask the jobs."""
    app.callback(_CHANGED, _GIVEN)(lambda **given: _updated(jobs, **given))
    app.callback(
        [
            Output("next", "children"),
            Output("sliders", "children"),
            Output("next-progress", "children"),
            Output("next", "className"),
            Output("next-tick", "disabled"),
        ],
        [Input("url", "hash"), Input("next-tick", "n_intervals")],
        [State("me", "data"), State("shape", "data"), State({"set": ALL}, "id")],
    )(lambda *given: _followed(jobs, *given))
    for name in FOLLOWING:
        app.callback(
            [
                Output(name, "children"),
                Output(f"{name}-progress", "children"),
                Output(name, "className"),
                Output(f"{name}-tick", "disabled"),
                Output("sentence", "children", allow_duplicate=True),
            ],
            [Input("url", "hash"), Input(f"{name}-of", "data"), Input(f"{name}-tick", "n_intervals")],
            State("me", "data"),
            prevent_initial_call="initial_duplicate",
        )(partial(_part, jobs, name))
    app.callback(
        [Output("download", "data"), Output("next-progress", "children", allow_duplicate=True)],
        Input({"get": ALL}, "n_clicks"),
        [State("url", "hash"), State("me", "data")],
        prevent_initial_call=True,
    )(lambda clicks, address, me: _taken(jobs, clicks, address, me))
    app.callback(
        Output("yaml-problems", "children"),
        Input("yaml", "value"),
        [State("url", "hash"), State("me", "data"), State("made", "data")],
        prevent_initial_call=True,
    )(lambda text, address, me, made: [] if _digest(text) == made else _checked(jobs, text, address, me))


def _state(address: Any) -> PageState:
    text = str(address or "").removeprefix("#")
    return PageState.of(text) if text else START


def _digest(text: Any) -> str:
    """Return what tells the scenario that the page shows from one that is being typed."""
    return sha256(str(text).encode(errors="replace")).hexdigest()


def _lines(texts: Sequence[str]) -> list[Any]:
    return [html.Li(text) for text in texts]


def _updated(jobs: Jobs, **given: Any) -> dict[str, Any]:
    """Return all that changes on the page, after whatever happened on it."""
    shown: dict[str, Any] = {name: _unchanged(one) for name, one in ctx.outputs_grouping.items()}
    try:
        asked = _question(given)
        names = tuple(one["id"]["set"] for one in ctx.outputs_grouping["values"])
        further = tuple(sorted(name for name in names if name.startswith("scale ")))
        state, name, value = PageState.of(asked[0]), *asked[1:]
        outcome = jobs.ask(str(given["me"]), "quick", "answer", state, name, value, further, wait=_PATIENCE)
    except InputError as error:
        outcome, asked = JobOutcome(problems=tuple(map(str, error.problems))), None
    if outcome.progress:
        return shown | {"progress": outcome.progress, "dimmed": "dimmed", "asked": asked, "ticking": False}
    shown |= {"progress": "", "ticking": True, "asked": None}
    if asked and asked[1].startswith(("slide ", "scale ")):
        shown["curve"] = asked[1]
    if outcome.value is None:
        notes = _refused(outcome.problems)
        fixes = [html.Button("Back to the last answer", id={"fix": ""})]
        return shown | {
            "problems": _lines(outcome.problems),
            "notes": notes,
            "fixes": fixes,
            "dimmed": "dimmed",
        }
    return shown | _elements(outcome.value, given, names)


def _refused(problems: Sequence[str]) -> list[Any]:
    """Return the notes of all inputs, in which the one that was refused says why."""
    reason = html.Span("; ".join(problems), className="problem", role="alert")
    name = ctx.triggered_id["set"] if isinstance(ctx.triggered_id, dict) and "set" in ctx.triggered_id else ""
    return [reason if one["id"]["note"] == name else no_update for one in ctx.outputs_grouping["notes"]]


def _unchanged(output: Any) -> Any:
    return [no_update] * len(output) if isinstance(output, list) else no_update


def _question(given: Mapping[str, Any]) -> tuple[str, str, Any]:
    """Return the state on which something happened, and which input got which value.

    Raises PreventUpdate where nothing happened, and InputError.
    """
    trigger, state = ctx.triggered_id, _state(given["address"])
    changed = ctx.triggered[0]["value"] if len(ctx.triggered) == 1 else None
    match trigger:
        case None | "url":
            return state.text, "", None
        case "tick" if isinstance(given["asked"], list) and len(given["asked"]) == 3:
            text, name, value = given["asked"]
            return str(text), str(name), value
        case {"set": str(name)} if len(ctx.triggered) == 1:
            return state.text, name, "" if changed is None else changed
        case "basket" if given["at"] in range(len(state.variants)) and given["at"] != state.at:
            return state._replace(at=given["at"]).text, "", None
        case {"ask": str(asks)} if changed:
            return state.text, ASKS, asks
        case {"fix": str(fix)} if changed:
            return PageState.of(fix).text if fix else state.text, "", None
        case "again" if changed:
            return begun(state.asks).text, "", None
        case "keep" if changed:
            return state.kept().text, "", None
        case "remove" if changed:
            return state.removed().text, "", None
        case {"try": str(assignments)} if changed:
            variant = state.current.edited(*_texts(assignments))
            return state.changed(variant).text, "", None
        case "use" if changed:
            return state.changed(_written(given["text"], state)).text, "", None
        case "upload" if changed:
            return state.text, f"file {given['file']}", _content(str(changed))
    raise PreventUpdate


def _texts(assignments: str) -> list[str]:
    try:
        return [str(one) for one in json.loads(assignments)]
    except (ValueError, TypeError, RecursionError):
        raise InputError.at("", "this page has no such change") from None


def _content(data: str) -> str:
    try:
        return base64.b64decode(data.partition(",")[2], validate=True).decode("utf-8-sig")
    except (binascii.Error, ValueError):
        raise InputError.at("", "the file is not text in UTF-8") from None


def _elements(found: PageAnswer, given: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return the elements of an answer; inputs that stay the same ones only get the values that they lack."""
    inputs = [one for panel in found.panels for one in (*panel.inputs, *panel.more)]
    known = {one.name: one for one in (*inputs, *found.further)}
    new_shape = [one.name for one in inputs]
    elements: dict[str, Any] = {
        "hash": f"#{found.state.text}",
        "problems": _lines(found.problems),
        "fixes": [html.Button(label, id={"fix": text}) for label, text in found.fixes],
        "asks": [
            "chosen" if one["id"]["ask"] == found.state.asks else "" for one in ctx.outputs_grouping["asks"]
        ],
        "basket": [{"label": label, "value": at} for at, label in enumerate(found.labels)],
        "at": found.state.at,
        "dimmed": "dimmed" if found.problems else "",
        "yaml": found.scenario or no_update,
        "made": _digest(found.scenario),
        **dict(found.following),
    }
    if found.panels and new_shape != given["shape"]:
        first, *others = found.panels
        elements |= {"first": list(map(_input, first.inputs)), "shape": new_shape}
        elements |= {"form": list(map(_panel, others))}
    values = {name: one.value for name, one in known.items()}
    elements["values"] = _lacking(names, given["values"], values)
    notes = {name: _note(one) for name, one in known.items()}
    elements["notes"] = _lacking(
        [one["id"]["note"] for one in ctx.outputs_grouping["notes"]], given["notes"], notes
    )
    if found.sentence:
        elements |= {
            "sentence": _bound(found.sentence),
            "facts": found.facts,
            "metrics": _metrics(found),
            "charts": list(map(_drawn, found.sections)),
            "details": _details(found),
        }
    return elements


def _lacking(names: Sequence[str], there: Sequence[Any], new: Mapping[str, Any]) -> list[Any]:
    """Return the new values of inputs, of those alone that are not there already: each costs the browser a
    redrawing."""
    pairs = zip(names, there, strict=True)
    return [new[name] if name in new and new[name] != (old or "") else no_update for name, old in pairs]


_Followed = tuple[Any, str, str, bool]
"""An answer that comes later or a first one, how far it is or why there is none, the class of the one before,
and whether it is the last word."""


def _later(jobs: Jobs, kind: str, me: Any, question: str, address: Any, *arguments: Any) -> _Followed:
    """Ask what follows a change once it is some time ago; the change itself ends the question before it, also
    while it is being answered."""
    if not str(ctx.triggered_id).endswith("-tick") or jobs.answers(str(me), "quick"):
        jobs.cancel(str(me), kind)
        return None, "looking …", "dimmed", False
    try:
        outcome = jobs.ask(str(me), kind, question, _state(address), *arguments, wait=0.05)
    except InputError as error:
        outcome = JobOutcome(problems=tuple(map(str, error.problems)))
    if outcome.progress:
        return outcome.value, f"looking: {outcome.progress}", "dimmed", False
    return outcome.value, "; ".join(outcome.problems), "dimmed" if outcome.problems else "", True


def _followed(jobs: Jobs, address: Any, _ticks: Any, me: Any, shape: Any, ids: Any) -> list[Any]:
    """Return what to change next once it is known; sliders that are there stay, as one may be in use."""
    if jobs.answers(str(me), "stream"):  # the answer to what is asked comes first
        return [no_update, no_update, "waiting for the stream of requests", "dimmed", False]
    found, *how = _later(jobs, "slow", me, "next", address)
    if found is None:
        return [no_update, no_update, *how]
    there = set(shape) if isinstance(shape, list) else set()
    new = [one for one in found.sliders if one.name not in there]
    same = {one.name for one in new} == {one["set"] for one in ids} - there - {"base"}
    return [_next(found), no_update if same else list(map(_input, new)), *how]


def _part(jobs: Jobs, name: str, address: Any, of: Any, _ticks: Any, me: Any) -> list[Any]:
    """Return a part that follows the answer once it is known, its headline as soon as there is a first one;
    nothing of a part that is about nothing."""
    if not of:
        jobs.cancel(str(me), name)
        return [None, "", "", True, no_update]
    found, *how = _later(jobs, name, me, name, address, str(of))
    headline = next(iter(_HEADLINE.findall("".join(found or ()))), "")
    drawn = list(map(_drawn, found)) if found is not None and how[-1] else no_update
    return [drawn, *how, _bound(unescape(headline)) if headline else no_update]


def _bound(text: str) -> str:
    """Return a sentence in which numbers stay with their percent signs."""
    return text.replace(" %", "\u00a0%")


def _taken(jobs: Jobs, clicks: Any, address: Any, me: Any) -> list[Any]:
    """Return a file to take away, or why there is none."""
    if not any(clicks):
        raise PreventUpdate
    kind = str(ctx.triggered_id["get"])
    try:
        outcome = jobs.ask(str(me), "quick", "file", _state(address), kind, wait=_FILE_TIME)
    except InputError as error:
        outcome = JobOutcome(problems=tuple(map(str, error.problems)))
    if outcome.value is None:
        later = f"the {kind} is not ready yet; press its button again"
        return [no_update, "; ".join(outcome.problems) or later]
    name, content = outcome.value
    return [{"filename": name, "content": content, "type": "text/plain"}, no_update]


def _checked(jobs: Jobs, text: Any, address: Any, me: Any) -> list[Any]:
    try:
        outcome = jobs.ask(str(me), "check", "check", _written(text, _state(address)), wait=5.0)
    except InputError as error:
        outcome = JobOutcome(problems=tuple(map(str, error.problems)))
    return _lines(outcome.value or outcome.problems)


def _written(text: Any, state: PageState) -> Variant:
    """Return the variant with a scenario that was typed; its config.json and its prices stay."""
    return state.current._replace(base=f"{text}\n", edits=())
