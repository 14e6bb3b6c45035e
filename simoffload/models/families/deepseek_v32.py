"""DeepSeek-V3.2: DeepSeek-V3 with an indexer in every layer (DSA).

Modules and their order: transformers/models/deepseek_v32/modeling_deepseek_v32.py at 5.23.0, which computes
attention to all rows and hides those that are not chosen. Operations are those measured for Mixtral. The
layer that predicts a further token is left out, as in transformers.
"""

from __future__ import annotations

from typing import ClassVar

from simoffload.models.families.base import ModuleLists
from simoffload.models.families.experts import expert_traits
from simoffload.models.families.sparse import IndexedConfig
from simoffload.models.modules import Traits


class DeepseekV32(IndexedConfig):
    """The configuration of DeepSeek-V3.2 models: Hugging Face's ``DeepseekV32Config``."""

    family: ClassVar[str] = "deepseek_v32"
    traits: ClassVar[Traits] = expert_traits("DeepseekV32ForCausalLM", float16=False)
    spellings: ClassVar[dict[str, str]] = {
        "num_local_experts": "n_routed_experts",
        "num_experts": "n_routed_experts",
    }

    def modules(self) -> ModuleLists:
        """Return the modules of ``DeepseekV32ForCausalLM`` in call order."""
        return self._indexed("DeepseekV32", (False,) * self.num_hidden_layers)
