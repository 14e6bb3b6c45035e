"""The file ``micro.json``: what was measured, round by round, and one number of all repetitions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simoffload.calibration.micro.noise import machine_noise
from simoffload.calibration.micro.pooling import pooled, pooled_steps
from simoffload.documents import read_text
from simoffload.errors import InputError, Problem, shortened
from simoffload.exchange.files import replacing

__all__ = ["SCHEMA", "Record", "read_record", "record_text"]

SCHEMA = "simoffload/micro/2"
_OLD = "simoffload/micro/1"
"""Records of one round, without probes."""
_PARTS = {"machine": dict, "sections": dict, "skipped": dict, "date": str, "unfinished": list}
_ROUNDS = {"options": dict, "rounds": list, "probes": list}
_OF_EARLY_ENDS: dict[str, Any] = {"unfinished": []}
"""What of the old records only those of a run have that ended before all was measured."""
_LARGEST = 64_000_000
"""[B] The largest record; one GPU in three rounds takes about 1.3 MB, and a rank of 8 GPUs about as much."""
_STEPS = "hooks"
"""The section that holds the small models of all numbers of ranks."""


def record_text(raw: Mapping[str, Any]) -> str:
    """The file's text; every number is finite."""
    return json.dumps(raw, allow_nan=False, separators=(",", ":")) + "\n"


def read_record(path: Path) -> dict[str, Any]:
    """Read a file that ``record_text`` made. Raises InputError for anything else."""
    data = _parsed(path)
    schema = data.get("schema") if isinstance(data, dict) else None
    if not isinstance(data, dict) or schema not in (SCHEMA, _OLD):
        found = shortened(json.dumps(schema))
        message = f'not a record of "calibrate micro": schema must be "{SCHEMA}", not {found}'
        raise InputError((Problem(str(path), None, None, "schema", message),))
    parts = _PARTS if schema == _OLD else _PARTS | _ROUNDS
    for key, kind in parts.items():
        if not isinstance({**_OF_EARLY_ENDS, **data}.get(key), kind):
            message = f"missing or of the wrong type; run calibrate micro again to make a new {path.name}"
            raise InputError((Problem(str(path), None, None, key, message),))
    return data


def _parsed(path: Path) -> Any:
    """Return the JSON of a file that is larger than a document may be."""
    text = read_text(path, most=_LARGEST, remedy="name the micro.json of a measurement")
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        reason = f"not valid JSON: {error.msg[0].lower()}{error.msg[1:]}; was the file cut off?"
        raise InputError([Problem(str(path), error.lineno, error.colno, "", reason)]) from None
    except (ValueError, RecursionError) as error:
        raise InputError([Problem(str(path), None, None, "", f"not valid JSON: {error}")]) from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number")


class Record:
    """What is found, and the file that has as much of it as there is, at any time."""

    def __init__(self, raw: dict[str, Any], path: Path | None) -> None:
        self.raw, self._path = raw, path

    def measured(self, name: str) -> list[dict[str, Any]]:
        """What was measured of a section so far."""
        return [one for one in self.raw["rounds"] if one["section"] == name]

    def probed(self, probe: Mapping[str, Any]) -> int:
        """Keep a probe; its number."""
        self.raw["probes"].append(dict(probe))
        return len(self.raw["probes"]) - 1

    def add(self, measured: Mapping[str, Any]) -> None:
        """A section was measured once more: pool what all rounds found, and write the file."""
        name = measured["section"]
        self.raw["rounds"].append(dict(measured))
        self.raw["seconds"][name] = round(self.raw["seconds"].get(name, 0.0) + measured["seconds"], 3)
        self._pool(name)
        self._done(name)

    def skip(self, name: str, reason: str) -> None:
        """A section cannot be measured: say why, and write the file."""
        self.raw["skipped"][name] = reason
        self._done(name)

    def _done(self, name: str) -> None:
        if name in self.raw["unfinished"]:
            self.raw["unfinished"].remove(name)
        self.write()

    def _pool(self, name: str) -> None:
        sections = self.raw["sections"]
        section, _, ranks = name.partition("/")
        if section.startswith(f"{_STEPS}_"):
            steps = [one for one in self.raw["rounds"] if one["section"].startswith(f"{_STEPS}_")]
            sections[_STEPS] = pooled_steps(one["found"] for one in steps)
            for failed in sections[_STEPS]["failed"]:
                self.raw["skipped"][f"{_STEPS}, {failed['name']}"] = failed["error"]
            return
        found = pooled([one["found"] for one in self.measured(name)])
        if ranks:
            sections.setdefault(section, {})[ranks] = found
        else:
            sections[section] = found

    def write(self) -> None:
        """Put the file anew in its place, whole or not at all; none before something was measured."""
        self.raw["noise"] = {
            **self.raw.get("noise", {}),
            **machine_noise(self.raw["rounds"], self.raw["probes"]),
        }
        if self._path is not None and self.raw["rounds"]:
            with replacing(self._path) as file:
                file.write(record_text(self.raw))
