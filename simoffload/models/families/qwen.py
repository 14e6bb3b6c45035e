"""Qwen: 1.5, 2, 2.5 and 3, their mixtures of experts, and the linear attention of Qwen3-Next."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from simoffload.models.families.base import Count, Extent, Flag, ModuleLists, Width
from simoffload.models.families.experts import Experts, SparseStepConfig, expert_traits
from simoffload.models.families.recurrent import DeltaNetConfig
from simoffload.models.families.rotary import SlidingConfig, UpperWindowsConfig, llama_traits
from simoffload.models.modules import Module, Traits

# -- qwen2 and 2.5 ---------------------------------------------------------------------------------
# Llama with biases on queries, keys and values; upper layers may have a sliding window.
#
# Modules and their order: transformers/models/qwen2/modeling_qwen2.py at 5.23.0, whose code of a layer
# equals Llama's except for the biases; the operations are therefore those measured for Llama.


class Qwen2(UpperWindowsConfig):
    """The configuration of Qwen2 models: Hugging Face's ``Qwen2Config``."""

    family: ClassVar[str] = "qwen2"
    aliases: ClassVar[tuple[str, ...]] = ("qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text")
    traits: ClassVar[Traits] = llama_traits("Qwen2ForCausalLM")

    def modules(self) -> ModuleLists:
        """Return the modules of ``Qwen2ForCausalLM`` in call order."""
        return self._around("Qwen2", self._normed(self._self_attention(bias=True), self._gated()))


# -- qwen3, dense ----------------------------------------------------------------------------------
# Llama with a norm on every head of queries and keys.
#
# Modules and their order: transformers/models/qwen3/modeling_qwen3.py at 5.23.0, whose code of a layer
# equals Llama's except for the two norms, which are modules; the operations are therefore those measured
# for Llama.


class Qwen3(UpperWindowsConfig):
    """The configuration of Qwen3 models: Hugging Face's ``Qwen3Config``."""

    family: ClassVar[str] = "qwen3"
    aliases: ClassVar[tuple[str, ...]] = ("qwen3_vl", "qwen3_vl_text")
    traits: ClassVar[Traits] = llama_traits("Qwen3ForCausalLM")

    head_dim: Width | None = 128
    attention_bias: Flag = False

    def modules(self) -> ModuleLists:
        """Return the modules of ``Qwen3ForCausalLM`` in call order."""
        attend = self._normed_heads(self.attention_bias)
        return self._around("Qwen3", self._normed(attend, self._gated()))


# -- qwen2 moe -------------------------------------------------------------------------------------
# Qwen1.5-MoE and Qwen2-MoE: Qwen2's attention, experts, and a shared expert with a gate of its own.
#
# Modules and their order: transformers/models/qwen2_moe/modeling_qwen2_moe.py at 5.23.0. Operations are
# those measured for Mixtral.


class Qwen2Moe(SparseStepConfig, SlidingConfig):
    """The configuration of Qwen2-MoE models: Hugging Face's ``Qwen2MoeConfig``."""

    family: ClassVar[str] = "qwen2_moe"
    traits: ClassVar[Traits] = expert_traits(
        "Qwen2MoeForCausalLM",
        v1_runner=False,
        leaf_modules=("mlp",),
    )

    num_key_value_heads: Count | None = 16
    num_experts: Experts = 60
    num_experts_per_tok: Experts = 4
    moe_intermediate_size: Extent = 1408
    shared_expert_intermediate_size: Extent = 5632
    qkv_bias: Flag = True
    use_sliding_window: Flag = False
    sliding_window: Annotated[int, Field(strict=True, ge=0, le=10_000_000)] | None = 4096
    """0, as transformers writes it, where windows are not enabled."""
    max_window_layers: Annotated[int, Field(strict=True, ge=0, le=100_000)] = 28

    def slides(self, layer: int, /) -> bool:
        """Return whether it is every other one of the lower layers, if windows are enabled."""
        return self.use_sliding_window and layer % 2 == 0 and layer < self.max_window_layers

    def modules(self) -> ModuleLists:
        """Return the modules of ``Qwen2MoeForCausalLM`` in call order."""
        experts = self._routed_and_gated(self.shared_expert_intermediate_size)
        return self._mixed("Qwen2Moe", self._self_attention(bias=self.qkv_bias), experts, self._dense)


# -- qwen3-MoE: Qwen3's attention, and experts without a shared one --------------------------------
# Modules and their order: transformers/models/qwen3_moe/modeling_qwen3_moe.py at 5.23.0. Operations are
# those measured for Mixtral.


class Qwen3Moe(SparseStepConfig, SlidingConfig):
    """The configuration of Qwen3-MoE models: Hugging Face's ``Qwen3MoeConfig``."""

    family: ClassVar[str] = "qwen3_moe"
    aliases: ClassVar[tuple[str, ...]] = ("qwen3_vl_moe", "qwen3_vl_moe_text", "qwen3_omni_moe_text")
    traits: ClassVar[Traits] = expert_traits(
        "Qwen3MoeForCausalLM",
        leaf_modules=("mlp",),
    )
    spellings: ClassVar[dict[str, str]] = {"num_local_experts": "num_experts"}

    num_key_value_heads: Count | None = 4
    head_dim: Width | None = None
    attention_bias: Flag = False
    num_experts: Experts = 128
    num_experts_per_tok: Experts = 8
    moe_intermediate_size: Extent = 768
    use_sliding_window: Flag = False
    sliding_window: Extent | None = 4096

    def slides(self, _layer: int, /) -> bool:
        """Return whether windows are enabled, which all layers then have."""
        return self.use_sliding_window

    def modules(self) -> ModuleLists:
        """Return the modules of ``Qwen3MoeForCausalLM`` in call order."""
        attend = self._normed_heads(self.attention_bias)
        return self._mixed("Qwen3Moe", attend, self._routed(), self._dense)


# -- Qwen3-Next ------------------------------------------------------------------------------------
# Gated DeltaNet in three layers of four, gated attention in the fourth; experts.
#
# Modules and their order: transformers/models/qwen3_next/modeling_qwen3_next.py at 5.23.0. Operations are
# those measured for Mixtral; the time of linear attention is a lower bound. The module that predicts a
# further token is left out, as in transformers.


class Qwen3Next(DeltaNetConfig, SparseStepConfig):
    """The configuration of Qwen3-Next models: Hugging Face's ``Qwen3NextConfig``."""

    family: ClassVar[str] = "qwen3_next"
    traits: ClassVar[Traits] = expert_traits("Qwen3NextForCausalLM", leaf_modules=("mlp",))
    spellings: ClassVar[dict[str, str]] = {"num_local_experts": "num_experts"}

    num_key_value_heads: Count | None = 2
    num_experts: Experts = 512
    num_experts_per_tok: Experts = 10
    moe_intermediate_size: Extent = 512
    shared_expert_intermediate_size: Extent = 512

    @property
    def _network(self) -> tuple[Module, ...]:
        return self._routed_and_gated(self.shared_expert_intermediate_size)

    def modules(self) -> ModuleLists:
        """Return the modules of ``Qwen3NextForCausalLM`` in call order."""
        networks, attends = (self._network, self._gated()), self._attends(joint=True)
        made = {
            (recurrent, dense): self._normed(attends[recurrent], networks[dense])
            for recurrent in (False, True)
            for dense in (False, True)
        }
        return self._around(
            "Qwen3Next", *(made[kind] for kind in zip(self._linear, self._dense, strict=True))
        )
