"""Mixtures of experts: Mixtral, Phi-3.5-MoE, MiniMax-M2, gpt-oss, GLM-4.5 and Llama 4."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field

from simoffload.models.families.base import Count, Extent, Flag, ModuleLists, Width
from simoffload.models.families.experts import (
    EXPERT_OPERATIONS,
    Experts,
    ExpertsConfig,
    FirstDenseConfig,
    Index,
    Positions,
    expert_traits,
)
from simoffload.models.families.rotary import (
    RotatedPart,
    SlidingConfig,
    after,
    kinds_of_layers,
    rotary_factor,
)
from simoffload.models.modules import (
    EAGER,
    Module,
    Parameter,
    Traits,
    activation,
    container,
    head,
    layer_norm,
    linear,
)
from simoffload.models.shape import EVEN, Routing

# -- mixtral ---------------------------------------------------------------------------------------
# Llama's attention and, instead of its feed-forward network, experts chosen by a router.
#
# Modules and their order: transformers/models/mixtral/modeling_mixtral.py. The layout of the experts
# decides what DeepSpeed fetches and when:
#
# * ``fused`` (5.x): all experts of a layer are two tensors of one module. One of Mixtral-8x22B's holds
#   1.6e9 elements, more than the swap buffers of the published ZeRO-Inference runs.
# * ``separate`` (4.x, as in those runs): three linear modules per expert, and the rotary embedding computed
#   within every layer (at 4.46.3). From 4.52 on, only the experts are called to which a token is routed
#   (``expert_hit``; read at 4.52.4, 4.53.3 and 4.57.1); up to 4.51 all are in every pass (4.46.3, 4.51.3).


class Mixtral(ExpertsConfig, SlidingConfig):
    """The configuration of Mixtral models: Hugging Face's ``MixtralConfig``, and the layout of the
    experts."""

    family: ClassVar[str] = "mixtral"
    traits: ClassVar[Traits] = expert_traits(
        "MixtralForCausalLM",
        leaf_modules=("mlp", "block_sparse_moe"),
    )
    spellings: ClassVar[dict[str, str]] = {"num_experts": "num_local_experts"}
    experts_key: ClassVar[str] = "num_local_experts"
    width_key: ClassVar[str] = "intermediate_size"
    routing: ClassVar[Routing] = EVEN
    """The few experts of Mixtral are chosen about equally often (Jiang et al., arXiv 2401.04088, figure
    7)."""

    vocab_size: Extent = 32000
    num_key_value_heads: Count | None = 8
    num_local_experts: Experts = 8
    num_experts_per_tok: Experts = 2
    sliding_window: Extent | None = None
    expert_layout: Literal["fused", "separate"] = "fused"
    expert_calls: Literal["chosen", "all"] = "chosen"

    def modules(self) -> ModuleLists:
        """Return the modules of ``MixtralForCausalLM`` in call order."""
        separate = self.expert_layout == "separate"
        experts = self._separate_experts() if separate else self._routed()
        layer = self._normed(self._self_attention(rotary_within=separate), experts)
        return self._around("Mixtral", layer, rotary_outside=not separate)

    def _separate_experts(self) -> tuple[Module, ...]:
        block, router, *_ = self._routed("block_sparse_moe")
        modules = [block._replace(code="none"), router]
        for expert in range(self.num_local_experts):
            number = expert if self.expert_calls == "chosen" else None
            parts = self._one_expert(f"block_sparse_moe.experts.{expert}")
            modules.extend(part._replace(expert=number) for part in parts)
        return tuple(modules)

    def _one_expert(self, name: str) -> tuple[Module, ...]:
        hidden, wide = self.hidden_size, self.intermediate_size
        share = self.num_experts_per_tok / self.num_local_experts
        return (
            container(name),
            linear(f"{name}.w1", hidden, wide, share=share, parallel="column"),
            activation(f"{name}.act_fn", wide, reads=3, writes=2, share=share),
            linear(f"{name}.w3", hidden, wide, share=share, parallel="column"),
            linear(f"{name}.w2", wide, hidden, share=share, parallel="row"),
        )


# -- phi-3.5-MoE: Llama's attention with biases, LayerNorm, and experts ----------------------------
# Modules and their order: transformers/models/phimoe/modeling_phimoe.py at 5.23.0. Operations are those
# measured for Mixtral plus what this code adds: its router (``sparsemixer``) takes 24 in inference, and
# LayerNorm is one kernel.


class PhiMoe(ExpertsConfig, SlidingConfig):
    """The configuration of Phi-3.5-MoE: Hugging Face's ``PhimoeConfig``."""

    family: ClassVar[str] = "phimoe"
    traits: ClassVar[Traits] = expert_traits(
        "PhimoeForCausalLM",
        operations=EXPERT_OPERATIONS._replace(norm=1, router=24),
    )
    spellings: ClassVar[dict[str, str]] = {"num_experts": "num_local_experts"}
    experts_key: ClassVar[str] = "num_local_experts"
    width_key: ClassVar[str] = "intermediate_size"

    vocab_size: Extent = 32064
    num_key_value_heads: Count | None = 8
    num_local_experts: Experts = 16
    num_experts_per_tok: Experts = 2
    sliding_window: Extent | None = None
    attention_bias: Flag = False
    lm_head_bias: Flag = False

    def modules(self) -> ModuleLists:
        """Return the modules of ``PhimoeForCausalLM`` in call order."""
        hidden = self.hidden_size
        layer = (
            layer_norm("input_layernorm", hidden),
            *self._self_attention(bias=self.attention_bias, output_bias=self.attention_bias),
            layer_norm("post_attention_layernorm", hidden),
            *self._routed(router="router"),
        )
        lists = self._around("Phimoe", layer)
        tied_to = "model.embed_tokens.weight" if self.tie_word_embeddings else None
        logits = head(hidden, self.vocab_size, bias=self.lm_head_bias, tied_to=tied_to)
        return lists._replace(after=(layer_norm("model.norm", hidden), logits))


# -- MiniMax-M2 ------------------------------------------------------------------------------------
# Experts in every layer, partly rotated heads, norms over all queries and all keys together.
#
# Modules and their order: transformers/models/minimax_m2/modeling_minimax_m2.py at 5.23.0. Operations are
# those measured for Mixtral. The router adds a bias, a buffer of one number for each expert, to its
# sigmoids. The modules that predict further tokens (``num_mtp_modules``) are left out, as in transformers.


class MiniMaxM2(ExpertsConfig):
    """The configuration of MiniMax-M2 models: Hugging Face's ``MiniMaxM2Config``."""

    family: ClassVar[str] = "minimax_m2"
    traits: ClassVar[Traits] = expert_traits("MiniMaxM2ForCausalLM", leaf_modules=("mlp",))
    spellings: ClassVar[dict[str, str]] = {"num_experts": "num_local_experts"}
    experts_key: ClassVar[str] = "num_local_experts"
    width_key: ClassVar[str] = "intermediate_size"

    num_key_value_heads: Count | None = 8
    head_dim: Width | None = 128
    num_local_experts: Experts = 256
    num_experts_per_tok: Experts = 8
    rotary_dim: Width | None = None
    """Elements of a head that are rotated, as the released files state them; transformers 5 writes
    ``partial_rotary_factor`` of ``rope_parameters``."""

    def modules(self) -> ModuleLists:
        """Return the modules of ``MiniMaxM2ForCausalLM`` in call order."""
        part = 1.0 if self.rotary_dim is None else min(1.0, self.rotary_dim / self.derived().head_dim)
        attend = self._normed_whole(rotated=rotary_factor(self.rope_parameters, part))
        return self._around("MiniMaxM2", self._normed(attend, self._routed()))


# -- gpt-oss ---------------------------------------------------------------------------------------
# Experts with biases, attention with sinks, a window in every other layer.
#
# Modules and their order: transformers/models/gpt_oss/modeling_gpt_oss.py at 5.23.0. Operations are those
# measured for Mixtral plus what this code adds: six in eager attention for the sinks (expand, join,
# maximum, subtract, slice, cast), which the fused kernels of PyTorch do not know.


class GptOss(ExpertsConfig, SlidingConfig):
    """The configuration of gpt-oss models: Hugging Face's ``GptOssConfig``."""

    family: ClassVar[str] = "gpt_oss"
    traits: ClassVar[Traits] = expert_traits(
        "GptOssForCausalLM",
        tensor_plan=False,
        attention="eager",  # the fused kernels have no sinks
        operations=EXPERT_OPERATIONS._replace(eager=EAGER + 6),
        half_softmax=True,
        largest_graph=1024,
    )
    spellings: ClassVar[dict[str, str]] = {"num_experts": "num_local_experts"}
    experts_key: ClassVar[str] = "num_local_experts"
    width_key: ClassVar[str] = "intermediate_size"

    num_key_value_heads: Count | None = 8
    head_dim: Width | None = 64
    num_local_experts: Experts = 128
    num_experts_per_tok: Experts = 4
    sliding_window: Extent | None = 128
    attention_bias: Flag = True

    def slides(self, layer: int, /) -> bool:
        """Return whether it is every other layer, beginning with the first."""
        return layer % 2 == 0

    def modules(self) -> ModuleLists:
        """Return the modules of ``GptOssForCausalLM`` in call order."""
        block, *attend = self._self_attention(bias=self.attention_bias, output_bias=self.attention_bias)
        sinks = Parameter("self_attn.sinks", self.num_attention_heads)
        *routed, act = self._routed(router="router", bias=True)
        # Clamp twice, times alpha, sigmoid, plus one (1 read, 1 written each), two products (2, 1).
        glu = activation(act.name, act.width, reads=9, writes=7, share=act.share)._replace(hooked=False)
        layer = self._normed((block._replace(parameters=(sinks,), parallel="heads"), *attend), (*routed, glu))
        return self._around("GptOss", layer)


# -- GLM-4.5 ---------------------------------------------------------------------------------------
# Attention with partly rotated heads, dense first layers, experts and a shared one.
#
# Modules and their order: transformers/models/glm4_moe/modeling_glm4_moe.py at 5.23.0. Operations are those
# measured for Mixtral. The layer that predicts a further token is left out, as in transformers.


class Glm4Moe(FirstDenseConfig):
    """The configuration of GLM-4.5 models: Hugging Face's ``Glm4MoeConfig``."""

    family: ClassVar[str] = "glm4_moe"
    aliases: ClassVar[tuple[str, ...]] = ("glm4v_moe", "glm4v_moe_text")
    traits: ClassVar[Traits] = expert_traits("Glm4MoeForCausalLM")
    spellings: ClassVar[dict[str, str]] = {"num_local_experts": "n_routed_experts"}

    num_key_value_heads: Count | None = 8
    n_routed_experts: Experts = 128
    num_experts_per_tok: Experts = 8
    moe_intermediate_size: Extent = 1408
    first_k_dense_replace: Index | None = 1
    attention_bias: Flag = False
    use_qk_norm: Flag = False
    partial_rotary_factor: RotatedPart = 0.5

    def modules(self) -> ModuleLists:
        """Return the modules of ``Glm4MoeForCausalLM`` in call order."""
        factor = rotary_factor(self.rope_parameters, self.partial_rotary_factor)
        attend = self._self_attention(bias=self.attention_bias, rotated=factor)
        if self.use_qk_norm:
            attend = after(attend, "self_attn.v_proj", *self._head_norms())
        return self._mixed("Glm4Moe", attend, self._routed_and_shared(), self._dense)


# -- llama 4 (text) --------------------------------------------------------------------------------
# Experts, a shared one, dense layers in turn, and layers without rotary positions.
#
# Modules and their order: transformers/models/llama4/modeling_llama4.py at 5.23.0. Operations are those
# measured for Mixtral. Two things differ from that code: it multiplies every expert with every token, the
# inputs of those not chosen being zero, while only the chosen ones count here, as in serving engines; and
# attention in chunks counts as a sliding window of the same length, which has the same cache.


Rotated = Literal[0, 1]
LayerType = Literal["full_attention", "chunked_attention"]
Step = Annotated[int, Field(strict=True, ge=1, le=100_000)]


class Llama4Text(ExpertsConfig):
    """The configuration of Llama 4's language model: Hugging Face's ``Llama4TextConfig``."""

    family: ClassVar[str] = "llama4_text"
    aliases: ClassVar[tuple[str, ...]] = ("llama4",)
    traits: ClassVar[Traits] = expert_traits(
        "Llama4ForCausalLM", operations=EXPERT_OPERATIONS._replace(grouped=0)
    )
    spellings: ClassVar[dict[str, str]] = {"num_experts": "num_local_experts"}
    experts_key: ClassVar[str] = "num_local_experts"
    width_key: ClassVar[str] = "intermediate_size"

    max_position_embeddings: Annotated[int, Field(strict=True, ge=1, le=100_000_000)] | None = None
    num_key_value_heads: Count | None = 8
    head_dim: Width | None = 128
    intermediate_size_mlp: Extent = 16384
    num_local_experts: Experts = 16
    num_experts_per_tok: Experts = 1
    interleave_moe_layer_step: Step = 1
    moe_layers: Positions | None = None
    no_rope_layer_interval: Step = 4
    no_rope_layers: Annotated[tuple[Rotated, ...], kinds_of_layers(Rotated)] | None = None
    """1 for each layer that has rotary positions."""
    layer_types: Annotated[tuple[LayerType, ...], kinds_of_layers(LayerType)] | None = None
    attention_chunk_size: Extent | None = 8192
    use_qk_norm: Flag = True
    attention_bias: Flag = False

    @classmethod
    def replaced(cls, base: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
        """Return the replaced keys; with another number of layers the pattern applies, not a file's
        lists."""
        merged = super().replaced(base, overrides)
        gone = {"moe_layers", "no_rope_layers"} if "num_hidden_layers" in overrides else set[str]()
        return {key: one for key, one in merged.items() if key in overrides or key not in gone}

    def checked(self) -> Self:
        """Return the configuration itself; pydantic's ValidationError if its sizes contradict each other."""
        self._one_for_each_layer("no_rope_layers", self.no_rope_layers or None)
        self._within_depth("moe_layers", self.moe_layers)
        return super().checked()

    @property
    def _rotated(self) -> list[bool]:
        given, interval = self.no_rope_layers, self.no_rope_layer_interval
        if given:
            return [bool(one) for one in given]
        return [(index + 1) % interval != 0 for index in range(self.num_hidden_layers)]

    def windows(self) -> tuple[int | None, ...]:
        """Return the length of the chunks in which layers attend: those listed as chunked, by default the
        rotated ones; None for the others."""
        kinds = self.layer_types
        chunked = self._rotated if kinds is None else [kind == "chunked_attention" for kind in kinds]
        return tuple(self.attention_chunk_size if one else None for one in chunked)

    def modules(self) -> ModuleLists:
        """Return the modules of ``Llama4ForCausalLM`` in call order."""
        step, given = self.interleave_moe_layer_step, self.moe_layers
        sparse = [
            (index + 1) % step == 0 if given is None else index in given
            for index in range(self.num_hidden_layers)
        ]
        shared = self._gated(name="feed_forward.shared_expert", act="activation_fn")
        experts = (*self._routed("feed_forward", "router"), *shared)
        dense = self._gated(name="feed_forward", wide=self.intermediate_size_mlp, act="activation_fn")
        blocks = {
            (rotated, mixed): self._normed(self._attend(rotated), experts if mixed else dense)
            for rotated in (False, True)
            for mixed in (False, True)
        }
        layers = [blocks[kind] for kind in zip(self._rotated, sparse, strict=True)]
        return self._around("Llama4Text", *layers, model="Llama4ForCausalLM")

    def _attend(self, rotated: bool) -> tuple[Module, ...]:
        bias = self.attention_bias
        attend = self._self_attention(bias=bias, output_bias=bias, rotated=1.0 if rotated else 0.0)
        if not (rotated and self.use_qk_norm):
            return attend
        queries, keys = map(_l2_norm, self._widths)
        return after(attend, "self_attn.v_proj", queries, keys._replace(parallel="keys"))


def _l2_norm(width: int) -> Module:
    """Return a norm without a weight: cast (1 read, 2 written), square (2, 2), mean (2, 0), scale (2, 2),
    cast back (2, 1); a single-precision element counts as two."""
    return Module(
        "self_attn.qk_norm",
        "norm",
        in_features=9 * width,
        out_features=7 * width,
        width=width,
        parallel="heads",
    )
