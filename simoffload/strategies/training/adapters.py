"""Adapters of PEFT that are trained instead of all weights, under every program of training.

Read in PEFT 0.21 (tuners/lora, utils/other.py), bitsandbytes 0.50 (nn/modules.py, ``Linear4bit``;
autograd/_functions.py, ``MatMul4Bit``; functional.py, ``QuantState``) and accelerate 1.15. Frozen weights of
4 bits are written in full for each use: in forward, in recomputation and in backward. What is not quantized
keeps the model's data type; a program that calls PEFT's ``prepare_model_for_kbit_training`` casts embeddings,
head and norms to single precision, which is not modelled.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field

from simoffload.documents import Edit, Frozen
from simoffload.errors import InputError
from simoffload.hardware import Machine
from simoffload.models import ALL_LINEAR, QUANTIZATIONS, ModelShape, quantized, with_lora
from simoffload.results import ADAPTERS, FROZEN_NF4, Change
from simoffload.strategies.requirements import TRANSFORMERS, check_capability, methods_of

PEFT = "PEFT 0.21"
"""Program whose ``adapter_config.json`` is written."""
_REQUIREMENTS = {"peft": "0.21.2", "bitsandbytes": "0.50.2"}
"""Versions of PyPI that were read."""
_FOUR_BIT = "nf4-dq"
"""Format of proposed frozen weights: NF4 with double quantization, as in the paper of QLoRA."""
_RANK = 16
"""Rank of proposed adapters: our choice; PEFT's own default is 8."""
_QUANTIZE = (
    "strategy.lora.quantize is the old way to say model.quantization: nf4-dq; write that, because the next "
    "release refuses it"
)


class Lora(Frozen):
    """Lora configures LoRA adapters on frozen weights, with PEFT's names."""

    r: Annotated[int, Field(strict=True, ge=1, le=65_536)]
    """Rank of the adapters' matrices."""
    target_modules: (
        Literal["all-linear"]
        | Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(min_length=1)]
    ) = ALL_LINEAR
    """Linear layers with adapters, by the end of their names: [q_proj, v_proj], …; by default all but the
    output layer."""
    autocast_adapter_dtype: bool = True
    """Whether PEFT keeps adapters of a model in 16 bits in single precision, as it does since 0.12; under
    DeepSpeed and FSDP they have the model's data type anyway."""
    quantize: Literal["nf4"] | None = None
    """Old name of ``model.quantization: nf4-dq`` (QLoRA)."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about keys that were given in their old form."""
        return () if self.quantize is None else (_QUANTIZE,)

    def adapt(
        self, model: ModelShape, machine: Machine, *, single: bool = False, autocast: bool = False
    ) -> ModelShape:
        """Return the model, frozen, with its adapters, which may be in ``single`` precision, also where
        ``torch.autocast`` lets them compute in the model's type. Raises InputError for layers that it lacks,
        and for weights and GPUs that PEFT or bitsandbytes refuse."""
        if self.quantize is not None and model.quantization is None:
            model = quantized(model, QUANTIZATIONS[_FOUR_BIT])
        if model.quantization is not None and methods_of(model) != {"bitsandbytes-4bit"}:
            text = (
                f"adapters on weights in {model.quantization} are not modelled; write quantization: "
                f"{_FOUR_BIT} or nf4 (bitsandbytes), or none"
            )
            raise InputError.at("model.quantization", text)
        check_capability(TRANSFORMERS, model, machine)
        try:
            return with_lora(
                model, r=self.r, target_modules=self.target_modules, single=single, autocast=autocast
            )
        except InputError as error:
            raise InputError(one._replace(key=f"strategy.{one.key}") for one in error.problems) from None

    def files(self, model: ModelShape, *, divided: bool) -> dict[str, Any]:
        """Return the files with which PEFT makes the adapters (``LoraConfig.from_pretrained``) and
        transformers the frozen weights (``BitsAndBytesConfig.from_dict``), and the versions that were read.

        Packed weights that are ``divided`` among the ranks are in the model's data type.
        """
        chosen = self.target_modules
        targets = chosen if isinstance(chosen, str) else list(chosen)
        found: dict[str, Any] = {
            "adapter_config.json": {
                "peft_type": "LORA",
                "task_type": "CAUSAL_LM",
                "r": self.r,
                "target_modules": targets,
            }
        }
        programs = ["peft"]
        if model.quantization is not None:
            programs.append("bitsandbytes")
            found["quantization_config.json"] = _bits_and_bytes(model, divided=divided)
        found["requirements.txt"] = "".join(f"{one}=={_REQUIREMENTS[one]}\n" for one in programs)
        return found


def _bits_and_bytes(model: ModelShape, *, divided: bool) -> dict[str, Any]:
    return {
        "load_in_4bit": True,
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": _double(model),
        "bnb_4bit_compute_dtype": model.dtype,
        "bnb_4bit_quant_storage": model.dtype if divided else "uint8",
    }


def _double(model: ModelShape) -> bool:
    """Return whether the scales of quantized weights are quantized."""
    stored = (one.storage for module in model.distinct_modules for one in module.parameters)
    return any(one is not None and "weight.nested_absmax" in one.names for one in stored)


def work_of(lora: Lora | None) -> dict[str, Any]:
    """Return the keys of a strategy that say what is trained."""
    return {} if lora is None else {"lora": lora.model_dump(mode="json", exclude_defaults=True)}


def four_bit(model: ModelShape) -> Edit | None:
    """Return the edit that quantizes frozen weights; None if the model has another format."""
    return Edit(("model", "quantization"), _FOUR_BIT) if model.quantization is None else None


def quantized_base(model: ModelShape) -> Iterator[Change]:
    """Yield frozen weights in 4 bit in place of those of 16."""
    if edit := four_bit(model):
        yield Change("precision", "frozen weights in nf4 (QLoRA)", (edit,), quality=FROZEN_NF4)


def lora_moves(
    model: ModelShape, kind: str, ranks: int, *, packed: tuple[Edit, ...] = ()
) -> Iterator[Change]:
    """Yield LoRA adapters of rank 16 on all linear layers, first with 16-bit and then with 4-bit weights,
    under the program of a ``kind`` and under others that train them on so many ranks.

    ``packed`` are the edits that 4-bit weights need beside under the first one.
    """
    what, note = f"LoRA of rank {_RANK} on all linear layers", "(trains adapters, not the model)"
    edit, lora = four_bit(model), {"r": _RANK}
    programs = {"": Edit(("strategy", "lora"), lora)}
    for name, other in _PROGRAMS.items():
        if other != kind and (ranks > 1 or other != "fsdp"):
            section = {"kind": other, "ranks": ranks, "lora": lora}
            programs[f" under {name}"] = Edit(("strategy",), section)
    for under, adapts in programs.items():
        yield Change("lora", f"{what}{under} {note}", (adapts,), quality=ADAPTERS)
        if edit is not None:
            text = f"{what}, frozen weights in nf4 (QLoRA){under} {note}"
            edits = (*(() if under else packed), adapts, edit)
            yield Change("lora", text, edits, quality=FROZEN_NF4)


_PROGRAMS = {"plain PEFT": "transformers", "FSDP": "fsdp"}
"""Programs that are proposed for adapters, and the kinds of their strategies."""
