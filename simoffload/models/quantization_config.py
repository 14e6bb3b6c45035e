"""Reading of ``quantization_config`` in a config.json: one class per ``quant_method``.

Keys are those of transformers 5.23 (utils/quantization_config.py) and of compressed-tensors 0.12
(quantization/quant_args.py); keys without influence on sizes are ignored.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from simoffload.documents import Document, Frozen, Location, either, listing, quoted, suggest, validate
from simoffload.errors import InputError
from simoffload.models.formats import FORMATS, WeightFormat, bitsandbytes, fp8, gptq, packed
from simoffload.models.module_names import ModuleNames
from simoffload.models.quantization import QUANTIZATIONS, Quantization, bitsandbytes_quantization

KEY = "quantization_config"
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


class _Fp8(Section):
    weight_block_size: Block | None = None
    ignored_layers: Names | None = None
    """Another name of ``modules_to_not_convert``, which takes precedence over it (vLLM 0.33,
    ``Fp8Config.from_config``)."""

    def quantization(self) -> Quantization:
        one = fp8(block=self.weight_block_size)
        ignored = ModuleNames(self.ignored_layers) if self.ignored_layers else self.ignored
        return Quantization(one.name, one, ignored=ignored)


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
    strategy: Literal["tensor", "channel", "group", "block", "tensor_group"]
    group_size: Group | None = None
    block_structure: Block | None = None
    symmetric: Flag = True

    @model_validator(mode="after")
    def _is_known(self) -> Self:
        needed = {"group": "group_size", "tensor_group": "group_size", "block": "block_structure"}
        key = needed.get(self.strategy)
        if key is not None and getattr(self, key) is None:
            raise ValueError(f"strategy {self.strategy} needs {key}")
        self.format()
        return self

    def format(self) -> WeightFormat:
        """Return the format; scales are of 2 B. Raises ValueError for one that is not supported."""
        if self.strategy == "group" and self.group_size is None:
            raise ValueError("strategy group needs the key group_size, such as 128")
        if self.type == "int" and self.strategy in ("group", "channel"):
            group = _columns(self.group_size or -1) if self.strategy == "group" else None
            return packed(self.num_bits, group, symmetric=self.symmetric)
        if (self.type, self.num_bits, self.group_size) == ("float", 4, 16):
            return FORMATS["nvfp4"]
        if (self.type, self.num_bits, self.group_size) == ("float", 4, 32):
            return FORMATS["mxfp4"]
        if (self.type, self.num_bits) == ("float", 8) and "group" not in self.strategy:
            block = self.block_structure if self.strategy == "block" else None
            return fp8(block=block, per_row=self.strategy == "channel", scale=2)
        raise ValueError(
            f"weights of {self.num_bits} bits, {self.type}, by {self.strategy} are not supported; supported: "
            "int of 4 or 8 bits by group or channel, float of 8 bits by tensor, channel or block, float of 4 "
            f"bits in groups of 16 or 32; {_REPLACED}"
        )


_LINEAR = "Linear"


class _Scheme(Frozen):
    """``config_groups.<name>`` describes a format and the modules that have it."""

    model_config = ConfigDict(extra="ignore")

    targets: Annotated[Names, Field(min_length=1)]
    """Names of modules, or the class ``Linear`` for all linear layers."""
    weights: _Weights

    @field_validator("targets")
    @classmethod
    def _no_other_class(cls, targets: tuple[str, ...]) -> tuple[str, ...]:
        for one in targets:
            if one != _LINEAR and one[:1].isupper():
                raise ValueError(f"the class {quoted(one)} is not supported, only {_LINEAR} and module names")
        return targets

    @property
    def names(self) -> ModuleNames | None:
        """Names of the modules; None: all linear layers."""
        return None if _LINEAR in self.targets else ModuleNames(self.targets)


class _CompressedTensors(Section):
    config_groups: dict[str, _Scheme]
    ignore: Names = ()

    @field_validator("config_groups")
    @classmethod
    def _one_group(cls, groups: dict[str, _Scheme]) -> dict[str, _Scheme]:
        if len(groups) != 1:
            found = f"{len(groups)} groups ({listing(list(groups))})" if groups else "no group"
            raise ValueError(f"one group of modules with one format is supported, got {found}; {_REPLACED}")
        return groups

    def quantization(self) -> Quantization:
        scheme = next(iter(self.config_groups.values()))
        one = scheme.weights.format()
        return Quantization(one.name, one, targets=scheme.names, ignored=ModuleNames(self.ignore))


METHODS: Mapping[str, type[Section]] = {
    "gptq": _Gptq,
    "awq": _Awq,
    "bitsandbytes": _BitsAndBytes,
    "fp8": _Fp8,
    "fbgemm_fp8": _FbgemmFp8,
    "mxfp4": _Mxfp4,
    "compressed-tensors": _CompressedTensors,
}
"""Classes of sections by their ``quant_method``."""


def read_quantization(
    document: Document, rows: Callable[[], Collection[int]] = tuple, *, at: Location = ()
) -> Quantization | None:
    """Return the quantization of a config.json; None if it is not quantized. Raises InputError.

    ``rows`` returns the lengths of rows of the model's matrices, one of which a group must divide. ``at`` is
    where the keys of the model are; the section may also be at the top.
    """
    outer, inner = document.data, document.data
    for key in at:
        inner = inner[key]
    at, section = (at, inner[KEY]) if inner.get(KEY) is not None else ((), outer.get(KEY))
    if section is None:
        return None
    at = (*at, KEY)
    if not isinstance(section, Mapping):
        message = f"must be a mapping with quant_method ({either(list(METHODS))}); {_REPLACED}"
        raise InputError([document.problem(at, message)])
    method = section.get("quant_method")
    if method is None and ("load_in_4bit" in section or "load_in_8bit" in section):
        method = "bitsandbytes"  # older configurations do not name it
    found = METHODS.get(method) if isinstance(method, str) else None
    if found is None and method == "modelopt":
        algorithm = str(section.get("quant_algo")).lower()
        give = algorithm if algorithm in QUANTIZATIONS else "fp8 or nvfp4"
        message = f"the method {quoted(method)} is not read yet; give quantization: {give}, which replaces it"
        raise InputError([document.problem((*at, "quant_method"), message)])
    if found is None:
        near = suggest(str(method), list(METHODS)) if method else ""
        wrong = "is missing" if method is None else f"the method {quoted(str(method))} is not supported"
        message = f"{wrong}{near}; supported: {listing(list(METHODS))}; {_REPLACED}"
        raise InputError([document.problem((*at, "quant_method"), message)])
    quantization = validate(document, found, at=at).quantization()
    if quantization.format is not None and (wrong := _wrong_group(quantization.format, rows())):
        place = (*at, "group_size") if "group_size" in section else at
        raise InputError([document.problem(place, wrong)])
    return quantization


def _wrong_group(one: WeightFormat, rows: Collection[int]) -> str:
    """Return what is wrong with groups that divide none of the rows of these lengths; "" if nothing is."""
    groups = (scales.columns for scales in one.scales if not scales.flat and scales.rows == 1)
    for group in filter(None, groups):
        if rows and all(columns % group for columns in rows):
            lengths = listing([str(columns) for columns in sorted(rows)])
            message = f"groups of {group} weights divide no row of the model's matrices ({lengths} weights)"
            return f"{message}; correct group_size, or in a scenario write model.quantization"
    return ""
