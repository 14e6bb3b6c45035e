"""MiMo-7B: the layers of Qwen2.

Its code is Qwen2's (model_executor/models/mimo.py of vLLM at 055e47c2, whose checkpoint also has modules that
predict further tokens); modules are those of transformers 5.23.0, which has no MiMo.
"""

from __future__ import annotations

from typing import ClassVar

from simoffload.models.families.qwen import Qwen2
from simoffload.models.modules import Traits


class MiMo(Qwen2):
    """The configuration of MiMo models, which has the keys of ``Qwen2Config``."""

    family: ClassVar[str] = "mimo"
    aliases: ClassVar[tuple[str, ...]] = ()
    traits: ClassVar[Traits] = Qwen2.traits._replace(
        architecture="MiMoForCausalLM", tensor_plan=False, in_gguf=False
    )
