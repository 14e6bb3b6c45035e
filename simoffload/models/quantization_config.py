"""Reading of ``quantization_config`` in a config.json: one class per ``quant_method``.

Keys are those of transformers 5.23 (utils/quantization_config.py) and of compressed-tensors 0.12
(quantization/quant_args.py); keys without influence on sizes are ignored.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, field_validator, model_validator

from simoffload.documents import Document, Frozen, listing, quoted, suggest, validate
from simoffload.errors import InputError
from simoffload.models.formats import FORMATS, WeightFormat, bitsandbytes, fp8, gptq, grouped
from simoffload.models.module_names import ModuleNames
from simoffload.models.quantization import Quantization, bitsandbytes_quantization

KEY = "quantization_config"


def _checked(names: tuple[str, ...]) -> tuple[str, ...]:
    ModuleNames(names)
    return names


Names = Annotated[tuple[str, ...], AfterValidator(_checked)]
"""Names of modules, of which some may be patterns."""


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
Extent = Annotated[int, Field(strict=True, ge=1, le=1_000_000)]


def _group(size: int) -> int:
    """Raise ValueError for 0, which is neither a size nor -1."""
    if size == 0:
        raise ValueError("must be at least 1, or -1 for one group in each row")
    return size


Group = Annotated[int, Field(strict=True, ge=-1, le=1_000_000), AfterValidator(_group)]
"""Number of weights of a row that share a scale; -1: all."""


def _columns(group: int) -> int | None:
    return None if group == -1 else group


_SKIP, _OTHERWISE = "-:", "+:"


class _Gptq(Section):
    bits: Bits
    group_size: Group = 128
    lm_head: bool = False
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
    load_in_4bit: bool = False
    load_in_8bit: bool = False
    bnb_4bit_use_double_quant: bool = False
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
    weight_block_size: tuple[Extent, Extent] | None = None

    def quantization(self) -> Quantization:
        one = fp8(block=self.weight_block_size)
        return Quantization(one.name, one, ignored=self.ignored)


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
    block_structure: tuple[Extent, Extent] | None = None
    symmetric: bool = True

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
        if self.type == "int" and self.strategy in ("group", "channel"):
            group = _columns(self.group_size or -1) if self.strategy == "group" else None
            zero = Fraction(0) if self.symmetric else Fraction(self.num_bits, 8)
            name = f"int{self.num_bits}-{'channel' if group is None else f'g{group}'}"
            return grouped(name, self.num_bits, group, zero=zero)
        if (self.type, self.num_bits, self.group_size) == ("float", 4, 16):
            return FORMATS["nvfp4"]
        if (self.type, self.num_bits, self.group_size) == ("float", 4, 32):
            return FORMATS["mxfp4"]
        if (self.type, self.num_bits) == ("float", 8) and "group" not in self.strategy:
            block = self.block_structure if self.strategy == "block" else None
            return fp8(block=block, per_row=self.strategy == "channel", scale=2)
        raise ValueError(f"weights of {self.num_bits} bits, {self.type}, by {self.strategy}: not supported")


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
    config_groups: Annotated[dict[str, _Scheme], Field(min_length=1, max_length=1)]
    ignore: Names = ()

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


def read_quantization(document: Document) -> Quantization | None:
    """Return the quantization of a config.json; None if it is not quantized. Raises InputError."""
    section = document.data.get(KEY)
    if section is None:
        return None
    if not isinstance(section, Mapping):
        raise InputError([document.problem((KEY,), "must be a mapping")])
    method = section.get("quant_method")
    if method is None and ("load_in_4bit" in section or "load_in_8bit" in section):
        method = "bitsandbytes"  # older configurations do not name it
    found = METHODS.get(method) if isinstance(method, str) else None
    if found is None:
        known = (
            f"{suggest(str(method), list(METHODS)) if method else ''}; supported: {listing(list(METHODS))}"
        )
        message = (
            f"{'is missing' if method is None else 'this method is not supported'}{known}; in a scenario, "
            "model.quantization replaces this section"
        )
        raise InputError([document.problem((KEY, "quant_method"), message)])
    return validate(document, found, at=(KEY,)).quantization()
