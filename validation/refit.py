"""``python -m validation.refit [MACHINE…]`` fits measured machines again, from their records.

Without a machine it first fits the reference host (``reference_costs``), and in the end writes the hosts of
shipped machines (``shipped_hosts``), so that one command follows a change of the fit or of the records.
Replaced are the keys of the host thread in ``host.yaml``, and those of kernels, attention and float16 in
``accelerator.yaml``; the rest of a machine's profile stays unchanged. A machine whose profile is that of
another one keeps following it.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from simoffload.documents import parse_yaml, read_document, yaml_text
from simoffload_calibrate import reference
from simoffload_calibrate.micro.fit_programs import ThreadFit
from simoffload_calibrate.micro.profiles import base_platform, profile_from_micro
from simoffload_calibrate.micro.record import read_record
from validation import reference_costs, shipped_hosts

_MEASURED = Path(__file__).parent / "measured"
_REFITTED = {
    "host.yaml": ("host_factor", "deepspeed", "training", "eager"),
    "accelerator.yaml": (
        "strided_rate",
        "join_rate",
        "float16_share",
        "fused_attention",
        "eager_attention",
    ),
}
"""The keys that are fitted again, by file."""
_SAME_PROFILE = {"h200-i": "h200-f"}
"""A machine without a record, and the machine whose profile it uses."""


def machines(folder: Path = _MEASURED) -> Iterator[Path]:
    """Yield the folders of machines with a profile and a record."""
    for path in sorted(folder.glob("*/*/host.yaml")):
        if (path.parent / "micro.json").is_file():
            yield path.parent


def refitted(folder: Path) -> dict[str, str]:
    """Return the texts of a machine's files with their keys fitted again, by file."""
    raw = read_record(folder / "micro.json")
    gpu = (raw["machine"].get("gpu") or {"name": ""})["name"]

    def report(fit: ThreadFit) -> None:
        sys.stdout.write(f"{folder.name}: {fit.summary()}\n")

    texts = profile_from_micro(raw, base_platform(gpu), report=report)
    host = bool(raw["sections"].get("hooks"))
    return {file: _merged(folder, file, texts[file]) for file in _REFITTED if host or file != "host.yaml"}


def _merged(folder: Path, file: str, text: str) -> str:
    present = read_document(folder / file).data
    fitted = parse_yaml(text, name=file).data
    keys = _REFITTED[file]
    kept = {key: value for key, value in present.items() if key not in keys or key in fitted}
    return yaml_text({**kept, **{key: fitted[key] for key in keys if key in fitted}}, flow=True)


def main(names: Sequence[str]) -> None:
    """Write the profiles of the named machines; without names the reference, all machines and shipped hosts.

    Machines and shipped hosts are written twice: shipped hosts have the medians of machines, and a machine
    has the shipped host's value of what was not measured on it. Raises SystemExit for names without
    a record.
    """
    known = {folder.name for folder in machines(_MEASURED)} | _SAME_PROFILE.keys()
    if unknown := [name for name in names if name not in known]:
        raise SystemExit(f"no record of {', '.join(unknown)}")
    if names:
        _write(names)
        return
    reference_costs.main()
    reference.reference_costs.cache_clear()
    for _ in range(2):
        _write(())
        shipped_hosts.main()


def _write(names: Sequence[str]) -> None:
    for folder in machines(_MEASURED):
        if names and folder.name not in names:
            continue
        for file, text in refitted(folder).items():
            (folder / file).write_text(text, encoding="utf-8")
    for name, other in _SAME_PROFILE.items():
        if names and not {name, other} & set(names):
            continue
        for file in _REFITTED:
            for target in _MEASURED.glob(f"*/{name}/{file}"):
                shutil.copy(next(_MEASURED.glob(f"*/{other}/{file}")), target)


if __name__ == "__main__":
    main(sys.argv[1:])
