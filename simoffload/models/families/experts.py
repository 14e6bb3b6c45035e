"""The common parts of mixtures of experts: a router, experts in two tensors, shared experts, dense layers.

Modules as in transformers 5.23.0, where all experts of a layer are two tensors of one module.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field

from simoffload.models.families.base import Derived, ModuleLists, invalid
from simoffload.models.families.rotary import (
    LLAMA_OPERATIONS,
    RotaryConfig,
    after,
    kinds_of_layers,
    llama_traits,
)
from simoffload.models.modules import (
    Module,
    Parameter,
    Strided,
    Traits,
    activation,
    container,
    dropout,
    linear,
    rms_norm,
)

Experts = Annotated[int, Field(strict=True, ge=1, le=65_536)]
Index = Annotated[int, Field(strict=True, ge=0, le=100_000)]
Positions = tuple[Index, ...]

Absent = Annotated[
    int, BeforeValidator(lambda value: 0 if value is None else value), Field(strict=True, ge=0, le=100_000)
]
"""A size that is 0 or null where a model has none of it."""

EXPERT_OPERATIONS = LLAMA_OPERATIONS._replace(router=4)
"""Operations measured for Mixtral, for families whose code of a layer equals its except for what the family's
module states."""


def expert_traits(architecture: str, **changes: Any) -> Traits:
    """Return the traits of a family whose code of a layer equals Mixtral's, with ``changes`` of them."""
    return llama_traits(architecture, **{"operations": EXPERT_OPERATIONS, "v1_runner": True, **changes})


class ExpertsConfig(RotaryConfig):
    """A model of which some or all layers have experts instead of a feed-forward network."""

    experts_key: ClassVar[str] = "num_experts"
    """Key of the number of routed experts of a layer."""
    width_key: ClassVar[str] = "moe_intermediate_size"
    """Key of the width of one expert."""

    num_experts_per_tok: Experts

    @property
    def _experts(self) -> int:
        count: int = getattr(self, self.experts_key)
        return count

    @property
    def _width(self) -> int:
        width: int = getattr(self, self.width_key)
        return width or self.intermediate_size  # of a model without experts

    @property
    def _gated_bias(self) -> bool:
        """Whether the linear layers of dense layers and of shared experts have biases."""
        return False

    def checked(self) -> Self:
        """Return the configuration itself; pydantic's ValidationError if its sizes contradict each other."""
        super().checked()
        if self.num_experts_per_tok > self._experts:
            message = f"{self.num_experts_per_tok} is more than {self.experts_key} {self._experts}"
            raise invalid("num_experts_per_tok", f"num_experts_per_tok {message}", self.num_experts_per_tok)
        return self

    def _within_depth(self, key: str, layers: Iterable[int] | None) -> None:
        beyond = [index for index in layers or () if index >= self.num_hidden_layers]
        if beyond:
            depth = f"num_hidden_layers is {self.num_hidden_layers}, counted from 0"
            raise invalid(key, f"{key} lists layer {beyond[0]}; {depth}", beyond[0])

    def derived(self) -> Derived:
        """Return the model's sizes under the names that all families share; a size missing in
        config.json gets its default."""
        return (
            super()
            .derived()
            ._replace(
                intermediate_size=self._width,
                num_experts=self._experts,
                experts_per_token=self.num_experts_per_tok,
            )
        )

    def _routed(
        self,
        block: str = "mlp",
        router: str = "gate",
        *,
        bias: bool = False,
        gated: bool = True,
        latent: int | None = None,
    ) -> tuple[Module, ...]:
        """Return a block of experts: its sum of the chosen experts' results, weighed (1 read, 1 written) and
        added (2, 1), the router, and the experts.

        Weighing broadcasts a column, and gate and up are halves of the rows of one product (``_apply_gate``
        of transformers' ``integrations/moe.py``), so that PyTorch vectorizes neither, as in the traces of
        docs/measurements/h200-2026-11-29d. Without a gate (``gated``) the function is a squared ReLU in two
        kernels (1, 1 each). ``latent`` is the width of what experts read and write, by default the model's.
        """
        hidden, wide, experts = latent or self.hidden_size, self._width, self._experts
        share, summed = self.num_experts_per_tok / experts, self.num_experts_per_tok * hidden
        inside, halves = f"{block}." if block else "", 2 if gated else 1
        name = f"{inside}experts"
        first = f"{name}.gate_up_proj" if gated else f"{name}.up_proj"
        tensors = [Parameter(first, experts * halves * wide * hidden, columns=hidden)]
        tensors += [Parameter(f"{first}_bias", experts * halves * wide)] if bias else []
        tensors += [Parameter(f"{name}.down_proj", experts * hidden * wide, columns=wide)]
        tensors += [Parameter(f"{name}.down_proj_bias", experts * hidden)] if bias else []
        both = Module(
            name,
            "linear",
            tuple(tensors),
            in_features=experts * (hidden + wide),
            out_features=experts * (halves * wide + hidden),
            share=share,
            flat=True,
            parallel="experts",
        )
        function = activation(f"{name}.act_fn", experts * wide, reads=1 + halves, writes=2, share=share)
        strided = Strided(2 * experts * wide, 5 * experts * wide) if gated else Strided()
        summing = container(block, reads=3 * summed, writes=2 * summed, code="mlp")
        return (
            summing._replace(strided=Strided(summed, 2 * summed)),
            linear(f"{inside}{router}", self.hidden_size, experts, kind="router", bias=bias),
            both,
            function._replace(strided=strided),
        )

    def _routed_and_gated(self, wide: int) -> tuple[Module, ...]:
        """Return experts, and one of width ``wide`` that serves all tokens and whose result has a gate."""
        block, *routed = self._routed()
        gate = linear("mlp.shared_expert_gate", self.hidden_size, 1, flat=True)
        return (block, *self._gated(name="mlp.shared_expert", wide=wide), *routed, gate)

    def _routed_latent(self, block: str, *, latent: int | None, bias: bool) -> tuple[Module, ...]:
        """Return experts without a gate that read and write a ``latent`` vector, between two products that do
        nothing (``nn.Identity``) where there is none."""
        hidden, names = self.hidden_size, (f"{block}.fc1_latent_proj", f"{block}.fc2_latent_proj")
        into, back = map(dropout, names)
        if latent is not None:
            into = linear(names[0], hidden, latent, bias=bias, flat=True)
            back = linear(names[1], latent, hidden, bias=bias, flat=True)
        return (*after(self._routed(block, gated=False, latent=latent), f"{block}.gate", into), back)

    def _joined(self, name: str, wide: int) -> tuple[Module, ...]:
        """Return a gated network that computes gate and up as one product, and clamps both (``swigluoai``).

        Its own code clamps twice, times alpha, sigmoid, plus one (1 read, 1 written each), two products (2,
        1).
        """
        return (
            container(name, touched=1, code="mlp"),
            linear(f"{name}.gate_up_proj", self.hidden_size, 2 * wide, parallel="column"),
            activation(f"{name}.act_fn", wide, reads=9, writes=7)._replace(hooked=False),
            linear(f"{name}.down_proj", wide, self.hidden_size, parallel="row"),
        )

    def _mixed(
        self, class_name: str, attend: Iterable[Module], experts: Iterable[Module], dense: Sequence[bool]
    ) -> ModuleLists:
        """Return the lists of a model in which the layers that are ``dense`` have a feed-forward network."""
        return self._of_kinds(class_name, (tuple(attend),), experts, dense, (0,) * len(dense))

    def _of_kinds(
        self,
        class_name: str,
        attends: Sequence[tuple[Module, ...]],
        experts: Iterable[Module],
        dense: Sequence[bool],
        kinds: Sequence[int],
        network: tuple[Module, ...] | None = None,
    ) -> ModuleLists:
        """Return the lists of a model whose layers have one of several kinds of attention; those that are
        ``dense`` have a feed-forward ``network``."""
        networks = tuple(experts), network or self._gated(bias=self._gated_bias)
        both = list(zip(kinds, dense, strict=True))
        made = {one: self._normed(attends[one[0]], networks[one[1]]) for one in set(both)}
        return self._around(class_name, *(made[one] for one in both))


class SparseStepConfig(ExpertsConfig):
    """A model that states in which layers experts are, as Qwen's models do."""

    decoder_sparse_step: Annotated[int, Field(strict=True, ge=1, le=100_000)] = 1
    mlp_only_layers: Positions | None = None

    def checked(self) -> Self:
        """Return the configuration itself; pydantic's ValidationError if its sizes contradict each other."""
        self._within_depth("mlp_only_layers", self.mlp_only_layers)
        return super().checked()

    @property
    def _dense(self) -> list[bool]:
        only, step = self.mlp_only_layers or (), self.decoder_sparse_step
        return [index in only or (index + 1) % step != 0 for index in range(self.num_hidden_layers)]


class FirstDenseConfig(ExpertsConfig):
    """A model whose first layers are dense and whose other layers also have experts that serve all tokens."""

    experts_key: ClassVar[str] = "n_routed_experts"

    n_shared_experts: Experts = 1
    first_k_dense_replace: Index | None = 0
    n_group: Experts | None = None
    """Groups of experts, of which the router chooses some; without influence on sizes."""
    topk_group: Experts | None = None

    def checked(self) -> Self:
        """Return the configuration itself; pydantic's ValidationError if its sizes contradict each other."""
        first, groups, chosen = self.first_k_dense_replace or 0, self.n_group or 1, self.topk_group
        if first > self.num_hidden_layers and "first_k_dense_replace" in self.model_fields_set:
            message = f"first_k_dense_replace {first} is more than num_hidden_layers {self.num_hidden_layers}"
            raise invalid("first_k_dense_replace", message, first)
        if self._experts % groups:
            message = f"{self.experts_key} {self._experts} is not a multiple of n_group {groups}"
            raise invalid("n_group", message, groups)
        if self.n_group is not None and chosen is not None and chosen > groups:
            raise invalid("topk_group", f"topk_group {chosen} is more than n_group {groups}", chosen)
        return super().checked()

    @property
    def _dense(self) -> list[bool]:
        first = self.first_k_dense_replace or 0
        return [index < first for index in range(self.num_hidden_layers)]

    def _routed_and_shared(self, latent: int | None = None, *, normed: bool = False) -> tuple[Module, ...]:
        """Return experts and shared ones; with ``latent`` the routed ones read and write vectors of that
        width, whose sum may be ``normed``."""
        wide, routed = self._width * self.n_shared_experts, self._routed(latent=latent)
        shared = self._gated(name="mlp.shared_experts", wide=wide, bias=self._gated_bias)
        if latent is None:
            return (*routed, *shared)
        into = linear("mlp.routed_expert_down_proj", self.hidden_size, latent, flat=True)
        norm = (rms_norm("mlp.routed_expert_norm", latent),) if normed else ()
        back = linear("mlp.routed_expert_up_proj", latent, self.hidden_size, flat=True)
        return (*after(routed, "mlp.gate", into), *norm, back, *shared)


Feed = Literal["dense", "sparse"]


class ListedDenseConfig(FirstDenseConfig):
    """A model that may list which layers are dense, instead of a number of first ones."""

    mlp_layer_types: Annotated[tuple[Feed, ...], kinds_of_layers(Feed)] | None = None

    @property
    def _dense(self) -> list[bool]:
        listed = self.mlp_layer_types
        return super()._dense if listed is None else [one == "dense" for one in listed]


def continued(merged: dict[str, Any], overrides: Iterable[str], *lists: str) -> dict[str, Any]:
    """Return the keys with a file's lists of layers cut, or continued with their last entry, where the number
    of layers is another one."""
    layers = merged.get("num_hidden_layers")
    if "num_hidden_layers" in overrides and isinstance(layers, int):
        for key in lists:
            listed = merged.get(key)
            if key not in overrides and isinstance(listed, list | tuple) and listed:
                merged[key] = (*listed[:layers], *listed[-1:] * min(layers - len(listed), 100_000))
    return merged
