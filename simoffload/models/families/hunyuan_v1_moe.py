"""Hunyuan with experts, and a shared one: Hunyuan-A13B.

Modules and their order: transformers/models/hunyuan_v1_moe/modeling_hunyuan_v1_moe.py at 5.23.0, where every
layer has as many experts, of one width. Operations are those measured for Mixtral.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import BeforeValidator, Field

from simoffload.models.families.base import Flag, ModuleLists
from simoffload.models.families.experts import ExpertsConfig, expert_traits
from simoffload.models.modules import Traits, container


def _equal(value: object) -> object:
    """Return the number of all layers, which may be listed."""
    if isinstance(value, list | tuple) and value:
        if any(one != value[0] for one in value):
            raise ValueError("must be the same number in all layers")
        return value[0]
    return value


_Equal = Annotated[int, Field(strict=True, ge=1, le=65_536), BeforeValidator(_equal)]


class HunYuanV1Moe(ExpertsConfig):
    """The configuration of Hunyuan models with experts: Hugging Face's ``HunYuanMoEV1Config``."""

    family: ClassVar[str] = "hunyuan_v1_moe"
    traits: ClassVar[Traits] = expert_traits("HunYuanMoEV1ForCausalLM", float16=False, tensor_plan=False)
    spellings: ClassVar[dict[str, str]] = {
        "num_local_experts": "num_experts",
        "moe_topk": "num_experts_per_tok",
    }
    width_key: ClassVar[str] = "intermediate_size"

    attention_bias: Flag = False
    num_experts: _Equal = 1
    num_experts_per_tok: _Equal = 1

    def modules(self) -> ModuleLists:
        """Return the modules of ``HunYuanMoEV1ForCausalLM`` in call order."""
        attend = self._normed_after(self.attention_bias, "query_layernorm", "key_layernorm")
        block, *routed = self._routed(router="gate.wg")
        experts = (block, *self._gated(name="mlp.shared_mlp"), container("mlp.gate"), *routed)
        return self._around("HunYuanMoEV1", self._normed(attend, experts))
