"""The key-value cache of strategies that generate text: the section ``kv_cache``.

Reference: transformers 5.23.0, ``cache_utils.py`` (``Cache.update``, ``DynamicLayer``, ``StaticLayer``,
``QuantizedLayer``) and ``generation/utils.py`` (``_prepare_cache_for_generation``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import product
from math import inf
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticKnownError, core_schema

from simoffload.documents import Edit, Frozen, either
from simoffload.errors import InputError
from simoffload.hardware import Machine, TierKind
from simoffload.models import CacheForm, ModelShape
from simoffload.results import Change, peak_uses, quality_of_cache
from simoffload.strategies.base import Description, Plan, ProgramTraits, Strategy
from simoffload.strategies.cache.connector import Connector
from simoffload.strategies.held import memory_stages
from simoffload.strategies.tunables import TierName, Tunable
from simoffload.workload import Inference

# -- what is refused ------------------------------------------------------------------------------
# What programs cannot do with the key-value cache, as errors of the section ``strategy.kv_cache``.


_SECTION = "strategy.kv_cache"
NATIVE: dict[str, str] = {"float16": "fp16", "bfloat16": "bf16"}
"""Format that is a model's data type of 16 bit."""


def refused(key: str, value: str, valid: Sequence[str], why: str, *, more: str = "") -> InputError:
    """Return the error for a value of ``kv_cache`` that the program does not have; ``more``: what else is
    possible."""
    choice = f"use {either(valid)}, or leave it out" if valid else "leave it out"
    return InputError.at(f"{_SECTION}.{key}", f'"{value}" is not possible: {why}; {choice}{more}')


def check_native(cache: KvCache, engine: CacheEngine, model: ModelShape) -> None:
    """Raise InputError for a format of 16 bit that is not the data type of the model."""
    own = NATIVE.get(model.dtype)
    if cache.format in NATIVE.values() and cache.format != own:
        why = f"{model.name} is in {model.dtype}, and its cache too, unless it has fewer bits"
        raise refused("format", str(cache.format), [*([own] if own else []), *engine.formats], why)


def check_streamed(cache: KvCache, tiers: Sequence[str]) -> None:
    """Raise InputError for a streamed cache that is not on one of ``tiers``, as of one on the GPU nothing
    would be streamed, and for one with a connector."""
    key = f"{_SECTION}.implementation"
    if cache.tier not in tiers:
        text = f"a streamed cache is not on the GPU, and tier is {cache.tier}"
        raise InputError.at(key, f"{text}; set tier to {either(tiers)}, or remove implementation")
    if cache.connector is not None:
        raise InputError.at(key, "a connector stores blocks of a cache in HBM; remove it, or implementation")


def check_cpu_attention(cache: KvCache, model: ModelShape) -> None:
    """Raise InputError for what DeepSpeed's example with attention on the CPU cannot do."""
    key = f"{_SECTION}.implementation"
    if not cache.attends_on_cpu:
        for option in ("pin_memory", "asynchronous"):
            if getattr(cache, option):
                text = "only a cache with implementation: cpu_attention has this choice; remove it"
                raise InputError.at(f"{_SECTION}.{option}", text)
        return
    if (code := model.traits.cpu_attention) is None:
        text = (
            "DeepSpeed's fork of transformers has attention on the CPU for OPT, BLOOM and Llama only, not "
            f"for {model.family}; remove it"
        )
        raise InputError.at(key, text)
    if code.obstacle:
        why = f"DeepSpeed's fork is of transformers 4.32, which does not load {model.name}: {code.obstacle}"
        valid = "it has linear and dynamic ones, with a factor and nothing else"
        others = "use dynamic or static, or a model such as llama-3-8b, whose positions are not scaled"
        raise InputError.at(key, f'"{cache.implementation}" is not possible: {why} ({valid}); {others}')
    if cache.tier == "hbm":
        raise refused("tier", cache.tier, ["dram"], "attention on the CPU needs the cache in host memory")
    if cache.format is not None:
        text = "the cache of cpu_attention has no format with fewer bits; remove it"
        raise InputError.at(f"{_SECTION}.format", text)


def check_quantized(cache: KvCache, model: ModelShape, *, more: str) -> None:
    """Raise InputError for what ``QuantizedCache`` refuses or has no option for; ``more`` is possible instead
    of offloading one."""
    text = "a quantized cache of transformers grows, and stays on the GPU"
    if cache.offloaded:
        raise InputError.at(f"{_SECTION}.tier", f"{text}; set it to hbm, or remove format{more}")
    if cache.static:
        raise InputError.at(f"{_SECTION}.implementation", f"{text}; set it to dynamic, or remove format")
    if model.num_sliding_layers:
        text = f"transformers quantizes no cache of a model with sliding layers such as {model.name}"
        raise InputError.at(f"{_SECTION}.format", f"{text}; remove it")


# -- the section -----------------------------------------------------------------------------------

Implementation = Literal["dynamic", "static", "cpu_attention", "streamed"]

_GROUP, _RESIDUAL = 64, 128
"""Elements that share a scale and a shift in 16 bit, and the number of tokens that are not quantized at which
all are (defaults of ``QuantizedLayer``: ``q_group_size``, ``residual_length``)."""
_SCALES = 4 / _GROUP
_OWN: dict[str, float] = {
    "fp16": 2.0,
    "bf16": 2.0,
    "fp8": 1.0,
    "int8": 1.0 + _SCALES,
    "int4": 0.5 + _SCALES,
    "int2": 0.25 + _SCALES,
}
"""Size [B] of an element by format."""
_ELEMENTS = dict(_OWN)


class _FormatName:
    """Field type for the name of a format; those of other packages are known once they are registered."""

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: Any) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(cls._known)

    @classmethod
    def __get_pydantic_json_schema__(
        cls, _schema: CoreSchema, _handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {"enum": list(_ELEMENTS), "type": "string"}

    @staticmethod
    def _known(value: Any) -> str:
        if isinstance(value, str) and value in _ELEMENTS:
            return value
        *others, last = map(repr, _ELEMENTS)
        raise PydanticKnownError("literal_error", {"expected": f"{', '.join(others)} or {last}"})


CacheFormat = Annotated[str, _FormatName]
"""Name of a format of keys and values."""


class CacheEngine(NamedTuple):
    """A CacheEngine states what the cache of a strategy's program can do."""

    program: str
    tiers: tuple[TierKind, ...] = ("hbm",)
    """Kinds of tiers on which it keeps keys and values."""
    formats: tuple[CacheFormat, ...] = ()
    """Formats with fewer bits in which it keeps them."""
    implementations: tuple[Implementation, ...] = ()
    """Implementations among which the user chooses; () if there is one."""


TRANSFORMERS = CacheEngine("transformers", ("hbm", "dram"), ("fp8", "int4", "int2"), ("dynamic", "static"))
"""``DynamicCache`` and ``StaticCache``, with ``offloading``, and ``QuantizedCache`` (quanto, fp8)."""
ZERO_INFERENCE = TRANSFORMERS._replace(implementations=("dynamic", "static", "cpu_attention"))
"""Also the buffer of DeepSpeed's example of ZeRO-Inference, with its fork of transformers."""
VLLM = CacheEngine("vLLM", formats=("fp8",))
"""Paged cache of vLLM, with ``--kv-cache-dtype fp8``."""
VLLM_BLOCK = 16
"""Number of tokens of a block in vLLM; LMCache has larger ones."""
STREAMED = CacheEngine(
    "a streamed cache",
    ("dram", "nvme", "nfs", "pfs", "nvmeof", "remote"),
    ("fp8", "int8", "int4"),
    ("streamed",),
)
"""What no program has: the cache on any tier but the GPU (``cache_updates``)."""
_WHAT_IF = "; or try a what-if, implementation: streamed"


def register_cache_format(name: str, element_bytes: float) -> None:
    """Make a format known whose elements take ``element_bytes`` [B], scales included, in a streamed cache.

    A strategy of your own can list it in its ``cache_engine``, too: the cache then stays on the GPU and is
    decoded as that of ``QuantizedLayer``. Raises ValueError if a format of another size has the name.
    """
    if not 0 < element_bytes < inf:
        raise ValueError(f"the size of an element is a number of bytes above 0, got {element_bytes!r}")
    if _ELEMENTS.setdefault(name, element_bytes) != element_bytes:
        raise ValueError(f"the format {name} is known already, with {_ELEMENTS[name]:g} B for an element")


def formats_from_outside() -> dict[str, float]:
    """Return the formats that were registered, so that worker processes can register them."""
    return {name: size for name, size in _ELEMENTS.items() if name not in _OWN}


def _streamed() -> CacheEngine:
    """Return what a streamed cache can do, in the formats that were registered, too."""
    return STREAMED._replace(formats=(*STREAMED.formats, *formats_from_outside()))


class KvCache(Frozen):
    """Where and how the keys and values of all earlier tokens are kept."""

    written_as: ClassVar[str] = "{{tier: {}}}"
    tier: TierName = "hbm"
    """Tier that holds the cache."""
    format: CacheFormat | None = None
    """Format of keys and values; by default the model's data type, which ``fp16`` or ``bf16`` only states."""
    implementation: Implementation | None = None
    """Implementation in transformers: ``dynamic`` grows with every token, ``static`` has room for the longest
    context from the start; by default dynamic. Under ZeRO-Inference also ``cpu_attention``: the CPU computes
    attention over a cache in host memory, which has room for the longest context (DeepSpeed's example of
    2023, ``--kv-offload``); in transformers' code elsewhere that is a what-if. ``streamed`` is a what-if that
    no program has: the cache is on any tier but the GPU, each layer is read ahead of its use, and only keys
    and values of new tokens are written."""
    pin_memory: bool = False
    """Whether the cache of ``cpu_attention`` is in pinned memory (``--pin_kv_cache``)."""
    asynchronous: bool = False
    """Whether copies to the cache of ``cpu_attention`` do not block (``--async_kv_offload``)."""
    connector: Connector | None = None
    """Connector of a paged cache that stores blocks on another tier, and loads those of known prefixes."""

    @property
    def static(self) -> bool:
        """Whether the cache has its final size from the start."""
        return self.implementation == "static"

    @property
    def streamed(self) -> bool:
        """Whether layers are read from the tier ahead of their use, and only new tokens are written to it."""
        return self.implementation == "streamed"

    @property
    def offloaded(self) -> bool:
        """Whether transformers moves keys and values between the GPU and host memory in every pass."""
        return self.tier != "hbm" and not self.attends_on_cpu and not self.streamed

    @property
    def moves(self) -> bool:
        """Whether each pass moves keys and values between the GPU and another tier."""
        return self.offloaded or self.streamed

    @property
    def attends_on_cpu(self) -> bool:
        """Whether the CPU computes attention over the cache."""
        return self.implementation == "cpu_attention"

    @property
    def operations(self) -> int:
        """Number of PyTorch operations of an update beyond the two of ``torch.cat``.

        Offloaded: two copies each way, and two streams that wait for each other (an event is recorded and
        waited for). Static: the positions of the new tokens (``arange``, ``add``, ``add_``); ``index_copy_``
        replaces ``cat``. Quantized: for keys and for values ``dequantize`` (quanto: unpack, multiply,
        subtract, reshape; fp8: cast, multiply, cast), and a second ``cat`` for the tokens that are not yet
        quantized, or (fp8) the three operations that quantize new ones. Streamed: the copies and streams of
        an offloaded cache; two kernels write new tokens instead of ``cat``, and encode them.
        """
        own = 0 if self.streamed else {None: 0, "fp8": 12}.get(self.format, 10)
        return own + 8 * self.moves + 3 * self.static

    @property
    def plain(self) -> KvCache:
        """The cache without a format that only states the model's data type."""
        return self.model_copy(update={"format": None}) if self.format in NATIVE.values() else self

    @property
    def tiers(self) -> tuple[str, ...]:
        """Tiers of the cache and of the blocks of its connector."""
        return (self.tier,) if self.connector is None else (self.tier, self.connector.tier)

    @property
    def description(self) -> str:
        """Tier, format and implementation, such as "dram, static"."""
        how = {None: "", "dynamic": "", "cpu_attention": "attention on the CPU"}
        blocks = f"blocks on {self.connector.tier}" if self.connector is not None else ""
        others = (self.format, how.get(self.implementation, self.implementation), blocks)
        return ", ".join((self.tier, *filter(None, others)))

    @property
    def key(self) -> str:
        """Short name of the placement, unique among those of a program."""
        blocks = None if self.connector is None else self.connector.tier
        return "-".join(filter(None, ("cache", self.tier, self.format, self.implementation, blocks)))

    def with_placement(self, tier: str, stored: CacheFormat | None, how: Implementation | None) -> KvCache:
        """Return the cache on a tier, in a format and by an implementation."""
        kept = how == "cpu_attention"
        return self.model_copy(
            update={
                "tier": tier,
                "format": stored,
                "implementation": None if how == "dynamic" and self.implementation is None else how,
                "pin_memory": self.pin_memory and kept,
                "asynchronous": self.asynchronous and kept,
            }
        )

    def with_blocks_on(self, tiers: Iterable[str]) -> Iterator[KvCache]:
        """Yield the cache with the blocks of its connector on each of the ``tiers``, through host memory
        unless the tier is the present one; the cache itself without a connector."""
        if (now := self.connector) is None:
            yield self
            return
        for tier in tiers:
            there = now.model_copy(update={"tier": tier, "direct": now.direct and tier == now.tier})
            yield self.model_copy(update={"connector": there})

    def edits(self, other: KvCache) -> tuple[Edit, ...]:
        """Return the edits that make another cache of this one."""
        mine, theirs = dict(self), dict(other)
        if self.connector is not None and other.connector is not None:
            for keys, connector in ((mine, self.connector), (theirs, other.connector)):
                del keys["connector"]
                keys |= {f"connector.{key}": value for key, value in connector}
        changed = {key: value for key, value in theirs.items() if value != mine[key]}
        return tuple(Edit.at(f"strategy.kv_cache.{key}", value) for key, value in changed.items())

    def element_bytes(self, dtype_bytes: int) -> float:
        """Return the size of an element as it is kept [B], scales included."""
        return dtype_bytes if self.format is None else _ELEMENTS[self.format]

    def form(self, *, dtype_bytes: int, length: int, paged: bool, expanded: bool = False) -> CacheForm:
        """Return what attention pays for the cache, which has up to ``length`` tokens.

        ``expanded``: every pass computes keys and values in the model's type from a latent cache.

        Notes
        -----
        ``QuantizedLayer`` of quanto keeps the last tokens in the model's type, at most 127. Every pass
        decodes all others (read as stored, written in full) and joins both (``torch.cat``); every 128th pass
        all are quantized again, which is spread over these passes. The prompt is copied (``contiguous``) and
        quantized. ``Fp8QuantizedLayer`` appends in 8 bit and decodes all in single precision: cast (1 B read,
        4 B written), multiply (4, 4), cast; for the prompt ``abs``, ``amax``, cast, divide, cast.
        """
        size, stored = dtype_bytes, self.element_bytes(dtype_bytes)
        if self.streamed:
            return CacheForm(paged=size if expanded else stored, operations=self.operations)
        if paged:
            return CacheForm(paged=0.0 if self.format is None else stored)
        if self.format == "fp8":
            return CacheForm(first=4 * size + 17, later=size + 19, operations=self.operations)
        if self.format is not None:
            again = (size + stored) / _RESIDUAL
            later = stored + 3 * size + again
            return CacheForm(first=3 * size + stored, later=later, operations=self.operations)
        return CacheForm(
            room=length if self.static else 0, offloaded=self.offloaded, operations=self.operations
        )

    def checked(self, engine: CacheEngine, model: ModelShape, machine: Machine) -> KvCache:
        """Return the plain section. Raises InputError for what the program does not have."""
        engine = _streamed() if self.streamed else engine
        check_native(self, engine, model)
        if (plain := self.plain) == DEFAULT:
            return plain
        names = [name for name, tier in machine.tiers.items() if tier.kind in engine.tiers]
        if self.streamed:
            check_streamed(self, names)
        elif self.tier not in names:
            why = f"{engine.program} keeps no cache there"
            raise refused("tier", self.tier, names, why, more=_WHAT_IF)
        plain.check(engine, model, more="" if self.streamed else _WHAT_IF)
        return plain

    def check(self, engine: CacheEngine, model: ModelShape, *, more: str = "", what_if: bool = True) -> None:
        """Raise InputError for a format, an implementation or a model that the program does not have; of
        those that only a simulation has, unless ``what_if``.

        ``more``: what else is possible with a format that a streamed cache has.
        """
        more = more if self.format in _streamed().formats else ""
        if self.format is not None and self.format not in engine.formats:
            why = f"{engine.program} has no cache of this format"
            raise refused("format", self.format, engine.formats, why, more=more)
        if self.connector is not None and not what_if:
            text = f"{engine.program} has no connector; remove it"
            raise InputError.at("strategy.kv_cache.connector", text)
        what_if = what_if and self.attends_on_cpu and "dynamic" in engine.implementations
        if self.implementation and not what_if and self.implementation not in engine.implementations:
            which = "no such" if engine.implementations else "one"
            why = f"{engine.program} has {which} implementation"
            other = "; strategy.kind zero_inference has it" if self.attends_on_cpu else ""
            raise refused("implementation", self.implementation, engine.implementations, why, more=other)
        if self.connector is not None and (self.tier != "hbm" or self.element_bytes(2) % 1):
            key, now = ("tier", self.tier) if self.tier != "hbm" else ("format", str(self.format))
            text = f"a connector stores blocks of a cache in HBM with whole bytes, not {now}"
            raise InputError.at(f"strategy.kv_cache.{key}", f"{text}; remove it, or connector")
        if model.state_bytes and self != DEFAULT:
            text = f"{model.family} has linear attention, whose states are simulated in HBM only"
            raise InputError.at("strategy.kv_cache", f"{text}; remove the section")
        check_cpu_attention(self, model)
        if self.offloaded and self.static and model.num_sliding_layers == model.num_hidden_layers:
            text = f"all layers of {model.name} have a sliding window, and a static cache offloads none"
            raise InputError.at("strategy.kv_cache.implementation", f"{text}; set it to dynamic")
        if self.format is not None and engine.implementations and not self.streamed:
            check_quantized(self, model, more=more)

    @property
    def residual(self) -> int:
        """Number of the last tokens at which those that are in the model's type are quantized; 0 if all are
        at once."""
        return 0 if self.format in (None, "fp8") else _RESIDUAL

    def hypothetical(self, *, paged: bool, attends: bool) -> str:
        """Return what no program does, as a clause; "" for the cache of a program, which is ``paged`` or not,
        and can let the CPU attend or not."""
        if self.attends_on_cpu and not attends:
            return "only DeepSpeed's example of ZeRO-Inference attends on the CPU"
        if self.connector is not None and not paged:
            return "no connector moves a cache that is not in blocks; that of vLLM is"
        return "no program has a cache with implementation: streamed" if self.streamed else ""

    @property
    def streams(self) -> tuple[str, ...]:
        """Names of the streams that move the cache."""
        if self.streamed:
            return ("load", "store") if self.tier == "dram" else ("load", "store", "read", "write")
        return ("cache",) if self.offloaded or self.attends_on_cpu else ()


DEFAULT = KvCache()


class CachingStrategy(Strategy):
    """A CachingStrategy generates text with a cache of which the user chooses tier and format."""

    cache_engine: ClassVar[CacheEngine] = TRANSFORMERS
    """What the program's cache can do."""
    traits: ClassVar = ProgramTraits(unseen={"kv_cache.implementation": ("streamed",)})

    kv_cache: KvCache = DEFAULT
    """Where and how keys and values are kept."""

    @property
    def description(self) -> Description:
        """Place and format of the cache that ``kv_cache`` sets."""
        cache = self.kv_cache.plain
        return super().description._replace(cache=cache.description, cache_format=cache.format or "")

    def cache_of(self, model: ModelShape, workload: Inference, machine: Machine) -> KvCache:
        """Return the cache of a plan. Raises InputError for what the program or its connector does not do."""
        cache = self.kv_cache.checked(self.cache_engine, model, machine)
        if cache.connector is not None:
            cache.connector.checked(model, workload, machine)
        return cache

    def _others(self, plan: Plan) -> Iterator[KvCache]:
        """Yield the caches that the program can have, and streamed ones beside one that is streamed; the
        present one is among them."""
        now, tiers = self.kv_cache.plain, plan.machine.tiers
        for engine in (self.cache_engine, _streamed()) if now.streamed else (self.cache_engine,):
            places = [name for name, tier in tiers.items() if tier.kind in engine.tiers]
            for way in product(places, (None, *engine.formats), engine.implementations or (None,)):
                with suppress(InputError):
                    now.with_placement(*way).check(engine, plan.model)
                    others = (tier for tier in tiers if tier not in places)
                    yield from now.with_placement(*way).with_blocks_on(others)

    def cache_tunables(self, plan: Plan) -> Iterator[Tunable]:
        """Yield other tiers for the cache and formats with fewer bits, for plans of which a tier of the cache
        is too small, and all tiers, formats and implementations that the program has."""
        yield Tunable("tier", self._cache_moves(plan, same=True))
        yield Tunable("tier", self._cache_moves(plan, same=False))
        yield Tunable("cache", self._cache_choices(plan))

    def _cache_choices(self, plan: Plan) -> Iterator[Change]:
        now = self.kv_cache.plain
        for other in self._others(plan):
            quality = "" if other.format == now.format else quality_of_cache(other.format)
            yield Change("placement", other.description, now.edits(other), key=other.key, quality=quality)

    def _cache_moves(self, plan: Plan, *, same: bool) -> Iterator[Change]:
        """Yield the cache on other tiers in the ``same`` format, or in other formats."""
        now = self.kv_cache.plain
        uses = peak_uses(memory_stages(plan), plan.machine.tiers)
        if all(use.fits for use in uses if use.tier in now.tiers):
            return
        for one in self._others(plan):
            if (one.format == now.format) == same and (one.tiers != now.tiers or not same):
                text, quality = f"key-value cache on {one.description}", quality_of_cache(one.format)
                kind = "setting" if same else "precision"
                yield Change(kind, text, now.edits(one), quality="" if same else quality)

    def generation_config(self) -> dict[str, Any]:
        """Return the file with which transformers' ``generate`` makes the cache: content by name; empty for
        the default cache."""
        cache, content = self.kv_cache.plain, dict[str, Any]()
        plain = cache in (DEFAULT, KvCache(implementation="dynamic"))
        if plain or cache.streamed or self.cache_engine.program != TRANSFORMERS.program:
            return {}
        if cache.format is not None:
            bits = {} if cache.format == "fp8" else {"nbits": int(cache.format.removeprefix("int"))}
            backend = "fp8" if cache.format == "fp8" else "quanto"
            content = {"cache_implementation": "quantized", "cache_config": {"backend": backend, **bits}}
        elif cache.static:
            content = {"cache_implementation": "offloaded_static" if cache.offloaded else "static"}
        elif cache.offloaded:
            content = {"cache_implementation": "offloaded"}
        return {"generation_config.json": content} if content else {}
