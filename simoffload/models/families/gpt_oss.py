"""gpt-oss: experts with biases, attention with sinks, a window in every other layer.

Modules and their order: transformers/models/gpt_oss/modeling_gpt_oss.py at 5.23.0. Operations are those
measured for Mixtral plus what this code adds: six in eager attention for the sinks (expand, join, maximum,
subtract, slice, cast), which the fused kernels of PyTorch do not know.
"""

from __future__ import annotations

from typing import ClassVar

from simoffload.models.families.base import Count, Extent, Flag, ModuleLists, Width
from simoffload.models.families.experts import EXPERT_OPERATIONS, Experts, ExpertsConfig, expert_traits
from simoffload.models.families.rotary import SlidingConfig
from simoffload.models.modules import EAGER, Traits, activation
from simoffload.models.stored_tensors import Parameter


class GptOss(ExpertsConfig, SlidingConfig):
    """The configuration of gpt-oss models: Hugging Face's ``GptOssConfig``."""

    family: ClassVar[str] = "gpt_oss"
    traits: ClassVar[Traits] = expert_traits(
        "GptOssForCausalLM",
        tensor_plan=False,
        attention="eager",  # the fused kernels have no sinks
        operations=EXPERT_OPERATIONS._replace(eager=EAGER + 6),
        half_softmax=True,
    )
    spellings: ClassVar[dict[str, str]] = {"num_experts": "num_local_experts"}
    experts_key: ClassVar[str] = "num_local_experts"
    width_key: ClassVar[str] = "intermediate_size"

    num_key_value_heads: Count | None = 8
    head_dim: Width | None = 64
    num_local_experts: Experts = 128
    num_experts_per_tok: Experts = 4
    sliding_window: Extent | None = 128
    attention_bias: Flag = True

    def slides(self, layer: int, /) -> bool:
        """Return whether it is every other layer, beginning with the first."""
        return layer % 2 == 0

    def modules(self) -> ModuleLists:
        """Return the modules of ``GptOssForCausalLM`` in call order."""
        block, *attend = self._self_attention(bias=self.attention_bias, output_bias=self.attention_bias)
        sinks = Parameter("self_attn.sinks", self.num_attention_heads)
        *routed, act = self._routed(router="router", bias=True)
        # Clamp twice, times alpha, sigmoid, plus one (1 read, 1 written each), two products (2, 1).
        glu = activation(act.name, act.width, reads=9, writes=7, share=act.share)._replace(hooked=False)
        layer = self._normed((block._replace(parameters=(sinks,), parallel="heads"), *attend), (*routed, glu))
        return self._around("GptOss", layer)
