"""DeepSeek-V4: windows and compressed rows, of which an indexer chooses; hyper-connections; experts.

Modules and their order: transformers/models/deepseek_v4/modeling_deepseek_v4.py at 5.23.0, which computes
attention to all compressed rows and hides those that are not chosen. A row is key and value at once. All
layers have a window; most also read rows of 4 tokens, of which an indexer chooses (CSA), or all rows of 128
tokens (HCA).

The residual is ``hc_mult`` streams, which a hyper-connection sums up before attention and before experts, and
mixes after them (mHC). Operations are those measured for Mixtral plus what this code adds: six in eager
attention for the sinks, and in a layer those of two hyper-connections. The layer that predicts a further
token is left out, as in transformers, and so are the tables of integers by which the first layers route
tokens (``num_hash_layers``). That gates are clamped by kernels of their own is not counted.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self, get_args

from simoffload.models.families.base import Count, Extent, Flag, ModuleLists, Width, invalid
from simoffload.models.families.experts import EXPERT_OPERATIONS, Experts, expert_traits
from simoffload.models.families.rotary import RotatedPart, kinds_of_layers
from simoffload.models.families.sparse import CompressedAttention, Compressor
from simoffload.models.families.streams import StreamsConfig, own_operations
from simoffload.models.modules import EAGER, Module, StatePart, Traits, activation

_Kind = Literal["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"]
_RATIOS: dict[int, _Kind] = dict(zip((0, 4, 128), get_args(_Kind), strict=True))
_RATES = {kind: tokens for tokens, kind in _RATIOS.items()}


class DeepseekV4(StreamsConfig):
    """The configuration of DeepSeek-V4 models: Hugging Face's ``DeepseekV4Config``."""

    family: ClassVar[str] = "deepseek_v4"
    traits: ClassVar[Traits] = expert_traits(
        "DeepseekV4ForCausalLM",
        attention="eager",  # no fused kernel has sinks and heads of 512
        operations=EXPERT_OPERATIONS._replace(block=own_operations(20), eager=EAGER + 6),
        half_softmax=True,
        float16=False,
        tensor_plan=False,
    )
    spellings: ClassVar[dict[str, str]] = {"num_local_experts": "n_routed_experts"}
    experts_key: ClassVar[str] = "n_routed_experts"
    by_layer: ClassVar[tuple[str, ...]] = ("layer_types", "compress_ratios")
    further: ClassVar[int] = 1

    intermediate_size: Extent = 2048
    """Width of one expert, as the other key states it."""
    num_key_value_heads: Literal[1] | None = 1
    head_dim: Width | None = 512
    q_lora_rank: Width = 1024
    moe_intermediate_size: Extent = 2048
    n_routed_experts: Experts = 256
    num_experts_per_tok: Experts = 6
    mlp_bias: Flag = False
    sliding_window: Extent = 128
    o_groups: Count = 8
    o_lora_rank: Width = 1024
    index_n_heads: Count = 64
    index_head_dim: Width = 128
    index_topk: Extent = 512
    qk_rope_head_dim: Width | None = None
    partial_rotary_factor: RotatedPart | None = None
    compress_ratios: tuple[Literal[0, 4, 128], ...] | None = None
    """Tokens of a row in each layer, in the released files; layers that predict further tokens come last."""
    compress_rates: dict[_Kind, Count] | None = None
    layer_types: Annotated[tuple[_Kind, ...], kinds_of_layers(_Kind)] | None = None

    def checked(self) -> Self:
        """Return the configuration itself; pydantic's ValidationError if its sizes contradict each other."""
        if self.num_attention_heads % self.o_groups:
            message = f"num_attention_heads {self.num_attention_heads} is not a multiple of {self.o_groups}"
            raise invalid("o_groups", message, self.o_groups)
        return super().checked()

    @property
    def _rotary_dim(self) -> int:
        part = 1 / 8 if self.partial_rotary_factor is None else self.partial_rotary_factor
        return self.qk_rope_head_dim or int(self.derived().head_dim * part)

    @property
    def _kinds(self) -> tuple[_Kind, ...]:
        """What attention of each layer reads beside its window."""
        if self.layer_types is not None:
            return self.layer_types
        usual = [4 if at > 2 and at % 2 else 128 for at in range(self.num_hidden_layers)]
        return tuple(_RATIOS[one] for one in self.compress_ratios or usual)

    def _attention(self, kind: _Kind) -> tuple[Module, ...]:
        hidden, width, name = self.hidden_size, self.derived().head_dim, "self_attn.compressor"
        rank, rotated, chosen = self.q_lora_rank, self._rotary_dim, kind == _RATIOS[4]
        every = (self.compress_rates or _RATES).get(kind, 0)
        sizes = (self.num_attention_heads, width, rank, rotated, self.sliding_window)
        attend = CompressedAttention(*sizes, self.o_groups, self.o_lora_rank)
        if not every:
            return attend.modules(hidden)
        between = Compressor(every, width, rotated, overlapping=chosen).modules(hidden, name)
        rows = StatePart("compressed rows", width, every=every)
        if chosen:
            keys = Compressor(every, self.index_head_dim, rotated, overlapping=True)
            between += keys.indexer(self.index_n_heads, hidden, rank, f"{name}.indexer")
            rows = rows._replace(chosen=self.index_topk)
        return attend.modules(hidden, between, rows)

    def _experts_and_shared(self) -> tuple[Module, ...]:
        (block, gate, *routed), name = self._routed(), "mlp.shared_experts"
        scores = activation("mlp.gate.score_fn", self.n_routed_experts, reads=2, writes=2)
        own, first, act, up, down = self._gated(name=name, wide=self._width, bias=self.mlp_bias)
        return (block, gate, scores._replace(parallel="whole"), *routed, own, first, up, act, down)

    def modules(self) -> ModuleLists:
        """Return the modules of ``DeepseekV4ForCausalLM`` in call order."""
        feed_forward, kinds = self._experts_and_shared(), self._kinds
        made = {kind: self._halves(self._attention(kind), feed_forward) for kind in set(kinds)}
        return self._around_streams("DeepseekV4", *(made[kind] for kind in kinds), rotations=2)
