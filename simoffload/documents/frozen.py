"""The base of everything that is read from files."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

__all__ = ["Frozen"]


class Frozen(BaseModel):
    """A section of a file: its values cannot be changed, and unknown keys are refused.

    Its validator is built when it is first used: most programs read few of the sections that there are.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)
