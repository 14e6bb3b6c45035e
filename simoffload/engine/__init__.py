"""The engine, which replays a schedule on shared links: clock, fluid network and executor."""

from simoffload.engine.executor import execute
from simoffload.engine.out_of_step import Meetings, gains, meetings, ranks_out_of_step

__all__ = ["Meetings", "execute", "gains", "meetings", "ranks_out_of_step"]
