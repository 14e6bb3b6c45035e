"""LFM2: gated short convolutions in most layers, attention in the others.

Modules and their order: transformers/models/lfm2/modeling_lfm2.py at 5.23.0. Operations are Llama's measured
ones.
"""

from __future__ import annotations

from typing import Any, ClassVar

from simoffload.models.families.base import Count, Extent, Flag, ModuleLists
from simoffload.models.families.recurrent import ShortConvolutionConfig
from simoffload.models.families.rotary import llama_traits
from simoffload.models.modules import Traits


class Lfm2(ShortConvolutionConfig):
    """The configuration of LFM2 models: Hugging Face's ``Lfm2Config``."""

    family: ClassVar[str] = "lfm2"
    traits: ClassVar[Traits] = llama_traits("Lfm2ForCausalLM", float16=False)
    spellings: ClassVar[dict[str, str]] = {
        "tie_embedding": "tie_word_embeddings",
        "block_ff_dim": "intermediate_size",
    }

    intermediate_size: Extent = 12_288
    block_auto_adjust_ff_dim: Flag = True
    block_ffn_dim_multiplier: float | None = 1.0
    block_multiple_of: Count = 256

    @property
    def _wide(self) -> int:
        """Width of a network: two thirds of the stated one, rounded up."""
        if not self.block_auto_adjust_ff_dim:
            return self.intermediate_size
        wide, step = int(2 * self.intermediate_size / 3), self.block_multiple_of
        if self.block_ffn_dim_multiplier is None:
            return wide
        return -(-int(self.block_ffn_dim_multiplier * wide) // step) * step

    def derived(self) -> Any:
        """Return the model's sizes under the names that all families share."""
        return super().derived()._replace(intermediate_size=self._wide)

    def modules(self) -> ModuleLists:
        """Return the modules of ``Lfm2ForCausalLM`` in call order."""
        return self._convolved("Lfm2", [self._network(self._wide)] * self.num_hidden_layers)
