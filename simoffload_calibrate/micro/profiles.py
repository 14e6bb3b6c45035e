"""Profiles of the measured machine: what was measured, in a platform that gives all other numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from simoffload.documents import yaml_text
from simoffload.errors import InputError, Problem, printable
from simoffload.hardware import CPU, Changes, Library, Platform, id_fault, inherited, load_platform
from simoffload.units import parse_rate, plural
from simoffload_calibrate.micro.benchmarks import Fits, microbenchmarks, refusal
from simoffload_calibrate.micro.fit_parts import Fitted, bytes_text, is_switched, rate_text
from simoffload_calibrate.micro.fit_programs import ThreadFit
from simoffload_calibrate.micro.gpu_groups import measured_groups

# -- shipped platforms that give the numbers which a measurement of the same GPU cannot give -------


_BASES = (
    ("GH200", "gh200"),
    ("H200", "dgx-h200"),
    ("H20", "hgx-h20"),
    ("H800", "hgx-h800"),
    ("H100 NVL", "h100-2nvme"),
    ("H100", "dgx-h100"),
    ("A100-SXM4-80GB", "dgx-a100-80g"),
    ("A100-SXM4-40GB", "dgx-a100"),
    ("A100 80GB PCIe", "a100-4nvme"),
    ("A100-PCIE-40GB", "a100-4nvme"),
    ("V100-SXM", "dgx-2"),
    ("L40S", "l40s-workstation"),
    ("RTX 2080", "rtx-2080-desktop"),
    ("RTX 3070 Ti", "rtx-3070-ti-desktop"),
    ("RTX 3090", "rtx-3090-workstation"),
    ("RTX 4090", "rtx-4090-desktop"),
    ("RTX 5090", "rtx-5090-workstation"),
    ("RTX PRO 6000 Blackwell", "xinnor-workstation"),
    ("MI300X", "mi300x-8gpu"),
    ("GB10", "dgx-spark"),
)
"""Part of the name that CUDA gives a GPU, and the shipped platform with such a GPU."""

_ONE_GPU = {"dgx-h100": "h100-1gpu-vm", "dgx-h200": "h200-1gpu-vm"}
"""The shipped virtual machine with one of the GPUs of a platform."""


def base_platform(gpu: str, named: str | None = None, *, gpus: int | None = None) -> str:
    """The platform that gives what was not measured: the one ``named``, else one with such a GPU.

    ``gpu`` is the name that CUDA gives it, empty where there is none. With ``gpus``, their number on the
    machine, it is the shipped machine most like that one: with one GPU a virtual machine instead of a DGX.

    Raises InputError where there is none.
    """
    if named is not None:
        return named
    if not gpu:
        raise refusal(
            "--from", "missing: no GPU was measured; name a platform that provides one, or a file of detect"
        )
    for part, platform in _BASES:
        if part in gpu:
            return _ONE_GPU.get(platform, platform) if gpus == 1 else platform
    known = ", ".join(one.id for one in Library().summaries("platform"))
    text = (
        f'missing: no shipped platform has the GPU "{gpu}"; name one of {known}, or the file of this machine'
    )
    raise refusal("--from", f"{text} that simoffload detect -o FILE writes")


# -- profiles of the measured machine --------------------------------------------------------------


_OF_ITS_CHASSIS = ("drive_slots",)
"""Keys of the base's host that say nothing about another machine with the same GPU."""
_OF_THE_MACHINE = ("setting", "switches", "nics", "network", "tiers")
"""Keys of the platform that was detected which no benchmark gives."""
_LONGEST, _LONGEST_MACHINE = 1900, 600
"""[characters] of a source, and of the machine in it."""
_ORDER = (
    *("memcpy_rate", "pageable", "pinned_allocation", "from_gpu_traffic", "pageable_traffic"),
    *("memory_bandwidth", "stream_fraction", "memory_capacity", "cpu", "cpu_optimizer", "host_factor"),
    *("deepspeed", "training", "fsdp", "eager", "hbm_capacity", "hbm_efficiency", "kernel_latency"),
    *("matmul_efficiency", "float16_share", "strided_rate", "join_rate"),
    *("fused_attention", "eager_attention"),
)
"""The order in which a profile lists what was measured; other keys follow in the order of benchmarks."""

_IN_MEMORY = (
    *("host.memcpy_rate", "host.pinned_allocation", "host.cpu_optimizer.thread", "host.cpu_optimizer.limit"),
    *("host.cpu_optimizer.overflow_thread", "host.cpu_optimizer.overflow_limit"),
)
_OVER_THE_LINK = ("pcie.host_to_device", "pcie.device_to_host", "host.pageable")
"""Rates that cannot be above the peak of host memory, and those that cannot be above that of the link."""

_CONTRADICTED = 1.0
"""Residual, or spread, above which a number does not describe what was measured: in 40 records only latencies
of the link that come out as next to nothing, and experts on a CPU in one disturbed minute."""

Statement = dict[str, Any]


def checked_profiles(
    raw: Mapping[str, Any],
    record: Path,
    *,
    base: str | None,
    identifier: str | None,
    report: Callable[[ThreadFit], None] = lambda _: None,
    refused: Callable[[str], None] = lambda _: None,
) -> dict[str, str]:
    """Return the texts of profile files by name, after loading them as a scenario does.

    ``raw`` is the content of the file ``record``. ``base`` and ``identifier`` come from the user or are None.
    Raises InputError if no platform has the GPU, and with file, key and remedy if the record is not usable.
    """
    try:
        files = profile_from_micro(raw, base, identifier=identifier, report=report, refused=refused)
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
    base: str | None = None,
    *,
    identifier: str | None = None,
    report: Callable[[ThreadFit], None] = lambda _: None,
    refused: Callable[[str], None] = lambda _: None,
) -> dict[str, str]:
    """Texts of profile files by name: platform, host, accelerator, pcie and, if measured, drive.

    ``raw`` is what ``measure`` returned, ``base`` a platform's id or file, ``identifier`` the id of the new
    platform; ``report`` receives the fit of the host thread, ``refused`` a sentence on each number that
    cannot be true. Without ``base``, the base is the machine as it was detected, or a shipped platform with
    such a GPU if the record is older. Raises InputError for an unknown platform and a wrong id.
    """
    gpu = raw["machine"].get("gpu")
    count = gpu["count"] if gpu else 1
    identifier = identifier or f"measured-{count}x-{_slug(gpu['name'] if gpu else 'cpu')}"
    check_names(None, identifier)
    if base is None and raw.get("detected"):
        known = Base.detected(str(raw["detected"]))
    else:
        known = Base.of(_load_base(base or base_platform(gpu["name"] if gpu else "")))
    return Measured(raw, known, identifier, report, refused).texts()


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


class Base(NamedTuple):
    """The platform that gives what was not measured."""

    platform: Platform
    documents: Mapping[str, dict[str, Any]]
    """The profiles of platform, host, accelerator and its PCIe by their kind, as they were written."""
    is_this: bool
    """Whether it describes the measured machine itself, with its slots, drives and network."""

    @classmethod
    def of(cls, platform: Platform) -> Base:
        """Return a platform of another machine."""
        parts = {"platform": platform.profile.id, "host": platform.host.id}
        parts |= {"accelerator": platform.accelerator.id, "pcie": platform.gpu_pcie_link.pcie.id}
        paths = {use.kind: use.path for use in platform.profiles if parts.get(use.kind) == use.id}
        library = Library()
        described = library.read(_file(paths.pop("platform")), ("platform",))
        library.adapt(described, Changes.of(described.document))
        read = {kind: library.read(_file(path), (kind,)) for kind, path in paths.items()}
        documents = {kind: entry.document.data for kind, entry in {**read, "platform": described}.items()}
        return cls(platform, documents, False)

    @classmethod
    def detected(cls, text: str) -> Base:
        """Return the machine that a text of ``simoffload detect`` describes.

        What was measured on others of its kind is an estimate here. Raises InputError.
        """
        with TemporaryDirectory(prefix="simoffload-detected-") as folder:
            path = Path(folder) / "detected.yaml"
            path.write_text(text, encoding="utf-8")
            try:
                base = cls.of(load_platform(path))
            except InputError as error:
                raise InputError(one._replace(path="", key="detected") for one in error.problems) from None
        documents = {kind: inherited(data, data["id"]) for kind, data in base.documents.items()}
        return base._replace(documents=documents, is_this=True)


def _file(path: str) -> Path:
    """Return the file of a profile by the path that platforms state."""
    from simoffload.shipped import shipped_folder

    file = Path(path)
    return file if file.is_file() else shipped_folder("hardware_profiles").parent / path


class Measured:
    """What was measured on one machine, and its profiles: the base's, with what microbenchmarks gave."""

    def __init__(
        self,
        raw: Mapping[str, Any],
        base: Base,
        identifier: str,
        report: Callable[[ThreadFit], None],
        refused: Callable[[str], None],
    ) -> None:
        self.raw, self.base, self.report, self._refuse = raw, base.platform, report, refused
        self.sections: dict[str, Any] = raw["sections"]
        self.machine: Mapping[str, Any] = raw["machine"]
        self.date = str(raw["date"])
        self.node = self.base.machine(nodes=1)
        self._id, self._gpu = identifier, self.machine.get("gpu")
        self.gpus: int = self._gpu["count"] if self._gpu else 1
        self._data, self._is_this = base.documents, base.is_this
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
        self._leave_out_impossible()
        kinds = dict.fromkeys(
            ("host", "accelerator", "pcie", *(key.partition(".")[0] for key in self.fitted))
        )
        files = {"platform": self._platform(), **{kind: self.profile(kind) for kind in kinds}}
        return {f"{kind}.yaml": yaml_text(data, flow=True) for kind, data in files.items()}

    def _leave_out_impossible(self) -> None:
        """Remove numbers that their own measurements contradict, and rates that host memory or the link
        cannot carry, so that the base's remain."""
        for key, one in list(self.fitted.items()):
            if isinstance(one, Fitted) and max(one.residual or 0, one.spread or 0) > _CONTRADICTED:
                del self.fitted[key]
                what = "is not what was measured, which differs more than twofold; the base's is used"
                self._refuse(f"{key}: {one.value} {what}")
        host, link = self.base.host, self.base.gpu_pcie_link.pcie
        memory = self.fitted.get("host.memory_bandwidth")
        peak = parse_rate(memory.value) if memory else host.memory_bandwidth.value
        lanes = link.lane_rate.value * link.encoding.value * link.copy_lanes
        bounds = {
            **dict.fromkeys(_IN_MEMORY, (peak, "the peak of host memory")),
            **dict.fromkeys(_OVER_THE_LINK, (lanes, f"the raw rate of {link.id}")),
        }
        for key, (bound, what) in bounds.items():
            fitted = self.fitted.get(key)
            if fitted is None:
                continue
            values = [rate for _, rate in fitted.value] if isinstance(fitted.value, list) else [fitted.value]
            if (most := max(map(parse_rate, values))) > bound:
                del self.fitted[key]
                self._refuse(
                    f"{key}: {rate_text(most)} is above {what}, {rate_text(bound)}; the base's is used"
                )

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
        suffix = ", measured" if listed != "nothing" or self._gpu else ""
        head = self._head(kind, f"{known['name'][:1000]}{suffix}", notes)
        left_out = {*head, *(self._contradicted() if self._is_this else _OF_ITS_CHASSIS)}
        kept = {key: value for key, value in known.items() if key not in left_out}
        return head | kept | {key: measured[key] for key in keys}

    def _contradicted(self) -> tuple[str, ...]:
        """Return keys of the detected host that measured copies contradict: slots slower than the GPU's."""
        slot = self.base.slots[CPU]
        slower = slot is not None and slot.is_slower(self.base.gpu_pcie_link.pcie)
        return ("slots",) if slower and "copies" in self.sections else ()

    def _scaled(self, key: str) -> dict[str, Any]:
        """Return a table of costs that the base's host has only as those of the reference host, scaled."""
        host = self.base.host
        scaled = {"fsdp": host.fsdp_costs, "eager": host.eager_costs, "cpu_products": host.products}
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
        other = f"Other numbers: {self.base.profile.id}."
        own, known = self._data["platform"], self.base.profile.gpus
        if self._is_this:
            other = f"All other parts as simoffload detect describes them: {own['name']}."
        data = self._head("platform", name, other[:_LONGEST]) | {
            "wiring": [{"about": about, "origin": "estimate", "source": self._where(), "date": self.date}],
            "host": "host.yaml",
            "accelerator": "accelerator.yaml",
            "gpus": [CPU] * self.gpus,
            "gpu_links": "switched" if is_switched(self) else "none",
        }
        if self._is_this:
            drives = {key: one for key, one in own.get("profiles", {}).items() if key.startswith("drive/")}
            kept = {key: own[key] for key in _OF_THE_MACHINE if own.get(key)}
            data |= kept | ({"profiles": drives} if drives else {})
        self._add_groups(data)
        copies = "copies" if self._is_this and self.gpus == 1 else "copies_together"
        if (self._is_this or self.gpus > 1) and self.gpus <= len(known) and copies not in self.sections:
            data["wiring"] = own["wiring"]
            data |= {"switches": own.get("switches", {}), "gpus": list(known[: self.gpus])}
        if any(key.startswith("drive.") for key in self.fitted):
            data["tiers"] = {**data.get("tiers", {}), "drive": {"profile": "drive.yaml", "at": [CPU]}}
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
            data["switches"] = {**data.get("switches", {}), **switches}
