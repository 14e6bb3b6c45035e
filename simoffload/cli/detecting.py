"""``simoffload detect``: write a platform file for this machine from what it says of itself."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from simoffload.cli.catalogue import check_target
from simoffload.cli.console import Console, ExitCode
from simoffload.errors import InputError


def detect(arguments: Namespace, console: Console) -> ExitCode:
    """Print the platform file, or write it to the file of ``-o``, and say what was assumed and not seen."""
    from simoffload.exchange.files import replacing
    from simoffload.hardware import detect_machine, id_fault

    output: Path | None = arguments.output
    if output is not None:
        output = output if output.suffix else output.with_name(f"{output.name}.yaml")
        check_target(output, overwrite=arguments.overwrite)
    elif arguments.overwrite:
        raise InputError.at("", "there is nothing to overwrite; name a file with -o", path="--overwrite")
    root: Path | None = arguments.root
    if root is not None and not root.is_dir():
        raise InputError.at("", "is not a folder with the files of a recorded machine", path=str(root))
    name = output.stem.lower() if output is not None else "machine"
    found = detect_machine(root, identifier="machine" if id_fault(name) else name)
    if output is not None:
        with replacing(output) as file:
            file.write(found.text)
    lines = [
        *(f"seen: {one}" for one in found.seen),
        *(f"assumed: {one}" for one in found.assumed),
        *(f"not seen: {one}" for one in found.not_seen),
    ]
    data = {
        "schema": "simoffload/detect/1",
        "file": None if output is None else str(output),
        "seen": list(found.seen),
        "assumed": list(found.assumed),
        "not_seen": list(found.not_seen),
        "text": found.text,
    }
    if output is not None:
        lines += [f"{output}: platform; check it, then use it with --set platform={output}"]
        console.answer("\n".join(lines), data)
    else:
        for line in lines:
            console.note(line)
        console.answer(found.text, data)
    return ExitCode.OK
