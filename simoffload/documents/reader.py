"""One reader for YAML and JSON: it builds a plain tree and notes the position of every key and value.

libyaml checks the syntax of YAML, and the standard library that of JSON. Both become events of PyYAML, from
which one class makes the tree, so that limits, positions and messages are the same. JSON is not read as
YAML, because YAML knows no escaped surrogate pairs and limits keys to 1024 characters.

Plain scalars follow the core schema of YAML 1.2 (https://yaml.org/spec/1.2.2/#103-core-schema). PyYAML's own
loaders follow YAML 1.1, in which ``1e9`` is text, ``NO`` is false, ``12:30`` is 750 and ``017`` is 15.
"""

from __future__ import annotations

import json
import math
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import yaml

from simoffload.documents.document import (
    MOST_PROBLEMS,
    Document,
    Location,
    Mark,
    Position,
    input_error,
    key_path,
    quoted,
)
from simoffload.errors import InputError, Problem, shortened

DEEPEST = 32
"""The most levels that a document may nest."""
_LONGEST, _LONGEST_OF_PYTHON = 1_000_000, 8_000_000
"""[B] The longest document, and the longest that a program wrote: a config.json of Hugging Face that lists
every module that is not quantized has 3 MB."""
_LEAST_OF_NODE = 20
"""Characters for each entry of the longest document: our choice."""
_MOST_DIGITS = 30
_LONGEST_FLOAT = 60

_CONTROL = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff\ufffe\uffff]")
"""Characters that YAML refuses (https://yaml.org/spec/1.2.2/#51-character-set)."""
_BEGINS_NUMBER = frozenset("0123456789+-.")
_JOINED = re.compile(r"([A-Za-z_][\w.-]*):([^\s/].*)")
"""A key of a flow mapping such as {kind:x}, which YAML reads as the key "kind:x" without a value."""
_UNUSABLE = re.compile("[\0\ud800-\udfff]")
"""Characters that an escape sequence can express but no file or path can contain."""
_TAG_DIRECTIVE = re.compile("^%TAG", re.MULTILINE)
"""A directive of YAML about tags, of which libyaml compares each with all others: 50,000 take ten seconds."""
_TOKEN = re.compile(r'\n|[{}\[\]]|"[^"\\]*(?:\\.[^"\\]*)*"|[-+.\w]+')
"""The tokens of JSON whose syntax is already checked."""
_KEYWORDS: dict[str, bool | None] = {
    **dict.fromkeys(["", "~", "null", "Null", "NULL"]),
    **dict.fromkeys(["true", "True", "TRUE"], True),
    **dict.fromkeys(["false", "False", "FALSE"], False),
}
_NUMBER = re.compile(
    r"(?P<integer>[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)"
    r"|(?P<float>[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?)"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
)
_NO_ENTRY = ("did not find expected key", "did not find expected '-'", "expected <block end>")
"""The beginnings of the messages of libyaml and PyYAML about a line whose indentation matches no entry."""
# The C parser is ten times as fast; wheels of PyYAML have it, other builds may not.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def parse_yaml(text: str, *, name: str, root: Path | None = None, any_value: bool = False) -> Document:
    """Read YAML text with a mapping, or ``any_value``, at its top level; messages call the file ``name``.

    Raises InputError.
    """
    tree = _Tree(name, text)
    if directive := _TAG_DIRECTIVE.search(text):
        line = Position(text.count("\n", 0, directive.start()) + 1, 1)
        raise tree.refusal(line, "directives about tags (%TAG) are not accepted; remove the line")
    next_event = _LOADER(text).get_event
    try:
        next_event()  # the start of the stream
        if not isinstance(next_event(), yaml.StreamEndEvent):
            tree.read(next_event)
            next_event()  # the end of the document
            if not isinstance(event := next_event(), yaml.StreamEndEvent):
                raise tree.refusal(_position(event), "a second document begins; a file may contain only one")
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        position = Position(mark.line + 1, mark.column + 1) if mark else None
        raise tree.refusal(position, f"not valid YAML: {_explain(error, text.splitlines())}") from None
    return tree.document(root, any_value=any_value)


def parse_json(text: str, *, name: str, root: Path | None = None, of_python: bool = False) -> Document:
    """Read JSON text with a mapping at its top level; messages call the file ``name``.

    That ``of_python``'s programs may be long, and may have NaN and Infinity, which are read as text. Raises
    InputError.
    """
    tree = _Tree(name, text, of_python=of_python)
    if text.strip(" \t\r\n"):
        try:
            json.loads(text, parse_int=str, parse_float=str)
        except json.JSONDecodeError as error:
            raise tree.refusal(*_json_refusal(error)) from None
        except RecursionError:
            pass  # the depth limit below refuses it, with its position
        tree.read(_json_events(text).__next__)
    return tree.document(root)


def plain_document(data: Mapping[str, Any], *, name: str) -> Document:
    """Return a mapping of Python as a document in the working folder, whose problems name keys alone.

    Raises InputError for what no file can hold.
    """
    try:
        text = json.dumps(data, default=_plain)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError.at("", f"is no plain data: {error}", path=name) from None
    return replace(parse_json(text, name=name, root=Path()), marks={})


_MOST_OF_RANGE = 1_000_000
"""Longest range that is written as a list."""


def _plain(value: Any) -> Any:
    """Return numbers and arrays of NumPy, ranges and paths as plain data."""
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, range):
        if value[_MOST_OF_RANGE:]:
            raise ValueError(f"a range of more than {_MOST_OF_RANGE:,} values is too long")
        return list(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} cannot be written in a file")


def _json_refusal(error: json.JSONDecodeError) -> tuple[Position, str]:
    """Return where JSON is wrong and why, in the words of Python 3.13, which names a comma too many."""
    ends = {"}": "object", "]": "array"}
    before, after = error.doc[: error.pos].rstrip(), error.doc[error.pos : error.pos + 1]
    if before.endswith(",") and after in ends:
        text = f"Illegal trailing comma before end of {ends[after]}"
        error = json.JSONDecodeError(text, error.doc, len(before) - 1)
    reason = (error.msg[0].lower() + error.msg[1:]).replace("extra data", "extra data after the end")
    return Position(error.lineno, error.colno), f"not valid JSON: {reason}"


def is_text(plain: str) -> bool:
    """Return whether a plain scalar of YAML is read as text."""
    try:
        return isinstance(_parsed(plain), str)
    except ValueError:
        return False


def _parsed(text: str) -> str | int | float | bool | None:
    """Parse a plain (unquoted) scalar as a word such as ``true``, a number, or else text.

    Raises ValueError for a number that is too long or beyond the range of a float.
    """
    if text in _KEYWORDS:
        return _KEYWORDS[text]
    if text[0] not in _BEGINS_NUMBER or not (match := _NUMBER.fullmatch(text)):
        return text
    if match.lastgroup is None:
        return float(text.replace(".", ""))
    if match.lastgroup == "integer":
        if len(text) > _MOST_DIGITS:
            raise ValueError(f"an integer of {len(text)} digits is too long (at most {_MOST_DIGITS})")
        return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))
    if len(text) > _LONGEST_FLOAT:
        raise ValueError(f"a number of {len(text)} characters is too long (at most {_LONGEST_FLOAT})")
    if math.isinf(number := float(text)):
        raise ValueError(f"{text} is too large for a number (at most 1.8e308)")
    return number


class _TokenMark(NamedTuple):
    """The place where a token of JSON begins; both numbers count from 0, as in PyYAML's marks."""

    line: int
    column: int


def _json_events(text: str) -> Iterator[yaml.Event]:
    """Return the events of a JSON text whose syntax is already checked."""
    line = line_start = 0
    for match in _TOKEN.finditer(text):
        token = match.group()
        if token == "\n":
            line, line_start = line + 1, match.end()
            continue
        mark: Any = _TokenMark(line, match.start() - line_start)
        if token == "{":
            yield yaml.MappingStartEvent(None, None, True, mark)
        elif token == "[":
            yield yaml.SequenceStartEvent(None, None, True, mark)
        elif token == "}":
            yield yaml.MappingEndEvent(mark)
        elif token == "]":
            yield yaml.SequenceEndEvent(mark)
        elif token[0] == '"':
            value = json.loads(token) if "\\" in token else token[1:-1]
            yield yaml.ScalarEvent(None, None, (False, True), value, mark)
        else:
            yield yaml.ScalarEvent(None, None, (True, False), token, mark, style="json")


def _is_plain(event: Any) -> bool:
    """Whether an event is a scalar without quotes."""
    return isinstance(event, yaml.ScalarEvent) and bool(event.implicit[0])


def _is_empty(event: Any) -> bool:
    return _is_plain(event) and event.value == ""


def _position(event: yaml.Event) -> Position:
    mark = event.start_mark
    return Position(mark.line + 1, mark.column + 1) if mark else Position(1, 1)


class _Tree:
    """Builds a tree from events by recursive descent; the depth limit bounds the recursion.

    Raises InputError if the text is too long or contains characters of binary files.
    """

    def __init__(self, path: str, text: str, *, of_python: bool = False) -> None:
        self._path, self._of_python = path, of_python
        most = _LONGEST_OF_PYTHON if of_python else _LONGEST
        self._most_nodes = most // _LEAST_OF_NODE
        self._data: Any = None
        self._marks: dict[Location, Mark] = {}
        self._problems: list[Problem] = []
        self._escapes = "\\" in text
        if len(text) > most:
            raise self.refusal(None, f"larger than {most // 10**6} MB")
        if control := _CONTROL.search(text):
            start = control.start()
            position = Position(text.count("\n", 0, start) + 1, start - text.rfind("\n", 0, start))
            raise self.refusal(position, f"not text: it contains the character U+{ord(control[0]):04X}")

    def read(self, next_event: Callable[[], yaml.Event]) -> None:
        """Read the top-level value. Raises InputError for a problem after which reading cannot go on."""
        self._next = next_event
        self._data = self._node(next_event(), ())

    def document(self, root: Path | None, *, any_value: bool = False) -> Document:
        """Return the document.

        Raises InputError for problems, and, without ``any_value``, for a top level that is not a mapping.
        """
        if self._problems:
            raise input_error(self._problems)
        if not any_value and self._data is None:
            raise self.refusal(None, "the document is empty")
        if not any_value and not isinstance(self._data, dict):
            kind = "a list" if isinstance(self._data, list) else "a single value"
            message = f"must have keys and values at its top level, not {kind}"
            raise self.refusal(self._marks[()].value, message)
        return Document(self._path, self._data, root, self._marks)

    def refusal(self, position: Position | None, message: str, location: Location = ()) -> InputError:
        """Return the final error, together with the problems found before it."""
        line, column = position or (None, None)
        return input_error([*self._problems, Problem(self._path, line, column, key_path(location), message)])

    def _node(self, event: yaml.Event, location: Location, key: Position | None = None) -> Any:
        """Return the value that begins with an event."""
        position = _position(event)
        if isinstance(event, yaml.AliasEvent):
            self._complain(location, position, 'aliases ("*name") are not accepted; write the value out')
            return None
        self._refuse_extras(event, location, position)
        if len(self._marks) >= self._most_nodes:
            raise self.refusal(position, f"more than {self._most_nodes} entries")
        if isinstance(event, yaml.ScalarEvent):
            self._marks[location] = Mark(position, key, event.value if event.implicit[0] else None)
            return self._scalar(event, location, position)
        if len(location) >= DEEPEST:
            raise self.refusal(position, f"nested deeper than {DEEPEST} levels", location[:3])
        self._marks[location] = Mark(position, key)
        in_list = isinstance(event, yaml.SequenceStartEvent)
        return self._list(location) if in_list else self._mapping(location)

    def _complain(self, location: Location, position: Position, message: str) -> None:
        """Record a problem and continue.

        Raises InputError at the ``MOST_PROBLEMS``-th problem.
        """
        self._problems.append(Problem(self._path, *position, key_path(location), message))
        if len(self._problems) >= MOST_PROBLEMS:
            raise input_error(self._problems)

    def _refuse_extras(self, event: Any, location: Location, position: Position) -> None:
        if event.anchor is not None:
            self._complain(location, position, 'anchors ("&name") are not accepted; remove it')
        if event.tag is not None:
            tag = event.tag.replace("tag:yaml.org,2002:", "!!")
            self._complain(location, position, f"tags such as {quoted(tag)} are not accepted; remove the tag")
        if self._escapes and isinstance(event, yaml.ScalarEvent) and _UNUSABLE.search(event.value):
            message = "text may not contain a NUL character or half of a surrogate pair"
            self._complain(location, position, message)

    def _scalar(self, event: yaml.ScalarEvent, location: Location, position: Position) -> Any:
        if not event.implicit[0]:
            return event.value
        try:
            value = _parsed(event.value)
        except ValueError as error:
            self._complain(location, position, str(error))
            return None
        if event.style == "json" and isinstance(value, str) and not self._of_python:  # NaN, Infinity
            self._complain(location, position, f"{value} is not a number; write a finite one")
        return value

    def _list(self, location: Location) -> list[Any]:
        entries: list[Any] = []
        while not isinstance(event := self._next(), yaml.SequenceEndEvent):
            entries.append(self._node(event, (*location, len(entries))))
        return entries

    def _mapping(self, location: Location) -> dict[str, Any]:
        entries: dict[str, Any] = {}
        lines: dict[str, int] = {}
        while not isinstance(event := self._next(), yaml.MappingEndEvent):
            position = _position(event)
            key = self._key(event, location, position)
            if key is None:
                self._node(self._next(), (*location, "?"))
                continue
            entry = (*location, key)
            if key in lines:
                self._complain(entry, position, f"key given twice (first on line {lines[key]})")
            lines.setdefault(key, position.line)
            value = self._next()
            if ":" in key and _is_plain(event) and _is_empty(value) and (joined := _JOINED.fullmatch(key)):
                text = f"a space is missing after the colon; write {joined[1]}: {shortened(joined[2])}"
                self._complain(entry, position, text)
            entries[key] = self._node(value, entry, position)
        return entries

    def _key(self, event: yaml.Event, location: Location, position: Position) -> str | None:
        """Return the text of a key; a key that is not a scalar is a problem and gives None."""
        if not isinstance(event, yaml.ScalarEvent):
            self._node(event, (*location, "?"))
            self._complain(location, position, "a key must be text")
            return None
        self._refuse_extras(event, location, position)
        if event.implicit[0] and event.value == "<<":
            self._complain(location, position, 'merge keys ("<<") are not accepted; write the keys out')
        elif event.implicit[0] and not is_text(event.value):
            self._complain(
                location, position, f"key {quoted(event.value)} is not text unless it is in quotes"
            )
        return event.value


def _explain(error: yaml.MarkedYAMLError, lines: list[str]) -> str:
    """Explain a syntax error in one line, with a remedy for the usual mistakes."""
    problem, mark, start = error.problem or "the text ends too early", error.problem_mark, error.context_mark
    row, column = (mark.line, mark.column) if mark else (len(lines), 0)
    line = "".join(lines[row : row + 1])
    begins_line = row < len(lines) and not line[:column].strip()
    if "cannot start any token" in problem and mark:
        if line[column : column + 1] == "\t":
            return "a tab cannot indent; use spaces"
        return f'a value cannot start with "{line[column : column + 1]}"; put it in quotes'
    if problem == "mapping values are not allowed in this context":
        above = [number for number, other in enumerate(lines[:row], start=1) if other.strip()]
        # A key below a value, ended by the colon at the mark.
        if above and not re.search(r":\s|[{\[\"']", line[:column]):
            where = f"deeper than line {above[-1]}, which ends with a value"
            return f"wrong indentation: {where}; indent both equally"
        return 'a value that contains ": " needs quotes'
    if problem.endswith("<document start>") and begins_line:
        return "wrong indentation: further left than the lines above; indent all entries equally"
    if start and problem.startswith(_NO_ENTRY) and begins_line:
        where = f"column {column + 1} matches no entry of the block that begins on line {start.line + 1}"
        return f"wrong indentation: {where}; indent all entries of a mapping or list equally"
    if error.context and start and mark and start.line != row:
        return f"{problem} {error.context} that begins on line {start.line + 1}"
    return f"{problem} {error.context or ''}".rstrip()


# -- files -----------------------------------------------------------------------------------------
# Reading files as documents, checked before their syntax is parsed, and writing trees as YAML or JSON.


SUFFIXES = (".yaml", ".yml", ".json")
"""The endings that names of documents may have."""
_HELD: dict[str, str] = {}
"""Texts that take the place of files, by name, those held last at the end."""


def hold_text(name: str, text: str, *, most: int) -> None:
    """Let a text be the file of a name, which no disk has; beyond ``most`` [characters] the texts that were
    held first are dropped."""
    _HELD.pop(name, None)
    _HELD[name] = text
    while len(_HELD) > 1 and sum(map(len, _HELD.values())) > most:
        del _HELD[next(iter(_HELD))]


@contextmanager
def file_errors(name: str | Path, *, option: str = "", what: str = "cannot be read") -> Iterator[None]:
    """Turn errors of the system about a file that a user named into InputError.

    Raises InputError for a name that the system refuses, such as one that is too long, and for a file to
    which it denies access. The problem names the file, or the ``option`` that gave its name.
    """
    try:
        yield
    except (OSError, ValueError, RuntimeError) as error:
        place, key = (option, shortened(str(name))) if option else (str(name), "")
        problem = Problem(place, None, None, key, f"{what}: {_reason(error)}")
        raise InputError([problem]) from None


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    if isinstance(error, UnicodeEncodeError):
        return "its name holds half of a surrogate pair"
    if "embedded null" in str(error):  # byte or character, by the version of Python
        return "its name holds a NUL character"
    return str(error)  # "Symlink loop from", of pathlib before Python 3.13


def exists(name: str | Path) -> bool:
    """Return whether a file or folder exists. Raises InputError if the system denies access."""
    if str(name) in _HELD:
        return True
    with file_errors(name, what="cannot be used"):
        try:
            Path(name).stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True


def resolved(path: str | Path) -> Path:
    """Return the path without links, whether or not it exists. Raises InputError for an invalid path."""
    with file_errors(path, what="cannot be used"):
        return Path(path).resolve()


def read_document(path: Path, *, of_python: bool = False) -> Document:
    """Read a .yaml, .yml or .json file whose top level is a mapping; for ``of_python`` see ``parse_json``.

    Raises InputError for a file that cannot be read or holds anything except data.
    """
    if path.suffix not in SUFFIXES:
        wrong_name = "the name of a document ends in .yaml, .yml or .json"
        if exists(path) and path.is_dir():
            wrong_name = "is a folder; give a .yaml, .yml or .json file"
        raise _refusal(path, wrong_name if exists(path) else "no such file")
    if path.suffix != ".json":
        return parse_yaml(read_text(path, most=_LONGEST), name=str(path), root=path.parent)
    text = read_text(path, most=_LONGEST_OF_PYTHON if of_python else _LONGEST)
    return parse_json(text, name=str(path), root=path.parent, of_python=of_python)


def file_size(name: str | Path, *, remedy: str = "") -> int:
    """Return the size of a regular file [B]. Raises InputError for anything else, which ends with
    ``remedy``."""
    after = remedy and f"; {remedy}"
    with file_errors(name):
        try:
            status = Path(name).stat()
        except FileNotFoundError:
            raise _refusal(name, "no such file") from None
    if stat.S_ISDIR(status.st_mode):
        raise _refusal(name, f"is a folder, not a file{after}")
    if not stat.S_ISREG(status.st_mode):
        raise _refusal(name, f"not a regular file{after}")
    return status.st_size


def read_text(name: str | Path, *, most: int, remedy: str = "") -> str:
    """Return the text of a file of at most ``most`` [B]. Errors about its content end with ``remedy``.

    Raises InputError.
    """
    after = remedy and f"; {remedy}"
    content = read_bytes(name, most=most, remedy=remedy)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        message = f"not text in UTF-8 (byte 0x{content[error.start]:02x}){after}"
        raise _refusal(name, message, line=content.count(b"\n", 0, error.start) + 1) from None


def read_bytes(name: str | Path, *, most: int = _LONGEST, remedy: str = "") -> bytes:
    """Return the content of a file of at most ``most`` [B]. Raises InputError."""
    held = _HELD.get(str(name))
    size = file_size(name, remedy=remedy) if held is None else len(held)
    if size > most:
        after = remedy and f"; {remedy}"
        raise _refusal(name, f"larger than {most // 10**6} MB ({size} bytes){after}")
    if held is not None:
        return held.encode()
    with file_errors(name), Path(name).open("rb") as file:
        return file.read(most + 1)


def _refusal(name: str | Path, message: str, *, line: int | None = None) -> InputError:
    return InputError([Problem(str(name), line, None, "", message)])


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002
        """Write a value each time that it occurs, because documents have no anchors."""
        return True

    def represent_str(self, data: str) -> yaml.ScalarNode:
        """Quote unprintable text, and text such as ``1e9`` that is a number in YAML 1.2 but not in 1.1."""
        is_plain = is_text(data) and data.replace("\n", "").isprintable()
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=None if is_plain else '"')


_Dumper.add_representer(str, _Dumper.represent_str)


def yaml_text(tree: Mapping[str, Any], *, flow: bool = False) -> str:
    """Write a tree as YAML in its own order; ``flow`` puts each innermost mapping and list on one line."""
    return yaml.dump(
        dict(tree),
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=None if flow else False,
        width=10**6 if flow else 100,
    )


def ds_config_text(config: Any) -> str:
    """Write a ds_config as JSON; floats such as 4e9 become integers, which DeepSpeed expects.

    A text, such as a command, is returned unchanged.
    """
    if isinstance(config, str):
        return config
    return json.dumps(_with_integers(config), indent=2) + "\n"


def _with_integers(node: Any) -> Any:
    if isinstance(node, Mapping):
        return {key: _with_integers(value) for key, value in node.items()}
    if isinstance(node, list):
        return [_with_integers(value) for value in node]
    return int(node) if isinstance(node, float) and node.is_integer() and abs(node) >= 1e3 else node
