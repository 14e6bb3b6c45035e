"""Device maps of Hugging Face Accelerate: which GPU, or which memory, is the home of each module.

Reference: ``infer_auto_device_map`` and ``get_balanced_memory`` in ``integrations/accelerate.py`` of
transformers 5.23, which ``from_pretrained`` calls (the second is not that of Accelerate 1.15). A home is the
number of a GPU, "cpu" or "disk".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal, NamedTuple

from simoffload.documents import quoted
from simoffload.errors import InputError
from simoffload.models import Layer, ModelShape, Module
from simoffload.models.shape import stored_bytes
from simoffload.units import format_bytes

DeviceName = int | Literal["cpu", "disk"]
"""Value of a device map: the number of a GPU, host memory, or the disk."""
Limits = Mapping[str, int]
"""Memory [B] by the number of a GPU as text, and of "cpu"."""
KEY = "strategy.device_map"


class NamedCall(NamedTuple):
    """A NamedCall is the call of one module in a forward pass, by the name of the module."""

    name: str
    """Full name of the module; "" for the model itself."""
    number: int
    """Number of the module in ``ModelShape.distinct_modules``."""
    segment: str
    """Part of the pass: "head", "layer" or "tail"."""
    layer: int = -1
    """Number of the layer to which it belongs; -1 outside of the layers."""


class Unit(NamedTuple):
    """A Unit is a module that ``infer_auto_device_map`` does not split: a layer, or one outside of them."""

    name: str
    size: int
    """Size [B] of its tensors, without a tensor that an earlier unit owns."""


@dataclass(frozen=True)
class ModuleTree:
    """A ModuleTree gives the modules of a model their full names, in the order of their calls."""

    model: ModelShape

    @cached_property
    def calls(self) -> tuple[NamedCall, ...]:
        """Every call of a forward pass."""
        return tuple(self._calls())

    def _calls(self) -> Iterator[NamedCall]:
        model = self.model
        for index, module in enumerate(model.modules_before):
            yield NamedCall(module.name if index else "", index, "head")
        begins: dict[Layer, int] = {}
        end = len(model.modules_before)
        for kind, _ in model.kinds:
            begins[kind] = end
            end += len(kind)
        for layer, (name, modules) in enumerate(zip(model.layer_names, model.layers, strict=True)):
            begin = begins[modules]
            for number, module in enumerate(modules):
                yield NamedCall(f"{name}.{module.name}" if number else name, begin + number, "layer", layer)
        for number, module in enumerate(model.modules_after):
            yield NamedCall(module.name, end + number, "tail")

    @cached_property
    def modules(self) -> tuple[Module, ...]:
        """The modules of the model; those of equal layers are listed once."""
        return self.model.distinct_modules

    def module(self, call: NamedCall) -> Module:
        """Return the module of a call."""
        return self.modules[call.number]

    @cached_property
    def tensors(self) -> tuple[tuple[tuple[str, int], ...], ...]:
        """Full name and size [B] of the tensors that the module of each call uses itself."""
        names, size = self.model.layer_names, self.model.dtype_bytes
        owners = (f"{names[call.layer]}." if call.layer >= 0 else "" for call in self.calls)
        return tuple(
            tuple(
                (owner + name, stored)
                for one in self.module(call).parameters
                for name, stored in one.stored_tensors(size)
            )
            for call, owner in zip(self.calls, owners, strict=True)
        )

    @cached_property
    def units(self) -> tuple[Unit, ...]:
        """Layers and modules outside of them that own tensors, in order."""
        model = self.model

        def outside(modules: Sequence[Module]) -> Iterator[Unit]:
            for module in modules:
                if module.parameters:
                    yield Unit(module.name, stored_bytes((module,), model))

        sizes = {kind: stored_bytes(kind, model) for kind, _ in model.kinds}
        named = zip(model.layer_names, model.layers, strict=True)
        layers = (Unit(name, sizes[layer]) for name, layer in named)
        return (*outside(model.modules_before), *layers, *outside(model.modules_after))

    @property
    def tied(self) -> bool:
        """Whether the output layer uses the tensor of the embedding."""
        return any(one.tied for module in self.model.modules_after for one in module.parameters)

    # -- maps -----------------------------------------------------------------------------------

    def everywhere(self, home: DeviceName) -> dict[str, DeviceName]:
        """Return the map with all modules at one home."""
        return {unit.name: home for unit in self.units}

    def first_layers(self, count: int, *, gpus: int, rest: DeviceName) -> dict[str, DeviceName]:
        """Return the map with ``count`` layers, divided evenly in order, and all other modules on GPUs.

        Norm and output layer follow the last layer if all layers are on GPUs; otherwise, and if the output
        layer is tied to the embedding, they are on GPU 0. Raises InputError if there are fewer layers.
        """
        total = self.model.num_hidden_layers
        if count > total:
            raise InputError.at(
                KEY, f"{count} layers on the GPU, but the model has {total}; write 0 to {total}"
            )
        layer_homes: list[DeviceName] = [number * gpus // count for number in range(count)]
        layer_homes += [rest] * (total - count)
        last = layer_homes[-1] if count == total and not self.tied else 0
        before = sum(1 for one in self.model.modules_before if one.parameters)
        after = len(self.units) - before - total
        homes: list[DeviceName] = [0] * before
        return {
            unit.name: home
            for unit, home in zip(self.units, homes + layer_homes + [last] * after, strict=True)
        }

    def inferred(self, limits: Limits) -> dict[str, DeviceName]:
        """Return the map of ``infer_auto_device_map`` for memory limits: first GPUs, then "cpu", then "disk".

        Modules are placed in order, each on the first device from the current one on that has room for it.
        GPU 0 and the CPU keep room for the largest of the modules that are not placed yet. An output layer
        that is tied to the embedding is placed with it. Raises InputError if no module fits on any GPU, in
        which case Accelerate would run the model on the CPU.
        """
        gpus = sorted(int(key) for key in limits if key != "cpu")
        devices: list[DeviceName] = [*gpus, *(["cpu"] if "cpu" in limits else []), "disk"]  # type: ignore[list-item]
        units, current, used = self.units, 0, 0
        largest = [0]  # of the units behind each one
        for unit in reversed(units[1:]):
            largest.append(max(largest[-1], unit.size))
        homes: dict[str, DeviceName] = {}
        for unit, reserve in zip(units, reversed(largest), strict=True):
            if not unit.size:  # tied
                homes[unit.name] = homes[units[0].name]
                continue
            while devices[current] != "disk":
                keeps = reserve if devices[current] in (*gpus[:1], "cpu") else 0
                if used + unit.size <= limits[str(devices[current])] - keeps:
                    break
                current, used = current + 1, 0
            homes[unit.name] = devices[current]
            used += unit.size
        if not any(isinstance(home, int) for home in homes.values()):
            need = units[0].size + largest[-1]
            has = limits[str(gpus[0])] if gpus else 0
            least, most = (format_bytes(size, binary=True) for size in (need, has))
            text = f"no module would be on a GPU: {units[0].name} and room for the largest other module need"
            text = (
                f"{text} {least}, the first GPU may hold {most}, so that Accelerate would compute on the CPU"
            )
            raise InputError.at("strategy.max_memory", f"{text}; raise it, or set device_map: cpu")
        return homes

    def balanced(self, limits: Limits) -> Limits:
        """Return the limits with which ``device_map="auto"`` fills GPUs evenly (``get_balanced_memory`` of
        transformers).

        Each GPU but the last gets an equal part of the model, plus 1.25 times the larger of the largest layer
        and the largest module by its own tensors.
        """
        gpus = sorted((key for key in limits if key != "cpu" and limits[key]), key=int)
        if len(gpus) < 2:
            return limits
        layer = max(stored_bytes(kind, self.model) for kind, _ in self.model.kinds)
        share = self.model.weight_bytes // len(gpus) + int(1.25 * max(layer, self._largest_leaf))
        return {key: min(size, share) if key in gpus[:-1] else size for key, size in limits.items()}

    @property
    def _largest_leaf(self) -> int:
        """Size [B] of the largest set of tensors that one module owns itself."""
        sizes: Counter[tuple[int, str]] = Counter()
        for number, module in enumerate(self.modules):
            for one in module.parameters:
                owner = one.name.rpartition(".")[0]
                sizes[number, owner] += 0 if one.tied else one.stored_bytes(self.model.dtype_bytes)
        return max(sizes.values())

    def shortened(self, homes: Mapping[str, DeviceName]) -> Mapping[str, DeviceName]:
        """Return an equal map, in which all layers are one entry if they have one home."""
        inside = {name: home for name, home in homes.items() if self._in_layers(name)}
        if len(set(homes.values())) == 1:
            return {"": next(iter(homes.values()))}
        if len(set(inside.values())) != 1:
            return dict(homes)
        return {self.model.layer_list if name in inside else name: home for name, home in homes.items()}

    def _in_layers(self, name: str) -> bool:
        """Return whether a module is a layer or in one."""
        return name.startswith(f"{self.model.layer_list}.")

    def checked(self, homes: Mapping[str, DeviceName], *, gpus: int) -> Mapping[str, DeviceName]:
        """Return a given map itself.

        Raises InputError for names that no module has, modules without a home, GPUs beyond those used, and a
        map without a GPU.
        """
        names = {"", *(name for call in self.calls for name in parents(call.name))}
        for name, home in homes.items():
            if name not in names:
                outer = ", ".join(one.name for one in self.units if not self._in_layers(one.name))
                has = f"{outer}, and {self.model.layer_list}.0 to .{self.model.num_hidden_layers - 1}"
                raise InputError.at(KEY, f"the model has no module {quoted(name)}; it has {has}")
            if isinstance(home, int) and home >= gpus:
                text = f"{quoted(name)} is on GPU {home}, but num_gpus is {gpus}; raise it to {home + 1}"
                raise InputError.at(KEY, f"{text}, or use a GPU below {gpus}")
        owners = [call.name for call in self.calls if self.module(call).parameters]
        lacking = [name for name, home in zip(owners, homes_of(owners, homes), strict=True) if home is None]
        if lacking:
            raise InputError.at(KEY, f"no device for {_listed(lacking)}; every module with weights needs one")
        if not any(isinstance(home, int) for home in homes.values()):
            raise InputError.at(
                KEY,
                'no module is on a GPU, so that Accelerate would compute on the CPU; for "cpu" or "disk" as '
                "the home of all modules write device_map: cpu or disk",
            )
        return homes


def _listed(names: Sequence[str]) -> str:
    shown = [name for name in names if name][:5]
    return ", ".join(shown) + (", …" if len(names) > len(shown) else "")


def parents(name: str) -> Iterator[str]:
    """Yield the name of a module, then those of the modules around it, the model's own ("") last."""
    while name:
        yield name
        name = name.rpartition(".")[0]
    yield ""


def homes_of(names: Iterable[str], homes: Mapping[str, DeviceName]) -> tuple[DeviceName | None, ...]:
    """Return the homes of modules: that of the longest name in the map that is its own or a parent's."""
    found: dict[str, DeviceName | None] = {"": None, **homes}

    def home_of(name: str) -> DeviceName | None:
        if name not in found:
            found[name] = home_of(name.rpartition(".")[0])
        return found[name]

    return tuple(map(home_of, names))


@lru_cache(maxsize=16)
def tree_of(model: ModelShape) -> ModuleTree:
    """Return the tree of a model, the same object for the same model."""
    return ModuleTree(model)
