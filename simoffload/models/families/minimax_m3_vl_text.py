"""MiniMax-M3 under the name that its language model has in transformers 5.23.0."""

from __future__ import annotations

from typing import ClassVar

from simoffload.models.families.minimax_m3 import MiniMaxM3
from simoffload.models.modules import Traits


class MiniMaxM3VLText(MiniMaxM3):
    """The configuration of the language model within MiniMax-M3 models that take more than text."""

    family: ClassVar[str] = "minimax_m3_vl_text"
    within: ClassVar[str | None] = None
    traits: ClassVar[Traits] = MiniMaxM3.traits
