"""Nemotron-H and Nemotron 3: layers of one mixer each, which is Mamba-2, attention without positions, a
feed-forward network or experts, in the larger models of latent vectors.

Modules and their order: transformers/models/nemotron_h/modeling_nemotron_h.py at 5.23.0. Operations are
those measured for Mixtral.
"""

from __future__ import annotations

from typing import ClassVar

from simoffload.models.families.base import Count, Extent, Flag, ModuleLists, Width
from simoffload.models.families.experts import Experts, expert_traits
from simoffload.models.families.recurrent import Mamba2, MixersConfig
from simoffload.models.modules import (
    DTYPE_BYTES,
    Dtype,
    Module,
    Traits,
    container,
    embedding,
    head,
    rms_norm,
)


class NemotronH(MixersConfig):
    """The configuration of Nemotron-H models: Hugging Face's ``NemotronHConfig``."""

    family: ClassVar[str] = "nemotron_h"
    traits: ClassVar[Traits] = expert_traits("NemotronHForCausalLM", float16=False)
    spellings: ClassVar[dict[str, str]] = {
        "num_local_experts": "n_routed_experts",
        "layer_types": "layers_block_type",
        "hybrid_override_pattern": "layers_block_type",
    }
    experts_key: ClassVar[str] = "n_routed_experts"

    num_key_value_heads: Count | None = 8
    head_dim: Width | None = 128
    intermediate_size: Extent = 21_504
    mlp_bias: Flag = False
    use_bias: Flag = False
    mamba_num_heads: Count = 128
    mamba_head_dim: Width = 64
    n_groups: Count = 8
    ssm_state_size: Width = 128
    conv_kernel: Count = 4
    chunk_size: Count = 128
    use_conv_bias: Flag = True
    mamba_ssm_cache_dtype: Dtype = "float32"
    """Type of the states in vLLM (``NemotronHForCausalLMConfig``, models/config.py)."""
    n_routed_experts: Experts = 8
    num_experts_per_tok: Experts = 2
    moe_intermediate_size: Extent = 7688
    moe_shared_expert_intermediate_size: Extent = 7688
    moe_latent_size: Width | None = None

    def _layers(self) -> dict[str, tuple[Module, ...]]:
        sizes = self.mamba_num_heads, self.mamba_head_dim, self.n_groups, self.ssm_state_size
        biases, state = (self.use_bias, self.use_conv_bias), DTYPE_BYTES[self.mamba_ssm_cache_dtype]
        mamba, bias = Mamba2(*sizes, self.conv_kernel, self.chunk_size, *biases, state), self.mlp_bias
        routed = self._routed_latent("mixer", latent=self.moe_latent_size, bias=bias)
        wide = self.moe_shared_expert_intermediate_size
        mixers = {
            "linear_attention": mamba.modules(self.hidden_size, "mixer"),
            "full_attention": self._self_attention(name="mixer", rotated=0.0),
            "mlp": self._ungated("mixer", self.intermediate_size, bias=bias),
            "moe": (*routed, *self._ungated("mixer.shared_experts", wide, bias=bias)),
        }
        block = container("NemotronHBlock", reads=2 * self.hidden_size, writes=self.hidden_size, touched=1)
        norm = rms_norm("norm", self.hidden_size, single=True)
        return {kind: (block, norm, *mixer) for kind, mixer in mixers.items()}

    def modules(self) -> ModuleLists:
        """Return the modules of ``NemotronHForCausalLM`` in call order."""
        table, layers = embedding("model.embeddings", self.vocab_size, self.hidden_size), self._layers()
        tied_to = "model.embeddings.weight" if self.tie_word_embeddings else None
        after = (
            rms_norm("model.norm_f", self.hidden_size, single=True),
            head(self.hidden_size, self.vocab_size, tied_to=tied_to),
        )
        before = container("NemotronHForCausalLM"), container("model"), table
        return ModuleLists(before, tuple(layers[one] for one in self.layers_block_type), after)
