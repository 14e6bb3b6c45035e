"""The common parts of layers that keep a state of fixed size instead of keys and values: gated DeltaNet, Kimi
delta attention, and Mamba-2."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from simoffload.models.families.base import Count, Derived, Flag, ModuleLists, Width, invalid
from simoffload.models.families.experts import ExpertsConfig
from simoffload.models.families.rotary import (
    RotaryConfig,
    RotatedPart,
    gated_result,
    kinds_of_layers,
    rotary_factor,
)
from simoffload.models.modules import (
    DTYPE_BYTES,
    SINGLE,
    Chunked,
    Dtype,
    Module,
    Parameter,
    StatePart,
    activation,
    container,
    linear,
    rms_norm,
)

LINEAR, FULL = "linear_attention", "full_attention"
HALF = 2
"""Size [B] of an element of a convolution's state, which is that of the model's type."""


def states(*, matrices: int, inputs: int, kernel: int, served: int = SINGLE) -> tuple[StatePart, ...]:
    """Return what a recurrent layer keeps of a sequence: ``matrices`` elements of its state, in single
    precision in transformers and of ``served`` [B] in serving engines, and the last ``inputs`` of a
    convolution of ``kernel`` tokens in 16 bits.

    transformers 5.23 keeps as many of these as the convolution is wide (``update_conv_state`` of
    cache_utils.py), vLLM one less (``MambaStateShapeCalculator``, layers/mamba/mamba_utils.py at 02d71083).
    """
    held = HALF * inputs
    return (
        StatePart("recurrent state", fixed=SINGLE * matrices, served=served * matrices),
        StatePart("convolution state", fixed=kernel * held, served=(kernel - 1) * held),
    )


def update(name: str, *, convolved: int, result: int, more: int, chunked: Chunked) -> Module:
    """Return the update of a state, which no module of its own does: a convolution reads and writes
    ``convolved`` elements of each token, the update reads them and ``more``, and writes its ``result``."""
    return activation(name, result, reads=0, writes=1)._replace(
        hooked=False,
        in_features=2 * convolved + more,
        out_features=convolved + result,
        chunked=chunked,
    )


_CHUNK = 64
"""Tokens of a chunk of the delta rule (``chunk_gated_delta_rule`` and ``chunk_kda`` of fla)."""


def delta_rule(heads: int, keys: int, values: int) -> Chunked:
    """Return what the kernels of fla do for each token of a prompt, of which they update the state by chunks
    (Yang et al., arXiv 2412.06464, section 3.3).

    Products of keys with keys and with queries, of their inverse with keys and values, of scores with values
    (over a chunk), and of keys, queries and new values with the state. Written and read: two results of
    the inverse, new values, and the state before every chunk. vLLM 0.25 runs for a prompt a convolution, the
    preparation of its result, sums of the gates, products of keys, their inverse in a cleared tensor, results
    of the inverse, states and scores, and reads, masks (2), writes and copies states and results
    (``_forward_core``, layers/mamba/gdn/qwen_gdn_linear_attn.py, and fla/ops/chunk.py): 14 kernels.
    """
    state = keys * values
    products = 6 * state + 2 * _CHUNK * (3 * keys + 2 * values)
    return Chunked(heads * products, heads * 2 * (keys + 2 * values + state // _CHUNK), 14)


# -- gated DeltaNet --------------------------------------------------------------------------------
# Modules and tensors of the gated DeltaNet (Yang et al., arXiv 2412.06464) as in
# transformers/models/qwen3_next/modeling_qwen3_next.py at 5.23.0.


class DeltaNet(NamedTuple):
    """A DeltaNet has the sizes of a gated DeltaNet."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int
    """Width of the convolution [tokens]."""
    joint: bool = True
    """Whether one product computes queries, keys, values and the gate, and one both scalars of each head."""
    served: int = HALF
    """Size [B] of an element of its matrices in serving engines."""

    @property
    def keeps(self) -> tuple[StatePart, ...]:
        """The state of a sequence: a matrix for each head, and the last inputs of the convolution."""
        matrices = self.value_heads * self.key_dim * self.value_dim
        return states(matrices=matrices, inputs=self._mixed, kernel=self.kernel, served=self.served)

    @property
    def _mixed(self) -> int:
        """Elements of queries, keys and values of a token."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    def modules(self, hidden: int, name: str = "linear_attn") -> tuple[Module, ...]:
        """Return the modules of one layer in call order."""
        values, mixed, heads = self.value_heads * self.value_dim, self._mixed, self.value_heads
        own = (
            Parameter(f"{name}.dt_bias", heads),
            Parameter(f"{name}.A_log", heads),
            Parameter(f"{name}.conv1d.weight", mixed * self.kernel),
        )
        separate = {"qkv": mixed, "z": values, "b": heads, "a": heads}
        projected = {"qkvz": mixed + values, "ba": 2 * heads} if self.joint else separate
        chunked = delta_rule(heads, self.key_dim, self.value_dim)
        core = update(f"{name}.delta_rule", convolved=mixed, result=values, more=values, chunked=chunked)
        return (
            container(name)._replace(parameters=own, parallel="heads"),
            *(
                linear(f"{name}.in_proj_{part}", hidden, wide, parallel="column")
                for part, wide in projected.items()
            ),
            core._replace(keeps=self.keeps),
            rms_norm(f"{name}.norm", self.value_dim, heads=heads, parallel="heads"),
            linear(f"{name}.out_proj", values, hidden, parallel="row"),
        )


def every_nth(layers: int, interval: int) -> tuple[str, ...]:
    """Return the kinds of layers of which every ``interval``-th has full attention."""
    return tuple(FULL if (layer + 1) % interval == 0 else LINEAR for layer in range(layers))


def is_linear(kinds: Sequence[str]) -> tuple[bool, ...]:
    """Return which layers have linear attention."""
    return tuple(one == LINEAR for one in kinds)


_Kind = Literal["linear_attention", "full_attention"]


class DeltaNetConfig(RotaryConfig):
    """A model with a gated DeltaNet in most layers and gated attention in the others."""

    further: ClassVar[int] = 1

    head_dim: Width | None = 256
    attention_bias: Flag = False
    partial_rotary_factor: RotatedPart = 0.25
    full_attention_interval: Count = 4
    layer_types: Annotated[tuple[_Kind, ...], kinds_of_layers(_Kind)] | None = None
    """Kind of each layer; without it, every ``full_attention_interval``-th has full attention."""
    linear_num_key_heads: Count = 16
    linear_num_value_heads: Count = 32
    linear_key_head_dim: Width = 128
    linear_value_head_dim: Width = 128
    linear_conv_kernel_dim: Count = 4
    mamba_ssm_dtype: Dtype | None = None
    """Type of the states in vLLM (``Qwen3_5ForConditionalGenerationConfig``, models/config.py); None: that of
    the model."""

    def checked(self) -> Self:
        """Return the configuration itself; pydantic's ValidationError if its sizes contradict each other."""
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
    def _network(self) -> tuple[Module, ...]:
        """What most layers have after attention."""
        return self._gated()

    def _gated_attention(self) -> tuple[Module, ...]:
        """Return attention whose first projection also computes a gate of the result."""
        hidden, (query_width, _) = self.hidden_size, self._widths
        wide = linear(
            "self_attn.q_proj", hidden, 2 * query_width, bias=self.attention_bias, parallel="column"
        )
        factor = rotary_factor(self.rope_parameters, self.partial_rotary_factor)
        rotated = {one.name: one for one in self._self_attention(rotated=factor)}["self_attn.attention"]
        gated = gated_result(rotated, query_width)
        new = {wide.name: wide, gated.name: gated}
        return tuple(new.get(one.name, one) for one in self._normed_heads(self.attention_bias))

    def _attends(self, *, joint: bool) -> tuple[tuple[Module, ...], tuple[Module, ...]]:
        """Return gated attention, and a DeltaNet, with the projections of its queries, keys, values and gates
        in one product if ``joint``."""
        net = DeltaNet(
            self.linear_num_key_heads,
            self.linear_num_value_heads,
            self.linear_key_head_dim,
            self.linear_value_head_dim,
            self.linear_conv_kernel_dim,
            joint,
            DTYPE_BYTES[self.mamba_ssm_dtype] if self.mamba_ssm_dtype else HALF,
        )
        return self._gated_attention(), net.modules(self.hidden_size)


# -- Kimi delta attention --------------------------------------------------------------------------
# Modules and tensors of Kimi delta attention (Kimi Linear, arXiv 2510.26692) as in
# transformers/models/kimi_linear/modeling_kimi_linear.py at 5.23.0: a gated DeltaNet whose state decays by
# elements of keys, not by heads.


def _projected(name: str, hidden: int, head: int, wide: int, *, full: bool) -> tuple[Module, ...]:
    """Return the product that computes ``wide`` elements, or two with a head of elements between them."""
    if full:
        return (linear(f"{name}_proj", hidden, wide, parallel="column"),)
    return (
        linear(f"{name}_a_proj", hidden, head),
        linear(f"{name}_b_proj", head, wide, parallel="column"),
    )


class DeltaAttention(NamedTuple):
    """A DeltaAttention has the sizes of Kimi delta attention."""

    heads: int
    head_dim: int
    kernel: int
    """Width of the convolution [tokens]."""
    full_gate: bool = False
    """Whether one product computes the gate of the result, not two with a head's elements between them."""
    full_decay: bool = False
    """Likewise of the decay of the state."""

    def modules(self, hidden: int, name: str = "self_attn") -> tuple[Module, ...]:
        """Return the modules of one layer in call order."""
        one, gate, wide = self.head_dim, f"{name}.forget_gate", self.heads * self.head_dim
        convolution = Parameter(f"{name}.conv1d.weight", 3 * wide * self.kernel)
        decay = (Parameter(f"{gate}.dt_bias", wide), Parameter(f"{gate}.A_log", self.heads))
        core = update(
            f"{name}.delta_rule",
            convolved=3 * wide,
            result=wide,
            more=2 * wide,
            chunked=delta_rule(self.heads, one, one),
        )
        kept = states(matrices=wide * one, inputs=3 * wide, kernel=self.kernel)
        return (
            container(name)._replace(parameters=(convolution,), parallel="heads"),
            *(linear(f"{name}.{part}_proj", hidden, wide, parallel="column") for part in "qkv"),
            container(gate)._replace(parameters=decay, parallel="heads"),
            *_projected(f"{gate}.f", hidden, one, wide, full=self.full_decay),
            linear(f"{name}.b_proj", hidden, self.heads, parallel="column"),
            core._replace(keeps=kept),
            *_projected(f"{name}.g", hidden, one, wide, full=self.full_gate),
            rms_norm(f"{name}.o_norm", one, heads=self.heads, parallel="heads"),
            linear(f"{name}.o_proj", wide, hidden, parallel="row"),
        )


# -- Mamba-2 ---------------------------------------------------------------------------------------
# Modules and tensors of Mamba-2 (Dao and Gu, arXiv 2405.21060) as in
# transformers/models/nemotron_h/modeling_nemotron_h.py at 5.23.0.


class Mamba2(NamedTuple):
    """A Mamba2 has the sizes of a Mamba-2 mixer."""

    heads: int
    head_dim: int
    groups: int
    """Groups of heads that share what is written to the state and what is read from it."""
    state: int
    """Elements of the state for each element of a head."""
    kernel: int
    """Width of the convolution [tokens]."""
    chunk: int
    """Tokens of which kernels update the state together."""
    bias: bool = False
    convolution_bias: bool = True
    served: int = SINGLE
    """Size [B] of an element of the state in serving engines."""
    normed: bool = True
    """Whether a norm reads the result with its gate, not the update itself."""

    @property
    def _inner(self) -> int:
        return self.heads * self.head_dim

    @property
    def _convolved(self) -> int:
        return self._inner + 2 * self.groups * self.state

    @property
    def keeps(self) -> tuple[StatePart, ...]:
        """The state of a sequence, and the last inputs of the convolution."""
        matrices = self._inner * self.state
        return states(matrices=matrices, inputs=self._convolved, kernel=self.kernel, served=self.served)

    @property
    def _chunked(self) -> Chunked:
        """What ``mamba_chunk_scan_combined`` of mamba_ssm does for each token of a prompt.

        Products over a chunk, of which causality leaves half: of what is read with what is written, once a
        group, and of these scores with the inputs; with the state: what is written, and what is read. Written
        and read in single precision: scores, and the state of every chunk by itself and with those before.
        vLLM 0.25 runs a convolution, five kernels, and reads and writes states (``conv_ssm_forward``,
        layers/mamba/mamba_mixer2.py, and ops/ssd_combined.py): 8.
        """
        scores, states = self.groups * self.chunk, self._inner * self.state
        flops = scores * self.state + self._inner * self.chunk + 4 * states
        return Chunked(flops, 2 * 2 * scores + 2 * 4 * states // self.chunk, 8)

    def modules(self, hidden: int, name: str) -> tuple[Module, ...]:
        """Return the modules of one mixer in call order."""
        inner, convolved, heads = self._inner, self._convolved, self.heads
        own = [Parameter(f"{name}.{one}", heads) for one in ("dt_bias", "A_log", "D")]
        own += [Parameter(f"{name}.conv1d.weight", convolved * self.kernel)]
        own += [Parameter(f"{name}.conv1d.bias", convolved)] if self.convolution_bias else []
        core = update(f"{name}.scan", convolved=convolved, result=inner, more=inner, chunked=self._chunked)
        return (
            container(name)._replace(parameters=tuple(own), parallel="heads"),
            linear(f"{name}.in_proj", hidden, inner + convolved + heads, bias=self.bias, parallel="column"),
            core._replace(keeps=self.keeps),
            *((rms_norm(f"{name}.norm", inner, parallel="heads"),) if self.normed else ()),
            linear(f"{name}.out_proj", inner, hidden, bias=self.bias, parallel="row"),
        )


class Mamba2Config(RotaryConfig):
    """A model with Mamba-2 whose keys begin with mamba."""

    num_key_value_heads: Count | None = 8
    attention_bias: Flag = False
    mamba_n_heads: Count = 128
    mamba_n_groups: Count = 1
    mamba_d_state: Width = 256
    mamba_d_head: Width | Literal["auto"] = "auto"
    mamba_d_conv: Count = 4
    mamba_expand: Count = 2
    mamba_chunk_size: Count = 256
    mamba_conv_bias: Flag = True
    mamba_proj_bias: Flag = False

    @property
    def _inner(self) -> int:
        """Elements of all heads of Mamba-2."""
        return self.mamba_expand * self.hidden_size

    def checked(self) -> Self:
        """Return the configuration itself; pydantic's ValidationError if its sizes contradict each other."""
        width = self.mamba_n_heads * (1 if self.mamba_d_head == "auto" else self.mamba_d_head)
        if self._inner % width or (self.mamba_d_head != "auto" and self._inner != width):
            text = f"mamba_n_heads {self.mamba_n_heads} and mamba_d_head {self.mamba_d_head} do not give the "
            raise invalid("mamba_n_heads", f"{text}{self._inner} elements of Mamba-2", self.mamba_n_heads)
        return super().checked()

    def _mamba(self, *, normed: bool = True) -> tuple[Module, ...]:
        """Return the modules of Mamba-2, whose states have the model's type in vLLM."""
        heads = self.mamba_n_heads
        sizes = heads, self._inner // heads, self.mamba_n_groups, self.mamba_d_state, self.mamba_d_conv
        biases = self.mamba_proj_bias, self.mamba_conv_bias
        net = Mamba2(*sizes, self.mamba_chunk_size, *biases, served=HALF, normed=normed)
        return net.modules(self.hidden_size, "mamba")


# -- short convolutions ----------------------------------------------------------------------------


def short_convolution(name: str, hidden: int, *, kernel: int, bias: bool) -> tuple[Module, ...]:
    """Return a convolution of ``kernel`` tokens between two gates, as in
    transformers/models/lfm2/modeling_lfm2.py at 5.23.0: both products and the convolution (2 read, 1 written;
    2, 1; 1, 1)."""
    own = [Parameter(f"{name}.conv.weight", hidden * kernel)]
    own += [Parameter(f"{name}.conv.bias", hidden)] if bias else []
    core = activation(f"{name}.gates", hidden, reads=5, writes=3)._replace(hooked=False)
    kept = StatePart("convolution state", fixed=kernel * HALF * hidden, served=(kernel - 1) * HALF * hidden)
    return (
        container(name)._replace(parameters=tuple(own), parallel="heads"),
        linear(f"{name}.in_proj", hidden, 3 * hidden, bias=bias, parallel="column"),
        core._replace(keeps=(kept,)),
        linear(f"{name}.out_proj", hidden, hidden, bias=bias, parallel="row"),
    )


_Convolved = Literal["conv", "full_attention"]


class ShortConvolutionConfig(RotaryConfig):
    """A model with short convolutions in some layers, attention with norms of heads in the others."""

    num_key_value_heads: Count | None = 8
    tie_word_embeddings: Flag = True
    conv_bias: Flag = False
    conv_l_cache: Count = Field(default=3, alias="conv_L_cache")
    full_attn_idxs: tuple[int, ...] | None = None
    layer_types: Annotated[tuple[_Convolved, ...], kinds_of_layers(_Convolved)] | None = None
    """Kind of each layer; without it, ``full_attn_idxs`` lists those with attention, by default all."""

    def _network(self, wide: int) -> tuple[Module, ...]:
        """Return a gated network of width ``wide``, whose function is no module."""
        block, gate, act, up, down = self._gated(name="feed_forward", wide=wide)
        first, last, second = (
            self._renamed(one, f"feed_forward.w{at}") for at, one in ((1, gate), (2, down), (3, up))
        )
        return (block, first, act._replace(hooked=False), second, last)

    @staticmethod
    def _renamed(module: Module, name: str) -> Module:
        (weight,) = module.parameters
        return module._replace(name=name, parameters=(weight._replace(name=f"{name}.weight"),))

    def _convolved(
        self, class_name: str, networks: Sequence[tuple[Module, ...]], positions: str = "model.rotary_emb"
    ) -> ModuleLists:
        """Return the lists of a model with a network for each layer."""
        named = {"o_proj": "out_proj", "q_norm": "q_layernorm", "k_norm": "k_layernorm"}
        attend = tuple(
            self._renamed(one, f"self_attn.{named[last]}") if (last := one.name[10:]) in named else one
            for one in self._normed_heads(False)
        )
        convolution = short_convolution(
            "conv", self.hidden_size, kernel=self.conv_l_cache, bias=self.conv_bias
        )
        every = range(self.num_hidden_layers)
        full = every if self.full_attn_idxs is None else self.full_attn_idxs
        kinds = self.layer_types or [FULL if one in full else "conv" for one in every]
        mixers, names = {FULL: attend, "conv": convolution}, ("operator_norm", "ffn_norm")
        made = {
            one: self._normed(mixers[one[0]], one[1], *names)
            for one in dict.fromkeys(zip(kinds, networks, strict=True))
        }
        layers = (made[one] for one in zip(kinds, networks, strict=True))
        found = self._around(class_name, *layers, norm="model.embedding_norm")
        before = tuple(one._replace(name=positions) if one.kind == "rotary" else one for one in found.before)
        return found._replace(before=before)


# -- layers of one mixer each ----------------------------------------------------------------------

_LETTERS = {"M": LINEAR, "*": FULL, "-": "mlp", "E": "moe", "mamba": LINEAR, "attention": FULL}
"""Kinds of mixers by their letter in a pattern, and by former names (``NemotronHConfig`` of transformers)."""
Mixer = Literal["linear_attention", "full_attention", "mlp", "moe"]
Mixers = Annotated[tuple[Mixer, ...], kinds_of_layers(Mixer)]


class MixersConfig(ExpertsConfig):
    """A model whose layers have one mixer each: a recurrent one, attention, a feed-forward network or
    experts."""

    layers_block_type: Mixers
    """The mixer of each layer, by names or as a pattern of letters; decides the number of layers."""

    @model_validator(mode="before")
    @classmethod
    def _count_layers(cls, raw: dict[str, Any]) -> dict[str, Any]:
        keys = {key: _named(value) if key.endswith("block_type") else value for key, value in raw.items()}
        listed = keys.get("layers_block_type")
        return {"num_hidden_layers": len(listed) if isinstance(listed, Sized) else 0, **keys}

    @classmethod
    def usual_name(cls, key: str, keys: Any) -> str:
        """Return the first spelling of a key; a pattern beside the list that it stands for is ignored."""
        usual = super().usual_name(key, keys)
        return key if key.endswith("_pattern") and usual in keys else usual

    @classmethod
    def replaced(cls, base: Any, overrides: Any) -> dict[str, Any]:
        """Return the replaced keys; with another number of layers a list ends earlier, or begins anew."""
        merged, given = super().replaced(base, overrides), {cls.spellings.get(one, one) for one in overrides}
        if "num_hidden_layers" in given and "layers_block_type" not in given and base:
            count, listed = merged["num_hidden_layers"], list(merged["layers_block_type"])
            merged["layers_block_type"] = (listed * count)[:count]
        return merged

    def checked(self) -> Self:
        """Return the configuration itself; pydantic's ValidationError if its sizes contradict each other."""
        self._one_for_each_layer("layers_block_type", self.layers_block_type)
        return super().checked()

    def derived(self) -> Derived:
        """Return the model's sizes under the names that all families share."""
        sizes = super().derived()
        if "moe" in self.layers_block_type:
            return sizes
        return sizes._replace(intermediate_size=self.intermediate_size, num_experts=0, experts_per_token=0)


def _named(written: Any) -> Any:
    """Return kinds of mixers, which a pattern or a list names, by their names of today."""
    listed = isinstance(written, str | list | tuple)
    return [_LETTERS.get(str(one), one) for one in written] if listed else written
