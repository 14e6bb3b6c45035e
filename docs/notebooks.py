"""Run the notebooks and store their outputs, charts as pictures: python docs/notebooks.py [NAME…]."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "notebooks"
_PLOTLY = "application/vnd.plotly.v1+json"
_svg = runpy.run_path(str(Path(__file__).with_name("pictures.py")))["svg"]


def stored(outputs: Iterable[Mapping[str, Any]], count: int | None = None) -> list[dict[str, Any]]:
    """Return the outputs of a cell as they are kept: what it printed in one piece, tables as HTML and text,
    charts as SVG."""
    kept: list[dict[str, Any]] = []
    for output in outputs:
        if output["output_type"] == "stream":
            if kept and kept[-1].get("name") == output["name"]:
                kept[-1]["text"] += output["text"]
            else:
                kept.append({"output_type": "stream", "name": output["name"], "text": output["text"]})
            continue
        data = output["data"]
        if _PLOTLY in data:
            data = {
                "image/svg+xml": "".join(f"{line.rstrip()}\n" for line in _svg(data[_PLOTLY]).splitlines())
            }
        one: dict[str, Any] = {"output_type": output["output_type"], "data": dict(data), "metadata": {}}
        if output["output_type"] == "execute_result":
            one["execution_count"] = count
        kept.append(one)
    return kept


def main(names: Iterable[str]) -> None:
    """Run the notebooks whose names begin so, or all, and write them."""
    import nbclient
    import nbformat

    for path in sorted(FOLDER.glob("*.ipynb")):
        if names and not path.stem.startswith(tuple(names)):
            continue
        notebook = nbformat.read(path, as_version=4)
        about = dict(notebook.metadata)
        client = nbclient.NotebookClient(
            notebook, timeout=600, record_timing=False, resources={"metadata": {"path": str(FOLDER)}}
        )
        client.execute()
        notebook.metadata = nbformat.from_dict(about)
        for count, cell in enumerate((one for one in notebook.cells if one.cell_type == "code"), 1):
            cell.execution_count = count
            cell.outputs = [nbformat.from_dict(one) for one in stored(cell.outputs, count)]
        nbformat.write(notebook, path)
        sys.stdout.write(f"wrote {path.name}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
