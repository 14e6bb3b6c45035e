"""Switch Transformer: T5's encoder and decoder, with one of many experts per token in some layers.

Modules: transformers/models/switch_transformers/modeling_switch_transformers.py at 5.23.0, where every expert
is a module of its own; here all experts of a layer are one. Gated experts (three matrices), as in Switch-XXL
(switch_xxl.gin of google/flaxformer), are named as in T5 1.1; transformers' class does not have them.
Operations are those measured for Mixtral plus what this code adds: 10 for the router, two for the bias of
positions in attention.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field

from simoffload.models.families.base import (
    Count,
    Derived,
    Extent,
    FamilyConfig,
    Flag,
    ModuleLists,
    Width,
    invalid,
)
from simoffload.models.families.experts import EXPERT_OPERATIONS, Experts
from simoffload.models.families.rotary import LLAMA_SAVED
from simoffload.models.modules import (
    Module,
    Traits,
    activation,
    attention,
    container,
    dropout,
    embedding,
    head,
    linear,
    rms_norm,
)
from simoffload.models.shape import Layer
from simoffload.models.stored_tensors import Parameter

Sparse = Annotated[int, Field(strict=True, ge=0, le=100_000)]
_TABLE = "shared.weight"


class SwitchTransformers(FamilyConfig):
    """The configuration of Switch Transformers: Hugging Face's ``SwitchTransformersConfig``.

    ``num_hidden_layers`` counts the layers of the encoder.
    """

    family: ClassVar[str] = "switch_transformers"
    traits: ClassVar[Traits] = Traits(
        architecture="SwitchTransformersForConditionalGeneration",
        attention="eager",
        operations=EXPERT_OPERATIONS._replace(router=14, attention=EXPERT_OPERATIONS.attention + 2, rotary=0),
        saved=LLAMA_SAVED,
        leaf_modules=(),
        lora_targets=("q", "v"),
    )
    spellings: ClassVar[dict[str, str]] = {
        "num_layers": "num_hidden_layers",
        "d_model": "hidden_size",
        "num_heads": "num_attention_heads",
    }

    vocab_size: Extent = 32128
    d_kv: Width = 64
    d_ff: Extent = 2048
    num_decoder_layers: Count | None = None
    num_sparse_encoder_layers: Sparse = 3
    num_sparse_decoder_layers: Sparse = 3
    encoder_sparse_step: Sparse | None = None
    """Distance of the encoder's layers with experts, as config.json has it; None: from their number."""
    decoder_sparse_step: Sparse | None = None
    """The same of the decoder."""
    num_experts: Experts = 8
    router_bias: Flag = False
    relative_attention_num_buckets: Count = 32
    dense_act_fn: Literal["relu", "gelu", "gelu_new", "silu", "gated-gelu"] = "relu"
    """Activation; with ``gated-gelu`` a feed-forward network has three matrices."""
    tie_word_embeddings: Flag = True

    @classmethod
    def replaced(cls, base: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
        """Return the replaced keys; with other numbers of layers the distances of a file do not apply."""
        merged = super().replaced(base, overrides)
        steps = {"encoder_sparse_step", "decoder_sparse_step"} - overrides.keys()
        if any("layers" in key for key in overrides):
            merged = {key: value for key, value in merged.items() if key not in steps}
        return merged

    def checked(self) -> Self:
        """Return the configuration itself; pydantic's ValidationError if its sizes contradict each other."""
        for key, layers in (
            ("num_sparse_encoder_layers", self.num_hidden_layers),
            ("num_sparse_decoder_layers", self._decoder_layers),
        ):
            if (sparse := getattr(self, key)) > layers:
                raise invalid(key, f"{key} {sparse} is more than the {layers} layers", sparse)
        return self

    @property
    def _decoder_layers(self) -> int:
        return self.num_decoder_layers or self.num_hidden_layers

    def derived(self) -> Derived:
        """Return the model's sizes under the names that all families share; positions have no limit."""
        return Derived(
            num_key_value_heads=self.num_attention_heads,
            head_dim=self.d_kv,
            intermediate_size=self.d_ff,
            max_position_embeddings=None,
            num_encoder_layers=self.num_hidden_layers,
            num_experts=self.num_experts,
            experts_per_token=1,
        )

    def windows(self) -> tuple[int | None, ...]:
        """Return no window for each layer of encoder and decoder."""
        return (None,) * (self.num_hidden_layers + self._decoder_layers)

    def modules(self) -> ModuleLists:
        """Return the modules of ``SwitchTransformersForConditionalGeneration``: the encoder, then the
        decoder."""
        hidden, tied = self.hidden_size, self.tie_word_embeddings
        table = Parameter(_TABLE, self.vocab_size * hidden, columns=hidden)
        unused: tuple[Module, ...] = ()
        first, second = (
            embedding(f"{one}.embed_tokens", self.vocab_size, hidden) for one in ("encoder", "decoder")
        )
        if tied:
            first = first._replace(parameters=(table,))
            second = second._replace(parameters=(table._replace(tied=True),))
        else:
            unused = (embedding("shared", self.vocab_size, hidden),)  # a table that the class has in any case
        name = "SwitchTransformersForConditionalGeneration"
        before = (container(name), *unused, container("encoder"), first)
        after = (
            rms_norm("encoder.final_layer_norm", hidden),
            dropout("encoder.dropout"),
            container("decoder"),
            second,
            rms_norm("decoder.final_layer_norm", hidden),
            dropout("decoder.dropout"),
            head(hidden, self.vocab_size, tied_to=_TABLE if tied else None),
        )
        sparse = self.num_sparse_encoder_layers, self.num_sparse_decoder_layers
        encoder = self._stack(self.num_hidden_layers, sparse[0], self.encoder_sparse_step, cross=False)
        decoder = self._stack(self._decoder_layers, sparse[1], self.decoder_sparse_step, cross=True)
        return ModuleLists(before, (*encoder, *decoder), after)

    def _stack(self, count: int, sparse: int, step: int | None, *, cross: bool) -> Iterable[Layer]:
        """Return the layers of one stack; those with experts are where transformers puts them, which may be
        the second one where there should be none."""
        step = count // (sparse or 1) if step is None else step
        kinds = {
            (first, mixed): self._layer(first=first, cross=cross, experts=mixed)
            for first in (True, False)
            for mixed in (True, False)
        }
        return [kinds[index == 0, step == 1 or (step > 1 and index % step == 1)] for index in range(count)]

    def _layer(self, *, first: bool, cross: bool, experts: bool) -> Layer:
        parts = [self._attend("layer.0.SelfAttention", bias=first)]
        if cross:
            parts.append(self._attend("layer.1.EncDecAttention"))
        mlp = f"layer.{len(parts)}.mlp"
        parts.append(self._experts(mlp) if experts else self._dense(mlp))
        sums = len(parts) * self.hidden_size
        block = container("SwitchTransformersBlock", reads=2 * sums, writes=sums, touched=1)
        normed = (self._normed(f"layer.{number}", one) for number, one in enumerate(parts))
        return (block, *(module for part in normed for module in part))

    def _normed(self, name: str, modules: Iterable[Module]) -> tuple[Module, ...]:
        norm = rms_norm(f"{name}.layer_norm", self.hidden_size)
        return (container(name), norm, *modules, dropout(f"{name}.dropout"))

    def _attend(self, name: str, *, bias: bool = False) -> tuple[Module, ...]:
        hidden, width = self.hidden_size, self.num_attention_heads * self.d_kv
        buckets = embedding(
            f"{name}.relative_attention_bias",
            self.relative_attention_num_buckets,
            self.num_attention_heads,
            parallel="whole",
        )
        return (
            container(name),
            linear(f"{name}.q", hidden, width, parallel="column"),
            *(linear(f"{name}.{one}", hidden, width, parallel="keys") for one in "kv"),
            *((buckets,) if bias else ()),
            attention(f"{name}.attention", query_width=width),
            linear(f"{name}.o", width, hidden, parallel="row"),
        )

    @property
    def _gated(self) -> bool:
        return self.dense_act_fn.startswith("gated")

    def _dense(self, name: str) -> tuple[Module, ...]:
        hidden, wide = self.hidden_size, self.d_ff
        inputs = ("wi_0", "wi_1") if self._gated else ("wi",)
        reads = 3 if self._gated else 1
        return (
            container(name),
            *(linear(f"{name}.{one}", hidden, wide, parallel="column") for one in inputs),
            activation(f"{name}.act", wide, reads=reads, writes=reads - self._gated),
            dropout(f"{name}.dropout"),
            linear(f"{name}.wo", wide, hidden, parallel="row"),
        )

    def _experts(self, name: str) -> tuple[Module, ...]:
        """Return a router and all experts, of which every token uses one: its input is gathered (1 read, 1
        written), and its result weighed (1, 1) and added (2, 1)."""
        hidden, wide, experts = self.hidden_size, self.d_ff, self.num_experts
        inner, inputs = f"{name}.experts", ("wi_0", "wi_1") if self._gated else ("wi",)
        share, reads, size = 1 / experts, 3 if self._gated else 1, experts * wide * hidden
        both = Module(
            inner,
            "linear",
            (
                *(Parameter(f"{inner}.{one}.weight", size, columns=hidden) for one in inputs),
                Parameter(f"{inner}.wo.weight", size, columns=wide),
            ),
            in_features=experts * (hidden + wide),
            out_features=experts * (len(inputs) * wide + hidden),
            share=share,
            flat=True,
            parallel="experts",
        )
        act = activation(f"{inner}.act", experts * wide, reads=reads, writes=reads - self._gated, share=share)
        return (
            container(name, reads=4 * hidden, writes=3 * hidden),
            container(f"{name}.router"),
            linear(f"{name}.router.classifier", hidden, experts, kind="router", bias=self.router_bias),
            both,
            act,
        )
