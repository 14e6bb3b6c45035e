"""Qwen: 1.5, 2, 2.5 and 3, their mixtures of experts, and the linear attention of Qwen3-Next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

from pydantic import Field

from simoffload.models.families.base import Count, Extent, Flag, ModuleLists, Width, invalid
from simoffload.models.families.experts import Experts, SparseStepConfig, expert_traits, without_lists
from simoffload.models.families.rotary import (
    RotatedPart,
    SlidingConfig,
    UpperWindowsConfig,
    kinds_of_layers,
    llama_traits,
    rotary_factor,
)
from simoffload.models.modules import (
    SINGLE,
    Module,
    Parameter,
    StatePart,
    Traits,
    activation,
    container,
    linear,
    rms_norm,
)
from simoffload.models.shape import parameters_of

# -- linear attention ------------------------------------------------------------------------------
# Layers that keep a state of fixed size instead of keys and values.
#
# Modules and tensors of the gated DeltaNet (Yang et al., arXiv 2412.06464) as in
# transformers/models/qwen3_next/modeling_qwen3_next.py at 5.23.0.


LINEAR, FULL = "linear_attention", "full_attention"
TIME_IS_A_BOUND = (
    "the time of linear attention is a lower bound: its projections are counted, and that queries, keys and "
    "values are read once and results written, but not the update of its state, for which there is no "
    "measurement"
)


class DeltaNet(NamedTuple):
    """A DeltaNet has the sizes of a gated DeltaNet."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int
    """Width of the convolution [tokens]."""

    @property
    def keeps(self) -> tuple[StatePart, ...]:
        """The state of a sequence: a matrix for each head in single precision, and the last inputs of the
        convolution in 16 bits."""
        matrices = self.value_heads * self.key_dim * self.value_dim * SINGLE
        inputs = StatePart("convolution state", fixed=2 * self.kernel * self._mixed)
        return (StatePart("recurrent state", fixed=matrices), inputs)

    @property
    def _mixed(self) -> int:
        """Elements of queries, keys and values of a token."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    def modules(self, hidden: int, name: str = "linear_attn") -> tuple[Module, ...]:
        """Return the modules of one layer in call order."""
        values, mixed = self.value_heads * self.value_dim, self._mixed
        own = (
            Parameter(f"{name}.dt_bias", self.value_heads),
            Parameter(f"{name}.A_log", self.value_heads),
            Parameter(f"{name}.conv1d.weight", mixed * self.kernel),
        )
        core = activation(f"{name}.delta_rule", values, reads=1, writes=1)._replace(
            hooked=False, in_features=mixed + values, keeps=self.keeps
        )
        return (
            container(name)._replace(parameters=own, parallel="heads"),
            linear(f"{name}.in_proj_qkvz", hidden, mixed + values, parallel="column"),
            linear(f"{name}.in_proj_ba", hidden, 2 * self.value_heads, parallel="column"),
            core,
            rms_norm(f"{name}.norm", self.value_dim, heads=self.value_heads, parallel="heads"),
            linear(f"{name}.out_proj", values, hidden, parallel="row"),
        )


def every_nth(layers: int, interval: int) -> tuple[str, ...]:
    """Return the kinds of layers of which every ``interval``-th has full attention."""
    return tuple(FULL if (layer + 1) % interval == 0 else LINEAR for layer in range(layers))


def is_linear(kinds: Sequence[str]) -> tuple[bool, ...]:
    """Return which layers have linear attention."""
    return tuple(one == LINEAR for one in kinds)


# -- qwen2 and 2.5 ---------------------------------------------------------------------------------
# Llama with biases on queries, keys and values; upper layers may have a sliding window.
#
# Modules and their order: transformers/models/qwen2/modeling_qwen2.py at 5.23.0, whose code of a layer
# equals Llama's except for the biases; the operations are therefore those measured for Llama.


class Qwen2(UpperWindowsConfig):
    """The configuration of Qwen2 models: Hugging Face's ``Qwen2Config``."""

    family: ClassVar[str] = "qwen2"
    traits: ClassVar[Traits] = llama_traits("Qwen2ForCausalLM")

    def modules(self) -> ModuleLists:
        """Return the modules of ``Qwen2ForCausalLM`` in call order."""
        return self._around("Qwen2", self._normed(self._self_attention(bias=True), self._gated()))


# -- qwen3, dense ----------------------------------------------------------------------------------
# Llama with a norm on every head of queries and keys.
#
# Modules and their order: transformers/models/qwen3/modeling_qwen3.py at 5.23.0, whose code of a layer
# equals Llama's except for the two norms, which are modules; the operations are therefore those measured
# for Llama.


class Qwen3(UpperWindowsConfig):
    """The configuration of Qwen3 models: Hugging Face's ``Qwen3Config``."""

    family: ClassVar[str] = "qwen3"
    traits: ClassVar[Traits] = llama_traits("Qwen3ForCausalLM")

    head_dim: Width | None = 128
    attention_bias: Flag = False

    def modules(self) -> ModuleLists:
        """Return the modules of ``Qwen3ForCausalLM`` in call order."""
        attend = self._normed_heads(self.attention_bias)
        return self._around("Qwen3", self._normed(attend, self._gated()))


# -- qwen2 moe -------------------------------------------------------------------------------------
# Qwen1.5-MoE and Qwen2-MoE: Qwen2's attention, experts, and a shared expert with a gate of its own.
#
# Modules and their order: transformers/models/qwen2_moe/modeling_qwen2_moe.py at 5.23.0. Operations are
# those measured for Mixtral.


class Qwen2Moe(SparseStepConfig, SlidingConfig):
    """The configuration of Qwen2-MoE models: Hugging Face's ``Qwen2MoeConfig``."""

    family: ClassVar[str] = "qwen2_moe"
    traits: ClassVar[Traits] = expert_traits(
        "Qwen2MoeForCausalLM",
        v1_runner=False,
        leaf_modules=("mlp",),
    )

    num_key_value_heads: Count | None = 16
    num_experts: Experts = 60
    num_experts_per_tok: Experts = 4
    moe_intermediate_size: Extent = 1408
    shared_expert_intermediate_size: Extent = 5632
    qkv_bias: Flag = True
    use_sliding_window: Flag = False
    sliding_window: Annotated[int, Field(strict=True, ge=0, le=10_000_000)] | None = 4096
    """0, as transformers writes it, where windows are not enabled."""
    max_window_layers: Annotated[int, Field(strict=True, ge=0, le=100_000)] = 28

    def slides(self, layer: int, /) -> bool:
        """Return whether it is every other one of the lower layers, if windows are enabled."""
        return self.use_sliding_window and layer % 2 == 0 and layer < self.max_window_layers

    def modules(self) -> ModuleLists:
        """Return the modules of ``Qwen2MoeForCausalLM`` in call order."""
        block, *routed = self._routed()
        gate = linear("mlp.shared_expert_gate", self.hidden_size, 1, flat=True)
        shared = self._gated(name="mlp.shared_expert", wide=self.shared_expert_intermediate_size)
        attend = self._self_attention(bias=self.qkv_bias)
        return self._mixed("Qwen2Moe", attend, (block, *shared, *routed, gate), self._dense)


# -- qwen3-MoE: Qwen3's attention, and experts without a shared one --------------------------------
# Modules and their order: transformers/models/qwen3_moe/modeling_qwen3_moe.py at 5.23.0. Operations are
# those measured for Mixtral.


class Qwen3Moe(SparseStepConfig, SlidingConfig):
    """The configuration of Qwen3-MoE models: Hugging Face's ``Qwen3MoeConfig``."""

    family: ClassVar[str] = "qwen3_moe"
    traits: ClassVar[Traits] = expert_traits(
        "Qwen3MoeForCausalLM",
        leaf_modules=("mlp",),
    )
    spellings: ClassVar[dict[str, str]] = {"num_local_experts": "num_experts"}

    num_key_value_heads: Count | None = 4
    head_dim: Width | None = None
    attention_bias: Flag = False
    num_experts: Experts = 128
    num_experts_per_tok: Experts = 8
    moe_intermediate_size: Extent = 768
    use_sliding_window: Flag = False
    sliding_window: Extent | None = 4096

    def slides(self, _layer: int, /) -> bool:
        """Return whether windows are enabled, which all layers then have."""
        return self.use_sliding_window

    def modules(self) -> ModuleLists:
        """Return the modules of ``Qwen3MoeForCausalLM`` in call order."""
        attend = self._normed_heads(self.attention_bias)
        return self._mixed("Qwen3Moe", attend, self._routed(), self._dense)


# -- Qwen3-Next ------------------------------------------------------------------------------------
# Gated DeltaNet in three layers of four, gated attention in the fourth; experts.
#
# Modules and their order: transformers/models/qwen3_next/modeling_qwen3_next.py at 5.23.0. Operations are
# those measured for Mixtral; the time of linear attention is a lower bound. The module that predicts a
# further token is left out, as in transformers.


_Kind = Literal["linear_attention", "full_attention"]


class Qwen3Next(SparseStepConfig):
    """The configuration of Qwen3-Next models: Hugging Face's ``Qwen3NextConfig``."""

    family: ClassVar[str] = "qwen3_next"
    traits: ClassVar[Traits] = expert_traits("Qwen3NextForCausalLM", leaf_modules=("mlp",))
    spellings: ClassVar[dict[str, str]] = {"num_local_experts": "num_experts"}

    num_key_value_heads: Count | None = 2
    head_dim: Width | None = 256
    attention_bias: Flag = False
    partial_rotary_factor: RotatedPart = 0.25
    num_experts: Experts = 512
    num_experts_per_tok: Experts = 10
    moe_intermediate_size: Extent = 512
    shared_expert_intermediate_size: Extent = 512
    full_attention_interval: Count = 4
    layer_types: Annotated[tuple[_Kind, ...], kinds_of_layers(_Kind)] | None = None
    """Kind of each layer; without it, every ``full_attention_interval``-th has full attention."""
    linear_num_key_heads: Count = 16
    linear_num_value_heads: Count = 32
    linear_key_head_dim: Width = 128
    linear_value_head_dim: Width = 128
    linear_conv_kernel_dim: Count = 4

    @classmethod
    def replaced(cls, base: Any, overrides: Any) -> dict[str, Any]:
        """Return the replaced keys; with another number of layers the interval applies, not a file's list."""
        return without_lists(super().replaced(base, overrides), overrides, "layer_types")

    def checked(self) -> Self:
        """Return the configuration itself; pydantic's ValidationError if its sizes contradict each other."""
        self._one_for_each_layer("layer_types", self.layer_types)
        if self.linear_num_value_heads % self.linear_num_key_heads:
            message = (
                f"linear_num_value_heads {self.linear_num_value_heads} is not a multiple of "
                f"linear_num_key_heads {self.linear_num_key_heads}"
            )
            raise invalid("linear_num_value_heads", message, self.linear_num_value_heads)
        return super().checked()

    @property
    def _linear(self) -> tuple[bool, ...]:
        """Which layers have linear attention."""
        return is_linear(self.layer_types or every_nth(self.num_hidden_layers, self.full_attention_interval))

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about what the shape does not contain, or only bounds."""
        left_out = (
            "the module that predicts a further token (mtp of the checkpoint, "
            f"{self.further_parameters:,} parameters) is not counted, as transformers does not load it"
        )
        return (left_out, TIME_IS_A_BOUND) if any(self._linear) else (left_out,)

    @property
    def further_parameters(self) -> int:
        """The number of parameters of the module that predicts a further token: a layer with full attention
        and experts, a product of its two inputs, and norms of these and of the result."""
        layer = self._normed(self._gated_attention(), self._networks[0])
        return parameters_of(layer) + 2 * self.hidden_size**2 + 3 * self.hidden_size

    def _gated_attention(self) -> tuple[Module, ...]:
        """Return attention whose first projection also computes a gate of the result, which is read with it
        (sigmoid 1 read, 1 written; product 2, 1)."""
        hidden, (query_width, _) = self.hidden_size, self._widths
        wide = linear(
            "self_attn.q_proj", hidden, 2 * query_width, bias=self.attention_bias, parallel="column"
        )
        factor = rotary_factor(self.rope_parameters, self.partial_rotary_factor)
        rotated = {one.name: one for one in self._self_attention(rotated=factor)}["self_attn.attention"]
        gated = rotated._replace(
            in_features=rotated.in_features + 3 * query_width,
            out_features=rotated.out_features + 2 * query_width,
        )
        new = {wide.name: wide, gated.name: gated}
        return tuple(new.get(one.name, one) for one in self._normed_heads(self.attention_bias))

    @property
    def _networks(self) -> tuple[tuple[Module, ...], tuple[Module, ...]]:
        """Experts with a shared one, and the network of dense layers."""
        block, *routed = self._routed()
        gate = linear("mlp.shared_expert_gate", self.hidden_size, 1, flat=True)
        shared = self._gated(name="mlp.shared_expert", wide=self.shared_expert_intermediate_size)
        return (block, *shared, *routed, gate), self._gated()

    def modules(self) -> ModuleLists:
        """Return the modules of ``Qwen3NextForCausalLM`` in call order."""
        net = DeltaNet(
            self.linear_num_key_heads,
            self.linear_num_value_heads,
            self.linear_key_head_dim,
            self.linear_value_head_dim,
            self.linear_conv_kernel_dim,
        )
        networks = self._networks
        attends = self._gated_attention(), net.modules(self.hidden_size)
        made = {
            (recurrent, dense): self._normed(attends[recurrent], networks[dense])
            for recurrent in (False, True)
            for dense in (False, True)
        }
        return self._around(
            "Qwen3Next", *(made[kind] for kind in zip(self._linear, self._dense, strict=True))
        )
