"""The file ``micro.json``: every measurement in order, and one result of all rounds for each section."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simoffload.errors import InputError, Problem, shortened
from simoffload.exchange.files import replacing
from simoffload_calibrate.micro.benchmarks import Microbenchmark, microbenchmark, microbenchmarks
from simoffload_calibrate.micro.noise import machine_noise
from simoffload_calibrate.records import read_json

SCHEMA = "simoffload/micro/2"
_ONE_ROUND = "simoffload/micro/1"
"""The schema of older records, which have one round and no probes."""
_PARTS = {"machine": dict, "sections": dict, "skipped": dict, "date": str}
_ROUNDS = {"unfinished": list, "options": dict, "rounds": list, "probes": list}


def record_text(raw: Mapping[str, Any]) -> str:
    """Return the text of the file. Raises ValueError if a number is not finite."""
    return json.dumps(raw, allow_nan=False, separators=(",", ":")) + "\n"


def read_record(path: Path) -> dict[str, Any]:
    """Read a file that ``record_text`` made. Raises InputError for anything else."""
    data = read_json(path, remedy="--from-json and --resume read the record that calibrate micro writes")
    schema = data.get("schema") if isinstance(data, dict) else None
    if not isinstance(data, dict) or schema not in (SCHEMA, _ONE_ROUND):
        reason = f'the key "schema" is missing (expected "{SCHEMA}")'
        if schema is not None:
            reason = f'schema must be "{SCHEMA}", not {shortened(json.dumps(schema))}'
        message = f'not a record of "calibrate micro": {reason}'
        raise InputError((Problem(str(path), None, None, "" if schema is None else "schema", message),))
    parts = _PARTS | _ROUNDS
    if schema == _ONE_ROUND:  # of these only records of runs that ended early have "unfinished"
        parts = _PARTS | ({"unfinished": list} if "unfinished" in data else {})
    for key, kind in parts.items():
        if not isinstance(data.get(key), kind):
            message = f"missing or of the wrong type; run calibrate micro again to make a new {path.name}"
            raise InputError((Problem(str(path), None, None, key, message),))
    return data


class Record:
    """The results of a measurement, and the file that always contains those that exist so far."""

    def __init__(self, raw: dict[str, Any], path: Path | None) -> None:
        self.raw, self._path = raw, path

    def measurements(self, name: str) -> list[dict[str, Any]]:
        """Return the measurements of a section so far."""
        return [one for one in self.raw["rounds"] if one["section"] == name]

    def add_probe(self, probe: Mapping[str, Any]) -> int:
        """Append a probe and return its number."""
        self.raw["probes"].append(dict(probe))
        return len(self.raw["probes"]) - 1

    def add(self, measurement: Mapping[str, Any]) -> None:
        """Append a measurement of a section, update the result of all its rounds, and write the file.

        A result with the key "unfinished" leaves the section among those that are not finished.
        """
        name = measurement["section"]
        self.raw["rounds"].append(dict(measurement))
        self.raw["seconds"][name] = round(self.raw["seconds"].get(name, 0.0) + measurement["seconds"], 3)
        self._pool(name)
        if "unfinished" in measurement["found"]:
            self.write()
        else:
            self._finish(name)

    def skip(self, name: str, reason: str) -> None:
        """Note why a section cannot be measured, and write the file."""
        self.raw["skipped"][name] = reason
        self._finish(name)

    def _finish(self, name: str) -> None:
        if name in self.raw["unfinished"]:
            self.raw["unfinished"].remove(name)
        self.write()

    def _pool(self, name: str) -> None:
        sections = self.raw["sections"]
        section, _, ranks = name.partition("/")
        benchmark = microbenchmark(name) or Microbenchmark()
        names = {one.name for one in microbenchmarks() if one.merged and one.merged == benchmark.merged}
        same = [
            one["found"]
            for one in self.raw["rounds"]
            if one["section"] == name or one["section"].partition("/")[0] in names
        ]
        result = benchmark.pooled(same)
        self.raw["skipped"] |= benchmark.failures(result)
        if benchmark.merged:
            sections[benchmark.merged] = result
        elif ranks:
            sections.setdefault(section, {})[ranks] = result
        else:
            sections[section] = result

    def write(self) -> None:
        """Replace the file atomically; nothing is written before the first measurement."""
        noise = machine_noise(self.raw["rounds"], self.raw["probes"])
        self.raw["noise"] = {**self.raw.get("noise", {}), **noise}
        if self._path is not None and self.raw["rounds"]:
            with replacing(self._path) as file:
                file.write(record_text(self.raw))
