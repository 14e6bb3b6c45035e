"""Apertus: Llama's attention with a norm on every head, and a network without a gate (xIELU).

Modules and their order: transformers/models/apertus/modeling_apertus.py at 5.23.0. Operations are those
measured for Llama; the function, whose two parameters are trained, has some 12 kernels of one reading and one
writing each, counted in its code (``XIELUActivation``).
"""

from __future__ import annotations

from typing import ClassVar

from simoffload.models.families.base import Flag, ModuleLists
from simoffload.models.families.rotary import LLAMA_OPERATIONS, RotaryConfig, llama_traits
from simoffload.models.modules import Parameter, Traits, activation, container, linear, rms_norm


class Apertus(RotaryConfig):
    """The configuration of Apertus models: Hugging Face's ``ApertusConfig``."""

    family: ClassVar[str] = "apertus"
    traits: ClassVar[Traits] = llama_traits(
        "ApertusForCausalLM", operations=LLAMA_OPERATIONS._replace(activation=11), float16=False
    )

    attention_bias: Flag = False

    def modules(self) -> ModuleLists:
        """Return the modules of ``ApertusForCausalLM`` in call order."""
        hidden, wide = self.hidden_size, self.intermediate_size
        own = tuple(Parameter(f"mlp.act_fn.alpha_{sign}", 1) for sign in "pn")
        layer = (
            rms_norm("attention_layernorm", hidden),
            *self._normed_after(self.attention_bias, "q_norm", "k_norm"),
            rms_norm("feedforward_layernorm", hidden),
            container("mlp", touched=1, code="mlp"),
            linear("mlp.up_proj", hidden, wide, parallel="column"),
            activation("mlp.act_fn", wide, reads=12, writes=12)._replace(parameters=own),
            linear("mlp.down_proj", wide, hidden, parallel="row"),
        )
        return self._around("Apertus", layer)
