"""The command line. Nothing heavy is imported before a command needs it: ``--help`` must answer at once."""

from __future__ import annotations

from simoffload.cli.program import main

__all__ = ["main"]
