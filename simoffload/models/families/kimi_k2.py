"""Kimi-K2: the architecture of DeepSeek-V3, with more experts and fewer heads.

Its code (modeling_deepseek.py beside its weights) is DeepSeek-V3's; modules are those of transformers 5.23.0.
"""

from __future__ import annotations

from typing import ClassVar

from simoffload.models.families.deepseek_v3 import DeepseekV3
from simoffload.models.modules import Traits


class KimiK2(DeepseekV3):
    """The configuration of Kimi-K2 models, which has the keys of ``DeepseekV3Config``."""

    family: ClassVar[str] = "kimi_k2"
    traits: ClassVar[Traits] = DeepseekV3.traits._replace(tensor_plan=False)
