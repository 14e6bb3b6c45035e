"""MiniMax-M3: grouped-query attention to blocks of keys that an indexer chooses; experts and a shared one.

Modules and their order: the language model of transformers/models/minimax_m3_vl/modeling_minimax_m3_vl.py at
5.23.0, which computes attention to all keys and hides those of blocks that are not chosen. Each key-value
head reads blocks of its own, among which the last ones always are. Operations are those measured for Mixtral,
with two more in a norm as in Gemma; what norms read and write counts as Llama's. The modules that predict
further tokens are left out, as in transformers.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import ConfigDict, Field, WithJsonSchema

from simoffload.documents import Frozen
from simoffload.models.families.base import Count, Extent, ModuleLists, Width
from simoffload.models.families.experts import (
    EXPERT_OPERATIONS,
    Experts,
    ListedDenseConfig,
    continued,
    expert_traits,
)
from simoffload.models.families.rotary import RotatedPart, after, kinds_of_layers, rotary_factor
from simoffload.models.families.sparse import BlockIndexer, keeping
from simoffload.models.modules import Module, StatePart, Traits

_Kind = Literal["full_attention", "minimax_m3_sparse"]
_Listed = tuple[Annotated[int, Field(strict=True, ge=0, le=1)], ...]


class _Sparse(Frozen):
    """The section ``sparse_attention_config`` of the released files."""

    model_config = ConfigDict(extra="ignore")

    index_n_heads: Count = Field(4, alias="sparse_num_index_heads")
    index_head_dim: Width = Field(128, alias="sparse_index_dim")
    index_block_size: Count = Field(128, alias="sparse_block_size")
    index_topk_blocks: Count = Field(16, alias="sparse_topk_blocks")
    sparse_attention_freq: _Listed | None = None


class MiniMaxM3(ListedDenseConfig):
    """The configuration of MiniMax-M3 models: Hugging Face's ``MiniMaxM3VLTextConfig``."""

    family: ClassVar[str] = "minimax_m3"
    aliases: ClassVar[tuple[str, ...]] = ("minimax_m3_vl", "minimax_m3_vl_text")
    traits: ClassVar[Traits] = expert_traits(
        "MiniMaxM3ForCausalLM",
        operations=EXPERT_OPERATIONS._replace(norm=10),
        leaf_modules=("mlp",),
        float16=False,
    )
    spellings: ClassVar[dict[str, str]] = {"num_experts": "num_local_experts"}
    experts_key: ClassVar[str] = "num_local_experts"
    width_key: ClassVar[str] = "intermediate_size"
    by_layer: ClassVar[tuple[str, ...]] = ("mlp_layer_types",)

    intermediate_size: Extent = 3072
    dense_intermediate_size: Extent = 12288
    shared_intermediate_size: Extent = 3072
    num_key_value_heads: Count | None = 4
    head_dim: Width | None = 128
    num_local_experts: Experts = 128
    num_experts_per_tok: Experts = 4
    partial_rotary_factor: RotatedPart = 1.0
    index_n_heads: Count | None = None
    index_head_dim: Width | None = None
    index_block_size: Count | None = None
    index_topk_blocks: Count | None = None
    sparse_attention_config: Annotated[_Sparse, WithJsonSchema({"type": "object"})] = _Sparse()
    moe_layer_freq: _Listed | None = None
    layer_types: Annotated[tuple[_Kind, ...], kinds_of_layers(_Kind)] | None = None

    @classmethod
    def replaced(cls, base: Any, overrides: Any) -> dict[str, Any]:
        """Return the replaced keys; with another number of layers a file's lists are cut or continued."""
        merged = continued(super().replaced(base, overrides), overrides, "layer_types", "moe_layer_freq")
        inner, layers = merged.get("sparse_attention_config", {}), merged.get("num_hidden_layers")
        if not isinstance(inner, dict):
            return merged  # which is refused
        cut = continued({**inner, "num_hidden_layers": layers}, overrides, "sparse_attention_freq")
        return {**merged, "sparse_attention_config": {**inner, **cut}}

    def checked(self) -> Self:
        """Return the configuration itself; pydantic's ValidationError if its sizes contradict each other."""
        self._one_for_each_layer("layer_types", self.layer_types)
        self._one_for_each_layer("moe_layer_freq", self.moe_layer_freq)
        listed = self.sparse_attention_config.sparse_attention_freq
        self._one_for_each_layer("sparse_attention_config", listed)
        return super().checked()

    def _index(self, key: str) -> int:
        """Return a size of the indexer: from its own key, or from the section of the released files."""
        return int(getattr(self, key) or getattr(self.sparse_attention_config, key))

    @property
    def _dense(self) -> list[bool]:
        listed = self.moe_layer_freq if self.mlp_layer_types is None else None
        return super()._dense if listed is None else [one == 0 for one in listed]

    def _attention(self) -> tuple[tuple[Module, ...], tuple[Module, ...]]:
        """Return attention to all keys, and that to chosen blocks."""
        rotated = rotary_factor(self.rope_parameters, self.partial_rotary_factor)
        attend = self._normed_heads(bias=False, rotated=rotated)
        heads, width = self._index("index_n_heads"), self._index("index_head_dim")
        indexer = BlockIndexer(heads, width, int(width * rotated)).modules(self.hidden_size)
        chosen = self._index("index_topk_blocks") * self._index("index_block_size")
        keys = self.derived().num_key_value_heads
        kept = StatePart("keys and values", 2 * self._widths[1], chosen=chosen, heads=keys)
        return attend, after(keeping(attend, kept), "self_attn.v_proj", *indexer)

    def modules(self) -> ModuleLists:
        """Return the modules of ``MiniMaxM3ForCausalLM`` in call order."""
        kinds = self.sparse_attention_config.sparse_attention_freq or (0,) * self.num_hidden_layers
        if self.layer_types is not None:
            kinds = tuple(one == "minimax_m3_sparse" for one in self.layer_types)
        block, *routed, act = self._routed()
        shared = self._joined("mlp.shared_experts", self.shared_intermediate_size)
        experts = (block, *shared, *routed, act._replace(hooked=False))
        network = self._joined("mlp", self.dense_intermediate_size)
        return self._of_kinds("MiniMaxM3VL", self._attention(), experts, self._dense, kinds, network)
