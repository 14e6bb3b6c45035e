"""``python -m validation.shipped_hosts`` writes what shipped hosts have from measured virtual machines.

Every number is the median over the machines of its kind (``host_records``): a cost of the host thread is that
of the reference host times the factor of the kind. Of machines with one GPU, the kind itself was measured; of
a DGX none was, so that its numbers are estimates: medians of the virtual machines beside real runs, and
within a spread that holds the others, too. A recorded run is predicted with a host made without the
record of its machine: :func:`without`. Run it after ``validation.reference_costs`` and ``validation.refit``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from simoffload.hardware import HOST_SPREAD, DeepSpeedCosts, FsdpCosts, TrainingCosts, load_platform
from simoffload.units import parse_rate
from simoffload_calibrate.host_costs import COSTS, SCALED, of_real_models
from simoffload_calibrate.micro.fit_parts import bytes_text, flops_text, rate_text, seconds_text
from simoffload_calibrate.reference import reference_costs
from validation.host_records import (
    GPUS,
    HostRecord,
    Pooled,
    host_records,
    measured,
    pooled,
    pooled_pageable,
    robust,
    spread_around,
)

_PROFILES = Path(__file__).parents[1] / "hardware_profiles"
_SHARED = 2
"""Most GPUs of a virtual machine that shares its socket with others. One with four has a socket to itself,
and all four of them were as fast as the reference host (0.96 to 1.05), so that they say nothing of others."""
_SOCKET = 4
"""GPUs of a virtual machine that has a socket."""


class Kind(NamedTuple):
    """What a shipped host stands for."""

    gpu: str
    one_gpu: bool
    """Whether it is a virtual machine with one GPU, which was measured; else its numbers are estimates."""
    bare_metal: bool = False
    """Whether it is no virtual machine: those that were measured later widen its spread, and do not move its
    number, and their copies of pageable memory say nothing of its own."""


HOSTS = {
    "dgx-h100-2tb": Kind("H100", one_gpu=False, bare_metal=True),
    "dgx-h200-2tb": Kind("H200", one_gpu=False, bare_metal=True),
    "h200-8gpu-vm-host": Kind("H200", one_gpu=False),
    "h100-1gpu-vm-host": Kind("H100", one_gpu=True),
    "h200-1gpu-vm-host": Kind("H200", one_gpu=True),
}
"""Shipped hosts, by id."""


class Statement(NamedTuple):
    """A number with its origin, as a profile has it."""

    value: Any
    source: str
    date: str
    origin: str = "estimate"
    spread: float | None = None
    measured_on: str = ""
    """The machines of another kind on which it was measured."""
    key: str = "value"
    """``points`` for a curve."""

    def data(self) -> dict[str, Any]:
        """Return the statement as a scenario writes it under ``profiles``."""
        found = {self.key: self.value, "origin": self.origin, "source": self.source, "date": self.date}
        found |= {} if self.spread is None else {"spread": self.spread}
        return found | ({"measured_on": self.measured_on} if self.measured_on else {})

    def text(self) -> str:
        """Return the statement as a line of a profile has it."""
        data = self.data() | {"source": f'"{self.source}"'}
        if self.measured_on:
            data["measured_on"] = f'"{self.measured_on}"'
        if self.key == "points":
            data["points"] = "[" + ", ".join(f"[{size}, {rate}]" for size, rate in self.value) + "]"
        return "{" + ", ".join(f"{key}: {value}" for key, value in data.items()) + "}"


Statements = dict[str, Statement]
"""Statements by their keys in the profile, with dots: deepspeed.hook."""
Text = Callable[[float], Any]
"""How a number is written."""

_ADAM = "DeepSpeed's CPU Adam by threads"
_LIMIT = "cpu_optimizer.limit"
_OF_MEMORY = {
    "memory_capacity": "memory that Linux has",
    "stream_fraction": "share of the peak of the whole host that copies or reads reach",
    "pinned_allocation": "new pinned memory",
}
_OF_CPU = {
    "cpu_optimizer.cores": "cores that Linux has",
    "cpu_optimizer.numa_nodes": "NUMA nodes that Linux has",
    _LIMIT: f"{_ADAM}, all of them",
}
_OVERFLOW = {
    "cpu_optimizer.overflow_thread": "ZeRO-3's search for overflow, one thread",
    "cpu_optimizer.overflow_limit": "ZeRO-3's search for overflow, all cores",
}
"""Rates that only four machines with one GPU have, so that both GPUs count."""
_KERNELS = {
    "thread": "one token on one thread",
    "dot_thread": "one token on one thread, MXFP4",
    "dot": "a core with kernels of dot products",
    "blocked": "a core with Q8_0 in blocks",
    "tiled": "a core with tiles of Q4_K and Q6_K",
    "tiled_rows": "tokens at which tiles reach half of that",
    "switch": "a change between GPU and CPU",
}
"""Rates of ggml's products by a core, from machines with one and two GPUs of either kind."""
_READS = {
    "weights": "share of the peak of the whole host, all threads read weights",
    "experts": "share of the peak of the whole host, all threads read chosen experts",
    "operation": "a meeting of 16 threads",
}
"""Those by all cores, from machines with one GPU of either kind."""
_FEW = 0.25
"""Least spread of a number of ggml: between two machines with an H100, and experts in other formats."""
_TIMES = {
    "fsdp": [
        key for key in FsdpCosts.model_fields if key != "ranks" and not key.startswith(("adam", "page"))
    ],
    "eager": ["operation", "tensor", "all_reduce"],
}
"""Costs that are multiples of a PyTorch operation."""
_FSDP_RATES = ("adam_thread", "adam_limit", "page_thread", "page_limit")
_BARE_METAL = 0.45
_BARE_METAL_FROM = (
    "virtual machines with one GPU and 16 cores reach 120 to 185 GB/s; bare metal was not measured"
)
"""Spread of the rate of Adam on a machine that was not measured, with its reason."""


def _three_digits(value: float) -> float:
    return float(f"{value:.3g}")


_TEXTS: dict[str, Text] = {
    **{f"cpu_products.{key}": lambda rate: f"{flops_text(rate)}/s" for key in ("dot", "blocked", "tiled")},
    **dict.fromkeys(("cpu_products.operation", "cpu_products.switch"), seconds_text),
    **{f"cpu_products.{key}": lambda share: float(f"{share:.4g}") for key in ("weights", "experts")},
    "cpu_products.tiled_rows": round,
    "memory_capacity": lambda size: bytes_text(round(size)),
    "stream_fraction": lambda share: float(f"{share:.4g}"),
    "cpu_optimizer.cores": round,
    "cpu_optimizer.numa_nodes": round,
}


def _sharing(records: Iterable[HostRecord], gpu: str) -> list[HostRecord]:
    """Return the machines with a GPU that share their socket with others."""
    return [one for one in records if one.gpu == gpu and one.gpus <= _SHARED]


def _folders(names: Iterable[str]) -> str:
    """Return where the records of machines are."""
    others = {one.name for one in host_records() if not one.beside_runs}.intersection(names)
    return "validation/measured, docs/measurements" if others else "validation/measured"


def host_statements(name: str) -> Statements:
    """Return what a shipped host has from the records of all machines."""
    return _HostStatements(HOSTS[name]).shipped()


def multiples(section: str, *, leave_out: str = "") -> dict[str, Pooled]:
    """Return the costs of a ``section``, fsdp or eager, as multiples of a PyTorch operation under DeepSpeed.

    They are medians over the machines on which they were measured. Under FSDP, the operation was not measured
    on the same machines, and is that of the shipped hosts.
    """
    return _HostStatements(HOSTS["dgx-h200-2tb"], leave_out).multiples(section)


class _HostStatements:
    """The statements of one host."""

    def __init__(self, kind: Kind, leave_out: str = "") -> None:
        self._kind = kind
        self._all = tuple(one for one in host_records() if one.name != leave_out)
        self._beside = tuple(one for one in self._all if one.beside_runs)
        known = self._beside if kind.bare_metal else self._all
        of_gpu = [one for one in known if one.gpu == kind.gpu]
        self._of_kind = [one for one in of_gpu if one.gpus == 1] if kind.one_gpu else of_gpu
        self._mine = pooled(_sharing(known, kind.gpu), "host_factor")
        self._beside_factors = {gpu: pooled(_sharing(self._beside, gpu), "host_factor") for gpu in GPUS}

    def shipped(self) -> Statements:
        """Return the statements of the profile, by their keys."""
        found = {} if self._kind.bare_metal else {"pageable": self._pageable()}
        found |= self._rates() | self._thread()
        if self._kind.one_gpu and self._kind.gpu == "H200":  # an H100's are of programs of their own
            found |= self._products()
        return found | self._fsdp(found) if self._kind.one_gpu else found

    def all(self) -> Statements:
        """Return them with the costs that are otherwise multiples in ``hardware.program_costs``."""
        found = self.shipped()
        return self._fsdp(found) | self._scaled("eager") | found

    def _median(self, found: Pooled, text: Text, what: str, *, spread: float | None = None) -> Statement:
        """Return a median as a statement: measured on machines of the kind, or an estimate from others."""
        numbers = ", ".join(f"{name} {text(value)}" for name, value in found.numbers.items())
        source = f"median of calibrate micro, {what}: {numbers} ({_folders(found.numbers)})"
        origin = "measured" if self._kind.one_gpu else "estimate"
        rounded = None if spread is None else float(f"{spread:.2g}")
        elsewhere = "" if self._kind.one_gpu else f"virtual machines with {self._kind.gpu}"
        return Statement(text(found.value), source, str(found.date), origin, rounded, elsewhere)

    # -- memory and arithmetic --------------------------------------------------------------------

    def _rates(self) -> Statements:
        """Return the rates of the kind; of a DGX those of a thread, and twice Adam's of one socket."""
        whats = {
            "memcpy_rate": "bytes that one thread copies",
            "cpu_optimizer.thread": f"{_ADAM}, one of them",
        }
        if self._kind.one_gpu:
            whats = _OF_MEMORY | whats | _OF_CPU
        found = {}
        for key, what in whats.items():
            one = pooled(self._of_kind, key)
            stated = one.spread if key in (_LIMIT, "pinned_allocation") else None
            found[key] = self._median(one, _TEXTS.get(key, rate_text), what, spread=stated)
        if self._kind.one_gpu:
            alone = [one for one in self._all if one.gpus == 1]
            for key, what in _OVERFLOW.items():
                found[key] = self._median(pooled(alone, key), rate_text, what)
            return found
        limit = pooled([one for one in self._all if one.gpus == _SOCKET], _LIMIT)
        what = f"{_ADAM}, all of them, on virtual machines with four H200, which have one of two sockets"
        one_socket = self._median(limit, rate_text, what, spread=_BARE_METAL)
        source = f"2 x {one_socket.source}; spread: {_BARE_METAL_FROM}"
        limits = one_socket._replace(value=rate_text(2 * limit.value), source=source)
        return found | {_LIMIT: limits._replace(measured_on="virtual machines with four H200")}

    def _pageable(self) -> Statement:
        """Return the copies of pageable memory, which are as fast with either GPU."""
        points, last = pooled_pageable(self._all)
        value = [[bytes_text(size), rate_text(rate)] for size, rate in points]
        found = self._median(
            last, rate_text, f"copies of pageable memory by size, {value[-1][0]}", spread=last.spread
        )
        elsewhere = found.measured_on and "virtual machines with H100 and H200"
        return found._replace(value=value, key="points", measured_on=elsewhere)

    def _products(self) -> Statements:
        """Return the rates of ggml's products, which do not depend on the GPU."""
        found = {}
        for most, whats in ((_SHARED, _KERNELS), (1, _READS)):
            for key, what in whats.items():
                name = f"cpu_products.{key}"
                one = pooled([one for one in self._all if one.gpus <= most], name)
                text = _TEXTS.get(name, rate_text)
                found[name] = self._median(one, text, f"ggml, {what}", spread=max(_FEW, one.spread))
        return found

    # -- the Python thread ------------------------------------------------------------------------

    def _thread(self) -> Statements:
        """Return the factor and the costs under DeepSpeed: of the reference host, times the factor."""
        factor = float(f"{self._mine.value:.3g}")
        what = f"time of the host thread over that of the reference host, one or two {self._kind.gpu}"
        spread, source = self._mine.spread, ""
        if self._kind.bare_metal:
            fleet = measured(_sharing(self._all, self._kind.gpu), "host_factor")
            spread = max(spread, spread_around(factor, fleet))
            source = f"; spread: 80 % of {len(fleet)} such machines, with those measured later"
        stated = self._median(self._mine, _three_digits, what, spread=spread)
        found = {"host_factor": stated._replace(source=stated.source + source)}
        shallow = {key: row.value for key, row in reference_costs().items()}
        costs, real = of_real_models(shallow), of_real_models(dict.fromkeys(shallow, 1.0))
        for section, model in (("deepspeed", DeepSpeedCosts), ("training", TrainingCosts)):
            for key in model.model_fields.keys() & costs.keys():
                is_share = key in COSTS and key not in SCALED
                shown = f"{costs[key]:.4g}" if is_share else seconds_text(costs[key] * factor)
                scaled = f" x {real[key]} (models of real size)" if real[key] != 1 else ""
                scaled += "" if is_share else f" x {factor}"
                source = f"cost of the reference host{scaled} (docs/measurements/host-thread.md)"
                value = float(shown) if is_share else shown
                found[f"{section}.{key}"] = Statement(value, source, str(self._mine.date))
        return found

    def _operation(self, factor: Pooled) -> float:
        """Return the time [s] of a PyTorch operation under DeepSpeed with a factor of the host thread."""
        shallow = {"operation": reference_costs()["operation"].value}
        return of_real_models(shallow)["operation"] * _three_digits(factor.value)

    def multiples(self, section: str) -> dict[str, Pooled]:
        """Return the medians of costs in operations; a cost that only the machine left out has stays its."""
        found = {}
        for key in _TIMES[section]:
            name = f"{section}.{key}"
            known = measured(self._beside, name) or measured(host_records(), name)
            found[key] = robust({one: value / self._unit(section, one) for one, value in known.items()})
        return found

    def _unit(self, section: str, record: HostRecord) -> float:
        """Return the time [s] of an operation under DeepSpeed on a machine; with FSDP it was not measured."""
        own = record.host.deepspeed.operation.value
        return self._operation(self._beside_factors[record.gpu]) if section == "fsdp" else float(own)

    def _scaled(self, section: str) -> Statements:
        """Return the costs of a section as multiples of this host's operation."""
        found = {}
        for key, multiple in self.multiples(section).items():
            names = ", ".join(multiple.numbers)
            what = f"{multiple.value:.3g} x an operation under DeepSpeed"
            source = f"{what}, the median of calibrate micro on {names} (validation/measured)"
            time = seconds_text(multiple.value * self._operation(self._mine))
            found[f"{section}.{key}"] = Statement(time, source, str(multiple.date), spread=HOST_SPREAD)
        if section == "eager":
            found["eager.hook"] = found["eager.operation"]
        return found

    def _fsdp(self, known: Statements) -> Statements:
        """Return the costs under FSDP, and the rates of PyTorch's AdamW."""
        found = self._scaled("fsdp")
        source = "one and two ranks on the machines from which the numbers below are"
        found["fsdp.ranks"] = Statement(2, source, found["fsdp.operation"].date)
        for key in _FSDP_RATES:
            rate = pooled(self._all, f"fsdp.{key}")
            found[f"fsdp.{key}"] = self._median(rate, rate_text, f"PyTorch's AdamW, {key}")
        if not self._kind.one_gpu:  # as Host.fsdp_costs: more memory than that of the measured machines
            thread, limit = (parse_rate(known[key].value) for key in ("memcpy_rate", _LIMIT))
            loops = {
                "adam_thread": (2 * thread, "2 x memcpy_rate"),
                "adam_limit": (limit / 2, f"{_LIMIT} / 2"),
            }
            for key, (value, source) in loops.items():
                found[f"fsdp.{key}"] = Statement(rate_text(value), source, known[_LIMIT].date)
        return found


# -- writing --------------------------------------------------------------------------------------


def without(machine: str, platform: str) -> dict[str, Any]:
    """Return the section ``profiles`` of a scenario on a shipped platform as if a machine had no record."""
    host = load_platform(platform).host.id
    changes = {f"host/{host}": _HostStatements(HOSTS[host], machine).all()} if host in HOSTS else {}
    found: dict[str, Any] = {}
    for profile, statements in changes.items():
        for key, statement in statements.items():
            *sections, last = key.split(".")
            node = found.setdefault(profile, {})
            for section in sections:
                node = node.setdefault(section, {})
            node[last] = statement.data()
    return found


def written(text: str, statements: Mapping[str, Statement]) -> str:
    """Return the text of a profile with these statements in the place of those with the same keys.

    Raises ValueError for a key that the text lacks.
    """
    lines, section, left = [], "", dict(statements)
    for line in text.splitlines():
        key = line.partition(":")[0]
        if not key.startswith(" "):
            section = f"{key}." if line.endswith(":") else ""
        name = f"{section}{key.strip()}" if key.startswith(" ") else key
        statement = left.pop(name, None)
        indent = key[: len(key) - len(key.lstrip())]
        lines.append(line if statement is None else f"{indent}{key.strip()}: {statement.text()}")
    if left:
        raise ValueError(f"the profile lacks {', '.join(left)}")
    return "\n".join(lines) + "\n"


def files() -> dict[Path, str]:
    """Return the text of every profile that this module writes, by its path."""
    statements = {f"host/{name}": host_statements(name) for name in HOSTS}
    paths = {_PROFILES / f"{name}.yaml": found for name, found in statements.items()}
    return {path: written(path.read_text("utf-8"), found) for path, found in paths.items()}


def main() -> None:
    """Write all these profiles."""
    host_records.cache_clear()  # a fit may have changed them
    for path, text in files().items():
        path.write_text(text, encoding="utf-8")
        sys.stdout.write(f"wrote {path.relative_to(_PROFILES.parent)}\n")


if __name__ == "__main__":
    main()
