"""The engine, which replays a schedule on shared links: clock, fluid network and executor."""

from simoffload.engine.executor import execute
from simoffload.engine.out_of_step import Gains, gains_out_of_step, ranks_out_of_step

__all__ = ["Gains", "execute", "gains_out_of_step", "ranks_out_of_step"]
