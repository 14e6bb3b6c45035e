"""The scenario of a question: a model, a machine and work, under the best of the programs that people use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from simoffload.documents import Edit, either, split_assignment, suggest
from simoffload.errors import InputError, shortened
from simoffload.scenario import LoadedScenario, MachineParts, ScenarioSource, read_scenario, read_source
from simoffload.scenario import default_scenario as of_model
from simoffload.strategies import BEST, canonical_kind, kinds, strategy_for
from simoffload.workload import Checkpointing

# -- the scenario of a question --------------------------------------------------------------------


def question(
    model: str,
    platform: str | None = None,
    *,
    gpu: str | None = None,
    gpus: int | None = None,
    memory: str | None = None,
    drive: str | None = None,
    program: str | None = None,
    on: str | None = None,
    overrides: Sequence[str] = (),
) -> LoadedScenario:
    """Return the scenario of a question: a model, by name or file, on a machine, under the best program.

    The machine is a ``platform``, or the first shipped one with ``gpus`` of a ``gpu``, with another size of
    its host ``memory`` and a ``drive``. ``program`` names the program, such as "vllm"; by default it is the
    fastest of those that people use for the model, the machine and the work. ``on`` names the tier that
    holds the weights. ``overrides`` (``a.b=value``) replace any of these. Raises InputError for an unknown
    name, for a machine that is not named, and for what the program that was named refuses.
    """
    parts = MachineParts(gpu, gpus, memory, drive)
    scenario = asked(model, platform, parts=parts, program=program, overrides=overrides)
    return chosen(scenario if on is None else scenario.on(on))


def asked(
    model: str,
    platform: str | None,
    *,
    parts: MachineParts,
    program: str | None = None,
    overrides: Sequence[str] = (),
    placed: bool = True,
) -> LoadedScenario:
    """Return the scenario of a question before a program is chosen; the states use a drive that is named.

    Without a platform the GPU chooses the machine, which has only one if that is enough (``of_card``).
    A program that is named, also by ``strategy.kind`` among the overrides, is the only one to choose from.
    """
    stated = dict(map(split_assignment, overrides))
    if program is not None and (both := {"strategy", "strategy.kind"} & stated.keys()):
        text = f"contradicts --set {both.pop()}, which names a program, too; leave out one of them"
        raise InputError.at(program, text, path="--program")
    if program is not None:
        program = checked_program(program, str(stated.get("workload.kind", "inference")))
        overrides = [one for one in overrides if split_assignment(one)[0] != "strategy"]
    named = program or canonical_kind(str(stated.get("strategy.kind", BEST)))
    if program is not None or ("strategy" not in stated and named in kinds()):
        kept = [one for one in overrides if split_assignment(one)[0] != "strategy.kind"]
        among = [] if named == BEST else [f'strategy.among=["{named}"]']
        overrides = [f"strategy.kind={BEST}", *among, *kept]
    of_card = platform is None and "platform" not in stated and parts.gpu is not None
    if of_card:
        platform = parts.platforms()[0]
    gpus = None if parts.is_composed(platform) else parts.gpus
    scenario = of_model(model, platform, overrides=overrides, gpus=gpus, placed=placed)
    return with_parts(scenario, parts.of_card(scenario) if of_card else parts)


def checked_program(program: str, work: str) -> str:
    """Return the kind that the name of a program means. Raises InputError for a name that is none, or none of
    a program for a kind of work."""
    kind = canonical_kind(program)
    if kind not in kinds():
        text = f"is no program{suggest(program, kinds())}; it is one of {', '.join(kinds())}"
        raise InputError.at(shortened(program), text, path="--program")
    if kind not in strategy_for(work):
        text = f"is not for a workload of {work}; use {either(strategy_for(work))}"
        raise InputError.at(program, text, path="--program")
    return kind


def with_program(scenario: LoadedScenario, program: str) -> LoadedScenario:
    """Return the same work on as many GPUs under another program, or "best": with its key-value cache and
    none of the other settings of its strategy. Raises InputError."""
    now, work = scenario.scenario.strategy, scenario.scenario.workload
    program = checked_program(program, work.kind)
    among = [] if program == BEST else [program]
    if is_choice(scenario):
        return scenario.edited(Edit.at("strategy.among", among))
    if isinstance(work, Checkpointing):
        return scenario
    section: dict[str, Any] = {"kind": BEST, "among": among, "ranks": now.gpus}
    section |= {"sequences": work.batch_size * now.replicas}
    cache = scenario.document.data["strategy"].get("kv_cache")
    section |= {} if cache is None else {"kv_cache": cache}
    return scenario.edited(Edit(("strategy",), section))


def with_parts(scenario: LoadedScenario, parts: MachineParts) -> LoadedScenario:
    """Return a scenario on a machine with other parts, of which a program that is yet to be chosen uses the
    drive. Raises InputError."""
    edits = parts.edits(scenario)
    if not edits:
        return scenario
    if parts.drive is not None and is_choice(scenario):
        tier = next(str(path[2]) for path, _ in edits if path[:2] == ("equipment", "tiers"))
        edits = (*edits, Edit.at("strategy.uses", tier))
    found = scenario.edited(*edits)
    return replace(found, remarks=(*found.remarks, *parts.assumed(scenario)))


def load_scenario(
    source: str | Path, *, overrides: Sequence[str] = (), placed: bool = True
) -> LoadedScenario:
    """Read a scenario file (or a shipped scenario by name), apply ``a.b=value`` overrides, resolve it, and
    choose its program if it states none.

    Raises InputError with all problems, each with its file, line, key and what is valid.
    """
    return chosen(read_scenario(source, overrides=overrides, placed=placed))


def loaded(source: ScenarioSource) -> LoadedScenario:
    """Return a scenario, which is loaded first where ``source`` is a path or the name of a shipped one, under
    a program that is chosen where it states none.

    Raises what ``load_scenario`` raises, and TypeError for anything else.
    """
    return chosen(read_source(source))


# -- the choice of a program -----------------------------------------------------------------------


def is_choice(scenario: LoadedScenario) -> bool:
    """Return whether the program of a scenario is yet to be chosen."""
    return scenario.scenario.strategy.kind == BEST


def chosen(scenario: LoadedScenario) -> LoadedScenario:
    """Return a scenario under the fastest of the programs from which it chooses, each in its best form;
    itself if it states its program.

    Programs are compared by the time per token of the whole request, of as many sequences in all:
    ``batch_size`` on each GPU. Where none of them fits, the first one is left, whose memory then says what
    is lacking. Raises InputError for settings that no program has together.
    """
    if not is_choice(scenario) or isinstance(scenario.scenario.workload, Checkpointing):
        return scenario  # planning says that checkpoints have a strategy of their own
    from simoffload.planning.program_choice import choose

    return choose(scenario)


def chosen_once(scenarios: Mapping[str, LoadedScenario]) -> dict[str, LoadedScenario]:
    """Return scenarios that differ in where their states are, all under the program that is chosen for the
    first of them on storage, or else the first; one that does not fit under it has its own."""
    open_ones = [one for one in scenarios.values() if is_choice(one)]
    if len(open_ones) < 2:
        return {label: chosen(one) for label, one in scenarios.items()}
    stored = (one for one in open_ones if _on_storage(one))
    kind = chosen(next(stored, open_ones[0])).scenario.strategy.kind
    only = Edit.at("strategy.among", [kind])

    def under_it(one: LoadedScenario) -> LoadedScenario:
        with suppress(InputError):  # what that program refuses there
            found = chosen(one.edited(only))
            if found.choice is not None:
                return found
        return chosen(one)

    return {label: under_it(one) if is_choice(one) else one for label, one in scenarios.items()}


def _on_storage(scenario: LoadedScenario) -> bool:
    strategy, tiers = scenario.scenario.strategy, scenario.machine.tiers
    named = (getattr(strategy, key) for key in ("weights", "optimizer", "uses"))
    return any(tiers[one].is_storage for one in named if one is not None)
