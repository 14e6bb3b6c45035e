"""Which modules of a model the CPU computes, which GPU the others, and what llama.cpp chooses (``--fit``).

Reference: common/fit.cpp (``common_params_fit_impl``), src/llama-model.cpp (``load_tensors``) and
ggml/src/ggml-backend.cpp (``ggml_backend_sched_backend_id_from_cur``) of llama.cpp@0c1e5709.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import accumulate
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator, BeforeValidator, Field

from simoffload.bisection import first_that_holds
from simoffload.documents import quoted, suggest
from simoffload.errors import InputError
from simoffload.models import (
    VALID,
    Expression,
    ModelShape,
    Module,
    StatePart,
    stored_bytes,
    tensor_names,
)
from simoffload.recent import Recent
from simoffload.strategies.base import Home, Homes

# -- tensors that patterns of their names send to a device -----------------------------------------
# Llama.cpp's ``--override-tensor`` (``-ot``).
#
# Reference: common/arg.cpp (``parse_tensor_buffer_overrides``) and src/llama-model-loader.cpp
# (``create_tensor``) of llama.cpp@0c1e5709. A list is divided at commas, each pattern from its device at
# the first "="; the first pattern that is found anywhere in the name of a tensor decides.


_CPU = "CPU"
_LONGEST, _MOST = 1000, 1000
"""Most characters of a pattern, and most patterns."""

Overrides = Annotated[
    tuple[str, ...], BeforeValidator(lambda value: (value,) if isinstance(value, str) else value)
]
"""Patterns as a list, or one of them."""


class _Overridden(NamedTuple):
    """An _Overridden says where the tensors of a module are of which a pattern was found."""

    on_cpu: Fraction
    """Share of their bytes that is in host memory."""
    gpu: int | None = None
    """Number of the GPU that has the others; None: that of the layer."""


Overridden = dict[tuple[int, str], _Overridden]
"""Modules of which patterns decide, by the number of their layer (-1: outside) and their name."""


class TensorOverride(NamedTuple):
    """A TensorOverride is a pattern of names with its device."""

    text: str
    place: str
    gpu: int | None
    """Number of the GPU; None: host memory."""
    expression: Expression


def read_overrides(texts: Sequence[str], path: str, gpus: Sequence[str]) -> tuple[TensorOverride, ...]:
    """Read PATTERN=DEVICE for GPUs with these names. Raises InputError for what is not valid, and for another
    device."""
    devices: dict[str, int | None] = {_CPU: None} | {name: gpu for gpu, name in enumerate(gpus)}
    parts = [(number, one) for number, text in enumerate(texts) for one in text.split(",")]
    found = [_read(one, f"{path}[{number}]", devices) for number, one in parts]
    if len(found) > _MOST:
        raise InputError.at(path, f"{len(found):,} patterns; at most {_MOST:,} may be")
    return tuple(found)


def _read(text: str, place: str, devices: Mapping[str, int | None]) -> TensorOverride:
    pattern, sign, device = text.partition("=")
    if not pattern or not sign:
        raise InputError.at(place, f'{quoted(text)} is not PATTERN=DEVICE, such as "ffn_.*_exps=CPU"')
    if device not in devices:
        known = f"{suggest(device, tuple(devices))}; the devices are {', '.join(devices)} (strategy.num_gpus)"
        raise InputError.at(place, f"tensors cannot be on {quoted(device)}{known}")
    if len(pattern) > _LONGEST:
        raise InputError.at(place, f"has {len(pattern):,} characters; at most {_LONGEST:,} may be")
    try:
        expression = Expression(pattern)
    except ValueError as error:
        raise InputError.at(place, f"the pattern {quoted(pattern)}: {error}; {VALID}") from None
    return TensorOverride(text, place, devices[device], expression)


def overridden(model: ModelShape, overrides: Sequence[TensorOverride], without: CpuPlacement) -> Overridden:
    """Return the modules of which a pattern is found in the name of a tensor.

    ``without`` is the placement without patterns. Raises InputError for a pattern that decides nothing, that
    sends a tensor to a GPU which other settings send to the CPU, or that divides a module among GPUs.
    """
    found, seen = Overridden(), set[str]()
    for layer, module in _modules(model):
        size, on_cpu, deciding, gpus = 0, Fraction(0), list[TensorOverride](), set[int]()
        inside = without.holds(layer, module)
        for one in module.parameters:
            names = tensor_names(model, layer, one)
            stored = one.stored_bytes(model.dtype_bytes)
            size += stored
            for name in names:
                first = next((each for each in overrides if each.expression.found_in(name)), None)
                gpu = None if inside else without.gpu(layer)
                if first is not None:
                    deciding.append(first)
                    _check(first, name, inside)
                    gpu = first.gpu
                gpus |= set() if gpu is None else {gpu}
                on_cpu += Fraction(stored * (gpu is None), len(names))
            on_cpu += stored * inside * (not names)
        seen |= {each.place + each.text for each in deciding}
        if deciding and len(gpus) > 1:
            text = f"{quoted(deciding[0].text)} divides {module.name} of layer {layer} among GPUs"
            raise InputError.at(deciding[0].place, f"{text}, which is not simulated; send all of it to one")
        if deciding and size:
            found[layer, module.name] = _Overridden(on_cpu / size, *gpus)
    for each in overrides:
        if each.place + each.text not in seen:
            text = f"{quoted(each.text)} decides nothing: no tensor of {model.family} has such a name"
            raise InputError.at(each.place, f'{text}, or patterns before it decide; try "blk.0.ffn_down=CPU"')
    return found


def _modules(model: ModelShape) -> Iterator[tuple[int, Module]]:
    outside = (*model.modules_before, *model.modules_after)
    parts: Iterable[tuple[int, Iterable[Module]]] = (*enumerate(model.layers), (-1, outside))
    yield from ((number, module) for number, modules in parts for module in modules)


def _check(first: TensorOverride, name: str, inside: bool) -> None:
    if first.gpu is None or not inside:
        return
    if name == "token_embd.weight":
        text = "has embeddings on the GPU, which is not simulated: they are looked up in host memory"
    else:
        text = (
            f"sends {name} to the GPU, but gpu_layers, cpu_moe or cpu_ffn to the CPU; leave one of them out"
        )
    raise InputError.at(first.place, f"{quoted(first.text)} {text}")


# -- cpu placement ---------------------------------------------------------------------------------


_HALF = 2
"""Size [B] of an element of weights that are in no type of GGUF."""


def _layers_only(value: Any) -> Any:
    if value in ("row", "tensor"):
        text = "llama.cpp calls row deprecated and tensor experimental"
        raise ValueError(f"{value} is not simulated ({text}); use layer")
    return value


def _numbers(value: Any) -> Any:
    """Return one number as a list, and those of a text with commas."""
    return (
        value.split(",") if isinstance(value, str) else [value] if isinstance(value, int | float) else value
    )


SplitMode = Annotated[Literal["layer"], BeforeValidator(_layers_only)]
Split = Annotated[
    tuple[Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)], ...],
    BeforeValidator(_numbers),
    AfterValidator(lambda value: value if any(value) else ()),
]
"""Parts of the layers on each GPU, as a list, or as a text with commas; zeros alone are none given."""


def divided_units(units: int, weights: Sequence[float]) -> tuple[int, ...]:
    """Return how many of the last ``units`` layers, the head being one, each GPU has: as many as its part of
    the sum of all ``weights`` reaches (``--tensor-split``, ``std::upper_bound``)."""
    ends = [Fraction(one) for one in accumulate(map(Fraction, weights))]
    owners = Counter(bisect_right(ends, Fraction(one, units) * ends[-1]) for one in range(units))
    return tuple(owners[gpu] for gpu in range(len(weights)))


_INPUTS = ("", ".up_proj", ".gate_up_proj", ".dense_h_to_4h", ".gate_proj")
"""Endings of the names of modules that compute the input of an activation."""


class CpuPlacement(NamedTuple):
    """A CpuPlacement says which modules the CPU computes, and which GPU the others."""

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
    overridden: Overridden = {}  # noqa: RUF012 (never changed)
    """Modules of which patterns say where they are."""
    units: tuple[int, ...] = (0,)
    """Layers of each GPU, in order, of those behind ``before``; the head is one of the last GPU with any."""
    overflowing: tuple[tuple[int, int], ...] = ()
    """Last layers of GPUs whose experts the next GPU computes, each with the tensors of it that stay, as
    ``kept``."""

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
            return found.on_cpu
        if self.kept and layer == self.experts.start and module.parallel == "experts" and module.parameters:
            return 1 - _part(module, self.kept)
        return Fraction(self.holds(layer, module))

    def gpu(self, layer: int) -> int:
        """Return the number of the GPU of a layer, or of the head if ``layer`` is -1."""
        unit = sum(self.units) - 1 if layer < 0 else layer - self.before
        return min(bisect_right([*accumulate(self.units)], unit), len(self.units) - 1)

    def home(self, layer: int, module: Module) -> Home:
        """Return the home of a module. With weights in host memory the first GPU computes it, if one does."""
        gpu = self._gpu_of(layer, module)
        if self.holds(layer, module):
            return Home("dram", gpu=gpu if module.kind == "attention" else 0)
        return Home(gpu=gpu + (module.share < 1 and layer in dict(self.overflowing)))

    def _gpu_of(self, layer: int, module: Module) -> int:
        """Return the number of the GPU with what is on GPUs of a module, or next to which it is."""
        outside = layer < 0 and module.kind not in ("linear", "norm")  # before the layers
        found = self._override(layer, module)
        named = None if found is None else found.gpu
        return self.gpu(self.before if outside else layer) if named is None else named

    def behind(self, layers: int, on_gpu: int) -> CpuPlacement:
        """Return the same with the last ``on_gpu`` of all ``layers`` and the head on the GPUs."""
        return self._replace(before=min(layers, max(layers + 1 - on_gpu, 0)), head=not on_gpu)

    def named(
        self,
        model: ModelShape,
        gpu_layers: int | str,
        cpu_moe: int | str | None,
        patterns: Sequence[str],
        gpus: Mapping[str, float],
    ) -> CpuPlacement:
        """Return the same with what settings of ``LlamaCpp`` name: ``gpu_layers`` as a text is all, and
        the weights of ``gpus``, by their names, divide the layers. Raises InputError for patterns."""
        layers = model.num_hidden_layers
        found = self.behind(layers, layers + 1 if isinstance(gpu_layers, str) else gpu_layers)
        units = divided_units(layers + (not found.head) - found.before, list(gpus.values()))
        experts = range(min(cpu_moe or 0, layers) if not isinstance(cpu_moe, str) else layers)
        found = found._replace(units=units, experts=experts)
        read = read_overrides(patterns, "strategy.override_tensor", list(gpus))
        return found._replace(overridden=overridden(model, read, found)) if read else found

    def homes(self, model: ModelShape) -> Homes:
        """Return the homes of all tensors."""
        return Homes(model, self.home)

    def holds(self, layer: int, module: Module) -> bool:
        """Return whether the CPU computes a module, or a part of it; an activation where the products before
        it are. ``layer`` is -1 outside of the layers."""
        if (found := self._override(layer, module)) is not None:
            return found.on_cpu > 0
        if layer < 0:
            return module.kind == "embedding" or (self.head and module.kind in ("linear", "norm"))
        if layer < self.before:
            return True
        if module.kind == "attention":
            return self.attends
        if module.kind not in ("linear", "activation") or "attn" in module.name or "attention" in module.name:
            return False
        return layer in self.experts if module.share < 1 else layer < self.networks

    def cache_bytes(self, model: ModelShape, size: Callable[[StatePart], float]) -> Counter[int]:
        """Return the size [B] of what is kept of a sequence on each GPU, and as number -1 in host memory;
        ``size`` is that of each part."""
        counts = Counter((id(layer), self.decides(number)) for number, layer in enumerate(model.layers))
        first = {(id(layer), self.decides(number)): number for number, layer in enumerate(model.layers)}
        found = Counter[int]()
        for key, number in first.items():
            for one in model.layers[number]:
                if kept := round(sum(map(size, model.parts_of(one)))):
                    found[-1 if self.holds(number, one) else self.gpu(number)] += counts[key] * kept
        return found

    def decides(self, layer: int) -> Hashable:
        """Return all that decides what ``home`` says of the modules of a layer, equal for layers of which it
        says the same."""
        own = layer if self.overridden or layer in dict(self.overflowing) else -1
        return layer < self.before, layer in self.experts, layer < self.networks, own, self.gpu(layer)

    def _override(self, layer: int, module: Module) -> _Overridden | None:
        """Return where patterns send a module, or the input of an activation; None if they do not say it."""
        if not self.overridden:
            return None
        names, network = [module.name], module.name.rpartition(".")[0]
        if module.kind == "activation":
            names += (f"{network}{one}" for one in _INPUTS)
        found = (self.overridden.get((layer, name)) for name in names)
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
            else f"all layers on {'the GPU' if len(self.units) == 1 else f'{len(self.units)} GPUs'}"
        )

    def kept_bytes(self, model: ModelShape, gpu: int | None = None) -> int:
        """Return the size [B] of the tensors on all GPUs, or on one, of modules that the CPU computes in
        part, and of those that another GPU computes than the one they are on: below zero on the former."""
        layers = (*enumerate(model.layers), (-1, (*model.modules_before, *model.modules_after)))
        if not self.overridden:
            layers = layers[self.experts.start : self.experts.start + 1] if self.kept else ()
        parts = (
            (one, self.share(number, one))
            for number, modules in layers
            for one in modules
            if gpu in (None, self._gpu_of(number, one))
        )
        found = sum(round((1 - share) * stored_bytes([one], model)) for one, share in parts if 0 < share < 1)
        for layer, kept in self.overflowing if gpu is not None else ():
            sign = (self.gpu(layer) == gpu) - (self.gpu(layer) + 1 == gpu)
            for one in model.layers[layer] if sign else ():
                if one.parallel == "experts" and one.parameters:
                    found += sign * round(_part(one, kept) * stored_bytes([one], model))
        return found


def _part(experts: Module, kept: int) -> Fraction:
    """Return the share of the weights of experts that some of their tensors have: 1: up, 2: gate and up."""
    sizes = {one.name: one.stored_bytes(_HALF) for one in experts.parameters}
    inner = sum(size for name, size in sizes.items() if "down" not in name)
    return Fraction(kept * inner, 2 * sum(sizes.values()))


_FITTED: Recent[Hashable, tuple[ModelShape, CpuPlacement]] = Recent()
"""Placements that ``--fit`` chose last, with the models, which keep their identity."""


def fitted(
    named: CpuPlacement, model: ModelShape, spare: Callable[[CpuPlacement], Sequence[int]], key: Hashable
) -> CpuPlacement:
    """Return what ``--fit`` chooses: the most on the GPUs, the same for an equal ``key``.

    ``named`` has all on the GPUs, and ``spare`` returns what each GPU would have left [B]. If it suffices
    nothing changes. Otherwise whole layers fill the GPUs from the last layer and the last GPU on; of a
    mixture of experts without the experts, which then fill the GPUs from the first layer and the first GPU
    on, those of one more layer tensor by tensor, between a GPU and the next one as well. Where the experts of
    the last GPU leave it, its first layer keeps them, as the program counts the head as a layer whose experts
    could leave. Left out: with the experts of one more layer the router leaves, too.
    """
    return _FITTED.get((id(model), key), lambda: (model, _fitted(named, model, spare)))[1]


def _fitted(
    named: CpuPlacement, model: ModelShape, spare: Callable[[CpuPlacement], Sequence[int]]
) -> CpuPlacement:
    if min(spare(named)) >= 0:
        return named
    layers, gpus = model.num_hidden_layers, range(len(named.units))
    mixture = any(module.parallel == "experts" for module in model.distinct_modules)
    overflowing: tuple[tuple[int, int], ...] = ()

    def placed(units: Sequence[int], full: int = 0) -> CpuPlacement:
        found = named.behind(layers, sum(units))._replace(units=tuple(units), overflowing=overflowing)
        begin = found.before + full
        begin += begin >= layers + 1 - units[-1]
        return found._replace(experts=range(min(begin, layers), layers)) if mixture else found

    def most(limit: int, gpu: int, choice: Callable[[int], CpuPlacement]) -> int:
        """Return the largest number for which a GPU has room."""
        return first_that_holds(range(limit, 0, -1), lambda count: spare(choice(count))[gpu] >= 0) or 0

    units = [0 for _ in gpus]
    for gpu in reversed(gpus):
        rest = layers + 1 - sum(units)
        units[gpu] = most(rest, gpu, lambda count: placed([*units[:gpu], count, *units[gpu + 1 :]]))  # noqa: B023
    full, dense = 0, [*units[:-1], max(0, units[-1] - 1)]
    for gpu in gpus if mixture and sum(units) > layers else ():
        if any(dense[:gpu]):
            break
        count = most(
            sum(dense),
            gpu,
            lambda count: placed(_with_experts(units, dense, gpu, count)[0], full + count),  # noqa: B023
        )
        units, dense = _with_experts(units, dense, gpu, count)
        full += count
        if gpu == gpus[-1] or not sum(dense):
            break
        longer, fewer = _with_experts(units, dense, gpu, 1)
        last, before = layers + 1 - sum(units) + full, overflowing
        for kept in (2, 1, 0):
            overflowing = (*before, (last, kept))
            if min(spare(placed(longer, full + 1))[gpu : gpu + 2]) > 0:
                units, dense, full = longer, fewer, full + 1
                break
        else:
            overflowing = before
    found = placed(units, full)
    more = [found._replace(kept=number) for number in (2, 1)] if found.experts else []
    return next((one for one in more if min(spare(one)) >= 0), found)


def _with_experts(
    units: Sequence[int], dense: Sequence[int], gpu: int, count: int
) -> tuple[list[int], list[int]]:
    """Return the layers of each GPU, and of these the ones without experts, when a GPU has taken ``count`` of
    the latter, the first ones, with their experts."""
    units, dense = [*units], [*dense]
    for other, has in enumerate(dense):
        taken = min(count, has)
        units[other] -= taken
        dense[other] -= taken
        units[gpu] += taken
        count -= taken
    return units, dense
