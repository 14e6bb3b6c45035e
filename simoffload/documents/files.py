"""Reading files as documents, checked before their syntax is parsed, and writing trees as YAML or JSON."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from simoffload.documents.document import Document
from simoffload.documents.reader import is_text, parse_json, parse_yaml
from simoffload.errors import InputError, Problem, shortened

SUFFIXES = (".yaml", ".yml", ".json")
"""The endings that names of documents may have."""
_LARGEST = 1_000_000
"""[B] The largest document; a scenario or a profile has about a hundredth of this."""


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
    return str(error)  # "embedded null byte"; "Symlink loop from", of pathlib before Python 3.13


def exists(name: str | Path) -> bool:
    """Return whether a file or folder exists. Raises InputError if the system denies access."""
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


def read_document(path: Path) -> Document:
    """Read a .yaml, .yml or .json file whose top level is a mapping.

    Raises InputError for a file that cannot be read or holds anything except data.
    """
    if path.suffix not in SUFFIXES:
        wrong_name = "the name of a document ends in .yaml, .yml or .json"
        if exists(path) and path.is_dir():
            wrong_name = "is a folder; give a .yaml, .yml or .json file"
        raise _refusal(path, wrong_name if exists(path) else "no such file")
    parse = parse_json if path.suffix == ".json" else parse_yaml
    return parse(read_text(path, most=_LARGEST), name=str(path), root=path.parent)


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
    size = file_size(name, remedy=remedy)
    if size > most:
        raise _refusal(name, f"larger than {most // 10**6} MB ({size} bytes){after}")
    with file_errors(name), Path(name).open("rb") as file:
        content = file.read(most + 1)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        message = f"not text in UTF-8 (byte 0x{content[error.start]:02x}){after}"
        raise _refusal(name, message, line=content.count(b"\n", 0, error.start) + 1) from None


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
