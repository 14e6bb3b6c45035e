"""How commands with a report answer: each says what it asks and how that is told; ``answering`` is the rest.

The rest is to check the folder, to ask within the limits, to show how far it is, to take Ctrl-C for "tell
what you have", to write the files, and to print a text or one JSON document.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Self, TypeVar

from simoffload.cli.console import Console, ExitCode, Waiting
from simoffload.errors import InputError
from simoffload.limits import Limits, keep, limited, now_doing, sharing

if TYPE_CHECKING:
    from simoffload.report.document import ReportDocument
    from simoffload.report.first_screen import Line

Writer = Callable[[Path], object]
"""A function that writes one file to the given path."""

T = TypeVar("T")


class Reply(NamedTuple):
    """What a command says of what it found, complete before anything is printed."""

    document: ReportDocument
    data: Callable[[], dict[str, Any]]
    """Returns the same as plain values, if somebody reads them."""
    code: ExitCode
    screen: Sequence[Line] = ()
    """What a terminal shows in place of the document."""
    files: Mapping[str, Writer] = {}
    """Files beside those of every report."""
    warnings: Sequence[str] = ()
    """What is printed beside plain values, as the document tells it itself."""
    note: str = ""
    """What is printed at the end."""


class Question(NamedTuple, Generic[T]):
    """A Question is what a command asks, and how it is told."""

    ask: Callable[[], T]
    """Asks; the first Ctrl-C makes it return what it has so far."""
    tell: Callable[[T], Reply]
    """Makes the report, within the limits."""
    limits: Limits
    time: float | None = None
    """Time [s] that all parts of the question share; None: each has its own."""
    shared: bool = False
    """Whether the report shares it, too."""


Asking = Callable[[Namespace, Console], Question[Any]]
"""Loads what a command line names; returns what it asks."""


def answering(
    asking: Asking, *, at_once: Callable[[Namespace], bool] = lambda _: False
) -> Callable[[Namespace, Console], ExitCode]:
    """Return the command that asks a question; also a decorator.

    The limits hold for all of it together where the command line has it ``at_once``.
    """

    @wraps(asking)
    def answer(arguments: Namespace, console: Console) -> ExitCode:
        folder = OutputFolder.of(arguments)
        answered = limited(_answered) if at_once(arguments) else _answered
        reply, printed, written = answered(asking, arguments, folder, console)
        console.print_answer(printed)
        console.warn(reply.warnings if console.as_json else ())
        if written:
            console.print_lines(f"wrote {', '.join(_listed(written))}")
        if reply.note:
            console.note(reply.note)
        return reply.code

    return answer


_Answered = tuple[Reply, str, Sequence[Path]]
"""What was told, what is printed of it, and the files that were written."""


def _answered(
    asking: Asking, arguments: Namespace, folder: OutputFolder | None, console: Console
) -> _Answered:
    question = asking(arguments, console)
    time, own = sharing(question.time), nullcontext()
    with time if question.shared else own:
        with own if question.shared else time, Waiting(console, partial=True):
            found = question.ask()
        with Waiting(console):
            return _reported(question, found, folder, console)


@limited
def _reported(question: Question[T], found: T, folder: OutputFolder | None, console: Console) -> _Answered:
    from simoffload.report.terminal import screen_text, terminal_text

    keep(question.limits)
    now_doing("reporting")
    reply, text = question.tell(found), ""
    data = reply.data() if folder or console.as_json else None
    written = folder.write({**report_files(reply.document, data), **reply.files}) if folder else ()
    if reply.screen and not console.as_json:
        text = screen_text(reply.screen, color=console.color, width=console.width)
    elif not console.as_json:
        text = terminal_text(reply.document, color=console.color, width=console.width)
    return reply, console.rendered(text, data), written


def _listed(written: Sequence[Path]) -> list[str]:
    """Return the names of files; those in the folder of recommended scenarios are only counted."""
    from simoffload.units import plural

    top = written[0].parent
    names = [str(path) for path in written if path.parent == top]
    inner = len(written) - len(names)
    return names + ([f"{top / RECOMMENDED}/ ({plural(inner, 'file')})"] if inner else [])


# -- the folder of ``--output-dir`` ---------------------------------------------------------------
# Only files that simoffload wrote are replaced, and all of them or none.

RESULT, TABLE = "result.json", "table.csv"
REPORT, MARKDOWN, DOCUMENT = "report.html", "report.md", "report.json"
TRACE = "trace.json"
RECOMMENDED = "recommended"
"""A folder inside it; of its files those are ours whose digests result.json lists under this key."""
_OURS = {RESULT, REPORT, MARKDOWN, DOCUMENT, TABLE, TRACE}
_SIGNATURE = b'"schema": "simoffload/'  # near the beginning of every result.json that we write


def json_writer(data: Any) -> Writer:
    """Return a writer of plain values as JSON."""
    return lambda path: path.write_text(json.dumps(data, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def content_writer(content: bytes) -> Writer:
    """Return a writer of the given bytes."""
    return lambda path: path.write_bytes(content)


def digest(content: bytes) -> str:
    """Return the SHA-256 digest of the content of a file."""
    return hashlib.sha256(content).hexdigest()


def report_files(document: ReportDocument, data: Any) -> dict[str, Writer]:
    """Return the files of every answer by name."""
    from simoffload.report.html import write_html
    from simoffload.report.markdown import write_markdown

    return {
        RESULT: json_writer(data),
        REPORT: partial(write_html, document),
        MARKDOWN: partial(write_markdown, document),
        DOCUMENT: json_writer(document.to_dict()),
    }


class OutputFolder:
    """The folder that results are written to."""

    @classmethod
    def of(cls, arguments: Namespace) -> Self | None:
        """Return the folder that a command line names, if it names one."""
        path = getattr(arguments, "output_dir", None)  # of a parser without the option
        return cls(path, overwrite=arguments.overwrite) if path is not None else None

    def __init__(self, path: Path, *, overwrite: bool) -> None:
        """Check the folder before anything is computed. Raises InputError if it cannot be used."""
        from simoffload.documents import file_errors

        self._path = path
        with file_errors(path, option="--output-dir", what="cannot be used"):
            self._check(overwrite=overwrite)

    def _check(self, *, overwrite: bool) -> None:
        from simoffload.documents import exists

        if not exists(self._path):
            if self._path.is_symlink():
                raise self._refusal("is a broken link")
            above = next(parent for parent in self._path.absolute().parents if parent.exists())
            if not above.is_dir():
                raise self._refusal(f'is below "{above.name}", which is not a folder')
            return
        if not self._path.is_dir():
            raise self._refusal("is a file, not a folder")
        present = sorted(entry.name for entry in self._path.iterdir())
        for name in _OURS.intersection(present):
            entry = self._path / name
            if entry.is_symlink() or not entry.is_file():
                raise self._refusal(f'contains "{name}", which is not a plain file')
        foreign = [name for name in present if name not in (*_OURS, RECOMMENDED)]
        foreign += sorted(set(self._inside()).difference(self._recommended()))
        if overwrite or not present or (not foreign and self._is_ours()):
            return
        held = f'"{foreign[0]}"' if foreign else "files of another program"
        raise self._refusal(f"is not empty (it contains {held}); choose another folder or give --overwrite")

    def _inside(self) -> Iterator[str]:
        """Return the names of the files in the folder of recommended scenarios."""
        inner = self._path / RECOMMENDED
        if inner.is_symlink() or (inner.exists() and not inner.is_dir()):
            raise self._refusal(f'contains "{RECOMMENDED}", which is not a plain folder')
        for entry in inner.rglob("*"):
            name = entry.relative_to(self._path).as_posix()
            if entry.is_symlink() or not (entry.is_file() or entry.is_dir()):
                raise self._refusal(f'contains "{name}", which is not a plain file')
            if entry.is_file():
                yield name

    def _recommended(self) -> Iterator[str]:
        """Return those of them that simoffload wrote and nobody changed."""
        written = self._written()
        for name in self._inside():
            if written.get(name) == digest((self._path / name).read_bytes()):
                yield name

    def _written(self) -> dict[str, Any]:
        """Return the digests of the recommended files by name, as result.json lists them."""
        if not self._is_ours():
            return {}
        try:
            found = json.loads((self._path / RESULT).read_text(encoding="utf-8"))[RECOMMENDED]
        except (KeyError, TypeError, ValueError):  # of another command, or changed since
            return {}
        return found if isinstance(found, dict) else {}

    def _is_ours(self) -> bool:
        result = self._path / RESULT
        if not result.is_file():
            return False
        with result.open("rb") as file:
            return _SIGNATURE in file.read(200)

    def _refusal(self, message: str) -> InputError:
        return InputError.at(str(self._path), message, path="--output-dir")

    def write(self, files: Mapping[str, Writer]) -> tuple[Path, ...]:
        """Write all files, or leave the folder unchanged. Raises InputError if that fails.

        The files are written to a temporary folder and moved when all are complete.
        """
        try:
            return self._write(files)
        except OSError as error:
            raise self._refusal(f"cannot be written: {error.strerror or error}") from None
        except InputError as error:  # about a temporary file, which nobody knows
            raise self._refusal(error.problems[0].message) from None

    def _write(self, files: Mapping[str, Writer]) -> tuple[Path, ...]:
        existed = self._path.exists()
        place = self._path if existed else self._path.parent
        place.mkdir(parents=True, exist_ok=True)
        work_folder = Path(tempfile.mkdtemp(prefix=".simoffload-", dir=place))
        try:
            for name, writer in files.items():
                (work_folder / name).parent.mkdir(parents=True, exist_ok=True)
                writer(work_folder / name)
            self._path.mkdir(exist_ok=True)
            for stale in {*_OURS, *self._recommended()}.difference(files):
                (self._path / stale).unlink(missing_ok=True)
            for name in files:
                (self._path / name).parent.mkdir(parents=True, exist_ok=True)
                (work_folder / name).replace(self._path / name)
            _remove_empty(self._path / RECOMMENDED)
        finally:
            shutil.rmtree(work_folder, ignore_errors=True)
        return tuple(self._path / name for name in files)


def _remove_empty(folder: Path) -> None:
    """Remove a folder and its subfolders where they are empty."""
    for inner in sorted((path for path in folder.rglob("*") if path.is_dir()), reverse=True):
        if not any(inner.iterdir()):
            inner.rmdir()
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
