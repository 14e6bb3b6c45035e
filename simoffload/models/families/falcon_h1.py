"""Falcon-H1: Mamba-2 and attention side by side in every layer.

Modules and their order: transformers/models/falcon_h1/modeling_falcon_h1.py at 5.23.0. Operations are Llama's
measured ones. Products with constants (``…_multiplier``) are not counted.
"""

from __future__ import annotations

from typing import ClassVar

from simoffload.models.families.base import Flag, ModuleLists, Width
from simoffload.models.families.recurrent import Mamba2Config
from simoffload.models.families.rotary import llama_traits
from simoffload.models.modules import Traits, linear


class FalconH1(Mamba2Config):
    """The configuration of Falcon-H1 models: Hugging Face's ``FalconH1Config``."""

    family: ClassVar[str] = "falcon_h1"
    traits: ClassVar[Traits] = llama_traits("FalconH1ForCausalLM", float16=False)

    mamba_d_ssm: Width | None = 1024
    mamba_rms_norm: Flag = False
    projectors_bias: Flag = False
    mlp_bias: Flag = False

    @property
    def _inner(self) -> int:
        return self.mamba_d_ssm or super()._inner

    def modules(self) -> ModuleLists:
        """Return the modules of ``FalconH1ForCausalLM`` in call order."""
        bias, hidden = self.attention_bias, self.hidden_size
        *mamba, _ = self._mamba(normed=self.mamba_rms_norm)
        out = linear("mamba.out_proj", self._inner, hidden, bias=self.projectors_bias, parallel="row")
        attend = self._self_attention(bias=bias, output_bias=bias)
        block, gate, act, up, down = self._gated(name="feed_forward", bias=self.mlp_bias)
        layer = self._normed(
            (*mamba, out, *attend), (block, up, gate, act, down), "input_layernorm", "pre_ff_layernorm"
        )
        return self._around("FalconH1", layer, norm="model.final_layernorm")
