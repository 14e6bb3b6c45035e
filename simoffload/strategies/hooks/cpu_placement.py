"""Which modules of a model the CPU computes, and what llama.cpp chooses itself (``--fit``).

Reference: common/fit.cpp of llama.cpp@0c1e5709 (``common_params_fit_impl``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from fractions import Fraction
from typing import NamedTuple

from simoffload.bisection import first_that_holds
from simoffload.models import ModelShape, Module
from simoffload.models.shape import stored_bytes
from simoffload.recent import Recent
from simoffload.strategies.held import Home, Homes
from simoffload.strategies.hooks.tensor_overrides import Shares

_HALF = 2
"""Size [B] of an element of weights that are in no type of GGUF."""


class CpuPlacement(NamedTuple):
    """A CpuPlacement says which modules the CPU computes."""

    before: int = 0
    """Number of whole layers, from the first one on."""
    head: bool = False
    experts: range = range(0)
    """Layers whose experts it computes."""
    networks: int = 0
    """Number of layers, from the first one on, whose dense networks it computes."""
    attends: bool = False
    """Whether it attends in all layers, as the cache is in host memory."""
    kept: int = 0
    """Tensors of the first layer of ``experts`` that the GPU has room for: 1: up, 2: gate and up."""
    overridden: Shares = {}  # noqa: RUF012 (never changed)
    """Modules of which patterns say what is in host memory."""

    def shares(self, model: ModelShape) -> tuple[Mapping[str, Fraction], ...]:
        """Return the modules of each layer that the CPU computes, and behind them those outside, by name with
        the share of each."""
        outside = (*model.modules_before, *model.modules_after)
        return tuple(
            {one.name: self.share(number, one) for one in modules if self.holds(number, one)}
            for number, modules in (*enumerate(model.layers), (-1, outside))
        )

    def share(self, layer: int, module: Module) -> Fraction:
        """Return the share of a module that the CPU computes; ``layer`` is -1 outside of the layers."""
        found = self.overridden.get((layer, module.name))
        if found is not None:
            return found
        if self.kept and layer == self.experts.start and module.parallel == "experts" and module.parameters:
            sizes = {one.name: one.stored_bytes(_HALF) for one in module.parameters}
            inner = sum(size for name, size in sizes.items() if "down" not in name)
            return 1 - Fraction(self.kept * inner, 2 * sum(sizes.values()))
        return Fraction(self.holds(layer, module))

    def expert_bytes(self, model: ModelShape) -> int:
        """Return the size [B] of the experts that the CPU computes."""
        return sum(
            round(stored_bytes([one], model) * self.share(number, one))
            for number, layer in enumerate(model.layers)
            for one in layer
            if one.share < 1 and self.holds(number, one)
        )

    def behind(self, layers: int, on_gpu: int) -> CpuPlacement:
        """Return the same with the last ``on_gpu`` of all ``layers`` and the head on the GPU."""
        return self._replace(before=min(layers, max(layers + 1 - on_gpu, 0)), head=not on_gpu)

    def homes(self, model: ModelShape) -> Homes:
        """Return the homes of all tensors."""
        return Homes(model, lambda layer, one: Home("dram") if self.holds(layer, one) else Home())

    def holds(self, layer: int, module: Module) -> bool:
        """Return whether the CPU computes a module, or a part of it; an activation where the products before
        it are. ``layer`` is -1 outside of the layers."""
        if self.overridden:
            found = self.overridden.get((layer, module.name))
            if found is None and module.kind == "activation":
                found = self._before_activation(layer, module)
            if found is not None:
                return found > 0
        if layer < 0:
            return module.kind == "embedding" or (self.head and module.kind in ("linear", "norm"))
        if layer < self.before:
            return True
        if module.kind == "attention":
            return self.attends
        if module.kind not in ("linear", "activation") or "attn" in module.name or "attention" in module.name:
            return False
        return layer in self.experts if module.share < 1 else layer < self.networks

    def cache_bytes(self, model: ModelShape, cells: Callable[[int | None], int]) -> tuple[int, int]:
        """Return the sizes [B] of the cache of a sequence in host memory and on the GPU; ``cells`` returns
        the tokens for which the cache of a layer with a window has room."""
        counts = Counter((id(layer), self.decides(number)) for number, layer in enumerate(model.layers))
        first = {(id(layer), self.decides(number)): number for number, layer in enumerate(model.layers)}
        found = [0, 0]
        for key, number in first.items():
            for one in model.layers[number]:
                if one.kind == "attention":
                    size = cells(one.window) * model.cache_width * model.dtype_bytes
                    found[not self.holds(number, one)] += counts[key] * size
        return found[0], found[1]

    def decides(self, layer: int) -> Hashable:
        """Return all that decides what ``holds`` says of the modules of a layer, equal for layers of which it
        says the same."""
        own = layer if self.overridden else -1
        return layer < self.before, layer in self.experts, layer < self.networks, own

    def _before_activation(self, layer: int, module: Module) -> Fraction | None:
        """Return the share of what computes the input of an activation; None if patterns do not say it."""
        network = module.name.rpartition(".")[0]
        found = [
            self.overridden.get((layer, f"{network}{one}"))
            for one in ("", ".up_proj", ".gate_up_proj", ".dense_h_to_4h", ".gate_proj")
        ]
        return next((one for one in found if one is not None), None)

    def unused(self, model: ModelShape) -> Iterator[str]:
        """Yield a warning about numbers that name layers which the model does not have."""
        has = {one.share < 1 for one in model.distinct_modules if one.kind == "activation"}
        if self.experts and True not in has:
            yield f"strategy.cpu_moe has no effect: {model.family} has no experts"
        if self.networks and False not in has:
            yield f"strategy.cpu_ffn has no effect: {model.family} has no dense networks"

    def phrase(self, model: ModelShape) -> str:
        """Return what the CPU computes, in words."""
        layers = model.num_hidden_layers
        if self.before:
            return f"{self.before} of {layers} layers on the CPU"
        return (
            f"experts of {len(self.experts)} of {layers} layers on the CPU"
            if self.experts
            else "all layers on the GPU"
        )

    def kept_bytes(self, model: ModelShape) -> int:
        """Return the size [B] of the tensors on the GPU of modules that the CPU computes in part."""
        layers = (*enumerate(model.layers), (-1, (*model.modules_before, *model.modules_after)))
        if not self.overridden:
            layers = layers[self.experts.start : self.experts.start + 1] if self.kept else ()
        parts = ((one, self.share(number, one)) for number, modules in layers for one in modules)
        return sum(round((1 - share) * stored_bytes([one], model)) for one, share in parts if 0 < share < 1)


_FITTED: Recent[Hashable, tuple[ModelShape, CpuPlacement]] = Recent()
"""Placements that ``--fit`` chose last, with the models, which keep their identity."""


def fitted(
    all_on_gpu: CpuPlacement, model: ModelShape, fits: Callable[[CpuPlacement], bool], key: Hashable
) -> CpuPlacement:
    """Return what ``--fit`` chooses: the most on the GPU that ``fits``, the same for an equal ``key``.

    Of dense models whole layers leave the GPU, from the first one on. Of a mixture of experts the experts of
    the last layers do, of the first of these tensor by tensor; if all of them are not enough, whole layers.
    The first layer on the GPU then keeps its experts, as the program counts the head as a layer whose experts
    could leave.
    """
    return _FITTED.get((id(model), key), lambda: (model, _fitted(all_on_gpu, model, fits)))[1]


def _fitted(
    all_on_gpu: CpuPlacement, model: ModelShape, fits: Callable[[CpuPlacement], bool]
) -> CpuPlacement:
    layers = model.num_hidden_layers
    orders = [[all_on_gpu.behind(layers, number) for number in range(layers + 1, -1, -1)]]
    if any(module.parallel == "experts" for module in model.distinct_modules):
        orders[0] = [one._replace(experts=range(one.before + 1, layers)) for one in orders[0]]
        orders.insert(0, [all_on_gpu._replace(experts=range(full, layers)) for full in range(layers, 0, -1)])
    for order in orders:  # each keeps less on the GPU than the one before
        if (found := first_that_holds(order, fits)) is not None:
            more = [found._replace(kept=number) for number in (2, 1)] if found.experts else []
            return next(filter(fits, more), found)
    return orders[-1][-1]
