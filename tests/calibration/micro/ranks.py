"""A process of several that measure subsets of themselves: ``python -m … FOLDER``, one for each rank.

Without GPUs, a copy is a short sleep. Ranks 0 and 2 sleep one after the other, and ranks 1 and 3 as well.
"""

from __future__ import annotations

import fcntl
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from simoffload.calibration.micro import links
from simoffload.calibration.micro.timing import MeasurementJob

_COPY_S = 4e-3


def main(folder: Path) -> None:
    """Measure copies in two rounds and collectives in one, and write what rank 0 returns."""
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()

    def copy(*_: Any, **__: Any) -> Callable[[], object]:
        def work() -> None:
            with (folder / f"shared{rank % 2}").open("w") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                time.sleep(_COPY_S)

        return work

    links._copy = copy
    links._host_buffer = lambda size, **_: torch.empty(size, dtype=torch.uint8)
    links._TOGETHER, links._SUBSET, links._SUBSET_S = [1 << 10, 1 << 12], 1 << 12, 0.02
    data = {"counts": [1, 2, 3, ranks], "round": 1}
    job = MeasurementJob(rank, ranks, "cpu", False, data, {}, time.monotonic() + 300)
    found = {
        "rounds": [links.copies_together(job._replace(data={**data, "round": number})) for number in (1, 2)],
        "shared": links.copies_of_subsets(job),
        "without time": links.copies_of_subsets(job._replace(until=time.monotonic() - 1)),
        "collectives": links.collectives(job._replace(data={"counts": [2, ranks]}), [1 << 12]),
    }
    if rank == 0:
        (folder / "found.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
