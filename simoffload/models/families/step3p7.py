"""Step-3.5 and 3.7: experts, gated attention, and more heads in the layers that have a window.

Modules and their order: transformers/models/step3p7/modeling_step3p7.py at 5.23.0, of which this is the
language model. Operations are those measured for Mixtral plus the three of the gates of heads; norms count as
Llama's. The released files have older names of keys, and list layers that predict further tokens behind the
others; these have a window and no experts, as the card of stepfun-ai/Step-3.5-Flash says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import model_validator

from simoffload.models.families.base import Count, Extent, Flag, ModuleLists, Width
from simoffload.models.families.experts import (
    EXPERT_OPERATIONS,
    Experts,
    Index,
    ListedDenseConfig,
    expert_traits,
)
from simoffload.models.families.rotary import (
    PerLayer,
    SlidingConfig,
    after,
    gated_result,
    head_norms,
    own_attention,
    own_size,
    rotary_factor,
)
from simoffload.models.modules import Heads, Module, Traits, linear


class Step3p7(ListedDenseConfig, SlidingConfig):
    """The configuration of Step-3.7's language model: Hugging Face's ``Step3p7TextConfig``."""

    family: ClassVar[str] = "step3p7"
    aliases: ClassVar[tuple[str, ...]] = ("step3p5",)
    traits: ClassVar[Traits] = expert_traits(
        "Step3p5ForCausalLM", operations=EXPERT_OPERATIONS._replace(attention=28, grouped=0)
    )
    spellings: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("num_experts", "num_local_experts", "moe_num_experts"), "n_routed_experts"),
        "num_attention_groups": "num_key_value_heads",
        "moe_top_k": "num_experts_per_tok",
        "share_expert_dims": "share_expert_dim",
        "max_seq_len": "max_position_embeddings",
    }

    num_key_value_heads: Count | None = 8
    head_dim: Width | None = 128
    sliding_window: Extent | None = None
    num_sliding_attention_heads: Count | None = None
    per_layer_config: PerLayer | None = None
    n_routed_experts: Experts = 288
    num_experts_per_tok: Experts = 8
    moe_intermediate_size: Extent = 1280
    share_expert_dim: Extent = 1280
    first_k_dense_replace: Index | None = 3
    attention_bias: Flag = False

    @model_validator(mode="before")
    @classmethod
    def _as_now(cls, raw: object) -> object:
        if not isinstance(raw, Mapping):
            return raw
        keys, other, sparse = dict(raw), raw.get("attention_other_setting"), raw.get("moe_layers_enum")
        if isinstance(other, Mapping):
            keys.setdefault("num_sliding_attention_heads", other.get("num_attention_heads"))
        if isinstance(sparse, str) and isinstance(depth := raw.get("num_hidden_layers"), int):
            numbers = {one.strip() for one in sparse.split(",")}
            keys["mlp_layer_types"] = ["sparse" if str(at) in numbers else "dense" for at in range(depth)]
        return keys

    def slides(self, _layer: int, /) -> bool:
        """Return that no layer has a window unless it is listed."""
        return False

    @property
    def _kinds(self) -> list[tuple[bool, bool]]:
        """Whether each layer slides, and whether it is dense."""
        return list(zip((one is not None for one in self.windows()), self._dense, strict=True))

    @property
    def predictors(self) -> tuple[int, ...]:
        """The number of the layer that each module which predicts a further token is like."""
        like = self._kinds.index((True, True)) if (True, True) in self._kinds else -1
        return (like,) * len(super().predictors)

    def _attend(self, slides: bool) -> tuple[Module, ...]:
        number, sizes = self.num_attention_heads, self.derived()
        stated = self.num_sliding_attention_heads or number
        number = own_size(self.per_layer_config, "num_attention_heads", stated) if slides else number
        heads = Heads(number, sizes.num_key_value_heads, sizes.head_dim, sizes.head_dim)
        kind, bias = "sliding_attention" if slides else "full_attention", self.attention_bias
        factor = rotary_factor((self.rope_parameters or {}).get(kind), 1.0)
        attend = own_attention(self.hidden_size, heads, bias, bias, rotated=factor)
        queries, keys = head_norms(heads)
        gate = linear("self_attn.g_proj", self.hidden_size, number)  # too narrow to be divided in blocks
        attend = after(after(attend, "self_attn.q_proj", queries), "self_attn.k_proj", keys)
        attend, width = after(attend, "self_attn.v_proj", gate), number * heads.values
        return tuple(gated_result(one, width, gates=number) for one in attend)

    def modules(self) -> ModuleLists:
        """Return the modules of the language model of ``Step3p7ForConditionalGeneration`` in call order."""
        block, *routed = self._routed()
        shared = self._gated(name="mlp.shared_experts", wide=self.share_expert_dim)
        networks = (block, *shared, *routed), self._gated()
        made = {kind: self._normed(self._attend(kind[0]), networks[kind[1]]) for kind in set(self._kinds)}
        kinds = len({slides for slides, _ in made})
        return self._around(
            "Step3p7", *(made[kind] for kind in self._kinds), model="Step3p5ForCausalLM", rotations=kinds
        )
