"""Reading of ``quantization_config`` in a config.json: one class per ``quant_method``.

Keys are those of transformers 5.23 (utils/quantization_config.py), of compressed-tensors 0.12
(quantization/quant_args.py) and of ModelOpt as vLLM reads them (vllm/model_executor/layers/quantization/
modelopt.py); keys without influence on sizes are ignored.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from simoffload.documents import (
    Document,
    Frozen,
    Location,
    either,
    exists,
    listing,
    quoted,
    read_document,
    suggest,
    validate,
)
from simoffload.errors import InputError
from simoffload.models.formats import FORMATS, WeightFormat, bitsandbytes, fp8, gptq, nvfp4, packed
from simoffload.models.module_names import ModuleNames
from simoffload.models.quantization import Quantization, bitsandbytes_quantization

KEY = "quantization_config"
BESIDE = "hf_quant_config.json"
"""File beside a config.json in which ModelOpt describes the weights."""
_REPLACED = "in a scenario, model.quantization replaces this section"


def _checked(names: tuple[str, ...]) -> tuple[str, ...]:
    ModuleNames(names)
    return names


def _two_sizes(block: object) -> object:
    """Raise ValueError for a block that has not two sizes."""
    sizes = block if isinstance(block, list | tuple) else ()
    if len(sizes) != 2 or not all(type(one) is int and 0 < one <= 1_000_000 for one in sizes):
        raise ValueError("must be a list of two whole numbers above 0 (rows, columns), such as [128, 128]")
    return block


Named = TypeVar("Named")
ByName = Annotated[dict[str, Named], AfterValidator(lambda modules: (_checked(tuple(modules)), modules)[1])]
"""What is stated of modules, by their names or patterns."""
Names = Annotated[tuple[str, ...], AfterValidator(_checked)]
"""Names of modules, of which some may be patterns."""
Block = Annotated[tuple[int, int], BeforeValidator(_two_sizes)]
"""Rows and columns of weights that share a scale."""
Flag = Annotated[bool, Field(strict=True)]


class Section(Frozen, ABC):
    """A Section is ``quantization_config`` of one method, as transformers writes it."""

    model_config = ConfigDict(extra="ignore")

    modules_to_not_convert: Names | None = None

    @property
    def ignored(self) -> ModuleNames:
        """Names of modules that are not quantized."""
        return ModuleNames(self.modules_to_not_convert or ())

    @abstractmethod
    def quantization(self) -> Quantization:
        """Return the quantization that the section describes."""


def _mixed(parts: Iterable[tuple[tuple[str, ...], WeightFormat]], **given: Any) -> Quantization:
    """Return a quantization in which modules of such names have these formats, and others that of ``given``,
    if any."""
    names: dict[WeightFormat, list[str]] = {}
    for some, one in parts:
        names.setdefault(one, []).extend(some)
    others = tuple((ModuleNames(some), one) for one, some in names.items())
    formats = (*names, *filter(None, (given.get("format"),)))
    return Quantization("+".join(dict.fromkeys(one.name for one in formats)), others=others, **given)


class _CacheScheme(Frozen):
    """``kv_cache_scheme`` describes the scales of keys and values of compressed-tensors and ModelOpt."""

    model_config = ConfigDict(extra="ignore")

    num_bits: Literal[4, 8]
    type: Literal["float"] = "float"

    @property
    def format(self) -> str:
        """Name of the format of keys and values."""
        return "fp8" if self.num_bits == 8 else "nvfp4"


def _cache(scheme: _CacheScheme | None) -> str:
    return "" if scheme is None else scheme.format


Bits = Literal[2, 3, 4, 8]


def _not_empty(size: int) -> int:
    """Raise ValueError for a group of no weights."""
    if size == 0:
        raise ValueError("must be the number of weights of a group, or -1 for a whole row, got 0")
    return size


Group = Annotated[int, Field(strict=True, ge=-1, le=1_000_000), AfterValidator(_not_empty)]
"""Number of weights of a row that share a scale; -1: all."""


def _columns(group: int) -> int | None:
    return None if group == -1 else group


_SKIP, _OTHERWISE = "-:", "+:"


class _Gptq(Section):
    bits: Bits
    group_size: Group = 128
    lm_head: Flag = False
    dynamic: dict[str, Any] | None = None
    """Exceptions by regular expressions of module names, of which those after "-:" are not quantized."""
    modules_in_block_to_quantize: list[Names] | None = None
    """Modules of a layer that are quantized; None: all linear layers."""

    @field_validator("dynamic")
    @classmethod
    def _skips_only(cls, dynamic: dict[str, Any] | None) -> dict[str, Any] | None:
        for pattern in dynamic or {}:
            if not pattern.startswith(_SKIP):
                shown = quoted(pattern.removeprefix(_OTHERWISE))
                raise ValueError(
                    f"other settings for {shown} are not supported, only patterns after -: (skip)"
                )
        _checked(_skipped(dynamic))
        return dynamic

    def quantization(self) -> Quantization:
        one = gptq(self.bits, _columns(self.group_size))
        inside = self.modules_in_block_to_quantize
        return Quantization(
            one.name,
            one,
            targets=None if inside is None else ModuleNames(name for names in inside for name in names),
            ignored=ModuleNames((*(self.modules_to_not_convert or ()), *_skipped(self.dynamic))),
            head=self.lm_head,
        )


def _skipped(dynamic: dict[str, Any] | None) -> tuple[str, ...]:
    """Return the patterns of modules that are not quantized."""
    return tuple(f"re:{pattern.removeprefix(_SKIP)}" for pattern in dynamic or {})


class _Awq(Section):
    bits: Literal[4] = 4
    group_size: Group = 128

    def quantization(self) -> Quantization:
        one = gptq(self.bits, _columns(self.group_size), awq=True)
        return Quantization(one.name, one, ignored=self.ignored)


class _BitsAndBytes(Section):
    load_in_4bit: Flag = False
    load_in_8bit: Flag = False
    bnb_4bit_quant_type: Literal["nf4", "fp4"] = "fp4"
    """Code of four bits; both have the same size."""
    bnb_4bit_use_double_quant: Flag = False
    llm_int8_skip_modules: Names | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if self.load_in_8bit == self.load_in_4bit:
            raise ValueError("exactly one of load_in_4bit and load_in_8bit must be true")
        return self

    def quantization(self) -> Quantization:
        four_bit = bitsandbytes(double_quantized=self.bnb_4bit_use_double_quant)
        one = FORMATS["int8"] if self.load_in_8bit else four_bit
        skipped = self.llm_int8_skip_modules
        # A list replaces transformers' own, which has the head alone (get_modules_to_not_convert).
        ignored = ModuleNames(skipped or ())
        return bitsandbytes_quantization(one, ignored=ignored, head=skipped is not None)


_ALGORITHMS: Mapping[str, Callable[[int | None], WeightFormat]] = {
    "FP8": lambda _: fp8(static=True),
    "FP8_PER_CHANNEL_PER_TOKEN": lambda _: fp8(per_row=True),
    "FP8_PB_WO": lambda _: FORMATS["fp8-block128"],
    "MXFP8": lambda _: FORMATS["mxfp8"],
    **dict.fromkeys(("NVFP4", "NVFP4_AWQ", "W4A8_NVFP4_FP8"), nvfp4),
    "W4A16_NVFP4": lambda _: FORMATS["nvfp4-a16"],
    **dict.fromkeys(("MXFP4", "W4A8_MXFP4_FP8"), lambda _: FORMATS["mxfp4"]),
    **dict.fromkeys(("W4A16_AWQ", "W4A8_AWQ"), lambda group: gptq(4, group or 128, awq=True)),
    "INT8_WO": lambda _: packed(8, None, symmetric=True),
}
"""Formats by ModelOpt's names of algorithms (``quant_algo``) and the size of a group.

Source: NVIDIA/Model-Optimizer, modelopt/torch/export/quant_utils.py. AWQ's own scale for each input feature
is not counted.
"""
_MIXED = "MIXED_PRECISION"


def _known_algorithm(given: str) -> str:
    """Return the name of an algorithm in capitals, as some versions do not write it. Raises ValueError."""
    name = given.upper()
    if name not in _ALGORITHMS and name != _MIXED:
        known = [*_ALGORITHMS, _MIXED]
        near = suggest(name, known)
        raise ValueError(f"the algorithm {quoted(given)} is not supported{near}; supported: {listing(known)}")
    return name


Algorithm = Annotated[str, AfterValidator(_known_algorithm)]
GroupOfModule = Annotated[int, Field(strict=True, ge=1, le=1_000_000)]


class _OwnAlgorithm(Frozen):
    """``quantized_layers.<module>`` describes the format of a module of ModelOpt's mixed precision."""

    model_config = ConfigDict(extra="ignore")

    quant_algo: Algorithm
    group_size: GroupOfModule | None = None

    @field_validator("quant_algo")
    @classmethod
    def _is_one_format(cls, name: str) -> str:
        if name == _MIXED:
            raise ValueError(f"a module has one format; supported: {listing(list(_ALGORITHMS))}")
        return name

    def format(self) -> WeightFormat:
        """Return the format of its weights."""
        return _ALGORITHMS[self.quant_algo](self.group_size)


OwnAlgorithms = ByName[_OwnAlgorithm]


def _by_module(modules: OwnAlgorithms | None) -> Iterable[tuple[tuple[str, ...], WeightFormat]]:
    return (((name,), one.format()) for name, one in (modules or {}).items())


class _Fp8(Section):
    weight_block_size: Block | None = None
    activation_scheme: Literal["dynamic", "static"] = "dynamic"
    quantized_layers: OwnAlgorithms | None = None
    """Modules that ModelOpt quantized again after a release in FP8."""
    moe_quant_algo: Algorithm | None = None
    """Algorithm for all experts, where they were."""
    ignored_layers: Names | None = None
    """Another name of ``modules_to_not_convert``, which takes precedence over it (vLLM 0.33,
    ``Fp8Config.from_config``)."""

    def quantization(self) -> Quantization:
        block, static = self.weight_block_size, self.activation_scheme == "static"
        one = FORMATS["mxfp8"] if block == _MX_BLOCK else fp8(block=block, static=static)
        ignored = ModuleNames(self.ignored_layers) if self.ignored_layers else self.ignored
        parts = list(_by_module(self.quantized_layers))
        if self.moe_quant_algo not in (None, _MIXED):
            parts.append((_EXPERTS, _ALGORITHMS[self.moe_quant_algo](None)))
        return _mixed(parts, format=one, ignored=ignored)


_MX_BLOCK = (1, 32)
_EXPERTS = ("experts",)
"""Name of the module of routed experts, within that of the network of a layer."""


class _Mxfp8(_Fp8):
    """The method of MiniMax's releases in MXFP8."""

    weight_block_size: Block | None = _MX_BLOCK


class _OfAutoRound(Frozen):
    """``extra_config.<module>`` of AutoRound describes a module with other numbers."""

    model_config = ConfigDict(extra="ignore")

    bits: Literal[2, 3, 4, 8, 16, 32]
    group_size: Group | None = None


class _AutoRound(Section):
    """Intel's AutoRound stores integers as GPTQ does, or as AWQ (AutoRoundConfig of transformers 5.23)."""

    bits: Bits
    group_size: Group = 128
    data_type: Literal["int"] = "int"
    packing_format: str = "auto_round:auto_gptq"
    extra_config: ByName[_OfAutoRound] | None = None

    def quantization(self) -> Quantization:
        awq, others = "awq" in self.packing_format, self.extra_config or {}
        plain = [name for name, one in others.items() if one.bits >= 16]
        parts = (
            ((name,), gptq(one.bits, _columns(one.group_size or self.group_size), awq=awq))
            for name, one in others.items()
            if one.bits < 16
        )
        given = gptq(self.bits, _columns(self.group_size), awq=awq)
        return _mixed(parts, format=given, ignored=ModuleNames(plain))


class _QuarkTensor(Frozen):
    """``weight`` of a layer in AMD's Quark."""

    model_config = ConfigDict(extra="ignore")

    dtype: Literal["fp4", "fp4_e2m1", "fp8_e4m3", "int4", "uint4", "int8"]
    qscheme: Literal["per_tensor", "per_channel", "per_group"]
    group_size: Group | None = None

    def format(self) -> WeightFormat:
        """Return the format of weights."""
        if self.dtype.startswith("fp4"):
            return FORMATS["mxfp4"]
        if self.dtype == "fp8_e4m3":
            return fp8(per_row=self.qscheme != "per_tensor", static=True)
        group = _columns(self.group_size or -1) if self.qscheme == "per_group" else None
        return packed(8 if self.dtype == "int8" else 4, group, symmetric=self.dtype != "uint4")


def _last(stages: object) -> object:
    return stages[-1] if isinstance(stages, list) and stages else stages


class _QuarkLayer(Frozen):
    """Formats of a layer, or of all; weights that are rounded in two stages are stored as in the last."""

    model_config = ConfigDict(extra="ignore")

    weight: Annotated[_QuarkTensor | None, BeforeValidator(_last)] = None


class _Quark(Section):
    """AMD's Quark states a format of all layers, and others by name (vLLM, layers/quantization/quark)."""

    global_quant_config: _QuarkLayer
    layer_quant_config: ByName[_QuarkLayer] | None = None
    exclude: Names | None = None

    @model_validator(mode="after")
    def _has_weights(self) -> Self:
        layers = (self.global_quant_config, *(self.layer_quant_config or {}).values())
        if all(one.weight is None for one in layers):
            raise ValueError(f"neither all layers nor some have a format of weights; {_REPLACED}")
        return self

    def quantization(self) -> Quantization:
        others = {name: one.weight for name, one in (self.layer_quant_config or {}).items()}
        parts = (((name,), one.format()) for name, one in others.items() if one is not None)
        plain = [name for name, one in others.items() if one is None]
        given = self.global_quant_config.weight
        names = ModuleNames((*(self.exclude or ()), *plain))
        return _mixed(parts, format=None if given is None else given.format(), ignored=names)


class _FbgemmFp8(Section):
    def quantization(self) -> Quantization:
        one = fp8(per_row=True)
        return Quantization(one.name, one, ignored=self.ignored)


class _Mxfp4(Section):
    def quantization(self) -> Quantization:
        """Return MXFP4 of experts, to which alone transformers and vLLM apply this method
        (``replace_with_mxfp4_linear``; vllm/model_executor/layers/quantization/mxfp4.py).

        vLLM's ``get_supported_act_dtypes`` lists bfloat16 alone.
        """
        return Quantization("mxfp4", FORMATS["mxfp4"], ignored=self.ignored, linear=False, dtype="bfloat16")


class _Weights(Frozen):
    """``config_groups.<name>.weights`` describes one format of compressed-tensors."""

    model_config = ConfigDict(extra="ignore")

    num_bits: Literal[4, 8]
    type: Literal["int", "float"] = "int"
    strategy: Literal["tensor", "channel", "group", "block", "tensor_group"] | None = None
    """What shares a scale; None: a group if ``group_size`` is given, otherwise the tensor."""
    group_size: Group | None = None
    block_structure: Block | None = None
    symmetric: Flag = True

    @model_validator(mode="after")
    def _is_known(self) -> Self:
        needed = {"group": "group_size", "tensor_group": "group_size", "block": "block_structure"}
        key = needed.get(self.strategy or "")
        if key is not None and getattr(self, key) is None:
            raise ValueError(f"strategy {self.strategy} needs {key}")
        self.format()
        return self

    def format(self) -> WeightFormat:
        """Return the format; scales are of 2 B. Raises ValueError for one that is not supported."""
        strategy = self.strategy or ("tensor" if self.group_size is None else "group")
        if strategy == "group" and self.group_size is None:
            raise ValueError("strategy group needs the key group_size, such as 128")
        if self.type == "int" and strategy in ("group", "channel"):
            group = _columns(self.group_size or -1) if strategy == "group" else None
            return packed(self.num_bits, group, symmetric=self.symmetric)
        if (self.type, self.num_bits, self.group_size) == ("float", 4, 16):
            return nvfp4()
        if (self.type, self.num_bits, self.group_size) == ("float", 4, 32):
            return FORMATS["mxfp4"]
        if (self.type, self.num_bits, self.group_size) == ("float", 8, 32):
            return FORMATS["mxfp8"]
        if (self.type, self.num_bits) == ("float", 8) and "group" not in strategy:
            block = self.block_structure if strategy == "block" else None
            return fp8(block=block, per_row=strategy == "channel", scale=2)
        raise ValueError(
            f"weights of {self.num_bits} bits, {self.type}, by {strategy} are not supported; supported: "
            "int of 4 or 8 bits by group or channel, float of 8 bits by tensor, channel or block, or in "
            f"groups of 32, float of 4 bits in groups of 16 or 32; {_REPLACED}"
        )


_LINEAR = "Linear"


class _Inputs(Frozen):
    """``config_groups.<name>.input_activations`` describes the inputs of products."""

    model_config = ConfigDict(extra="ignore")

    num_bits: int


class _Scheme(Frozen):
    """``config_groups.<name>`` describes a format and the modules that have it."""

    model_config = ConfigDict(extra="ignore")

    targets: Annotated[Names, Field(min_length=1)]
    """Names of modules, or the class ``Linear`` for all linear layers."""
    weights: _Weights
    input_activations: _Inputs | None = None

    @field_validator("targets")
    @classmethod
    def _no_other_class(cls, targets: tuple[str, ...]) -> tuple[str, ...]:
        for one in targets:
            if one != _LINEAR and one[:1].isupper():
                raise ValueError(f"the class {quoted(one)} is not supported, only {_LINEAR} and module names")
        return targets

    def format(self) -> WeightFormat:
        """Return the format of weights, with whether tensor cores multiply them as they are."""
        one = self.weights.format()
        inputs = self.input_activations
        return FORMATS["nvfp4-a16"] if one is nvfp4() and inputs is None else one


def _has_groups(groups: dict[str, _Scheme]) -> dict[str, _Scheme]:
    """Raise ValueError for no group, and for two formats of all linear layers."""
    if not groups:
        raise ValueError(f"must have a group with targets and weights, got no group; {_REPLACED}")
    of_all = [name for name, one in groups.items() if _LINEAR in one.targets]
    if len({groups[name].format() for name in of_all}) > 1:
        raise ValueError(f"{listing(of_all)} have all linear layers as targets, in different formats")
    return groups


_Groups = Annotated[dict[str, _Scheme], AfterValidator(_has_groups)]


def _of_groups(groups: dict[str, _Scheme], **given: Any) -> Quantization:
    """Return the quantization of groups of modules; those with names go before the class of linear layers."""
    of_all = next((one.format() for one in groups.values() if _LINEAR in one.targets), None)
    named = ((one.targets, one.format()) for one in groups.values() if _LINEAR not in one.targets)
    return _mixed(named, format=of_all, **given)


class _CompressedTensors(Section):
    config_groups: _Groups
    ignore: Names = ()
    kv_cache_scheme: _CacheScheme | None = None

    def quantization(self) -> Quantization:
        ignored, cache = ModuleNames(self.ignore), _cache(self.kv_cache_scheme)
        return _of_groups(self.config_groups, ignored=ignored, cache=cache)


class _ModelOpt(Section):
    """Of both layouts: ``ignore`` and ``kv_cache_scheme`` of a config.json, or ``exclude_modules`` and
    ``kv_cache_quant_algo`` of hf_quant_config.json."""

    quant_algo: Algorithm | None = None
    group_size: GroupOfModule | None = None
    config_groups: _Groups | None = None
    quantized_layers: OwnAlgorithms | None = None
    ignore: Names | None = None
    exclude_modules: Names | None = None
    kv_cache_scheme: _CacheScheme | None = None
    kv_cache_quant_algo: Literal["FP8", "NVFP4", "fp8", "nvfp4"] | None = None

    @model_validator(mode="after")
    def _states_formats(self) -> Self:
        if self.quant_algo == _MIXED and not self.quantized_layers and self.config_groups is None:
            raise ValueError(f"quant_algo {_MIXED} needs quantized_layers, the format of each module")
        if self.quant_algo is None and self.config_groups is None:
            raise ValueError(f"quant_algo is missing; valid: {listing([*_ALGORITHMS, _MIXED])}; {_REPLACED}")
        return self

    def quantization(self) -> Quantization:
        """Return formats by module; the head is quantized unless it is excluded, as in vLLM
        (``ModelOptQuantConfigBase.get_quant_method``)."""
        excluded = (*(self.ignore or ()), *(self.exclude_modules or ()))
        cache = _cache(self.kv_cache_scheme) or (self.kv_cache_quant_algo or "").lower()
        given: dict[str, Any] = {"ignored": ModuleNames(excluded), "cache": cache}
        if self.quant_algo not in (None, _MIXED):
            one = _ALGORITHMS[self.quant_algo](self.group_size)
            return Quantization(one.name, one, head=True, **given)
        if self.quantized_layers:
            return _mixed(_by_module(self.quantized_layers), **given)
        return _of_groups(self.config_groups or {}, head=True, **given)


METHODS: Mapping[str, type[Section]] = {
    "gptq": _Gptq,
    "awq": _Awq,
    "bitsandbytes": _BitsAndBytes,
    "fp8": _Fp8,
    "mxfp8": _Mxfp8,
    "fbgemm_fp8": _FbgemmFp8,
    "mxfp4": _Mxfp4,
    "compressed-tensors": _CompressedTensors,
    **dict.fromkeys(("auto-round", "auto_round"), _AutoRound),
    "quark": _Quark,
    **dict.fromkeys(("modelopt", "modelopt_fp4", "modelopt_mixed", "modelopt_mxfp8"), _ModelOpt),
}
"""Classes of sections by their ``quant_method``."""


def read_quantization(
    document: Document, rows: Callable[[], Collection[int]] = tuple, *, at: Location = ()
) -> Quantization | None:
    """Return the quantization of a config.json; None if it is not quantized. Raises InputError.

    ``rows`` returns the lengths of rows of the model's matrices, one of which a group must divide. ``at`` is
    where the keys of the model are; the section may also be at the top, or in a file of ModelOpt beside.
    """
    outer, inner = document.data, document.data
    for key in at:
        inner = inner[key]
    experts = _released_experts(document, (*at, "expert_dtype"), inner.get("expert_dtype"))
    at, section = (at, inner[KEY]) if inner.get(KEY) is not None else ((), outer.get(KEY))
    at, beside = (*at, KEY), section is None
    if beside:
        document, section = _beside(document)
        at = ()
    if section is None:
        return None if experts is None else _mixed(experts)
    if not isinstance(section, Mapping):
        message = f"must be a mapping with quant_method ({either(list(METHODS))}); {_REPLACED}"
        raise InputError([document.problem(at, message)])
    found = _ModelOpt if beside else _method(document, section, at)
    if found is _ModelOpt and isinstance(inside := section.get("quantization"), Mapping):
        at, section = (*at, "quantization"), inside
    quantization = validate(document, found, at=at).quantization()
    if experts is not None:
        quantization = _with_experts(quantization, experts)
    lengths = rows()
    wrong = next(filter(None, (_wrong_group(one, lengths) for one in quantization.formats)), "")
    if wrong:
        place = (*at, "group_size") if "group_size" in section else at
        raise InputError([document.problem(place, wrong)])
    return quantization


def _beside(document: Document) -> tuple[Document, Any]:
    """Return the file of ModelOpt beside a config.json on a disk, and its content; None without one."""
    if document.root is None or not Path(document.path).is_file():
        return document, None
    path = Path(document.path).with_name(BESIDE)
    if not exists(path):
        return document, None
    read = read_document(path, of_python=True)
    return read, read.data


def _method(document: Document, section: Mapping[str, Any], at: Location) -> type[Section]:
    """Return the class of the section's method. Raises InputError for one that is not known."""
    method = section.get("quant_method")
    if method is None and ("load_in_4bit" in section or "load_in_8bit" in section):
        method = "bitsandbytes"  # older configurations do not name it
    found = METHODS.get(method) if isinstance(method, str) else None
    if found is None:
        near = suggest(str(method), list(METHODS)) if method else ""
        wrong = "is missing" if method is None else f"the method {quoted(str(method))} is not supported"
        message = f"{wrong}{near}; supported: {listing(list(METHODS))}; {_REPLACED}"
        raise InputError([document.problem((*at, "quant_method"), message)])
    return found


def _released_experts(
    document: Document, at: Location, dtype: object
) -> list[tuple[tuple[str, ...], WeightFormat]] | None:
    """Return the format of experts that a release states apart from others (``expert_dtype``); None if it
    states none. Raises InputError for one that is not known."""
    if dtype in (None, "fp8", "bf16", "bfloat16"):
        return None
    if dtype != "fp4":
        message = f"must be fp4 (MXFP4) or fp8, got {quoted(str(dtype))}; {_REPLACED}"
        raise InputError([document.problem(at, message)])
    return [(_EXPERTS, FORMATS["mxfp4"])]


def _with_experts(
    quantization: Quantization, experts: list[tuple[tuple[str, ...], WeightFormat]]
) -> Quantization:
    """Return a quantization with the released format of experts, unless it names them itself."""
    own = _mixed(experts)
    others = (*quantization.others, *own.others)
    if any(names.match("model.layers.0.mlp.experts") for names, _ in quantization.others):
        return quantization
    return replace(quantization, name=f"{own.name}+{quantization.name}", others=others)


def _wrong_group(one: WeightFormat, rows: Collection[int]) -> str:
    """Return what is wrong with groups that divide none of the rows of these lengths; "" if nothing is."""
    groups = (scales.columns for scales in one.scales if not scales.flat and scales.rows == 1)
    for group in filter(None, groups):
        if rows and all(columns % group for columns in rows):
            lengths = listing([str(columns) for columns in sorted(rows)])
            message = f"groups of {group} weights divide no row of the model's matrices ({lengths} weights)"
            return f"{message}; correct group_size, or in a scenario write model.quantization"
    return ""
