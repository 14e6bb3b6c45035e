"""``python -m validation.refit [MACHINE…]`` fits host threads of measured machines again, from their records.

Only the keys of the host thread in ``host.yaml`` are replaced; the rest of a machine's profile stays
unchanged. A machine whose profile is that of another one keeps following it.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from simoffload.calibration.micro.fit_deepspeed import ThreadFit
from simoffload.calibration.micro.profiles import base_platform, profile_from_micro
from simoffload.calibration.micro.record import read_record
from simoffload.documents import read_document, yaml_text

__all__ = ["machines", "refitted"]

_MEASURED = Path(__file__).parent / "measured"
_THREAD = ("host_factor", "deepspeed", "training")
_SAME_PROFILE = {"h200-i": "h200-f"}
"""A machine without a record, and the machine whose profile it uses."""


def machines(folder: Path = _MEASURED) -> Iterator[Path]:
    """Yield the folders of machines with a profile and a record of the host thread."""
    for path in sorted(folder.glob("*/*/host.yaml")):
        record = path.parent / "micro.json"
        if record.is_file() and read_record(record)["sections"].get("hooks"):
            yield path.parent


def refitted(folder: Path) -> str:
    """Return the text of a machine's ``host.yaml`` with its host thread fitted again."""
    raw = read_record(folder / "micro.json")
    gpu = (raw["machine"].get("gpu") or {"name": ""})["name"]

    def report(fit: ThreadFit) -> None:
        sys.stdout.write(f"{folder.name}: {fit.summary()}\n")

    texts = profile_from_micro(raw, base_platform(gpu), report=report)
    present = read_document(folder / "host.yaml").data
    (folder / "refit.yaml").write_text(texts["host.yaml"], encoding="utf-8")
    try:
        fitted = read_document(folder / "refit.yaml").data
    finally:
        (folder / "refit.yaml").unlink()
    thread = {key: fitted[key] for key in _THREAD if key in fitted}
    merged = {key: thread.pop(key, value) for key, value in present.items() if key != "host_factor"}
    return yaml_text({**merged, **thread}, flow=True)


def main(names: Sequence[str]) -> None:
    """Write the profiles of the named machines, or of all."""
    for folder in machines():
        if names and folder.name not in names:
            continue
        text = refitted(folder)
        (folder / "host.yaml").write_text(text, encoding="utf-8")
    for name, other in _SAME_PROFILE.items():
        for target in _MEASURED.glob(f"*/{name}/host.yaml"):
            shutil.copy(next(_MEASURED.glob(f"*/{other}/host.yaml")), target)


if __name__ == "__main__":
    main(sys.argv[1:])
