"""Bars that the package keeps, read from its syntax; each check is shown to find what breaks it."""

from __future__ import annotations

import ast
import inspect
import io
import pkgutil
import re
import subprocess
import sys
import tokenize
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import pytest

import simoffload
from simoffload import strategies
from simoffload.documents import Frozen
from simoffload.models.families import FAMILIES, OWN_FILES
from simoffload.strategies import Plan, Strategy, registry

PACKAGE = Path(simoffload.__file__).parent
BESIDE = [
    one for name in ("simoffload_calibrate", "validation") for one in PACKAGE.parent.glob(f"{name}/**/*.py")
]
"""Files that use the package and are used by none of it."""
LONGEST_FUNCTION = 60
REAL = ("simoffload_calibrate/", "validation/")
"""These set predictions beside real runs of one kind, and know which: the bars on kinds do not hold there."""


OF_PROGRAMS = ("strategies/", "extensions/programs/", "extensions/storage/")
"""Where programs are, which know their kind."""


class Source(NamedTuple):
    """A file of the package or of validation/, or one that a test makes up."""

    path: str
    """Below the package; of validation/ and simoffload_calibrate/ below the repository."""
    text: str

    @property
    def nodes(self) -> Sequence[ast.AST]:
        return _nodes(self.text)


@cache
def _nodes(text: str) -> tuple[ast.AST, ...]:
    """What a file says, parsed and walked once for all checks."""
    return tuple(ast.walk(ast.parse(text)))


Check = Callable[[Source], Iterable[str]]

SOURCES = [Source(path.relative_to(PACKAGE).as_posix(), path.read_text()) for path in PACKAGE.rglob("*.py")]
SOURCES += [Source(path.relative_to(PACKAGE.parent).as_posix(), path.read_text()) for path in BESIDE]


def broken(check: Check, sources: Iterable[Source] = SOURCES) -> list[str]:
    """What a check finds, each with its file."""
    return [f"{source.path}: {found}" for source in sources for found in check(source)]


def name_of(node: ast.AST) -> str:
    """The last part of a dotted name; empty for anything else."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


# -- kinds of strategies and families ----------------------------------------------------------


def all_below(kind: type) -> set[str]:
    return {kind.__name__}.union(*(all_below(one) for one in kind.__subclasses__()))


def names_of_kinds() -> set[str]:
    """Names of all classes that derive from Strategy or from Plan, and of the union of the first."""
    for module in pkgutil.walk_packages(strategies.__path__, "simoffload.strategies."):
        import_module(module.name)
    strategies.strategies()  # those of extensions, too
    return {"AnyStrategy"} | (all_below(Strategy) | all_below(Plan)) - {"Plan", "Strategy"}


KINDS = names_of_kinds()


def asks_for_a_kind(source: Source) -> Iterator[str]:
    """``isinstance``, ``issubclass``, ``type(…) is`` and patterns on a kind of strategy or of plan."""
    if source.path.startswith((*OF_PROGRAMS, *REAL)):
        return
    for node in source.nodes:
        match node:
            case ast.Call(func=ast.Name(id="isinstance" | "issubclass" as how), args=[_, kinds]):
                for one in ast.walk(kinds):
                    if name_of(one) in KINDS:
                        yield f"{how} of {name_of(one)}"
            case ast.MatchClass(cls=kind) if name_of(kind) in KINDS:
                yield f"case {name_of(kind)}"
            case ast.Compare(left=ast.Call(func=ast.Name(id="type")), comparators=others):
                for other in others:
                    for one in ast.walk(other):
                        if name_of(one) in KINDS:
                            yield f"type is {name_of(one)}"


def names_a_family(source: Source) -> Iterator[str]:
    """As a whole string; the models themselves do."""
    if source.path.startswith(("models/", *REAL)):
        return
    for node in source.nodes:
        if isinstance(node, ast.Constant) and node.value in FAMILIES:
            yield str(node.value)


def asks_for_a_tier(source: Source) -> Iterator[str]:
    """Comparisons with the name of a memory, patterns, and tables and sets of such names: what a tier can do
    is in the row of its kind."""
    if source.path == "hardware/tiers.py" or source.path.startswith(REAL):
        return
    for node in source.nodes:
        match node:
            case ast.Compare(left=left, comparators=others):
                found = [left, *others]
            case ast.Dict(keys=keys):
                found = [key for key in keys if key is not None]
            case ast.Set(elts=found) | ast.MatchOr(patterns=found):
                pass
            case ast.MatchValue(value=value):
                found = [value]
            case ast.Assign(value=ast.Tuple() as value) | ast.AnnAssign(value=ast.Tuple() as value):
                found = [value] if len(value.elts) > 1 else []
            case _:
                continue
        found += [one for each in found if isinstance(each, ast.Tuple | ast.List) for one in each.elts]
        if any(isinstance(one, ast.Constant) and one.value in ("hbm", "dram") for one in found):
            yield f"line {node.lineno}: asks whether a tier is hbm or dram"


def asks_for_a_tier_by_name(source: Source) -> Iterator[str]:
    """Calls that know no more than the name of a tier, and not what it can do."""
    for node in source.nodes:
        if isinstance(node, ast.Call) and name_of(node.func) in ("in_hbm", "in_dram"):
            yield f"line {node.lineno}: {name_of(node.func)}"


MOST_BY_NAME = 21
"""Ceiling of such calls, which may only fall: a machine, its tiers and results know rows."""


def test_few_ask_for_a_tier_by_its_name() -> None:
    assert len(broken(asks_for_a_tier_by_name)) == MOST_BY_NAME


# -- who calls whom ------------------------------------------------------------------------------


def calls_the_engine(source: Source) -> Iterator[str]:
    if source.path == "simulation/runner.py" or source.path.startswith(("engine/", "simoffload_calibrate/")):
        return
    for node in source.nodes:
        match node:
            case ast.ImportFrom(module=str(module), names=names):
                found = [module, *(f"{module}.{one.name}" for one in names)]
            case ast.Import(names=names):
                found = [one.name for one in names]
            case _:
                continue
        if any(f"{one}.".startswith("simoffload.engine.") for one in found):
            yield f"imports {found[0]}"


FACES = ("documents", "hardware", "results", "schedule")
"""Packages whose ``__init__`` names all that others use of them, so that their files may be rearranged."""
APART = ("documents.json_schema",)
"""Files that no ``__init__`` imports, because one command alone needs them."""
ABOVE = ("simoffload_calibrate/", "validation/", "__init__.py")


def goes_past_a_face(source: Source) -> Iterator[str]:
    """Import from a file of another package whose ``__init__`` has the name."""
    own = source.path.partition("/")[0]
    if source.path.startswith(ABOVE):
        return
    for node in source.nodes:
        if isinstance(node, ast.ImportFrom):
            root, *inner = (node.module or "").split(".")
            if ".".join(inner) in APART or root != "simoffload" or len(inner) < 2:
                continue
            if inner[0] in FACES and inner[0] != own:
                yield f"imports {node.module}"


EDITS = "documents/edits.py"
OWN_VALUES = {
    "hardware/changes.py": "what a platform's slots hold",
    "hardware/profiles.py": "a GPU with the rates that its power limit leaves",
    "hardware/unmeasured.py": "profiles completed by numbers of another machine",
    "planning/costs.py": "lists of prices laid over each other",
    "scenario/loading.py": "names of tiers as the machine has them, and ranks of a default scenario",
    "extensions/storage/data_loading.py": "numbers of workers that are tried",
    "workload.py": "work until the caches are full, for which memory is planned",
}
"""Where values that are no scenario's document are copied with changes, and what they are."""


def edits_a_document(source: Source) -> Iterator[str]:
    """By hand, in place of an Edit: ``replace(…, data=…)``, ``model_copy(update=…)``, or a function of edits.

    A strategy changes its own settings, which it writes as a section of a document (``instead``).
    """
    if source.path == EDITS or source.path.startswith((*OF_PROGRAMS, *REAL)):
        return
    for node in source.nodes:
        match node:
            case ast.Call(func=function, keywords=keywords):
                given = {one.arg for one in keywords}
                if name_of(function) == "replace" and "data" in given:
                    yield "replace(…, data=…)"
                if name_of(function) == "model_copy" and "update" in given and source.path not in OWN_VALUES:
                    yield "model_copy(update=…)"
            case ast.FunctionDef(name="with_value" | "set_value" as name):
                yield f"def {name}"


# -- texts that only people read -----------------------------------------------------------------

TEXTS = {"cause_text", "bottleneck", "title"}
"""The text of a cause (the function and the property of a share), that of the cause that takes longest, and
the title of a part of a step."""
READS = {
    *("count", "endswith", "find", "findall", "finditer", "fullmatch", "get", "index", "match", "partition"),
    *("removeprefix", "removesuffix", "replace", "rfind", "rindex", "rpartition", "rsplit", "search"),
    *("split", "splitlines", "startswith", "strip", "sub"),
}
"""Methods that take a text apart, search in it, or look something up by it."""


def is_text(node: ast.AST, names: Container[str]) -> bool:
    """Whether an expression is a text for people, or one of the variables with one."""
    match node:
        case ast.Call(func=function):
            return name_of(function) == "cause_text"
        case ast.Attribute(attr=name):
            return name in TEXTS
        case ast.Name(id=name):
            return name in names
    return False


def reads_a_text(source: Source) -> Iterator[str]:
    """Any decision by the text of a cause or the title of a part: what is printed is never read back.

    Causes have fields, and parts a kind. Reports alone may shorten the texts that they print.
    """
    if source.path.startswith(("report/", *REAL)):
        return
    names = {
        name_of(target)
        for node in source.nodes
        if isinstance(node, ast.Assign) and is_text(node.value, ())
        for target in node.targets
    } - {""}
    for node in source.nodes:
        match node:
            case ast.Compare(left=left, comparators=others):
                found, how = [left, *others], "compares"
                if any(isinstance(one, ast.Attribute) and one.attr == "cause" for one in found) and any(
                    isinstance(one, ast.Constant | ast.JoinedStr) for one in found
                ):
                    yield f"line {node.lineno}: compares a cause with a text"
            case ast.Call(func=ast.Attribute(attr=how, value=value), args=args) if how in READS:
                found = [value, *args]
            case ast.Subscript(value=value, slice=key):
                found, how = [value, key], "looks up"
            case ast.Match(subject=subject):
                found, how = [subject], "matches"
            case _:
                continue
        if any(is_text(one, names) for one in found):
            yield f"line {node.lineno}: {how} a text"


# -- sizes ---------------------------------------------------------------------------------------


_PROGRAMS = r"DeepSpeed|FlexGen|ZeRO-[0-9I]"


def names_a_program(source: Source) -> Iterator[str]:
    """Texts for users in modules that know no strategy: what a program does is said by its strategy."""
    if not source.path.startswith(("engine/", "report/", "results/", "scenario/", "simulation/")):
        return
    docstrings = {id(node.value) for node in source.nodes if isinstance(node, ast.Expr)}
    for node in source.nodes:
        match node:
            case ast.Constant(value=str(text)) if id(node) not in docstrings:
                yield from (f"line {node.lineno}: {name}" for name in re.findall(_PROGRAMS, text))


def is_long(source: Source) -> Iterator[str]:
    for node in source.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and body(node) > LONGEST_FUNCTION:
            yield f"{node.name} has {body(node)} lines"


def body(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from ``def`` to the last statement, without the docstring."""
    length = (function.end_lineno or function.lineno) - function.lineno + 1
    if ast.get_docstring(function) is not None:
        docstring = function.body[0]
        length -= (docstring.end_lineno or docstring.lineno) - docstring.lineno + 1
    return length


BROKEN: list[tuple[Check, str, str]] = [
    (asks_for_a_kind, "planning/a.py", "isinstance(one, Transformers)"),
    (asks_for_a_kind, "planning/a.py", "isinstance(one, strategies.Fsdp | Training)"),
    (asks_for_a_kind, "report/a.py", "issubclass(one, (ZeroTrainingPlan, int))"),
    (asks_for_a_kind, "report/a.py", "match plan:\n    case CheckpointPlan(tier=tier):\n        pass"),
    (asks_for_a_kind, "cli/a.py", "type(one) is ZeroInference"),
    (names_a_family, "strategies/a.py", "if shape.family == 'bloom':\n    pass"),
    (asks_for_a_tier, "planning/a.py", "if use.kind == 'hbm':\n    pass"),
    (asks_for_a_tier, "planning/a.py", "if tier not in ('', 'dram'):\n    pass"),
    (asks_for_a_tier, "planning/a.py", "_MEMORY = {'hbm', GPU}"),
    (asks_for_a_tier, "strategies/a.py", "home = {'dram': 'cpu'}.get(tier.kind, 'cuda')"),
    (asks_for_a_tier, "planning/a.py", "class A:\n    memories: Collection[str] = (HBM.tier, 'dram')"),
    (asks_for_a_tier, "planning/a.py", "_TAKEN = (CPU, 'hbm', 'dram')"),
    (asks_for_a_tier, "strategies/a.py", "match tier:\n    case 'hbm':\n        pass"),
    (calls_the_engine, "planning/a.py", "def run():\n    from simoffload.engine import execute"),
    (calls_the_engine, "simulation/a.py", "from simoffload.engine.network import Network"),
    (calls_the_engine, "simulation/metrics.py", "import simoffload.engine.loop"),
    (calls_the_engine, "report/a.py", "from simoffload import engine"),
    (goes_past_a_face, "report/a.py", "from simoffload.results.capacity import TierUse"),
    (edits_a_document, "planning/a.py", "document = replace(document, data={})"),
    (edits_a_document, "planning/a.py", "dataclasses.replace(document, data={})"),
    (edits_a_document, "planning/a.py", "scenario = scenario.model_copy(update={'name': 'b'})"),
    (edits_a_document, "cli/a.py", "def with_value(tree, path, value):\n    pass"),
    (reads_a_text, "planning/a.py", "if 'gather' in cause_text(share.cause):\n    pass"),
    (reads_a_text, "planning/a.py", "way = share.cause_text.removesuffix(' read')"),
    (reads_a_text, "planning/a.py", "found = _OF_CACHE.fullmatch(share.cause_text)"),
    (reads_a_text, "planning/a.py", "text = cause_text(cause)\nfound = re.match('raid', text)"),
    (reads_a_text, "planning/a.py", "hidden = result.bottleneck not in ('raid read', 'raid write')"),
    (reads_a_text, "planning/a.py", "slow = share.cause == 'raid read'"),
    (reads_a_text, "strategies/a.py", "out = route.cause_text.startswith('GPU to host')"),
    (reads_a_text, "strategies/a.py", "write = self.step.writers.get(part.title)"),
    (reads_a_text, "strategies/a.py", "match part.title:\n    case 'optimizer':\n        pass"),
    (reads_a_text, "results/a.py", "group = GROUPS[cause_text(cause)]"),
    (names_a_program, "results/a.py", "text = 'the time in which DeepSpeed waits'"),
    (is_long, "cli/a.py", "def long():\n" + "    one = 1\n" * 60),
]


@pytest.mark.parametrize(("check", "path", "text"), BROKEN)
def test_a_check_finds_what_breaks_it(check: Check, path: str, text: str) -> None:
    assert len(broken(check, [Source(path, text)])) == 1


@pytest.mark.parametrize("check", dict.fromkeys(check for check, _, _ in BROKEN))
def test_the_package_keeps_the_bars(check: Check) -> None:
    assert len(SOURCES) > 200
    assert broken(check) == []


BEFORE = 40
"""Lines that types and validators of the keys of a program may take before its class."""


def begins_with_its_class(path: Path, name: str) -> bool:
    """Whether the first class of a file is the one of a name, few lines after the imports."""
    body = ast.parse(path.read_text()).body
    imports = [node for node in body if isinstance(node, ast.Import | ast.ImportFrom | ast.If)]
    first = next(node for node in body if isinstance(node, ast.ClassDef))
    return first.name == name and first.lineno - (imports[-1].end_lineno or 0) <= BEFORE


def test_a_program_begins_with_its_keys_homes_and_hooks() -> None:
    """Of two classes in a file, the one that is registered first; checks and texts follow."""
    files: dict[Path, str] = {}
    for one in registry._offered():
        module, _, name = one.place.partition(":")
        if ".programs." in module:
            files.setdefault(PACKAGE.parent / f"{module.replace('.', '/')}.py", name)
    files[PACKAGE / "strategies/programs/transformers.py"] = "Transformers"  # that of training is the shorter
    assert len(files) >= 10
    assert [path.name for path, name in files.items() if not begins_with_its_class(path, name)] == []
    assert not begins_with_its_class(PACKAGE / "strategies/programs/vllm_engine.py", "VllmEngine")


def test_kinds_are_known() -> None:
    assert {"CheckpointStorage", "Fsdp", "Transformers", "ZeroInference", "ZeroInferencePlan"} < KINDS


def test_no_exception_outlives_its_reason() -> None:
    copying = {source.path for source in SOURCES if "model_copy(" in source.text}
    assert set(OWN_VALUES) <= copying


# -- what others may ask of a kind ---------------------------------------------------------------

MEMBERS = {Strategy: 15, Plan: 10}
"""Largest number of public members of a class from which others derive."""
DERIVED = re.compile("home|memor|movable|moves|place|target|tier|traffic")
"""What follows from where the tensors are, or is a tunable, and so is no member."""


def members(kind: type) -> set[str]:
    """Public names that a class defines itself: fields, class variables, methods and properties."""
    names = vars(kind).keys() | vars(kind).get("__annotations__", {}).keys()
    return {one for one in names if not one.startswith(("_", "model_")) and one not in dir(Frozen)}


def misplaced(names: Iterable[str]) -> list[str]:
    return sorted(filter(DERIVED.search, names))


@pytest.mark.parametrize(("kind", "most"), MEMBERS.items())
def test_a_kind_has_few_members(kind: type, most: int) -> None:
    assert {"kind", "ranks", "serves", "gpus", "plan", "tunables"} <= members(Strategy)
    assert {"held", "phases", "basis"} < members(Plan)
    assert len(members(kind)) <= most
    assert misplaced(members(kind)) == []
    older = {"moves", "placements", "retarget", "memory_stages", "tier_keys", "plan", "replicas"}
    assert older - {*misplaced(older)} == {"plan", "replicas"}


# -- a straight line -----------------------------------------------------------------------------

PASSED = f"""
import sys
import simoffload as so

passed = set()

def note(frame, event, _):
    name = frame.f_globals.get("__name__", "")
    code = frame.f_code
    if event == "call" and code.co_flags & {inspect.CO_OPTIMIZED} and code.co_name != "__create_fn__":
        if name.startswith("simoffload."):
            passed.add(name)

scenario = so.load_scenario(sys.argv[1])
sys.setprofile(note)
so.simulate(scenario)
sys.setprofile(None)
print(*passed)
"""


MOST_MODULES = 88


@pytest.mark.parametrize(
    "scenario",
    [
        "ddn/bloom-7b1",
        "checkpoint/mlperf-8b",
        "checkpoint/llama-3.1-8b-training",
    ],
)
def test_a_simulation_passes_few_modules(scenario: str) -> None:
    """Modules of which a function is called; what dataclasses make on import is none.

    The last scenario trains on a data set and saves checkpoints, and so passes most.
    """
    run = subprocess.run([sys.executable, "-c", PASSED, scenario], capture_output=True, text=True, check=True)
    passed = run.stdout.split()
    assert "simoffload.engine.loop" in passed
    assert len(passed) <= MOST_MODULES, sorted(passed)
    assert not [name for name in passed if name.startswith(("simoffload.report", "simoffload.cli"))]
    assert sorted(name for name in passed if name.startswith("simoffload.planning")) == [
        "simoffload.planning.answers",
        "simoffload.planning.question",
    ]


@pytest.mark.parametrize(
    ("scenario", "fits"),
    [
        ("ddn/bloom-7b1", True),
        ("xinnor/llama-1b", True),
        ("fsdp/llama-3.1-8b", True),
        ("checkpoint/mlperf-8b", True),
        ("checkpoint/llama-3.1-8b-training", True),
        ("ddn/bloom-176b strategy.weights=hbm", False),
    ],
)
def test_a_simulation_plans_once(scenario: str, fits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading comes before, reporting after; nothing on the way goes back to the strategy."""
    name, *overrides = scenario.split()
    loaded, planned = simoffload.load_scenario(name, overrides=overrides), []
    kind = type(loaded.scenario.strategy)
    plan = kind.plan

    def counted(self: Strategy, *about: object) -> Plan:
        planned.append(about)
        return plan(self, *about)

    monkeypatch.setattr(kind, "plan", counted)
    assert simoffload.simulate(loaded).fits is fits
    assert len(planned) == 1


def import_edges(sources: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
    """Pairs of modules of which the first imports the second, of files given as (path, text)."""
    texts = {
        path.removesuffix(".py").replace("/", ".").removesuffix(".__init__"): text for path, text in sources
    }
    found = set()
    for module, text in texts.items():
        for node in _nodes(text):
            match node:
                case ast.ImportFrom(module=str(origin), names=names, level=0):
                    targets = [f"{origin}.{one.name}" for one in names]
                    targets = [one if one in texts else origin for one in targets]
                case ast.Import(names=names):
                    targets = [one.name for one in names]
                case _:
                    continue
            found |= {(module, one) for one in targets if one in texts and one != module}
    return found


_NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}


def code_lines(text: str) -> int:
    """Lines of a file without comments, docstrings, texts that stand alone, and blank ones."""
    texts: set[int] = set()
    for node in _nodes(text):
        match node:
            case ast.Expr(value=ast.Constant(value=str()), lineno=first, end_lineno=int(last)):
                texts |= {*range(first, last + 1)}
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    code = (one for one in tokens if one.type not in {*_NO_CODE, tokenize.ENDMARKER})
    return len({row for one in code for row in range(one.start[0], one.end[0] + 1)} - texts)


class Size(NamedTuple):
    """How much there is of a part of the package."""

    lines: int
    """Lines of code."""
    edges: int
    """Pairs of files of which one imports the other, types and late imports included."""


MOST = {
    "core": Size(lines=48_700, edges=1_420),
    "simoffload": Size(lines=61_600, edges=1_826),
    "simoffload_calibrate": Size(lines=10_700, edges=92),
}
"""Ceilings, which only a commit with a feature raises, by the lines that its message names. ``core`` is the
package without its extensions. Families with files of their own do not count."""
MOST_OF_A_FAMILY = 90
"""Lines of code of a family with a file of its own."""


FILES_OF_FAMILIES = {name: PACKAGE / "models" / "families" / f"{name}.py" for name in OWN_FILES}


def files_of(part: str) -> list[tuple[str, str]]:
    root = PACKAGE.parent / ("simoffload" if part == "core" else part)
    paths = [one for one in root.rglob("*.py") if part != "core" or "extensions" not in one.parts]
    return [
        (path.relative_to(PACKAGE.parent).as_posix(), path.read_text())
        for path in paths
        if path not in FILES_OF_FAMILIES.values()
    ]


def size_of(part: str) -> Size:
    files = files_of(part)
    return Size(sum(code_lines(text) for _, text in files), len(import_edges(files)))


@pytest.mark.parametrize("part", MOST)
def test_the_package_stays_small(part: str) -> None:
    """A ceiling is no more than a hundredth above what there is: it falls with what goes."""
    found, most = size_of(part), MOST[part]
    for name, now, ceiling in zip(Size._fields, found, most, strict=True):
        assert ceiling * 0.99 - 5 <= now <= ceiling, f"{part} has {now} {name}"


@pytest.mark.parametrize("name", OWN_FILES)
def test_a_family_stays_in_its_file(name: str) -> None:
    """No code, page or table has its name but its file, the sizes of released models, and the names of other
    parts that such models have; sources in docstrings and comments are not code."""
    own = FILES_OF_FAMILIES[name]
    assert code_lines(own.read_text()) <= MOST_OF_A_FAMILY
    said = re.compile(rf"(?<![\w-]){name.replace('_', '[-_]')}(?![\w-])")
    free = {own, *(PACKAGE / "models" / one for one in ("sizes.yaml", "towers.yaml"))}
    files = [one for one in PACKAGE.rglob("*") if one.suffix in SUFFIXES_OF_CODE and one not in free]
    texts = {one: text for one in files if said.search(text := one.read_text())}
    assert [
        one for one, text in texts.items() if said.search(code_of(text) if one.suffix == ".py" else text)
    ] == []


SUFFIXES_OF_CODE = frozenset({".css", ".html", ".js", ".json", ".py", ".yaml"})


def code_of(text: str) -> str:
    """The code of a file without docstrings and comments."""
    parsed = ast.parse(text)
    for node in ast.walk(parsed):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            kept = [
                one for one in body if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))
            ]
            node.body = kept or [ast.Pass()]  # type: ignore[attr-defined]
    return ast.unparse(parsed)


def test_sources_of_a_file_are_no_code() -> None:
    text = '"""Of step3p7."""\n# step3p7\nfamily = "other"\n"""step3p7"""\n'
    assert "step3p7" not in code_of(text)
    assert "step3p7" in code_of('def f():\n    """Doc."""\n    return kind == "step3p7"\n')


def test_lines_of_code_are_counted() -> None:
    text = '"""Text\nof a file."""\n\n# why\na = 1  # what\n"""of a"""\nb = (\n    2,\n)\n\n\n'
    text += 'def c():\n    """Doc."""\n'
    assert code_lines(text) == 5


def test_import_edges_of_two_modules() -> None:
    files = [
        ("p/a.py", "from p import b\nimport p.c\nimport json"),
        ("p/b.py", "from p.b import x"),
        ("p/c.py", ""),
    ]
    assert import_edges(files) == {("p.a", "p.b"), ("p.a", "p.c")}


def circles(edges: Iterable[tuple[str, str]]) -> set[frozenset[str]]:
    """Modules each of which imports itself through the others, types and late imports included."""
    after: dict[str, set[str]] = {}
    for one, other in edges:
        after.setdefault(one, set()).add(other)

    def reached(start: str) -> set[str]:
        found, ahead = set[str](), [start]
        while ahead:
            ahead += (new := after.get(ahead.pop(), set()) - found)
            found |= new
        return found

    beyond = {one: reached(one) for one in after}
    return {
        frozenset(other for other in far if one in beyond.get(other, ()))
        for one, far in beyond.items()
        if one in far
    }


def rooms(circle: Iterable[str]) -> set[str]:
    """The folders of the package, or of its extensions, that have a part in a circle."""
    below = (one.removeprefix("simoffload.").removeprefix("extensions.") for one in circle)
    return {one.partition(".")[0] for one in below}


def test_circles_of_imports_are_inside_one_folder() -> None:
    paths = [
        (path.relative_to(PACKAGE.parent).as_posix(), path.read_text()) for path in PACKAGE.rglob("*.py")
    ]
    found = circles(import_edges(paths))
    assert [sorted(one) for one in found if len(rooms(one)) > 1] == []


def test_a_circle_through_types_and_late_imports_is_found() -> None:
    files = [
        ("simoffload/a/b.py", "if TYPE_CHECKING:\n    from simoffload.c import d"),
        ("simoffload/c/d.py", "from simoffload.e import f"),
        ("simoffload/e.py", "def f():\n    import simoffload.a.b\n    import simoffload.g"),
        ("simoffload/g.py", ""),
    ]
    (found,) = circles(import_edges(files))
    assert found == {"simoffload.a.b", "simoffload.c.d", "simoffload.e"}
    assert rooms(found) == {"a", "c", "e"}
