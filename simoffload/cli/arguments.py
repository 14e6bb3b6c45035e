"""The commands and options of the program."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import simoffload.extending as extending
from simoffload.cli.option_types import (
    WRITTEN,
    Once,
    SubParsers,
    add_costs,
    add_json,
    add_limits,
    add_model,
    add_output,
    add_overrides,
    add_parts,
    add_program,
    listed,
)
from simoffload.errors import InputError, shortened
from simoffload.shipped import __version__

if TYPE_CHECKING:
    from simoffload.cli.catalogue import Command

_DESCRIPTION = """\
Predict speed, memory and cost of large language models whose weights, cache or optimizer are kept in CPU
memory, on drives, on file servers or on parallel filesystems."""
_EXAMPLES = """\
examples:
  simoffload run gpt-oss-120b --gpu rtx-4090 --memory 64GB
  simoffload compare llama-3.1-405b --gpu h100-sxm --gpus 8 --drive 4xmicron-9550-pro-7.68tb,ddn-ai400x2
  simoffload advise qwen3-8b --gpu rtx-4090 --set workload.kind=training
  simoffload run qwen3-8b --gpu rtx-3090 --set "profiles.rtx-3090.power_limit=280 W"
  simoffload sweep vllm/llama-3.1-70b-draft --axis workload.speculation.num_speculative_tokens=1,2,4,8
"""
_EPILOG = f"""\
{_EXAMPLES}
A SCENARIO is the name of a model (simoffload models list), of a shipped scenario (simoffload scenarios
list), a YAML or JSON file, or "-" for standard input.
Exit status: 0 success, 1 the simulation could not finish, 2 invalid input, 3 does not fit or no value keeps
the service levels, 130 interrupted.
Documentation: README.md and the folder docs of the source; docs/tutorial.md is for beginners.
"""
_QUESTIONS = {
    "Will it run, and how fast?": "run, fit",
    "What should I change or buy?": "advise, compare, reach",
    "How many users?": "",
    "What if? (many points, or in the browser)": "",
    "What is there, and what is mine?": "models, profiles, scenarios, check",
}
"""Commands of the core by the question that they answer; those of extensions come after them."""


def overview() -> str:
    """Return what the program is, its commands by question and examples, for who types its name alone."""
    asked = {question: [names] if names else [] for question, names in _QUESTIONS.items()}
    for name, one in extending.commands():
        if one.answers:
            asked.setdefault(one.answers, []).append(name)
    rows = "".join(f"  {question:<43}{', '.join(names)}\n" for question, names in asked.items() if names)
    return f"{_DESCRIPTION}\n\n{rows}\n{_EXAMPLES}more: simoffload --help, simoffload COMMAND --help\n"


_TARGETS = (
    "tiers for the weights (or weights+optimizer), such as hbm (or gpu), dram (or cpu), raid, or all; with "
    "PART= before it of something else: cache=dram, connector=raid,nfs, dataset=nfs, checkpoint=raid; "
    "platform:tier selects another platform from there on"
)


_REQUIRED = "the following arguments are required:"


class _Help(argparse.RawDescriptionHelpFormatter):
    """Shows the list of commands without the line "COMMAND" above it."""

    def _format_action(self, action: argparse.Action) -> str:
        text = super()._format_action(action)
        return text.partition("\n")[2] if isinstance(action, argparse._SubParsersAction) else text  # noqa: SLF001


class _Parser(argparse.ArgumentParser):
    """A parser that raises InputError with one line instead of printing a usage page and exiting, and whose
    help begins with an example."""

    def format_help(self) -> str:
        """Return the help of a command, its example first."""
        example, text = _example(self.prog), super().format_help()
        return f"example: simoffload {example}\n\n{text}" if example else text

    def error(self, message: str) -> NoReturn:
        text, example = _one_line(message), _example(self.prog)
        if message.startswith(_REQUIRED) and example:
            actions = next((one.choices or () for one in self._actions if one.metavar == "ACTION"), ())
            if actions:
                text = f"name an action, one of {', '.join(actions)}"
            raise InputError.at("", f"{text}; such as simoffload {example}", path=self.prog)
        raise InputError.at("", f"{text}; see {self.prog} --help", path=self.prog)

    def _print_message(self, message: str, file: Any = None) -> None:
        """Write the message; unlike argparse, fail if the output cannot be written."""
        (file or sys.stdout).write(message)


def _example(command: str) -> str:
    """Return an example of a command, which begins with the program's name; "" for none."""
    name = command.removeprefix("simoffload ")
    return _EXAMPLE.get(name) or extending.examples().get(name, "")


def _one_line(message: str) -> str:
    """Return argparse's message; for an unknown choice with the nearest valid one."""
    unknown, found, choices = message.partition(" (choose from ")
    if not found:
        return re.sub(r"\S+", lambda word: shortened(word[0]), message)
    word = unknown.rpartition(": ")[2].strip("'")
    names = [choice.strip(" ')") for choice in choices.split(",")]
    near = get_close_matches(word[:40], names, n=1)
    hint = f'; did you mean "{near[0]}"?' if near else ""
    missing = extending.missing_note()
    return f'"{shortened(word)}" is not one of {", ".join(names)}{hint}' + (f"; {missing}" if missing else "")


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Read the command line; ``command`` is the function to call, ``line`` the command as typed.

    Raises InputError for an invalid command line and SystemExit after ``--help`` and ``--version``.
    """
    if not argv:
        sys.stdout.write(overview())
        raise SystemExit(0)  # as after --help
    if argv[0] in ("help", "version"):
        argv = [*argv[1:2], f"--{argv[0]}"]
    if argv[0] not in _commands():
        _refuse_lacking_command(argv)
    arguments, unknown = program(argv[0]).parse_known_args(argv)
    known = arguments.__dict__.pop("known_options", ())
    if unknown:
        raise _unrecognized(argv[0] if argv[0] in _commands() else "", unknown, argv, known)
    if "overrides" in arguments and "model" in arguments:
        _need_scenario(arguments, f"simoffload {argv[0]}")
    line = shlex.join(["simoffload", *argv])
    arguments.line = line.encode(errors="backslashreplace").decode()  # names need not be UTF-8, pages are
    return arguments


def _refuse_lacking_command(argv: Sequence[str]) -> None:
    """Raise InputError for a command line that begins with an option, or with what a command is asked
    about."""
    first, line = argv[0], shlex.join(["simoffload", "run", *argv])
    is_option = first.startswith("-") and first not in ("-h", "--help", "--version")
    if not is_option and not first.startswith("-") and not get_close_matches(first, _commands(), n=1):
        from simoffload.documents import exists
        from simoffload.scenario import find_scenario, names_model

        is_option = names_model(first) or find_scenario(first) is not None or exists(first)
    if is_option:
        text = f"a command comes first, such as {shortened(line, 200)}; see simoffload --help"
        raise InputError.at("", text, path="simoffload")


def _need_scenario(arguments: argparse.Namespace, command: str) -> None:
    """Raise InputError where neither a scenario nor a model is named."""
    named = vars(arguments)
    if not named.get("needs_scenario", True):
        return
    if not (named.get("scenario") or named.get("scenarios") or arguments.model):
        text = f"name a model or a scenario, such as simoffload {_example(command)}"
        raise InputError.at("", text, path=command)


def _unrecognized(
    command: str, unknown: Sequence[str], argv: Sequence[str], known: Sequence[str]
) -> InputError:
    """Return the error for arguments that a command does not have, of which some options are ``known``."""
    name = f"simoffload {command}".rstrip()
    text = f"unrecognized arguments: {' '.join(map(shortened, unknown))}"
    for option, key, value in zip(argv, argv[1:], argv[2:], strict=False):
        if option in {"--set", "--axis"} and "=" not in key and not value.startswith("-"):
            assignment = shlex.quote(f"{key}={value}")
            text += f"; {option} takes one word, the key and its value: {option} {shortened(assignment)}"
        elif value not in unknown or value.startswith("-") or key.startswith("-"):
            continue
        elif option == command:
            from simoffload.hardware import Library

            device = Library().hint(value) or Library().hint(key)
            text += device or f"; {command} takes one name here (quote a name of several words)"
        else:
            text += f"; quote what has a space: {option} {shlex.quote(shortened(f'{key} {value}'))}"
    for one in (word.partition("=")[0] for word in unknown if word.startswith("-")):
        other = [new for olds, new in _INSTEAD if one in olds.split()]
        if near := get_close_matches(one[:40], known, n=1, cutoff=0.8) or other:
            text += f"; instead of {one} write {near[0]}"
    text = "; ".join(filter(None, (text, extending.missing_note())))
    return InputError.at("", f"{text}; see {name} --help", path=name)


_INSTEAD = (
    ("--ram --dram --host-memory", "--memory 64GB"),
    ("--nearer", "--on dram,raid"),
    ("--strategy", "a scenario of its own beside the first"),
    ("--quant --quantization --format -q", "MODEL:q4_k_m, or --set model.quantization=q4_k_m"),
    ("--dtype", "--set model.dtype=bfloat16"),
    ("--batch --batch-size --bs -b", "--set workload.batch_size=8"),
    ("--ctx --ctx-size --max-model-len -c", "--context 8192"),
    ("--prompt --prompt-length --input --input-len", "--set workload.prompt_length=2048"),
    ("--output --output-length --output-len --max-tokens", "--set workload.output_length=512"),
    ("--tp --tensor-parallel-size --num-gpus -g", "--gpus 2"),
    ("--platform --machine --server", "--set platform=ID"),
    ("--nodes", "--set nodes=2"),
    ("--ssd --nvme --disk --storage --raid", "--drive ID"),
    ("--train --training --finetune --lora", "--set workload.kind=training"),
    (
        "--users --rate --qps --concurrency",
        "simoffload stream MODEL --slo ttft=2s, which finds users and rate",
    ),
    ("--html --report -o", "--output-dir DIR"),
    ("--power --power-limit --tdp", '--set profiles.ID.power_limit="280 W", with the id of the GPU'),
    ("--verbose -v --details", "--explain"),
)
"""Options that people type and that are called otherwise here, with what to write."""


def program(only: str | None = None) -> argparse.ArgumentParser:
    """Return the parser of all commands; with ``only``, just that command gets its options."""
    parser = _Parser(
        prog="simoffload",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=_Help,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"simoffload {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, (text, adding) in _commands().items():
        one = _command(commands, name, text)
        if only in (None, name):
            for add in adding:
                add(one)
            one.set_defaults(known_options=tuple(one._option_string_actions))  # noqa: SLF001
    return parser


def _commands() -> dict[str, tuple[str, list[Callable[[_Parser], None]]]]:
    """Return what each command is and the functions that add its options: its own, and those of extensions
    that have more options for it."""
    found = {name: (text, [add]) for name, (text, add) in _COMMANDS.items()}
    for name, one in extending.commands():
        if " " not in name:
            found.setdefault(name, (one.text, []))[1].append(partial(_extended, one))
    return found


def _extended(command: extending.Command, parser: _Parser) -> None:
    try:
        extending.at(command.add)(parser)
    except (ImportError, AttributeError, argparse.ArgumentError) as error:
        text = f"an extension adds to this command what cannot be used: {error}"
        raise InputError.at(command.add, text, path=parser.prog) from None


def _more_actions(command: str, actions: SubParsers) -> None:
    """Add the actions that extensions have for a command."""
    for name, one in extending.commands():
        if name.startswith(f"{command} "):
            _extended(one, _command(actions, name.partition(" ")[2], one.text))


def _command(commands: SubParsers, name: str, text: str) -> _Parser:
    description = f"{text[0].upper()}{text[1:]}."
    made: _Parser = commands.add_parser(name, help=text, description=description, allow_abbrev=False)
    return made


def _add_run(parser: _Parser) -> None:
    from simoffload.cli import running

    parser.add_argument("scenario", metavar="SCENARIO", nargs="?")
    parser.add_argument(
        "--on",
        metavar="TARGET",
        help="the tier for the weights (or weights+optimizer): hbm, dram, nvme …; with PART= before it of "
        "something else: cache=dram, connector=raid, dataset=nfs, checkpoint=raid",
    )
    _add_usual(parser)
    parser.add_argument(
        "--explain",
        action="store_true",
        help="also show sensitivity, the effect of faster storage and next steps",
    )
    parser.add_argument("--trace", action="store_true", help="also write trace.json, for ui.perfetto.dev")
    parser.set_defaults(command=running.run)


def _add_usual(parser: _Parser, holds: str = WRITTEN) -> None:
    """Add the options for the scenario and for the answer, whose folder ``holds`` these files."""
    add_model(parser)
    add_parts(parser)
    add_overrides(parser)
    add_json(parser)
    add_costs(parser)
    add_output(parser, holds)


def _add_compare(parser: _Parser) -> None:
    from simoffload.cli import running

    parser.add_argument("scenarios", metavar="SCENARIO", nargs="*")
    parser.add_argument("--on", type=listed, action="extend", metavar="TARGET,…", help=_TARGETS)
    parser.add_argument(
        "--models",
        type=listed,
        action="extend",
        default=[],
        metavar="NAME,…",
        help="also simulate with these models in place of the scenario's, or these alone "
        "(simoffload models list)",
    )
    parser.add_argument("--baseline", metavar="NAME", help="result that ratios refer to (default: the first)")
    parser.add_argument(
        "--objective",
        metavar="METRIC",
        help="what decides which is best, such as ttft or energy_per_token_j (default: of inference tokens/s "
        "of the whole request, of other work its time)",
    )
    _add_beside(parser)
    parser.add_argument(
        "--settings",
        choices=("best", "stated"),
        help="compare each at its best settings that cost nothing, beside those that are stated (best: the "
        "default for several drives and for models with --on), or only as stated",
    )
    add_program(parser)
    add_parts(parser, offers=True)
    add_overrides(parser)
    add_json(parser)
    add_costs(parser)
    add_output(parser, f"{WRITTEN}, and table.csv")
    parser.set_defaults(command=running.compare)


def _add_beside(parser: _Parser) -> None:
    """Add what stands beside the results that are compared: measured values."""
    text = "a CSV table of measured or published values to set beside the predicted ones: columns label, "
    text += "metrics such as tokens_per_s or ttft_s, source"
    parser.add_argument("--measured", type=Path, metavar="FILE", help=text)


def _add_advise(parser: _Parser) -> None:
    from simoffload.cli import planning

    parser.add_argument("scenario", metavar="SCENARIO", nargs="?")
    parser.add_argument("--on", type=listed, action="extend", metavar="TARGET", help=_TARGETS)
    parser.add_argument(
        "--objective",
        help="what changes and purchases are ranked by: the most work per time (throughput), the shortest "
        "time of a request or step (latency, the default for inference with batch_size 1), among purchases "
        "the least money per unit of work (cost), or a metric, such as ttft or energy_per_token_j",
    )
    _add_usual(parser, f"{WRITTEN} and the recommended scenarios")
    parser.set_defaults(command=planning.advise)


def _add_reach(parser: _Parser) -> None:
    from simoffload.cli import planning

    parser.add_argument("scenario", metavar="SCENARIO", nargs="?")
    add_service(parser, "service level to keep", required=True)
    parser.add_argument(
        "--by",
        action=Once,
        const="reach varies one number",
        required=True,
        metavar="KEY",
        help="the number to vary, as in --set: workload.batch_size, nodes, strategy.ranks, profiles.ID.read",
    )
    parser.add_argument(
        "--within",
        action=Once,
        const="reach varies one number",
        metavar="MIN..MAX",
        help='range of the number, such as 1..64 or "1 GB/s..20 GB/s" (default: a thousandth of the present '
        "value to a thousand times that)",
    )
    add_model(parser)
    add_parts(parser)
    add_overrides(parser)
    add_json(parser)
    add_output(parser)
    parser.set_defaults(command=planning.find_values)


def add_service(parser: argparse.ArgumentParser, what: str, *, required: bool = False) -> None:
    """Add the limits to keep, which are of ``what``."""
    parser.add_argument(
        "--slo",
        action="append",
        default=[],
        required=required,
        metavar="METRIC=LIMIT",
        help=f"{what}, such as tpot=200ms; may be repeated",
    )


def _add_fit(parser: _Parser) -> None:
    from simoffload.cli import planning

    parser.add_argument("scenarios", metavar="SCENARIO", nargs="*")
    parser.add_argument("--on", type=listed, action="extend", metavar="TARGET,…", help=_TARGETS)
    questions = parser.add_mutually_exclusive_group()
    questions.add_argument(
        "--machines", action="store_true", help="number of machines needed, without and with offload"
    )
    questions.add_argument(
        "--largest", action="store_true", help="the largest batch, context and model that fit"
    )
    questions.add_argument(
        "--best-batch",
        action="store_true",
        help="the batch with the highest throughput of those that fit (simulated)",
    )
    add_service(parser, "with --best-batch: service level that the batch must keep")
    add_model(parser)
    add_parts(parser)
    add_overrides(parser)
    add_output(parser)
    add_json(parser)
    parser.set_defaults(command=planning.fit)


def _add_check(parser: _Parser) -> None:
    from simoffload.cli import checking

    parser.add_argument(
        "files", metavar="FILE", nargs="+", help="a file, the name of a shipped scenario or profile, or -"
    )
    add_limits(parser)
    add_json(parser)
    parser.set_defaults(command=checking.check)


def _add_profiles(parser: _Parser) -> None:
    from simoffload.cli import catalogue, checking

    actions = parser.add_subparsers(metavar="ACTION", required=True)
    listing = _command(actions, "list", "list the shipped profiles")
    listing.add_argument("kind", metavar="KIND", nargs="?", help="gpu, host, drive, platform …")
    showing = _command(
        actions, "show", "print every number of a profile with its spread, origin, source and date"
    )
    showing.add_argument(
        "profile", metavar="ID", help="an id, kind/id if several profiles share the id, or a file"
    )
    checked = _command(actions, "check", "check profile files and what they refer to")
    checked.add_argument("files", metavar="FILE", nargs="+", help="a file or the id of a shipped profile")
    add_limits(checked)
    _finish(
        (listing, catalogue.list_profiles),
        (showing, catalogue.show_profile),
        (checked, checking.check_profiles),
    )
    _more_actions("profiles", actions)


def _add_scenarios(parser: _Parser) -> None:
    from simoffload.cli import catalogue

    actions = parser.add_subparsers(metavar="ACTION", required=True)
    listing = _command(actions, "list", "list the shipped scenarios")
    _finish((listing, catalogue.list_scenarios))


def _add_models(parser: _Parser) -> None:
    from simoffload.cli import catalogue

    actions = parser.add_subparsers(metavar="ACTION", required=True)
    listing = _command(actions, "list", "list the models that have a name, the newest first")
    listing.add_argument("--year", type=int, metavar="YEAR", help="only those released in YEAR")
    text = "the newest, the largest, or the first name comes first (default: year, then size)"
    listing.add_argument("--sort", choices=("year", "size", "name"), default="year", help=text)
    showing = _command(actions, "show", "print the modules of a model with their parameters")
    showing.add_argument("model", metavar="NAME", help="a name, or the path of a config.json or GGUF file")
    _finish((listing, catalogue.list_models), (showing, catalogue.show_model))


def _add_schema(parser: _Parser) -> None:
    from simoffload.cli import schemas

    kinds = schemas.kinds()
    text = "; ".join(f"{kind}: {what}" for kind, what in kinds.items())
    parser.add_argument("kind", metavar="KIND", choices=kinds, help=text)
    _finish((parser, schemas.print_schema))


def _add_completion(parser: _Parser) -> None:
    from simoffload.cli import completion

    parser.add_argument("shell", metavar="SHELL", choices=("bash", "zsh", "fish"), help="bash, zsh or fish")
    _finish((parser, completion.print_script))


def _finish(*actions: tuple[_Parser, Command]) -> None:
    for parser, command in actions:
        add_json(parser)
        parser.set_defaults(command=command)


_COMMANDS: Mapping[str, tuple[str, Callable[[_Parser], None]]] = {
    "run": ("simulate a scenario: whether it fits, its speed and its bottleneck", _add_run),
    "compare": ("simulate several scenarios, or one on several targets", _add_compare),
    "fit": ("report what each tier must hold and whether it fits, without simulating", _add_fit),
    "advise": (
        "find changes that help, with their costs: drives, memory, cables, batch, settings",
        _add_advise,
    ),
    "reach": ("find the values of a number with which a scenario keeps service levels", _add_reach),
    "check": ("check files: scenarios, profiles, ds_config.json, config.json", _add_check),
    "profiles": ("list, show, check or import hardware profiles", _add_profiles),
    "scenarios": ("list the shipped scenarios", _add_scenarios),
    "models": ("list models or show the modules of one", _add_models),
    "schema": ("print a JSON schema, which editors use to complete and check files", _add_schema),
    "completion": ("print the lines with which a shell completes commands, names and keys", _add_completion),
}
"""Description of each command, and the function that adds its options."""
_EXAMPLE: Mapping[str, str] = {
    "run": "run gpt-oss-120b --gpu rtx-4090 --memory 64GB",
    "compare": "compare llama-3.1-405b --gpu h100-sxm --gpus 8 --drive 4xmicron-9550-pro-7.68tb,ddn-ai400x2",
    "fit": "fit llama-3.3-70b --gpu rtx-4090 --memory 64GB",
    "advise": "advise qwen3-8b --gpu rtx-4090 --set workload.kind=training",
    "reach": "reach qwen3-8b --gpu rtx-4090 --slo tpot=50ms --by workload.batch_size",
    "check": "check scenario.yaml config.json model.gguf",
    "profiles": "profiles list drive",
    "scenarios": "scenarios list",
    "models": "models show qwen3-8b",
    "schema": "schema scenario",
    "completion": "completion bash",
    "profiles list": "profiles list gpu",
    "profiles show": "profiles show rtx-4090",
    "profiles check": "profiles check machine.yaml",
    "scenarios list": "scenarios list",
    "models list": "models list --year 2026",
    "models show": "models show qwen3-8b",
}
"""An example of each command and of each of its actions."""
