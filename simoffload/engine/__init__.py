"""The engine, which replays a schedule on shared links: clock, fluid network and executor."""

from simoffload.engine.loop import execute

__all__ = ["execute"]
