"""A key of ds_config that a fork of DeepSpeed reads, declared outside the package in one class."""

from typing import Annotated

from pydantic import Field

from simoffload.cli import main
from simoffload.strategies.ds_config import ForkKeys, Key, ZeroSection


class Gathering(ForkKeys):
    """Keys of ``zero_optimization`` of the fork."""

    of = ZeroSection

    gather_threads: Annotated[
        int | None,
        Field(strict=True, ge=1, le=64),
        Key(
            in_effect=lambda written, use: written or (2 if use.version >= (0, 19, 0) else 1),
            exported=lambda _section, use: use.stage == 3,
        ),
    ] = None
    """Threads of a rank that gather parameters; None: 2 from version 0.19.0 on, else 1."""
    gather_window: Annotated[int, Key(simulated=1, instead="one window is assumed")] = 1
    """Number of windows of gathered parameters."""


if __name__ == "__main__":
    raise SystemExit(main())
