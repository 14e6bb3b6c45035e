"""Hunyuan, dense: Llama with a norm on every head of queries and keys, after their rotation.

Modules and their order: transformers/models/hunyuan_v1_dense/modeling_hunyuan_v1_dense.py at 5.23.0, whose
code of a layer equals Llama's except for the two norms. Operations are those measured for Llama.
"""

from __future__ import annotations

from typing import ClassVar

from simoffload.models.families.base import Flag, ModuleLists
from simoffload.models.families.rotary import RotaryConfig, llama_traits
from simoffload.models.modules import Traits


class HunYuanV1Dense(RotaryConfig):
    """The configuration of dense Hunyuan models: Hugging Face's ``HunYuanDenseV1Config``."""

    family: ClassVar[str] = "hunyuan_v1_dense"
    traits: ClassVar[Traits] = llama_traits("HunYuanDenseV1ForCausalLM", float16=False)

    attention_bias: Flag = False

    def modules(self) -> ModuleLists:
        """Return the modules of ``HunYuanDenseV1ForCausalLM`` in call order."""
        attend = self._normed_after(self.attention_bias, "query_layernorm", "key_layernorm")
        return self._around("HunYuanDenseV1", self._normed(attend, self._gated()))
