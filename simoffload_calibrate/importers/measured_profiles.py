"""Profiles in which measurements replace the numbers of another profile."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from simoffload.documents import parse_yaml, quoted, suggest, validate, yaml_text
from simoffload.errors import InputError, printable
from simoffload.hardware import (
    KINDS,
    Accelerator,
    Drive,
    Entry,
    Library,
    Profile,
    RateCurve,
    id_fault,
    inherited,
    is_path,
)
from simoffload.units import format_rate
from simoffload_calibrate.importers.aiconfigurator import (
    check_folder,
    kernel_numbers,
    lent_calls,
    read_calls,
    read_reduces,
    reduce_numbers,
)
from simoffload_calibrate.importers.benchmark_files import (
    BUFFER,
    CopyMeasurement,
    StorageMeasurement,
    read_ds_io,
    read_elbencho,
    read_fio_json,
    read_nvbandwidth,
)
from simoffload_calibrate.importers.llama_bench import bench_numbers, read_llama_bench

# -- the profile that gives the rest ---------------------------------------------------------------

_HEAD = frozenset({"kind", "id", "name", "notes"})
_REQUEST = 4096
"""[B] Size of the random requests that profiles count."""

_BESIDE = {
    "drive": {"write": "read"},
    "pcie": {"host_to_device": "device_to_host", "device_to_host": "host_to_device"},
}
"""The measured rate with which each unmeasured rate is compared, by kind of profile."""
_MOST = 1.5
"""The largest plausible ratio to that rate (our choice). In the shipped profiles no drive writes faster than
it reads, and both directions of PCIe differ by less than a fifth."""


class BaseProfile(NamedTuple):
    """The part of the base profile that goes into the new one."""

    data: dict[str, Any]
    """The kept numbers by key, as in the file."""
    estimated: tuple[str, ...]
    """The keys whose rates were lowered."""
    left_out: tuple[str, ...]
    warnings: tuple[str, ...]


def base_profile(
    base: Entry, measured: Mapping[str, Any], read: Callable[[Mapping[str, Any]], Profile]
) -> BaseProfile:
    """Return what ``base`` has in addition to ``measured``, as far as it is plausible with it.

    ``read`` makes a profile from keys and statements.
    """
    # A curve of the old drive would override the new rate.
    document = base.document.data
    own = {
        key: value for key, value in document.items() if key not in {*_HEAD, *measured, "read_by_outstanding"}
    }
    cache = own.pop("write_cache", None)  # without it any new rate of writing is valid
    owner = base.profile.id
    source = f"not measured here; of {owner}: {{}}"
    data: dict[str, Any] = inherited(own, owner, source=source)
    lowered = list(_lowered(base, measured, read({**data, **measured})))
    data |= {one.key: one.statement for one in lowered}
    beside = read({**data, **measured})
    if cache is not None:
        data |= inherited({"write_cache": cache}, owner, source=source)
    refused = dict(_refused(base, data, beside))
    data = {key: value for key, value in data.items() if key not in refused}
    warnings = [*(one.warning for one in lowered), *refused.values()]
    estimated = tuple(one.key for one in lowered)
    if kept := ", ".join(_numbers(base, {key for key in data if key not in estimated})):
        warnings.append(f"not measured, kept from {base.profile.id}: {kept}")
    return BaseProfile(data, estimated, tuple(refused), tuple(warnings))


class _Lowered(NamedTuple):
    key: str
    statement: dict[str, Any]
    warning: str


def _lowered(base: Entry, measured: Mapping[str, Any], profile: Profile) -> Iterator[_Lowered]:
    """Return the rates of the base profile that are too high, lowered in proportion to a measured rate."""
    for key, beside in _BESIDE.get(base.use.kind, {}).items():
        if key in measured or beside not in measured:
            continue
        seen, rate = _top(profile, beside), _top(profile, key)
        share = seen / _top(base.profile, beside)
        if rate <= _MOST * seen or share >= 1:
            continue
        warning = (
            f"not measured: {key}; {format_rate(rate)} of {base.profile.id} is not plausible next to the "
            f"measured {beside} of {format_rate(seen)}, so the profile has the proportional estimate "
            f"{format_rate(rate * share)}; measure it"
        )
        yield _Lowered(key, _scaled(base, key, beside, share), warning)


def _refused(base: Entry, data: Mapping[str, Any], profile: Profile) -> Iterator[tuple[str, str]]:
    """Return the optional keys of ``data`` that contradict the drive's rates, each with the reason."""
    drive = base.profile
    if not isinstance(drive, Drive) or not isinstance(profile, Drive):
        return
    for key, count, rate in (
        ("random_read", drive.random_read, profile.read.value),
        ("random_write", drive.random_write, profile.write.value),
    ):
        if key in data and count is not None and count.value * _REQUEST > rate:
            needed, has = (
                format_rate(count.value * _REQUEST),
                f"{key.removeprefix('random_')} is {format_rate(rate)}",
            )
            yield (
                key,
                f"not measured: {key}; {count.value} of {drive.id} would need {needed} where {has}: left out",
            )
    if "write_cache" in data and drive.sustained_write > profile.write.value:
        after, write = format_rate(drive.sustained_write), format_rate(profile.write.value)
        why = f"its rate_after of {after} in {drive.id} is above write {write}"
        yield "write_cache", f"not measured: write_cache; {why}: left out"


def _numbers(base: Entry, keys: Set[str]) -> Iterator[str]:
    """Return each number of the base profile below one of ``keys``, with its key."""
    for one in base.inputs():
        if one.key.partition(".")[0] in keys:
            yield f"{one.key} {one.text}"


def _top(profile: Profile, key: str) -> float:
    """Return a rate [B/s], or that of the fastest point of a curve."""
    value = getattr(profile, key)
    return float(value.top if isinstance(value, RateCurve) else value.value)


def _scaled(base: Entry, key: str, beside: str, share: float) -> dict[str, Any]:
    """Return the rates of a key times ``share``, marked as an estimate."""
    node, value = base.document.data[key], getattr(base.profile, key)
    source = f"not measured here; {key} of {base.profile.id} times {share:.3g}, as {beside} was measured"
    provenance = {"origin": "estimate", "source": source, "date": node["date"]}
    if isinstance(value, RateCurve):
        points = [
            [size, _rounded_rate(rate * share)]
            for (size, _), (_, rate) in zip(node["points"], value.points, strict=True)
        ]
        return {"points": points} | provenance
    return {"value": _rounded_rate(value.value * share)} | provenance


def _rounded_rate(rate: float) -> str:
    return f"{rate / 1e6:.4g} MB/s" if rate < 1e10 else f"{rate / 1e9:.4g} GB/s"


# -- measured profiles -----------------------------------------------------------------------------

_STORAGE: dict[str, Callable[[str | Path], tuple[StorageMeasurement, ...]]] = {
    "fio": read_fio_json,
    "ds-io": read_ds_io,
    "elbencho": read_elbencho,
}
_COPIES, _BENCH, _TABLES = "nvbandwidth", "llama-bench", "aiconfigurator"
_KINDS = {_COPIES: ("pcie",), _BENCH: ("accelerator", "host", "pcie"), _TABLES: ("accelerator",)}
"""Kinds of profiles that a tool measures, if they are not drives."""
_STREAMING = 128 * 1024
"""[B] The smallest request of a streaming rate. Smaller requests are limited by their number, unlike
offloading with requests of 1 MiB (DeepSpeed's default)."""
_RANDOM = 4096
"""[B] Size of the random requests that data sheets count."""
_LONGEST = 1900
"""[characters] The longest text of a source; profiles accept 2000."""
_SHOWN = 12
"""The most settings that the text of a source names."""

Statement = dict[str, Any]


class MeasuredProfile(NamedTuple):
    """A new profile as text, with remarks about its origin."""

    kind: str
    text: str
    measured: tuple[str, ...]
    """The keys that were measured."""
    kept: tuple[str, ...]
    """The keys with numbers of the base profile."""
    warnings: tuple[str, ...]
    estimated: tuple[str, ...] = ()
    """The keys whose numbers are those of the base profile, lowered in proportion to be plausible."""
    left_out: tuple[str, ...] = ()
    """The optional keys of the base profile that were not plausible and were left out."""


class _Findings(NamedTuple):
    """The numbers and warnings that measurements give."""

    numbers: dict[str, Statement]
    warnings: list[str]


def import_profile(
    form: str, files: Sequence[str | Path], *, identifier: str, base: str | None, size: int | None = None
) -> MeasuredProfile:
    """Make a profile of a drive from files of fio, ds-io or elbencho, of PCIe from files of nvbandwidth, or
    of a GPU, a host or PCIe from files of llama-bench.

    ``base`` names the profile that gives all other numbers; ``size`` [B] is nvbandwidth's ``--bufferSize``.
    Raises InputError for files that cannot be read or lack numbers that a profile needs.
    """
    known = (*_STORAGE, _COPIES, _BENCH, _TABLES)
    if form not in known:
        raise _error("format", f"{quoted(form)} is not one of {', '.join(known)}{suggest(form, known)}")
    kinds = _KINDS.get(form, ("drive",))
    if fault := id_fault(identifier):
        raise _error("--id", fault)
    if size is not None and form != _COPIES:
        raise _error("--buffer-size", "only nvbandwidth has this option")
    if base is None:
        raise _error("--from", _missing_base(kinds))
    try:
        library = Library()
        origin = library.read(Path(base), kinds) if is_path(base) else library.find(base, kinds)
    except InputError as error:
        raise InputError(one if one.path else one._replace(path="--from") for one in error.problems) from None
    if form == _COPIES:
        findings = _copies([one for file in files for one in read_nvbandwidth(file, size=size or BUFFER)])
    elif form == _BENCH:
        rows = [one for file in files for one in read_llama_bench(file)]
        findings = _Findings(*bench_numbers(rows, origin.profile))
    elif form == _TABLES:
        findings = _kernels(files, origin)
    else:
        findings = _storage([one for file in files for one in _STORAGE[form](file)])

    def profile(numbers: Mapping[str, Any]) -> tuple[str, Profile]:
        text = yaml_text({**_head(origin.document.data, findings, identifier, form), **numbers}, flow=True)
        return text, validate(parse_yaml(text, name=f"the profile {identifier}"), KINDS[origin.use.kind])

    kept = base_profile(origin, findings.numbers, lambda numbers: profile(numbers)[1])
    findings.warnings.extend(kept.warnings)
    text, _ = profile({**kept.data, **findings.numbers})
    return MeasuredProfile(
        origin.use.kind,
        text,
        measured=tuple(findings.numbers),
        kept=tuple(key for key in kept.data if key not in kept.estimated),
        warnings=tuple(findings.warnings),
        estimated=kept.estimated,
        left_out=kept.left_out,
    )


def _kernels(folders: Sequence[str | Path], origin: Entry) -> _Findings:
    """Return the section ``compiled`` of a GPU: the tables of the first folder, those that it lacks from
    other systems, and what the base has beside them."""
    base = origin.profile
    assert isinstance(base, Accelerator)
    for folder in folders:
        check_folder(folder)
    first, *others = folders
    source, calls = f"aiconfigurator, {Path(first).name}", read_calls(first, base)
    tables = kernel_numbers(calls, base, source=source)
    for folder in others:
        text = f"aiconfigurator, {Path(folder).name}, in the times of products of {Path(first).name}"
        lent = lent_calls(calls, read_calls(folder, base))
        tables = {**kernel_numbers(lent, base, source=text, lent=True), **tables}
    tables |= reduce_numbers(read_reduces(first), base, source=source)
    if not tables:
        text = "read are products in bfloat16, fp8 and nvfp4, experts in bfloat16, fp8_block and w4a16_mxfp4"
        raise _error(str(first), f"has no kernels for {base.id}; {text}, attention in bfloat16")
    kept = {key: one for key, one in origin.document.data.get("compiled", {}).items() if key not in tables}
    text = f"not measured here; of {base.id}: {{}}"
    warning = "tables are of short bursts; lower their value to the share of the clock under lasting load"
    return _Findings({"compiled": {**inherited(kept, base.id, source=text), **tables}}, [warning])


def _error(path: str, message: str) -> InputError:
    return InputError.at("", message, path=path)


def _missing_base(kinds: Sequence[str]) -> str:
    known = ", ".join(one.id for kind in kinds for one in Library().summaries(kind))
    wanted = " or ".join(kinds)
    return f"missing: name the {wanted} that supplies the other numbers (size, slot, …), one of {known}"


def _storage(runs: list[StorageMeasurement]) -> _Findings:
    """Return numbers of a drive: rates of large requests, latency of single ones, requests/s of 4 KiB."""
    large = [run for run in runs if run.block >= _STREAMING]
    reads = [run for run in large if run.operation == "read"]
    if not reads:
        files = ", ".join(sorted({run.file for run in runs}))
        message = (
            "no reads of 128 KiB or more, which give the read rate; measure e.g. 1 MiB at queue depth 32"
        )
        raise _error(files, message)
    numbers: dict[str, Statement] = {}
    warnings: list[str] = []
    for operation in ("read", "write"):
        runs_of_operation = [run for run in large if run.operation == operation]
        if not runs_of_operation:
            warnings.append(f"no {operation}s of 128 KiB or more: {operation} is not measured")
            continue
        best = max(runs_of_operation, key=lambda run: run.rate)
        numbers[operation] = _number(_rate(best.rate), [best])
        alone = [run for run in runs if run.operation == operation and run.outstanding == run.block]
        latency = _latency(alone, best.rate)
        if latency is None:
            warnings.append(
                f"no {operation} at queue depth 1 with its latency: {operation}_latency is not measured"
            )
        else:
            numbers[f"{operation}_latency"] = latency
        small = [run for run in runs if run.operation == operation and run.block == _RANDOM and run.random]
        if small:
            fastest = max(small, key=lambda run: run.rate)
            numbers[f"random_{operation}"] = _number(max(1, round(fastest.rate / _RANDOM)), [fastest])
    curve = _curve(reads)
    if curve is None:
        warnings.append("reads with only one amount in flight: no read_by_outstanding")
    else:
        numbers["read_by_outstanding"] = curve
    buffered = sorted({run.file for run in runs if run.direct is False})
    if buffered:
        warnings.append(
            f"buffered I/O (direct=0) in {', '.join(buffered)}: rates may be those of the page cache"
        )
    return _Findings(numbers, warnings)


def _latency(alone: list[StorageMeasurement], rate: int) -> Statement | None:
    """Return the latency of the smallest single request without the transfer time of its bytes."""
    timed = [run for run in alone if run.latency is not None]
    if not timed:
        return None
    smallest = min(timed, key=lambda run: (run.block, run.latency))
    latency = (smallest.latency or 0) - smallest.block / rate
    if latency <= 0:
        return None
    statement = _number(_amount(latency * 1e6, "us", digits=3), [smallest])
    statement["source"] += f"; mean latency {_amount((smallest.latency or 0) * 1e6, 'us', digits=3)}"
    statement["source"] += f" less {smallest.block} B at {_rate(rate)}"
    return statement


def _curve(reads: list[StorageMeasurement]) -> Statement | None:
    """Return the best read rate of each amount in flight; None for a single amount, which is no curve."""
    best: dict[int, StorageMeasurement] = {}
    for run in sorted(reads, key=lambda run: run.rate):
        best[run.outstanding] = run
    if len(best) < 2:
        return None
    runs = [best[outstanding] for outstanding in sorted(best)]
    points = [[_size(run.outstanding), _rate(run.rate)] for run in runs]
    return {"points": points} | _provenance(runs, _settings(runs))


def _copies(copies: list[CopyMeasurement]) -> _Findings:
    """Return numbers of PCIe: the median GPU's rates, and their share when both directions are busy."""
    numbers: dict[str, Statement] = {}
    warnings: list[str] = []
    alone: dict[str, float] = {}
    busy: dict[str, float] = {}
    for direction in ("host_to_device", "device_to_host"):
        same_direction = [one for one in copies if one.direction == direction]
        single = [one for one in same_direction if not one.both_ways]
        double = [one for one in same_direction if one.both_ways]
        if double:
            busy[direction] = median(one.rate for one in double)
        if not single:
            warnings.append(f"no {direction}_memcpy_ce: {direction} is not measured")
            continue
        alone[direction] = median(one.rate for one in single)
        point = [_size(single[0].size), _rate(round(alone[direction]))]
        numbers[direction] = {"points": [point]} | _provenance(single, _gpus(single))
    if not numbers:
        files = ", ".join(sorted({one.file for one in copies}))
        raise _error(files, "only copies in both directions at once; add -t host_to_device_memcpy_ce")
    both = [direction for direction in alone if direction in busy]
    if both:
        share = sum(busy[one] for one in both) / sum(alone[one] for one in both)
        used = [one for one in copies if one.direction in both]
        source_text = f"bidirectional over single rates of {' and '.join(both)}, {_gpus(used)}"
        numbers["both_ways"] = {"value": min(1.0, round(share, 4))} | _provenance(used, source_text)
    else:
        warnings.append(
            "no bidirectional test of a direction that was also measured alone: both_ways is not measured"
        )
    return _Findings(numbers, warnings)


def _gpus(copies: list[CopyMeasurement]) -> str:
    gpus = sorted({one.gpu for one in copies})
    return f"copy engine, {_size(copies[0].size)} buffers, median of GPU {', '.join(map(str, gpus))}"


def _number(value: Any, runs: list[StorageMeasurement]) -> Statement:
    return {"value": value} | _provenance(runs, _settings(runs))


def _provenance(measured: Sequence[StorageMeasurement | CopyMeasurement], settings: str) -> Statement:
    tools = sorted({f"{one.tool} {one.version}".rstrip() for one in measured})
    files = sorted({one.file for one in measured})
    source = printable(f"{', '.join(tools)}; {', '.join(files)}; {settings}")
    if len(source) > _LONGEST:
        source = source[:_LONGEST] + "…"
    return {"origin": "measured", "source": source, "date": max(one.date for one in measured).isoformat()}


def _settings(runs: Iterable[StorageMeasurement]) -> str:
    source_text = dict.fromkeys(_setting(run) for run in runs)
    shown = " / ".join(list(source_text)[:_SHOWN])
    return shown + (f" / and {len(source_text) - _SHOWN} more" if len(source_text) > _SHOWN else "")


def _setting(run: StorageMeasurement) -> str:
    how = {True: ", direct", False: ", buffered", None: ""}[run.direct]
    pattern = "random " if run.random else ""
    jobs = f"{run.jobs} job{'s' if run.jobs > 1 else ''}"
    return f"{pattern}{_size(run.block)} blocks, queue depth {run.queue_depth}, {jobs}{how}"


def _size(size: int) -> str:
    """Return a size exactly, with its unit."""
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if size % 1024**power == 0:
            return f"{size // 1024**power} {unit}"
    return f"{size} B"


def _rate(rate: int) -> str:
    """Return a rate exactly, with its unit."""
    return _amount(rate / 10**6, "MB/s", digits=6)


def _amount(value: float, unit: str, *, digits: int) -> str:
    return f"{f'{value:.{digits}f}'.rstrip('0').rstrip('.')} {unit}"


def _head(data: dict[str, Any], findings: _Findings, identifier: str, form: str) -> dict[str, Any]:
    """Return the names and notes of a profile that is made from the profile ``data``."""
    measured = f"Measured with {form}: {', '.join(findings.numbers)}."
    notes = [measured, f"Everything else comes from {data['id']} ({data['name']})."]
    notes += [f"{warning[0].upper()}{warning[1:]}." for warning in findings.warnings]
    if data.get("notes"):
        notes.append(f"Notes of {data['id']}: {data['notes'].strip()}")
    return {
        "kind": data["kind"],
        "id": identifier,
        "name": f"{data['name'][:1000]}, measured with {form}",
        "notes": printable(" ".join(notes)),
    }
