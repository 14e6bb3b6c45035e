"""Profiles of the measured machine: what was measured, in a platform that gives all other numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from simoffload.documents import yaml_text
from simoffload.errors import InputError, Problem, printable
from simoffload.hardware import CPU, Accelerator, load_platform
from simoffload.hardware.library import Library
from simoffload.hardware.profiles import Pcie
from simoffload.hardware.quantities import id_fault
from simoffload.hardware.topology import Platform
from simoffload.units import plural
from simoffload_calibrate.micro.bases import base_platform
from simoffload_calibrate.micro.fit_deepspeed import ThreadFit, fit_cpu_optimizer, fit_thread
from simoffload_calibrate.micro.fit_eager import fit_eager
from simoffload_calibrate.micro.fit_fsdp import fit_fsdp
from simoffload_calibrate.micro.fit_gpu import fit_attention, fit_gpu
from simoffload_calibrate.micro.fit_parts import (
    fit_drive,
    fit_interconnect,
    fit_memory,
    fit_pcie,
    read_rate,
)
from simoffload_calibrate.micro.fitted import Fitted, bytes_text, rate_text, seconds_text
from simoffload_calibrate.micro.gpu_groups import measured_groups

__all__ = ["check_names", "checked_profiles", "profile_from_micro"]

_LANES = (1, 2, 4, 8, 16)
_OF_ITS_CHASSIS = ("drive_slots",)
"""Keys of the base's host that say nothing about another machine with the same GPU."""
_GEN5 = "gen5"
_LONGEST, _LONGEST_MACHINE = 1900, 600
"""[characters] of a source, and of the machine in it."""

Statement = dict[str, Any]


def _error(option: str, message: str) -> InputError:
    return InputError((Problem(option, None, None, "", message),))


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
        raise _error(str(record), text) from None
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
    return _Profiles(raw, _load_base(base), identifier, report).texts()


def check_names(base: str | None, identifier: str | None) -> None:
    """Look at what the user named before anything is measured. Raises InputError."""
    if base is not None:
        _load_base(base)
    if identifier is not None and (fault := id_fault(identifier)):
        raise _error("--id", fault)


def _load_base(base: str) -> Platform:
    try:
        return load_platform(base)
    except InputError as error:
        raise InputError(one if one.path else one._replace(path="--from") for one in error.problems) from None


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40]


class _Profiles:
    """The files of one machine."""

    def __init__(
        self,
        raw: Mapping[str, Any],
        base: Platform,
        identifier: str,
        report: Callable[[ThreadFit], None],
    ) -> None:
        self._raw, self._base, self._id, self._report = raw, base, identifier, report
        self._sections: dict[str, Any] = raw["sections"]
        self._machine: Mapping[str, Any] = raw["machine"]
        self._data = {
            use.kind: _data(use.path)
            for use in base.profiles
            if (use.kind, use.id)
            in {
                ("host", base.host.id),
                ("accelerator", base.accelerator.id),
                ("pcie", base.gpu_pcie_link.pcie.id),
            }
        }

    def texts(self) -> dict[str, str]:
        """All files; a drive only where storage was measured."""
        files = {"platform": self._platform(), "host": self._host(), "accelerator": self._accelerator()}
        files["pcie"] = self._replaced("pcie", fit_pcie(self._sections))
        if "storage" in self._sections:
            files["drive"] = self._drive()
        return {f"{kind}.yaml": yaml_text(data, flow=True) for kind, data in files.items()}

    # -- statements -----------------------------------------------------------------------------

    def _statement(self, fitted: Fitted) -> Statement:
        text = f"calibrate micro: {fitted.what}; {plural(fitted.points, 'point')}"
        if fitted.residual is not None:
            text += f", largest residual {fitted.residual:.1%}"
        value = {"points": fitted.value} if isinstance(fitted.value, list) else {"value": fitted.value}
        statement = {
            **value,
            "origin": "measured" if fitted.measured else "estimate",
            "source": f"{text}; {self._where()}"[:_LONGEST],
            "date": self._raw["date"],
        }
        if fitted.residual is not None:
            statement["residual"] = round(float(fitted.residual), 4)
        if fitted.spread is not None:
            statement["spread"] = round(float(fitted.spread), 4)
        return statement

    def _where(self) -> str:
        """The machine and its software, in a few words."""
        machine = self._machine
        gpu = machine.get("gpu")
        parts = [f"{gpu['count']}x {gpu['name']}"] if gpu else []
        parts.append(f"{machine['cpu']}, {machine['cores']} cores")
        versions = ("driver", "cuda", "nccl", "torch", "deepspeed", "transformers", "kernel")
        parts += [f"{key} {machine[key]}" for key in versions if machine.get(key)]
        return printable(", ".join(parts))[:_LONGEST_MACHINE]

    def _arithmetic(self, value: Any, about: str) -> Statement:
        return {"value": value, "origin": "spec", "source": about, "date": self._raw["date"]}

    def _head(self, kind: str, name: str, notes: str) -> dict[str, Any]:
        identifier = self._id if kind == "platform" else f"{self._id[:60]}-{kind}"
        return {"kind": kind, "id": identifier, "name": name, "notes": notes}

    def _replaced(
        self, kind: str, fitted: Mapping[str, Fitted], more: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """The base's profile with what was measured in its place."""
        base = self._data[kind]
        measured = {key: self._statement(one) for key, one in fitted.items()} | dict(more or {})
        keys = ", ".join(key for key in measured if key not in ("cpu", "pcie")) or "nothing"
        notes = f"Measured with calibrate micro: {keys}. All other numbers are those of {base['id']}."
        head = self._head(kind, f"{base['name'][:1000]}, measured", notes)
        kept = {key: value for key, value in base.items() if key not in head and key not in _OF_ITS_CHASSIS}
        return head | kept | measured

    # -- the profiles ---------------------------------------------------------------------------

    def _host(self) -> dict[str, Any]:
        fitted = fit_memory(self._sections)
        more: dict[str, Any] = {"cpu": printable(str(self._machine["cpu"]))[:_LONGEST_MACHINE]}
        rate = fitted.pop("memory_rate", None)
        peak = self._base.host.memory_bandwidth.value
        if rate is not None:
            if rate.value > peak:
                fitted["memory_bandwidth"] = rate._replace(value=rate_text(rate.value))
            share = min(1.0, float(f"{rate.value / peak:.4g}"))
            what = f"{rate.what}: {rate_text(rate.value)} of the peak"
            fitted["stream_fraction"] = rate._replace(value=share, what=what)
        if self._machine.get("memory"):
            what = "memory that Linux has"
            fitted["memory_capacity"] = Fitted(bytes_text(self._machine["memory"]), what, 1)
        more |= self._table("cpu_optimizer", fit_cpu_optimizer(self._sections, self._machine))
        more |= self._thread()
        more |= self._table("fsdp", fit_fsdp(self._sections, self._base.machine(nodes=1)))
        more |= self._table("eager", fit_eager(self._sections, self._base.machine(nodes=1)))
        return self._replaced("host", fitted, more)

    def _table(self, key: str, fitted: Mapping[str, Fitted]) -> dict[str, Any]:
        """Return a section of the host's profile with what was measured in it; empty if nothing was."""
        if not fitted:
            return {}
        host = self._base.host
        scaled = {"fsdp": host.fsdp_costs, "eager": host.eager_costs}
        data = {name: one.model_dump(mode="json", exclude_none=True) for name, one in scaled.items()}
        known = {**data, **self._data["host"]}[key]
        return {key: {**known, **{name: self._statement(one) for name, one in fitted.items()}}}

    def _thread(self) -> dict[str, Any]:
        """Return the sections on the host thread."""
        thread = fit_thread(self._raw, self._base.machine(nodes=1))
        if thread is None:
            return {}
        self._report(thread)
        inference, training = thread.costs()
        runs = self._sections.get("hooks", {}).get("runs", ())
        if runs:
            most = max(run["ranks"] for run in runs)
            inference["ranks"] = Fitted(most, "most ranks with which hooks were measured", 1)
        factor = Fitted(
            float(f"{thread.factor:.3g}"),
            thread.summary(),
            thread.fit.steps if thread.fit else 1,
            spread=thread.factor_spread,
            measured=thread.believed,
        )
        return {
            "host_factor": self._statement(factor),
            **self._table("deepspeed", inference),
            **self._table("training", training),
        }

    def _accelerator(self) -> dict[str, Any]:
        base = self._base.accelerator
        fitted: dict[str, Fitted] = {}
        gpu = self._machine.get("gpu")
        if gpu and not base.is_unified:
            fitted["hbm_capacity"] = Fitted(bytes_text(gpu["memory"]), "memory that CUDA has of the GPU", 1)
        fitted |= fit_gpu(self._sections, base)
        measured = Accelerator.model_validate(self._replaced("accelerator", fitted))
        fitted |= fit_attention(self._sections, measured)
        slot = {**self._data["accelerator"]["pcie"], "profile": "pcie.yaml"}
        return self._replaced("accelerator", fitted, {"pcie": slot} | self._interconnect())

    def _interconnect(self) -> dict[str, Any]:
        found = fit_interconnect(self._sections)
        if found is None or not self._switched():
            return {}
        rate, latency, fitted = found
        base = self._base.accelerator.interconnect
        per_direction = base.per_direction.value if base else rate
        share = min(1.0, float(f"{rate / per_direction:.4g}"))
        text: dict[str, Any] = dict(
            self._data["accelerator"].get("interconnect")
            or {
                "name": "links among GPUs, measured",
                "per_direction": self._statement(fitted._replace(value=rate_text(rate))),
            }
        )
        if rate > per_direction:
            text["per_direction"] = self._statement(fitted._replace(value=rate_text(rate)))
        text["efficiency"] = self._statement(fitted._replace(value=share))
        text["latency"] = self._statement(fitted._replace(value=seconds_text(latency)))
        return {"interconnect": text}

    def _switched(self) -> bool:
        """Whether the GPUs have links of their own: all-gathers are faster than copies over PCIe."""
        found = fit_interconnect(self._sections)
        if found is None:
            count = self._machine["gpu"]["count"] if self._machine.get("gpu") else 1
            return count > 1 and self._base.profile.gpu_links == "switched"
        copies = fit_pcie(self._sections).get("host_to_device")
        measured = Pcie.model_validate(self._replaced("pcie", fit_pcie(self._sections))) if copies else None
        slot = self._base.gpu_pcie_link
        return found[0] > (measured or slot.pcie).down_rate(slot.lanes)

    def _drive(self) -> dict[str, Any]:
        section = self._sections["storage"]
        fitted = fit_drive(section)
        rate = read_rate(section)
        pcie = Library().find(_GEN5, ("pcie",)).profile
        assert isinstance(pcie, Pcie)
        lanes = next((lanes for lanes in _LANES if pcie.payload_rate(lanes) >= rate), _LANES[-1])
        about = "arithmetic: the fewest lanes that carry the measured rate; what is attached is not visible"
        head = self._head(
            "drive",
            "Storage of the measured machine",
            f"The storage of a folder, whose filesystem is {section.get('filesystem') or 'unknown'}: one "
            "drive, several drives, or a server.",
        )
        slot = {"profile": _GEN5, "lanes": {**self._arithmetic(lanes, about), "origin": "estimate"}}
        return head | {key: self._statement(one) for key, one in fitted.items()} | {"pcie": slot}

    def _platform(self) -> dict[str, Any]:
        gpu = self._machine.get("gpu")
        count = gpu["count"] if gpu else 1
        about = "each GPU has its own cable to the CPU; limits that GPUs share are in the host's memory rate"
        name = f"{count}x {gpu['name']}, measured" if gpu else "A host without GPUs, measured"
        data = self._head("platform", name, f"Other numbers: {self._base.profile.id}.") | {
            "wiring": [
                {"about": about, "origin": "estimate", "source": self._where(), "date": self._raw["date"]}
            ],
            "host": "host.yaml",
            "accelerator": "accelerator.yaml",
            "gpus": [CPU] * count,
            "gpu_links": "switched" if self._switched() else "none",
        }
        self._add_groups(data)
        known = self._base.profile.gpus
        if count > 1 and "copies_together" not in self._sections and len(known) >= count:
            wired = _data(next(use.path for use in self._base.profiles if use.kind == "platform"))
            data["wiring"] = wired["wiring"]
            data |= {"switches": wired.get("switches", {}), "gpus": list(known[:count])}
        if "storage" in self._sections:
            data["tiers"] = {"drive": {"profile": "drive.yaml", "at": [CPU]}}
        return data

    def _add_groups(self, data: dict[str, Any]) -> None:
        """Add a switch for each group of GPUs that slow each other, and put these GPUs at it."""
        switches: dict[str, Any] = {}
        for index, group in enumerate(measured_groups(self._sections)):
            name, members = f"shared{index}", ", ".join(map(str, group.gpus))
            source = f"calibrate micro: {group.evidence()}; {self._where()}"[:_LONGEST]
            known = {"origin": "measured", "source": source, "date": self._raw["date"]}
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
