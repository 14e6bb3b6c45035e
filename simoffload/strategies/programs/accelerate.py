"""Hugging Face Accelerate: modules on GPUs, in host memory and on disk; the keys and their device map.

Reference: huggingface/accelerate 1.15.0, ``big_modeling.py`` (``dispatch_model``, ``cpu_offload``,
``disk_offload``); what its hooks do is stated before the plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import chain, count, groupby, islice
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import BeforeValidator, Field

from simoffload.documents import Edit, either, quoted
from simoffload.errors import InputError
from simoffload.hardware import Curve, Machine, Path, Tier
from simoffload.models import (
    FORMATS,
    QUANTIZATIONS,
    Layer,
    ModelShape,
    Module,
    Sequences,
    grouped,
    stored_bytes,
    tokens_of,
)
from simoffload.results import Change
from simoffload.schedule import Cause
from simoffload.strategies.base import (
    Description,
    Drafting,
    EvidenceBasis,
    Held,
    Home,
    Placement,
    Placements,
    Plan,
    SizeEdits,
    StorageTier,
    Strategy,
    Tunable,
    Tunables,
    held_weights,
    memory_tunables,
    target,
    uses_storage,
)
from simoffload.strategies.cache.kv_cache import DEFAULT, CachingStrategy, KvCache
from simoffload.strategies.passes.pass_writer import (
    COMPUTE,
    HOST,
    Call,
    ForwardPass,
    Hook,
    Part,
    PassWriter,
    StagePass,
    loops_rate,
    mapped_read,
)
from simoffload.strategies.passes.timing import depends_on_context, of_tokens
from simoffload.strategies.plan import InferencePlan
from simoffload.strategies.requirements import TRANSFORMERS, check_capability
from simoffload.units import Bytes, format_bytes, plural
from simoffload.workload import Inference


def _device_map(value: Any) -> Any:
    """Return a valid device map; raises ValueError with all that is valid."""
    if isinstance(value, Mapping):
        wrong = [key for key, one in value.items() if one not in ("cpu", "disk") and not _is_number(one)]
        if wrong:
            raise ValueError(
                f"{_VALID}; {quoted(str(value[wrong[0]]))} of {quoted(str(wrong[0]))} is neither"
            )
        if not value:
            raise ValueError(f"{_VALID}; the mapping is empty")
    elif value not in _CHOICES and not _is_number(value):
        raise ValueError(f"{_VALID}, got {quoted(str(value))}")
    return value


def _max_memory(value: Any) -> Any:
    """Return valid memory limits; raises ValueError for keys that are neither GPUs nor the CPU."""
    if isinstance(value, Mapping):
        strange = [key for key in value if key != "cpu" and not str(key).isdecimal()]
        if strange or not value:
            got = f", got {quoted(strange[0])}" if strange else ""
            raise ValueError(f"{_LIMIT_KEYS}{got}")
    return value


class Accelerate(CachingStrategy):
    """Inference under Hugging Face Accelerate, which offloads modules to host memory and disk; keys have its
    names."""

    serves: ClassVar = frozenset({"inference"})
    traits: ClassVar = CachingStrategy.traits._replace(
        title="Accelerate",
        evidence="accelerate",
        formats=("int4-g128",),
        gpu_keys=("num_gpus",),
        spans_hosts=False,
        drafting=Drafting(("draft_model", "ngram"), one_sequence=True),
    )

    kind: Literal["accelerate"] = "accelerate"
    ranks: Literal[1] = 1
    """Number of processes; one drives all GPUs."""
    num_gpus: Annotated[int, Field(strict=True, ge=1, le=64)] = 1
    """Number of GPUs of one host among which modules are divided."""
    device_map: Annotated[
        Literal["auto", "cuda", "cpu", "disk"] | int | dict[str, int | Literal["cpu", "disk"]],
        BeforeValidator(_device_map),
    ] = "auto"
    """Homes of the modules: ``auto`` fills GPUs, then host memory, then the disk; ``cuda``: all on GPUs;
    ``cpu`` and ``disk``: all offloaded; a number: so many layers on GPUs, the others in ``offload_folder``,
    or without one in host memory; or a mapping by name of module."""
    max_memory: Annotated[dict[str, Bytes], BeforeValidator(_max_memory)] | None = None
    """Memory that ``auto`` may fill with weights, by number of GPU (in quotes) and ``cpu``; a device that is
    not named gets none. By default 0.9 of the free memory of a single GPU, all of several, and 0.9 of that of
    the host."""
    offload_folder: StorageTier | None = None
    """Storage tier that holds the modules on disk."""
    page_cache: bool | None = None
    """Whether the files on disk are in the operating system's page cache; by default they are if they fit in
    the host memory that is free."""
    initialized: bool = True
    """Whether the weights in host memory were written; false for a model without weights, as in some
    benchmarks: all its pages are one page of zeros, which the CPU's cache holds, and copies are faster."""
    pin_memory: bool = False
    """Whether the weights in host memory are pinned: passed as ``state_dict``, as Accelerate does not pin
    them."""

    @property
    def gpus(self) -> int:
        """Number of GPUs that the process uses."""
        return self.num_gpus

    @property
    def folder(self) -> str:
        """Storage tier of the modules on disk; "" if none is named."""
        return self.offload_folder or ""

    @property
    def replicas(self) -> int:
        """Number of batches at the same time, which is one."""
        return 1

    @property
    def description(self) -> Description:
        """Version of Accelerate whose code is simulated, and the cache."""
        return super().description._replace(program="accelerate 1.15.0")

    def sizes(self, batch_size: int = 1) -> SizeEdits:
        """Return the edits to other batches, and those that divide the modules among GPUs."""
        plain = super().sizes(batch_size)
        return plain._replace(gpus=lambda gpus: (Edit.at("strategy.num_gpus", gpus),))

    # -- places ---------------------------------------------------------------------------------

    def tunables(self, machine: Machine, plan: Plan | None = None) -> Tunables:
        """Yield the tiers of the machine for modules and cache, numbers of layers on the GPUs, a map by
        ``auto``, and pinned memory; ``instead`` divides the layers."""
        auto, tiers = self.device_map == "auto", [one for one in machine.tiers.values() if one.row.place]
        yield Placements(
            now=self._offloaded,
            possible=tuple(Placement(one.name) for one in tiers),
            edits=lambda other: self._all_on(machine.tiers[other.weights]),
            name="device_map auto" if auto else "",
            refusal=f"Accelerate has no device for it; use {either([one.name for one in tiers])}",
            phrase="{} where device_map auto puts them" if auto else "",
            storage=True,
        )
        if not isinstance(plan, AcceleratePlan):
            return
        yield from self.cache_tunables(plan)
        for tier in sorted(tiers, key=lambda one: one.capacity):
            yield Tunable("tier", [Change("tier", f"weights on {tier.name}", _all_modules(tier))])
        given = isinstance(self.device_map, dict) or self.max_memory
        if not given:  # fewer layers on the GPUs for HBM, then more for host memory
            inside = {call.layer for call, home in plan.placed if call.layer >= 0 and isinstance(home, int)}
            now, layers = len(inside), plan.model.num_hidden_layers
            word, path = "device_map (layers on the GPU)", ("strategy", "device_map")
            yield from memory_tunables(word, path, now, range(now - 1, -1, -1), range(now + 1, layers))
        yield Tunable("setting", self._faster(storage=uses_storage(plan)))

    def _offloaded(self) -> Placement:
        """Return the tier to which modules are offloaded; with ``auto`` host memory, which is filled first.

        Raises InputError if modules are on disk and ``offload_folder`` is not set.
        """
        homes = set(self.device_map.values()) if isinstance(self.device_map, dict) else {self.device_map}
        if "disk" in homes and self.offload_folder is None:
            raise InputError.at("strategy.offload_folder", "name the storage tier that holds modules on disk")
        if "disk" in homes or isinstance(self.device_map, int):
            return Placement(self.folder or "dram")
        return Placement("dram" if homes & {"auto", "cpu"} else "hbm")

    def _all_on(self, tier: Tier) -> tuple[Edit, ...]:
        """Return edits that offload the same modules to another tier; with ``auto`` all modules."""
        everywhere = device, *_, folder = _all_modules(tier)
        if device.value == "cuda":
            return everywhere
        if isinstance(self.device_map, int):
            return (folder,)
        if isinstance(self.device_map, dict) and {"cpu", "disk"} & set(self.device_map.values()):
            named = self.device_map.items()
            homes = {name: one if isinstance(one, int) else device.value for name, one in named}
            return Edit(("strategy", "device_map"), homes), folder
        return () if self.device_map == "auto" and tier.row.is_dram else everywhere

    def _faster(self, *, storage: bool) -> Iterator[Change]:
        if self.device_map != "auto":
            edit = Edit.at("strategy.device_map", "auto")
            yield Change("setting", "device_map auto: as many modules on the GPU as fit", (edit,), key="auto")
        if not self.pin_memory and not storage:
            edit = Edit.at("strategy.pin_memory", True)
            yield Change("setting", "pinned weights in host memory (state_dict)", (edit,), key="pinned")

    @classmethod
    def instead(
        cls, _other: Strategy, model: ModelShape, _workload: Any, machine: Machine, gpus: int
    ) -> Iterator[tuple[Tunable, ...]]:
        """Yield a number of layers on the GPUs, with the others in pinned memory, pageable memory, or on
        storage."""
        if gpus > machine.gpus_per_node:
            return
        total = model.num_hidden_layers

        def division(where: str, **keys: Any) -> Tunable:
            def change(count: int) -> Change:
                section = {"kind": "accelerate", "num_gpus": gpus, "device_map": "cuda"}
                if count < total:
                    section |= {"device_map": count, **keys}
                rest = "" if count == total else f", the others {where}"
                text = f"{count} of {total} layers on {plural(gpus, 'GPU')}{rest} (accelerate)"
                return Change("placement", text, (Edit(("strategy",), section),))

            return Tunable("division", range(total, -1, -1), change)

        stored = (one.name for one in machine.tiers.values() if one.row.has_files)
        on_disk = (division(f"on {tier}", offload_folder=tier) for tier in islice(stored, 1))
        yield division("in pinned memory", pin_memory=True), division("in pageable memory"), *on_disk

    # -- the plan -------------------------------------------------------------------------------

    def plan(self, model: ModelShape, workload: Inference, machine: Machine) -> AcceleratePlan:
        """Apply the strategy. Raises InputError for missing hardware and for maps that Accelerate refuses or
        would compute on the CPU."""
        if self.num_gpus > machine.gpus_per_node:
            text = f"one process uses the GPUs of one host, which has {machine.gpus_per_node}; lower it"
            raise InputError.at("strategy.num_gpus", text)
        if self.max_memory is not None and self.device_map != "auto":
            chosen = "{…}" if isinstance(self.device_map, dict) else self.device_map
            text = f"has no effect with device_map: {chosen}; remove it, or set device_map to auto"
            raise InputError.at("strategy.max_memory", text)
        if self.num_gpus > 1 and self.kv_cache.connector is not None:
            text = f"a connector moves the blocks of one GPU of a process; Accelerate drives {self.num_gpus}"
            raise InputError.at("strategy.kv_cache.connector", f"{text}; set num_gpus to 1, or remove it")
        check_capability(TRANSFORMERS, model, machine)
        tree = _tree_of(model)
        homes = self.given_homes(tree)
        if homes is None:
            homes = tree.inferred(tree.balanced(self._limits(machine)))
        _check_format(model.quantization, set(homes.values()))
        if "disk" in homes.values() and self.offload_folder is None:
            size = format_bytes(sum(one.size for one in tree.units if homes.get(one.name) == "disk"))
            text = f"{size} of the weights are on disk; name the storage tier that holds them"
            if self.device_map == "auto":
                text = f"{text}, or raise strategy.max_memory (GPUs or cpu)"
            raise InputError.at("strategy.offload_folder", text)
        cache = self.cache_of(model, workload, machine)
        keys = self.model_copy(update={"kv_cache": cache})  # in which a format may only state the data type
        return AcceleratePlan(model, workload, machine, keys, tree, homes, cache)

    def given_homes(self, tree: ModuleTree) -> Mapping[str, DeviceName] | None:
        """Return the home of each module of a model; None with ``auto``, which depends on the machine.

        Raises InputError for a map that does not suit the model.
        """
        chosen, gpus = self.device_map, self.num_gpus
        if isinstance(chosen, dict):
            return tree.checked(chosen, gpus=gpus)
        if chosen == "cpu" or chosen == "disk":
            return tree.everywhere(chosen)
        if chosen == "auto":
            return None
        count = tree.model.num_hidden_layers if chosen == "cuda" else int(chosen)
        return tree.first_layers(count, gpus=gpus, rest="disk" if self.offload_folder else "cpu")

    def _limits(self, machine: Machine) -> Mapping[str, int]:
        """Return the memory that ``auto`` may fill [B]. Raises InputError for GPUs beyond ``num_gpus``."""
        if self.max_memory is not None:
            beyond = [key for key in self.max_memory if key != "cpu" and int(key) >= self.num_gpus]
            if beyond:
                text = f"names GPU {beyond[0]}, but num_gpus is {self.num_gpus}; remove it, or raise num_gpus"
                raise InputError.at("strategy.max_memory", text)
            return self.max_memory
        free = {one.kind: one.capacity - one.reserved for one in machine.tiers.values()}
        each = int(_KEPT * free["hbm"]) if self.num_gpus == 1 else free["hbm"]
        return {**{str(gpu): each for gpu in range(self.num_gpus)}, "cpu": int(_KEPT * free["dram"])}

    def exports(self, plan: Any) -> dict[str, Any]:
        """Return the script that loads the model in this way, as ``accelerate.py``."""
        assert isinstance(plan, AcceleratePlan)
        return {"accelerate.py": self._script(plan), **self.generation_config()}

    def _script(self, plan: AcceleratePlan) -> str:
        """Return the lines of the script."""
        chosen, homes = self.device_map, plan.homes.values()
        folder = f'"/mnt/{self.offload_folder}"'
        pins = "{key: one.pin_memory() for key, one in model.state_dict().items()}"
        pinned = [f"state_dict={pins}"] if self.pin_memory and "cpu" in homes else []
        on_disk = [f"offload_dir={folder}"] if "disk" in homes else []
        mapped = f"device_map={plan.tree.shortened(plan.homes)}"
        more = [*pinned, *(["offload_buffers=True"] if _offloads_buffers(plan) else [])]
        loaded, call = [f"dtype=torch.{plan.model.dtype}"], ""
        if chosen == "cpu":
            call = f"cpu_offload({', '.join(['model', 'execution_device=0', *more])})"
        elif chosen == "disk":
            call = f"disk_offload({', '.join(['model', folder, 'execution_device=0', *more])})"
        elif pinned or on_disk:  # from_pretrained would read files on disk in another way
            call = f"dispatch_model({', '.join(['model', mapped, *on_disk, *more])})"
        else:
            loaded += more
            loaded.append('device_map="auto"' if chosen == "auto" else mapped)
            if limits := self.max_memory:
                each = {int(key) if key != "cpu" else key: size for key, size in limits.items()}
                loaded.append(f"max_memory={each}")
        stored = f", of weights stored as {plan.model.quantization}" if plan.model.quantization else ""
        visible = ",".join(map(str, range(self.num_gpus)))
        lines = [
            f"# CUDA_VISIBLE_DEVICES={visible} python accelerate.py",
            "import torch",
            *([f"from accelerate import {call.partition('(')[0]}"] if call else []),
            "from transformers import AutoModelForCausalLM",
            "",
            f'name = "{plan.model.unquantized_name}"  # name on Hugging Face, or folder{stored}',
            f"model = AutoModelForCausalLM.from_pretrained(name, {', '.join(loaded)})",
            *([call] if call else []),
        ]
        return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class AcceleratePlan(InferencePlan):
    """An AcceleratePlan is the plan of Accelerate for one model on one machine."""

    model: ModelShape
    workload: Inference
    machine: Machine
    strategy: Accelerate
    tree: ModuleTree
    homes: Mapping[str, DeviceName]
    """Device map: homes by name of module."""
    cache: KvCache = DEFAULT
    generates: ClassVar = True

    # -- homes ----------------------------------------------------------------------------------

    @cached_property
    def main(self) -> int:
        """Number of the GPU that computes offloaded modules: the first one in the map."""
        return min((home for home in self.homes.values() if isinstance(home, int)), default=0)

    @cached_property
    def _homes(self) -> tuple[_HomesOfPart, ...]:
        """Homes of the modules that are called before the layers, in each layer, and after the layers."""
        depth = self.tree.model.layer_list.count(".") + 1
        split = {outer for name in self.homes if name.count(".") > depth for outer in parents(name)}
        names = [
            [span[0].name]
            if span and span[0].layer >= 0 and span[0].name not in split
            else [call.name for call in span]
            for span in self.tree.spans
        ]
        found = iter(homes_of(chain.from_iterable(names), self.homes))
        spans = zip(names, self.tree.spans, strict=True)
        # The modules of a layer have its home, unless the map names some of them.
        return tuple(tuple(islice(found, len(own))) * (len(span) // max(1, len(own))) for own, span in spans)

    @property
    def placed(self) -> tuple[tuple[NamedCall, DeviceName | None], ...]:
        """Calls of a pass with the homes of their modules; None for one whose parts have several."""
        return tuple(zip(self.tree.calls, chain.from_iterable(self._homes), strict=True))

    @cached_property
    def _pieces(self) -> tuple[_Piece, ...]:
        """What is outside of the layers, then each layer in order; equal ones are one object."""
        known: dict[tuple[int, _HomesOfPart], _Piece] = {}
        outside = [
            pair for part in (0, -1) for pair in zip(self.tree.spans[part], self._homes[part], strict=True)
        ]
        found = [self._piece([(call.number, home) for call, home in outside])]
        for calls, homes in zip(self.tree.spans[1:-1], self._homes[1:-1], strict=True):
            key = calls[0].number, homes
            if key not in known:
                known[key] = self._piece(list(zip(count(key[0]), homes)))
            found.append(known[key])
        return tuple(found)

    def _piece(self, placed: Sequence[tuple[int, DeviceName | None]]) -> _Piece:
        """Return the tensors of modules with some homes. A tensor of several modules counts where the first
        of them has its home, or on the main GPU if one of them is there."""
        found: dict[str, tuple[DeviceName, int]] = {}
        for number, device in placed:
            for name, size in self.tree.tensors[number] if device is not None else ():
                if name not in found or device == self.main:
                    found[name] = device, size  # type: ignore[assignment]  # of a call with tensors it is known
        copied = tuple(
            tuple([size for name, size in self.tree.tensors[number] if found[name][0] != self.main])
            if home in ("cpu", "disk")
            else ()
            for number, home in placed
        )
        return _Piece(tuple(found.values()), copied)

    @cached_property
    def stored(self) -> Mapping[Home, Sequence[int]]:
        """Sizes [B] of the tensors by home."""
        stored: dict[DeviceName, list[int]] = {}
        for piece, times in Counter(self._pieces).items():
            for device, size in piece.stored:
                stored.setdefault(device, []).extend([size] * times)
        return {self.home(device): sizes for device, sizes in stored.items()}

    def home(self, device: DeviceName) -> Home:
        """Return the home of tensors that the map puts on a device."""
        if isinstance(device, int):
            return Home("hbm", device)
        if device == "cpu":
            return Home("dram", pinned=self.strategy.pin_memory)
        return Home(self.strategy.folder, mapped=True)

    def bytes_at(self, device: DeviceName) -> int:
        """Return the size of the weights on a device of the map [B]."""
        return sum(self.stored.get(self.home(device), ()))

    @cached_property
    def copied(self) -> tuple[tuple[int, ...], ...]:
        """Sizes [B] of the tensors that the hook of each call's module brings to the main GPU."""
        (outside, *layers), before = (piece.copied for piece in self._pieces), len(self.tree.spans[0])
        return (*outside[:before], *chain.from_iterable(layers), *outside[before:])

    @cached_property
    def hooked(self) -> bool:
        """Whether modules have hooks: not if all are on one GPU (``dispatch_model``)."""
        return set(self.homes.values()) != {self.main}

    @property
    def driven(self) -> int:  # type: ignore[override]  # given by the options
        """Number of GPUs that the process drives."""
        return self.strategy.num_gpus

    @property
    def cached(self) -> bool:
        """Whether the files on disk are in the page cache after the first pass."""
        if self.strategy.page_cache is not None:
            return self.strategy.page_cache
        needed = sum(one.size for one in self.held if self.machine.row(one.tier).is_dram)
        return needed + self.bytes_at("disk") <= self.machine.tiers["dram"].capacity

    @property
    def basis(self) -> EvidenceBasis:
        """Costs of operations, of tensors that are brought to the GPU, and of the pages into which mapped
        files are copied."""
        host, found = self.machine.host, super().basis
        if self.bytes_at("disk"):
            found = found._replace(cpu_costs=(host.fsdp_costs.page_limit,))
        if not self.hooked:
            return found
        unmeasured = (_UNMEASURED,) if host.eager is None else ()
        return found._replace(
            host_costs=(*found.host_costs, host.eager_costs.tensor),
            extrapolations=(*unmeasured, *found.extrapolations),
        )

    @property
    def warnings(self) -> tuple[str, ...]:  # type: ignore[override]
        """Warnings about weights that were never written, about those that transformers does not offload, and
        about what is assumed of the page cache."""
        stored = (one.storage for module in self.modules for one in module.parameters)
        triton = any(one is not None and one.format is FORMATS["mxfp4"] for one in stored)
        on_gpu = (_ON_GPU,) if triton and not self.machine.row(target(self)).is_gpu else ()
        if not self.strategy.initialized and self.bytes_at("cpu"):
            return (*on_gpu, "weights that were never written are copied faster than those of a real model")
        if self.strategy.page_cache is not None or not self.bytes_at("disk"):
            return on_gpu
        files = f"{format_bytes(self.bytes_at('disk'))} of files on {self.strategy.folder}"
        if self.cached:
            text = f"{files} are read from the page cache in host memory"
            more = "the first pass, or other programs that use the memory, make it slower"
            return (*on_gpu, f"{text}; {more}")
        return (*on_gpu, f"{files} do not stay in the page cache: every pass reads the drive")

    # -- memory ---------------------------------------------------------------------------------

    @cached_property
    def held(self) -> tuple[Held, ...]:
        """What each tier holds while tokens are generated; on the GPUs that of the fullest one."""
        on_gpus, row = map(self._on_gpu, range(self.strategy.num_gpus)), self.machine.row
        fullest = max(on_gpus, key=lambda one: sum(each.size for each in one if row(each.tier).is_gpu))
        elsewhere = {home: sizes for home, sizes in self.stored.items() if not row(home.tier).is_gpu}
        largest = max(self.stored.get(self.home("disk"), ()), default=0)
        read = Held("dram", "tensor read from disk", largest, kind="staging")
        return (*fullest, *held_weights(elsewhere, self.machine, remedy=_MORE), read)

    def _on_gpu(self, gpu: int) -> tuple[Held, ...]:
        """Return what one GPU holds, with the cache of its layers and all activations, and what the host
        does beside weights."""
        layers = [
            layer for layer, gpus in zip(self.model.layers, self._gpus[1:-1], strict=True) if gpu in gpus
        ]
        part, row = replace(self.model, groups=grouped(layers)), self.machine.row
        on_gpu = (one for one in self.cache_memory(part, copies=1) if row(one.tier).is_gpu)
        everywhere = (one for one in self.cache_memory(self.model, copies=1) if not row(one.tier).is_gpu)
        brought = [sum(sizes) for piece in set(self._pieces) for sizes in piece.copied]
        loaded = max(brought, default=0) if gpu == self.main else 0
        return (
            Held("hbm", "weights", self.bytes_at(gpu), remedy=_FEWER, kind="weights"),
            Held("hbm", "offloaded module, largest", loaded, kind="staging"),
            *self.working_memory(self.model, (*on_gpu, *everywhere)),
        )

    # -- schedules ------------------------------------------------------------------------------

    @cached_property
    def _gpus(self) -> tuple[tuple[int, ...], ...]:
        """Number of the GPU that computes each call before the layers, in each layer, and after them: its
        home, the main one if it is offloaded, or that of the call before."""
        known: dict[tuple[int, _HomesOfPart], tuple[int, ...]] = {}
        found, last = list[tuple[int, ...]](), self.main
        for homes in self._homes:
            key = last, homes
            if key not in known:
                gpus = [last]
                for home in homes:
                    gpus.append(home if isinstance(home, int) else gpus[-1] if home is None else self.main)
                known[key] = tuple(gpus[1:])
            found.append(known[key])
            last = known[key][-1] if homes else last
        return tuple(found)

    @property
    def executed(self) -> tuple[int, ...]:
        """Number of the GPU that computes each call."""
        return tuple(chain.from_iterable(self._gpus))

    @cached_property
    def _parts(self) -> tuple[tuple[Part, ...], ...]:
        """Parts of a pass, each layer being one; the calls of equal ones are one object."""
        known: dict[Hashable, tuple[Call, ...]] = {}
        found = []
        for (name, layer), members in groupby(
            zip(self.placed, self.executed, self.copied, strict=True),
            key=lambda one: (one[0][0].segment, one[0][0].layer),
        ):
            key = tuple([(call.number, gpu, sizes, home == "disk") for (call, home), gpu, sizes in members])
            if key not in known:
                known[key] = tuple([self._call(*one) for one in key])
            found.append(Part(name, known[key], layer))
        return (tuple(found),)

    def _call(self, number: int, gpu: int, sizes: tuple[int, ...], on_disk: bool) -> Call:
        """Return the call of a module, with what its hook does."""
        module = self.tree.modules[number]
        if not module.share:  # it is not called for a text, so that its hook brings nothing
            return Call(module, gpu, Offloaded(False, (), False))
        # dispatch_model puts hooks on modules without tensors of their own, too.
        without = len(set(self.homes.values())) > 1 and module.kind == "container"
        hooked = self.hooked and (without or bool(module.parameters))
        return Call(module, gpu, Offloaded(hooked, sizes, on_disk))

    @cached_property
    def _new_memory(self) -> dict[Hashable, tuple[float, float]]:
        """Times [s] of new memory for the results of modules."""
        return {}

    def weights_hooks(self, _forward: ForwardPass) -> tuple[Hook, ...]:
        """Return the hooks that bring tensors and hidden states to the GPUs of the modules."""
        align = AlignDevices(
            self.new_tensors,
            known=self._new_memory,
            pinned=self.strategy.pin_memory,
            initialized=self.strategy.initialized,
            folder=self.strategy.folder,
            page_cache=not self.bytes_at("disk") or self.cached,
        )
        token = self.model.hidden_size * self.model.dtype_bytes
        return (align, *([HiddenStates(token, self.executed[0])] if self.strategy.num_gpus > 1 else ()))

    @cached_property
    def layer_gpus(self) -> tuple[int, ...]:
        """Number of the GPU that computes attention in each layer."""
        calls = zip(self.tree.calls, self.executed, strict=True)
        found = {call.layer: gpu for call, gpu in calls if self.tree.module(call).attends}
        return tuple(found[layer] for layer in sorted(found))

    def new_tensors(self, module: Module, batch: Sequence[Sequences]) -> tuple[NewTensors, ...]:
        """Return the new tensors of a module's call: the product of a linear layer, or half of what other
        kernels write, as wide as the hidden states; attention also joins the cache, which may be fetched.

        The other half is in memory that the same call has given back: RMSNorm writes eight times the size of
        its input, and has four at once.
        """
        model = self.model
        token = round(model.dtype_bytes * tokens_of(module, batch, self.cache_form) * module.share)
        if module.kind == "linear":
            return (NewTensors(token * module.out_features, 1),)
        found = NewTensors(
            token * model.hidden_size, max(1, round(module.out_features / (2 * model.hidden_size)))
        )
        if module.kind != "attention" or self.cache.streamed:
            return (found,)
        held = round(sum(one.number * one.context for one in batch) * model.token_bytes([module]))
        return found, NewTensors(held // 2, 0 if self.cache.static else 2 + 2 * self.cache.offloaded)


# --------------------------------------------------------------------------------------------------
# Device maps of Hugging Face Accelerate: which GPU, or which memory, is the home of each module.
#
# Reference: ``infer_auto_device_map`` and ``get_balanced_memory`` in ``integrations/accelerate.py`` of
# transformers 5.23, which ``from_pretrained`` calls (the second is not that of Accelerate 1.15). A home is
# the number of a GPU, "cpu" or "disk".


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
        """Name, within its layer, and size [B] of the tensors that each of ``modules`` uses itself."""
        size = self.model.dtype_bytes
        return tuple(
            tuple(stored for one in module.parameters for stored in one.stored_tensors(size))
            for module in self.modules
        )

    @cached_property
    def spans(self) -> tuple[Sequence[NamedCall], ...]:
        """Calls before the layers, in each layer, and after the layers."""
        model, calls = self.model, iter(self.calls)
        counts = map(len, (model.modules_before, *model.layers, model.modules_after))
        return tuple(tuple(islice(calls, count)) for count in counts)

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


_tree_of = lru_cache(maxsize=16)(ModuleTree)
"""The tree of a model, the same object for the same model."""
_CHOICES = ("auto", "cuda", "cpu", "disk")
_VALID = (
    "must be auto, cuda, cpu, disk, a number of layers on the GPU, or a mapping from names of modules to the "
    'number of a GPU, "cpu" or "disk"'
)
_LIMIT_KEYS = 'keys must be numbers of GPUs in quotes, or cpu, such as {"0": 20 GiB, cpu: 60 GiB}'
_KEPT = 0.9
"""Share of the free memory of a single GPU and of the host that ``device_map="auto"`` fills unless
``max_memory`` is given (``get_balanced_memory`` and ``get_max_memory`` of transformers 5.23)."""
_BITSANDBYTES = ("int8", "nf4", "nf4-dq")
"""Formats in which bitsandbytes stores weights, which transformers moves only as a whole model."""


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _all_modules(tier: Tier) -> tuple[Edit, ...]:
    """Return edits that place all modules on a tier."""
    home = "cuda" if tier.row.is_gpu else tier.row.place
    placed = Edit.at("strategy.device_map", home), Edit.at("strategy.max_memory", None)
    folder = Edit.at("strategy.offload_folder", tier.name if home == "disk" else None)
    return placed if home == "cuda" else (*placed, folder)


def _offloads_buffers(plan: AcceleratePlan) -> bool:
    """Return whether offloaded weights are buffers, which Accelerate leaves on the GPU unless it is told to
    offload them."""
    stored = (one.storage for module in plan.modules for one in module.parameters)
    return bool(set(plan.homes.values()) & {"cpu", "disk"}) and any(
        one is not None and one.format.in_buffers for one in stored
    )


def _check_format(stored_as: str | None, homes: set[DeviceName]) -> None:
    """Raise InputError for quantized weights that transformers does not keep quantized in these homes.

    Source: transformers 5.23, ``validate_environment`` in quantizers/quantizer_bnb_4bit.py and
    quantizer_bnb_8bit.py, and ``load_gguf_checkpoint`` in modeling_gguf_pytorch_utils.py.
    """
    found = QUANTIZATIONS.get(stored_as or "")
    if found is not None and found.mixture is not None:
        text = "transformers writes the weights of a GGUF file in full when it loads them; set it to none"
        raise InputError.at("model.quantization", f"{text}, or to int4-g128")
    if stored_as in _BITSANDBYTES and homes & {"cpu", "disk"} and homes - {"cpu", "disk"}:
        text = "transformers refuses weights of bitsandbytes that are partly on a GPU and partly offloaded"
        raise InputError.at(
            "strategy.device_map", f"{text}; write cuda or cpu, or set model.quantization to int4-g128"
        )


# --------------------------------------------------------------------------------------------------
# Passes under Hugging Face Accelerate: offloaded modules are brought to the GPU one by one.
#
# Reference: accelerate 1.15.0, ``hooks.py`` (``AlignDevicesHook``), ``utils/modeling.py``, ``offload.py``.
#
# One process drives all GPUs. A module whose home is the CPU or the disk computes on the main GPU: before its
# forward function a hook copies its tensors there, one after the other, with blocking copies on the compute
# stream, and empties PyTorch's cache of GPU memory after each; after it the tensors are dropped. Nothing is
# prefetched, so copies and kernels never overlap. A tensor that two modules share is copied for each of them,
# unless one of them keeps it on the main GPU: ``post_forward`` removes it from ``tied_params_map`` again. A
# tensor on disk is read through a memory map into a new tensor (``load_offloaded_weight``), and then copied.


_SMALL, _SHARED, _SEGMENT = 1 << 20, 10 << 20, 20 << 20
"""[B] Tensors up to the first size are small; those up to the second share blocks of the third
(c10/cuda/CUDACachingAllocator.cpp: kSmallSize, kMinLargeAlloc, kLargeBuffer)."""
_NEVER_WRITTEN = 2.2
"""Rate of copies from pages that were never written, over that from others (measured in the same place)."""


class NewTensors(NamedTuple):
    """NewTensors are the results of one size that kernels of a module make."""

    size: int
    """Size [B] of each."""
    number: int

    @property
    def blocks(self) -> int:
        """Number of blocks that PyTorch allocates for them, if it has none; 0 for small tensors."""
        if self.size <= _SMALL:
            return 0
        return self.number if self.size >= _SHARED else -(-self.number * self.size // _SEGMENT)

    def seconds(self, block: float, rate: int) -> float:
        """Return the time [s] of allocating or releasing these blocks, from that of a block and the rate of
        its bytes; that of small blocks is part of ``EagerCosts.tensor``."""
        return self.blocks and self.blocks * block + self.number * self.size / rate


Results = Callable[[Module, Sequence[Sequences]], Sequence[NewTensors]]
"""Function from a module and a batch to the new tensors that the module's kernels make."""


class Offloaded(NamedTuple):
    """An Offloaded is what the hook of a module does; the call of the module has it as its facts."""

    hooked: bool
    """Whether the module has a hook."""
    sizes: tuple[int, ...] = ()
    """Sizes [B] of the tensors that the hook brings to the module's GPU."""
    on_disk: bool = False


class AlignDevices(Hook):
    """Offloaded tensors of a module come to its GPU one after the other, with blocking copies on the compute
    stream, after each of which PyTorch's cache of GPU memory is emptied.

    So the next results need new memory, which the cache gives back with the next tensor.
    """

    carry: tuple[int, float] = (-1, 0.0)
    """Number of the GPU whose memory was emptied for the last module with weights, or -1; and the time [s] of
    releasing the results since then."""

    def __init__(
        self,
        results: Results,
        *,
        known: dict[Hashable, tuple[float, float]] | None = None,
        pinned: bool = False,
        initialized: bool = True,
        folder: str = "",
        page_cache: bool = True,
    ) -> None:
        """``known``: times of new memory that other passes have found; ``pinned`` and ``initialized``: the
        weights in host memory; ``folder`` and ``page_cache``: the tier of files, and whether they are in the
        page cache."""
        self._known = {} if known is None else known
        self._results, self._pinned, self._initialized = results, pinned, initialized
        self._folder, self._page_cache = folder, page_cache

    state = Hook.of_modules

    def start(self, out: PassWriter) -> None:
        """Find what hooks and new memory cost."""
        self._costs, memory = out.machine.host.eager_costs, out.machine.accelerator.allocation
        assert memory is not None, "machines complete their profiles"
        self._allocate = memory.allocate.value, memory.allocate_rate.value
        self._release = memory.release.value, memory.release_rate.value

    def before(self, call: Call, out: PassWriter) -> None:
        """Run the hook of a module."""
        brought, compute = call.facts, COMPUTE + call.gpu
        assert isinstance(brought, Offloaded)
        if brought.hooked:
            out.spend(self._costs.hook.value)
        if call.module.parameters:
            self.carry = call.gpu if brought.sizes else -1, self.carry[1]
        for size in brought.sizes:
            if brought.on_disk:
                self._read(size, out)
            out.spend(self._costs.tensor.value + size / self._allocate[1] + size / self._release[1])
            out.flush()
            route, latency = self._to_gpu(size, out, on_disk=brought.on_disk)
            out.add("copy", compute, fixed=latency, size=size, route=route, after=out.so_far(HOST))
            out.host_waits(compute)
            out.cool(out.transfer_s(route, latency, size))
            out.spend(self.carry[1])
            self.carry = call.gpu, 0.0

    def _to_gpu(self, size: int, out: PassWriter, *, on_disk: bool) -> tuple[int, int]:
        """Return route and latency [ps] of the copy of a tensor to the GPU."""
        pinned = self._pinned and not on_disk
        if pinned or on_disk or self._initialized:
            return out.copies([size], to_device=True, pinned=pinned)

        def path(gpu: int) -> Path:
            written, most = (out.machine.host_to_device(gpu, pinned=one) for one in (False, True))
            points = tuple((at, int(_NEVER_WRITTEN * rate)) for at, rate in written.curve.points)
            return replace(written, curve=Curve(points).lower(most.curve))

        return out.transfers(Cause("host-to-gpu", memory="never written"), path, [size])

    def _read(self, size: int, out: PassWriter) -> None:
        """Let the host thread copy a mapped file into a new tensor, whose pages come from the operating
        system at the rate that FSDP's new tensors were measured to get.

        While pages are read that are not in the page cache, the threads copy and obtain new pages; what the
        read does not hide of this follows it.
        """
        out.flush()
        left = traffic = 2 * size
        rate = loops_rate(out.machine.host, traffic=traffic, new=size)
        if not self._page_cache:
            route, latency = mapped_read(out, self._folder, size, traffic=traffic)
            out.add("read", HOST, fixed=latency, size=size, route=route)
            left -= int(rate * out.transfer_s(route, 0, size))
        if left > 0:
            out.add("cpu", HOST, size=left, route=out.cpu_work(Cause("mapped-copies"), rate))

    def launch(self, call: Call, out: PassWriter) -> bool:
        """Allocate new memory for the results of a module, if PyTorch's cache is empty; then the driver
        launches it."""
        emptied, releasing = self.carry
        if call.gpu == emptied:
            allocating, release = self._new_memory_s(call.module, out.now)
            out.spend(allocating)
            self.carry = emptied, releasing + release
        return False

    def _new_memory_s(self, module: Module, stage: StagePass) -> tuple[float, float]:
        """Return the times [s] of allocating and of releasing the results of a module."""
        key = module, None if depends_on_context(module) else of_tokens(stage.batch)
        if key not in self._known or key[1] is None:
            made = self._results(module, stage.batch)
            self._known[key] = (
                sum(one.seconds(*self._allocate) for one in made),
                sum(one.seconds(*self._release) for one in made),
            )
        return self._known[key]

    def leave(self, part: Part, out: PassWriter) -> None:  # noqa: ARG002
        """End the work of the host thread in a part."""
        out.flush()


class HiddenStates(Hook):
    """Hidden states move to the GPU of the next module, if that is another one of the process."""

    def __init__(self, token: int, gpu: int) -> None:
        """``token``: size [B] of the hidden states of one; ``gpu``: number of the first GPU in use."""
        self._token = token
        self.carry: int = gpu
        """Number of the GPU that has them."""

    state = Hook.of_modules

    def launched(self, call: Call, out: PassWriter) -> None:
        """Copy the hidden states before the kernels of a module."""
        before, self.carry = self.carry, call.gpu
        if call.gpu != before:
            out.send(before, call.gpu, self._token * out.now.tokens)


# -- checks and texts -------------------------------------------------------------------------------


_FEWER = "lower device_map (layers on the GPU) or max_memory"
_MORE = "raise device_map (layers on the GPU)"
_ON_GPU = (
    "transformers 5.23 keeps experts in MXFP4 on the GPU, so that offloading them is a what-if; "
    "vLLM offloads them (strategy.kind vllm)"
)
"""Its kernels take tensors of Triton, which hooks do not see (``swizzle_mxfp4_convertops``)."""
_UNMEASURED = "host-thread costs of Accelerate: those of another host, scaled"


_HomesOfPart = tuple[DeviceName | None, ...]


@dataclass(frozen=True, eq=False)
class _Piece:
    """A _Piece is a layer with the homes of its modules, or all that is outside of the layers."""

    stored: tuple[tuple[DeviceName, int], ...]
    """Home and size [B] of each tensor."""
    copied: tuple[tuple[int, ...], ...]
    """Sizes [B] of the tensors that the hook of each module brings to the main GPU."""
