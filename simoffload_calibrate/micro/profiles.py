"""Profiles of the measured machine: what was measured, in a platform that gives all other numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from simoffload.documents import yaml_text
from simoffload.errors import InputError, Problem, printable
from simoffload.hardware import CPU, load_platform
from simoffload.hardware.library import Library
from simoffload.hardware.quantities import id_fault
from simoffload.hardware.topology import Platform
from simoffload.units import plural
from simoffload_calibrate.micro.bases import base_platform
from simoffload_calibrate.micro.benchmarks import Fits, microbenchmarks
from simoffload_calibrate.micro.fit_deepspeed import ThreadFit
from simoffload_calibrate.micro.fit_parts import is_switched
from simoffload_calibrate.micro.fitted import Fitted, bytes_text, rate_text
from simoffload_calibrate.micro.gpu_groups import measured_groups
from simoffload_calibrate.micro.plan import refusal

__all__ = ["Measured", "check_names", "checked_profiles", "profile_from_micro"]

_OF_ITS_CHASSIS = ("drive_slots",)
"""Keys of the base's host that say nothing about another machine with the same GPU."""
_LONGEST, _LONGEST_MACHINE = 1900, 600
"""[characters] of a source, and of the machine in it."""
_ORDER = (
    *("memcpy_rate", "pinned_allocation", "from_gpu_traffic", "pageable_traffic", "memory_bandwidth"),
    *("stream_fraction", "memory_capacity", "cpu", "cpu_optimizer", "host_factor", "deepspeed", "training"),
    *("fsdp", "eager", "hbm_capacity", "hbm_efficiency", "kernel_latency", "matmul_efficiency"),
    *("float16_share", "strided_rate", "join_rate", "fused_attention", "eager_attention"),
)
"""The order in which a profile lists what was measured; other keys follow in the order of benchmarks."""

Statement = dict[str, Any]


def checked_profiles(
    raw: Mapping[str, Any],
    record: Path,
    *,
    base: str | None,
    identifier: str | None,
    report: Callable[[ThreadFit], None] = lambda _: None,
) -> dict[str, str]:
    """Return the texts of profile files by name, after loading them as a scenario does.

    ``raw`` is the content of the file ``record``. ``base`` and ``identifier`` come from the user or are None.
    Raises InputError if no platform has the GPU, and with file, key and remedy if the record is not usable.
    """
    try:
        platform = base_platform((raw["machine"].get("gpu") or {"name": ""})["name"], base)
        files = profile_from_micro(raw, platform, identifier=identifier, report=report)
    except InputError as error:
        raise InputError(
            one if one.path else one._replace(path=str(record)) for one in error.problems
        ) from None
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # Only simoffload writes records, so this one was edited.
        what = str(error).splitlines()[0][:120] if str(error) else ""
        text = f"was not written by calibrate micro ({type(error).__name__}: {what}); measure again"
        raise refusal(str(record), text) from None
    with TemporaryDirectory(prefix="simoffload-profiles-") as name:
        for file, text in files.items():
            (Path(name) / file).write_text(text, encoding="utf-8")
        try:
            load_platform(Path(name) / "platform.yaml")
        except InputError as error:
            renamed = (one._replace(path=Path(one.path).name) for one in error.problems)
            text = "its numbers do not give a valid profile; measure again"
            raise InputError([Problem(str(record), None, None, "", text), *renamed]) from None
    return files


def profile_from_micro(
    raw: Mapping[str, Any],
    base: str,
    *,
    identifier: str | None = None,
    report: Callable[[ThreadFit], None] = lambda _: None,
) -> dict[str, str]:
    """Texts of profile files by name: platform, host, accelerator, pcie and, if measured, drive.

    ``raw`` is what ``measure`` returned, ``base`` a platform's id or file, ``identifier`` the id of the new
    platform; ``report`` receives the fit of the host thread. Raises InputError for an unknown platform and a
    wrong id.
    """
    gpu = raw["machine"].get("gpu")
    count = gpu["count"] if gpu else 1
    identifier = identifier or f"measured-{count}x-{_slug(gpu['name'] if gpu else 'cpu')}"
    check_names(base, identifier)
    return Measured(raw, _load_base(base), identifier, report).texts()


def check_names(base: str | None, identifier: str | None) -> None:
    """Look at what the user named before anything is measured. Raises InputError."""
    if base is not None:
        _load_base(base)
    if identifier is not None and (fault := id_fault(identifier)):
        raise refusal("--id", fault)


def _load_base(base: str) -> Platform:
    try:
        return load_platform(base)
    except InputError as error:
        raise InputError(one if one.path else one._replace(path="--from") for one in error.problems) from None


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40]


class Measured:
    """What was measured on one machine, and its profiles: the base's, with what microbenchmarks gave."""

    def __init__(
        self,
        raw: Mapping[str, Any],
        base: Platform,
        identifier: str,
        report: Callable[[ThreadFit], None],
    ) -> None:
        self.raw, self.base, self.report = raw, base, report
        self.sections: dict[str, Any] = raw["sections"]
        self.machine: Mapping[str, Any] = raw["machine"]
        self.date = str(raw["date"])
        self.node = base.machine(nodes=1)
        self._id, self._gpu = identifier, self.machine.get("gpu")
        self.gpus: int = self._gpu["count"] if self._gpu else 1
        parts = {("host", base.host.id), ("accelerator", base.accelerator.id)}
        parts.add(("pcie", base.gpu_pcie_link.pcie.id))
        self._data = {use.kind: _data(use.path) for use in base.profiles if (use.kind, use.id) in parts}
        self.fitted = self._facts()
        """What is known so far, by its key in profiles."""

    def _facts(self) -> Fits:
        """Return what needs no benchmark."""
        facts: Fits = {"host.cpu": printable(str(self.machine["cpu"]))[:_LONGEST_MACHINE]}
        if self.machine.get("memory"):
            size = bytes_text(self.machine["memory"])
            facts["host.memory_capacity"] = Fitted(size, "memory that Linux has", 1)
        if self._gpu and not self.base.accelerator.is_unified:
            size = bytes_text(self._gpu["memory"])
            facts["accelerator.hbm_capacity"] = Fitted(size, "memory that CUDA has of the GPU", 1)
        facts["accelerator.pcie"] = {**self._data["accelerator"]["pcie"], "profile": "pcie.yaml"}
        return facts

    def texts(self) -> dict[str, str]:
        """All files: of parts that the base lacks, those that were measured."""
        for one in microbenchmarks():
            self.fitted |= one.fit(self)
        kinds = dict.fromkeys(
            ("host", "accelerator", "pcie", *(key.partition(".")[0] for key in self.fitted))
        )
        files = {"platform": self._platform(), **{kind: self.profile(kind) for kind in kinds}}
        return {f"{kind}.yaml": yaml_text(data, flow=True) for kind, data in files.items()}

    def profile(self, kind: str) -> dict[str, Any]:
        """Return the base's profile of a kind with what is known so far in its place."""
        known = self._data.get(kind, {})
        measured: dict[str, Any] = {}
        for key, one in self.fitted.items():
            profile, outer, *inner = key.split(".")
            if profile != kind:
                continue
            value = self._statement(one) if isinstance(one, Fitted) else one
            if inner:
                table = measured.setdefault(outer, dict(known.get(outer) or self._scaled(outer)))
                table[inner[0]] = value
            else:
                measured[outer] = value
        if not known:
            return self._head(kind, measured.pop("name"), measured.pop("notes")) | measured
        keys = sorted(measured, key=lambda key: _ORDER.index(key) if key in _ORDER else len(_ORDER))
        listed = ", ".join(key for key in keys if key not in ("cpu", "pcie")) or "nothing"
        notes = f"Measured with calibrate micro: {listed}. All other numbers are those of {known['id']}."
        head = self._head(kind, f"{known['name'][:1000]}, measured", notes)
        kept = {key: value for key, value in known.items() if key not in head and key not in _OF_ITS_CHASSIS}
        return head | kept | {key: measured[key] for key in keys}

    def _scaled(self, key: str) -> dict[str, Any]:
        """Return a table of costs that the base's host has only as those of the reference host, scaled."""
        host = self.base.host
        scaled = {"fsdp": host.fsdp_costs, "eager": host.eager_costs}
        return scaled[key].model_dump(mode="json", exclude_none=True) if key in scaled else {}

    def _statement(self, fitted: Fitted) -> Statement:
        text = f"calibrate micro: {fitted.what}; {plural(fitted.points, 'point')}"
        if fitted.residual is not None:
            text += f", largest residual {fitted.residual:.1%}"
        value = {"points": fitted.value} if isinstance(fitted.value, list) else {"value": fitted.value}
        statement = {
            **value,
            "origin": "measured" if fitted.measured else "estimate",
            "source": f"{text}; {self._where()}"[:_LONGEST],
            "date": self.date,
        }
        if fitted.residual is not None:
            statement["residual"] = round(float(fitted.residual), 4)
        if fitted.spread is not None:
            statement["spread"] = round(float(fitted.spread), 4)
        return statement

    def _where(self) -> str:
        """The machine and its software, in a few words."""
        machine = self.machine
        parts = [f"{self.gpus}x {self._gpu['name']}"] if self._gpu else []
        parts.append(f"{machine['cpu']}, {machine['cores']} cores")
        versions = ("driver", "cuda", "nccl", "torch", "deepspeed", "transformers", "kernel")
        parts += [f"{key} {machine[key]}" for key in versions if machine.get(key)]
        return printable(", ".join(parts))[:_LONGEST_MACHINE]

    def _head(self, kind: str, name: str, notes: str) -> dict[str, Any]:
        identifier = self._id if kind == "platform" else f"{self._id[:60]}-{kind}"
        return {"kind": kind, "id": identifier, "name": name, "notes": notes}

    # -- the platform ---------------------------------------------------------------------------

    def _platform(self) -> dict[str, Any]:
        about = "each GPU has its own cable to the CPU; limits that GPUs share are in the host's memory rate"
        name = f"{self.gpus}x {self._gpu['name']}, measured" if self._gpu else "A host without GPUs, measured"
        data = self._head("platform", name, f"Other numbers: {self.base.profile.id}.") | {
            "wiring": [{"about": about, "origin": "estimate", "source": self._where(), "date": self.date}],
            "host": "host.yaml",
            "accelerator": "accelerator.yaml",
            "gpus": [CPU] * self.gpus,
            "gpu_links": "switched" if is_switched(self) else "none",
        }
        self._add_groups(data)
        known = self.base.profile.gpus
        if 1 < self.gpus <= len(known) and "copies_together" not in self.sections:
            wired = _data(next(use.path for use in self.base.profiles if use.kind == "platform"))
            data["wiring"] = wired["wiring"]
            data |= {"switches": wired.get("switches", {}), "gpus": list(known[: self.gpus])}
        if any(key.startswith("drive.") for key in self.fitted):
            data["tiers"] = {"drive": {"profile": "drive.yaml", "at": [CPU]}}
        return data

    def _add_groups(self, data: dict[str, Any]) -> None:
        """Add a switch for each group of GPUs that slow each other, and put these GPUs at it."""
        switches: dict[str, Any] = {}
        for index, group in enumerate(measured_groups(self.sections)):
            name, members = f"shared{index}", ", ".join(map(str, group.gpus))
            source = f"calibrate micro: {group.evidence()}; {self._where()}"[:_LONGEST]
            known = {"origin": "measured", "source": source, "date": self.date}
            data["wiring"].append({"about": f"GPUs {members} share a limit, {name}", **known})
            rates = (("host_to_device", "to", group.to_gpus), ("device_to_host", "from", group.from_gpus))
            switches[name] = {"to": CPU, "pcie": "pcie.yaml"}
            for key, preposition, rate in rates:
                what = f"pinned copies {preposition} GPUs {members} at once, and no others"
                switches[name][key] = self._statement(Fitted(rate_text(rate), what, len(group.gpus)))
            for gpu in group.gpus:
                data["gpus"][gpu] = name
        if switches:
            about = "other GPUs have a cable to the CPU; what all share is in the host's memory rate"
            data["wiring"][0]["about"] = f"GPUs of a group are at its switch; {about}"
            data["switches"] = switches


def _data(path: str) -> dict[str, Any]:
    """A profile as it was written."""
    from simoffload.shipped import shipped_folder

    file = Path(path)
    if not file.is_file():
        file = shipped_folder("hardware_profiles").parent / path
    data: dict[str, Any] = Library().read(file, ("host", "accelerator", "pcie", "platform")).document.data
    return data
