"""Bamba: Mamba-2 in most layers, attention in the others.

Modules and their order: transformers/models/bamba/modeling_bamba.py at 5.23.0. Operations are Llama's
measured ones.
"""

from __future__ import annotations

from typing import ClassVar

from simoffload.models.families.base import Flag, ModuleLists
from simoffload.models.families.experts import Positions
from simoffload.models.families.recurrent import Mamba2Config
from simoffload.models.families.rotary import llama_traits
from simoffload.models.modules import Traits


class Bamba(Mamba2Config):
    """The configuration of Bamba models: Hugging Face's ``BambaConfig``."""

    family: ClassVar[str] = "bamba"
    traits: ClassVar[Traits] = llama_traits("BambaForCausalLM", float16=False)

    attn_layer_indices: Positions | None = None
    mlp_bias: Flag = False

    def modules(self) -> ModuleLists:
        """Return the modules of ``BambaForCausalLM`` in call order."""
        bias, names = self.attention_bias, ("input_layernorm", "pre_ff_layernorm")
        network = self._gated(name="feed_forward", bias=self.mlp_bias)
        attend = self._self_attention(bias=bias, output_bias=bias, rotated=0.5)
        kinds = [self._normed(one, network, *names) for one in (self._mamba(), attend)]
        full = self.attn_layer_indices or ()
        layers = (kinds[one in full] for one in range(self.num_hidden_layers))
        return self._around("Bamba", *layers, norm="model.final_layernorm")
