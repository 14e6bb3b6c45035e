"""The common parts of sparse attention: an indexer that scores earlier tokens, and the rows that it chooses.

DeepSeek sparse attention (DSA; DeepSeek-V3.2, arXiv 2512.02556): small heads of queries and one small key for
each token give every token a score, and attention reads the rows of those with the highest scores. Eager code
hides the others by a mask; only serving engines read fewer rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Self

from simoffload.models.families.base import Count, Extent, ModuleLists, Width, invalid
from simoffload.models.families.deepseek import LatentConfig
from simoffload.models.families.experts import Experts, Index, ListedDenseConfig
from simoffload.models.families.rotary import after
from simoffload.models.families.streams import unweighted_norm
from simoffload.models.modules import (
    SINGLE,
    Heads,
    Module,
    Parallel,
    Parameter,
    StatePart,
    attention,
    container,
    layer_norm,
    linear,
    rms_norm,
    rotary,
)

_SCALED = 128
"""Elements of an indexer key that share a scale in vLLM (``quant_block_size``)."""


def served_key(width: int) -> int:
    """Return the size [B] of an indexer key in vLLM: its elements in FP8, and scales in single precision.

    Source: ``DeepseekV32IndexerCache`` in model_executor/models/deepseek_v2.py of vLLM at 001cabc1.
    """
    return width + 4 * -(-width // _SCALED)


def indexer_scores(
    name: str, heads: Heads, kept: StatePart, *, rotated: int, parallel: Parallel = "whole"
) -> Module:
    """Build the scores that an indexer gives all rows of its keys, whose heads may be divided among GPUs.

    ``rotated`` is the part of a head that has rotary positions, and is joined with the rest.
    """
    wide = heads.number * heads.keys
    scores = attention(
        f"{name}.scores",
        query_width=wide,
        value_width=0,
        rotated_width=(heads.number + 1) * rotated,
        joined_width=wide + heads.keys,
    )
    return scores._replace(parallel=parallel, heads=heads, keeps=(kept,))


def keeping(modules: Iterable[Module], *kept: StatePart) -> tuple[Module, ...]:
    """Return modules of which attention keeps something else."""
    return tuple(one._replace(keeps=kept) if one.kind == "attention" else one for one in modules)


class Indexer(NamedTuple):
    """An Indexer has the sizes of the indexer of DeepSeek-V3.2."""

    heads: int
    dim: int
    rotated: int
    """Elements of a head that have rotary positions."""

    def modules(self, hidden: int, rank: int, name: str = "self_attn.indexer") -> tuple[Module, ...]:
        """Return the modules of one layer in call order; ``rank`` is the width of compressed queries."""
        kept = StatePart("indexer keys", self.dim, served=served_key(self.dim))
        heads = Heads(self.heads, 1, self.dim, 0)
        return (
            container(name),
            linear(f"{name}.wq_b", rank, self.heads * self.dim),
            linear(f"{name}.wk", hidden, self.dim),
            layer_norm(f"{name}.k_norm", self.dim),
            linear(f"{name}.weights_proj", hidden, self.heads),
            indexer_scores(name, heads, kept, rotated=self.rotated),
        )


class BlockIndexer(NamedTuple):
    """A BlockIndexer has the sizes of the indexer of MiniMax-M3, which scores the keys of a block together.

    It has as many heads as there are key-value heads, which are divided among GPUs alike. Its keys are kept
    in 16 bits (models/minimax_m3/common/indexer.py of vLLM at 0484480b).
    """

    heads: int
    dim: int
    rotated: int
    """Elements of a head that have rotary positions."""

    def modules(self, hidden: int, name: str = "self_attn.indexer") -> tuple[Module, ...]:
        """Return the modules of one layer in call order."""
        sizes = Heads(self.heads, 1, self.dim, 0)
        kept = StatePart("indexer keys", self.dim, served=2 * self.dim)
        return (
            container(name),
            linear(f"{name}.q_proj", hidden, self.heads * self.dim, parallel="keys"),
            rms_norm(f"{name}.q_norm", self.dim, heads=self.heads, parallel="keys"),
            linear(f"{name}.k_proj", hidden, self.dim),
            rms_norm(f"{name}.k_norm", self.dim),
            indexer_scores(name, sizes, kept, rotated=self.rotated, parallel="heads"),
        )


class Compressor(NamedTuple):
    """A Compressor makes one row of several tokens: their sum, weighed by the softmax of gates.

    DeepSeek-V4 (``DeepseekV4CSACompressor``, ``...HCACompressor`` and ``...Indexer`` of transformers 5.23.0).
    An ``overlapping`` one also weighs the tokens of the row before, with projections of their own.
    """

    every: int
    """Tokens that become one row."""
    dim: int
    """Elements of such a row."""
    rotated: int
    """Elements of a row that have rotary positions."""
    overlapping: bool

    @property
    def _wide(self) -> int:
        return 2 * self.dim if self.overlapping else self.dim

    @property
    def state(self) -> StatePart:
        """The projections and gates of tokens that may still become part of a row, in single precision.

        Source: ``CompressorStateCache`` in models/deepseek_v4/compressor.py of vLLM at 01cc1d3e.
        """
        tokens = 2 * self.every if self.overlapping else self.every
        return StatePart("compressor state", fixed=tokens * 2 * self._wide * SINGLE)

    def modules(self, hidden: int, name: str) -> tuple[Module, ...]:
        """Return the modules in call order.

        Its own code adds biases to gates (1 read, 1 written), softmax (1, 2; 2, 1), weighs (2, 1) and sums
        (1, 0). Norm and rotation, of rows and not of tokens, are called in passes that complete a row.
        """
        own = Parameter(f"{name}.position_bias", self.every * self._wide)
        pooled = container(name, reads=7 * self._wide, writes=5 * self._wide)
        return (
            pooled._replace(parameters=(own,), keeps=(self.state,)),
            linear(f"{name}.kv_proj", hidden, self._wide),
            linear(f"{name}.gate_proj", hidden, self._wide),
            rms_norm(f"{name}.kv_norm", self.dim, single=True),
            rotary(f"{name}.rotary_emb", self.rotated // 2),
        )

    def indexer(self, heads: int, hidden: int, rank: int, name: str) -> tuple[Module, ...]:
        """Return the modules of an indexer of which this compressor makes the keys; ``rank`` is the width of
        compressed queries."""
        served = served_key(self.dim)
        kept = StatePart("indexer keys", self.dim, served=served, every=self.every)
        sizes = Heads(heads, 1, self.dim, 0)
        return (
            *self.modules(hidden, name),
            rotary(f"{name}.rotary_emb", self.rotated // 2),
            linear(f"{name}.q_b_proj", rank, heads * self.dim),
            container(f"{name}.scorer"),
            linear(f"{name}.scorer.weights_proj", hidden, heads),
            indexer_scores(name, sizes, kept, rotated=self.rotated),
        )


class CompressedAttention(NamedTuple):
    """A CompressedAttention has the sizes of attention to a window and to compressed rows (DeepSeek-V4).

    All heads share one row of each token, which is key and value at once. The projection of the result is one
    of each group of heads, and one of all of them.
    """

    heads: int
    width: int
    """Elements of a head and of a row."""
    rank: int
    """Elements of the compressed queries of a token."""
    rotated: int
    """Elements of a head that have rotary positions, which the result is freed from."""
    window: int
    groups: int
    group_rank: int
    """Width of the projection of each group of heads."""

    @property
    def _packed(self) -> int:
        """Bytes of a row in FP8: rotated elements stay in 16 bits, 64 others share a scale of 1 B, and there
        is another byte (584 in models/deepseek_v4/attention.py of vLLM at 0484480b)."""
        plain = self.width - self.rotated
        return plain + 2 * self.rotated + -(-plain // 64) + 1

    def modules(
        self, hidden: int, between: tuple[Module, ...] = (), *rows: StatePart, name: str = "self_attn"
    ) -> tuple[Module, ...]:
        """Return the modules in call order; those ``between`` compress the ``rows`` that it reads beside its
        window."""
        wide, grouped = self.heads * self.width, self.groups * self.group_rank
        sinks = Parameter(f"{name}.sinks", self.heads)
        attend = attention(
            f"{name}.attention",
            query_width=wide,
            rotated_width=(2 * self.heads + 1) * self.rotated,
            joined_width=(2 * self.heads + 1) * self.width,
        )
        return (
            container(name)._replace(parameters=(sinks,), parallel="heads"),
            linear(f"{name}.q_a_proj", hidden, self.rank),
            rms_norm(f"{name}.q_a_norm", self.rank, single=True),
            linear(f"{name}.q_b_proj", self.rank, wide, parallel="column"),
            unweighted_norm(f"{name}.q_b_norm", self.width, heads=self.heads),
            linear(f"{name}.kv_proj", hidden, self.width),
            rms_norm(f"{name}.kv_norm", self.width, single=True),
            *between,
            attend._replace(
                heads=Heads(self.heads, 1, self.width, self.width, joint=True),
                keeps=tuple(
                    one._replace(packed=self._packed)
                    for one in (StatePart("window rows", self.width, window=self.window), *rows)
                ),
            ),
            linear(f"{name}.o_a_proj", wide // self.groups, grouped, parallel="column"),
            linear(f"{name}.o_b_proj", grouped, hidden, parallel="row"),
        )


class IndexedConfig(LatentConfig, ListedDenseConfig):
    """Latent attention to the rows that an indexer chooses."""

    q_lora_rank: Width = 1536
    n_routed_experts: Experts = 256
    num_experts_per_tok: Experts = 8
    moe_intermediate_size: Extent = 2048
    first_k_dense_replace: Index | None = 3
    index_topk: Extent = 2048
    index_head_dim: Width = 128
    index_n_heads: Count = 64

    def checked(self) -> Self:
        """Return the configuration itself; pydantic's ValidationError if its sizes contradict each other."""
        if self.index_head_dim < self.qk_rope_head_dim:
            message = f"is less than qk_rope_head_dim {self.qk_rope_head_dim}, the part that is rotated"
            raise invalid(
                "index_head_dim", f"index_head_dim {self.index_head_dim} {message}", self.index_head_dim
            )
        return super().checked()

    def _indexed(self, class_name: str, shared: tuple[bool, ...]) -> ModuleLists:
        """Return the lists of a model; layers that are ``shared`` read the rows of an earlier one's
        indexer."""
        rank, rotated = self.kv_lora_rank, self.qk_rope_head_dim
        packed = served_key(rank) + 2 * rotated  # rotated elements stay in 16 bits
        kept = StatePart("latent rows", rank + rotated, chosen=self.index_topk, packed=packed)
        attend = keeping(self._latent_attention(), kept)
        indexer = Indexer(self.index_n_heads, self.index_head_dim, self.qk_rope_head_dim)
        own = after(attend, "self_attn.kv_b_proj", *indexer.modules(self.hidden_size, self.q_lora_rank))
        return self._of_kinds(class_name, (own, attend), self._routed_and_shared(), self._dense, shared)
