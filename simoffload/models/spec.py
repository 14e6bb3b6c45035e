"""The section ``model`` of a scenario, and how it becomes a shape."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Self

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from simoffload.documents import (
    SUFFIXES,
    Document,
    Frozen,
    Location,
    either,
    exists,
    file_errors,
    listing,
    named,
    quoted,
    read_document,
    resolved,
    suggest,
    validate,
)
from simoffload.errors import InputError, Problem, shortened
from simoffload.models.families import FAMILIES, FamilyConfig, family_called, family_of_class
from simoffload.models.families.base import Flag, all_invalid, invalid
from simoffload.models.modules import DTYPE_BYTES, Attention, Dtype, Module
from simoffload.models.shape import EVEN, ModelShape, Routing
from simoffload.models.sizes import find_model, form_words, is_model, resembles_model

if TYPE_CHECKING:
    from simoffload.models.quantization import Form, Quantization

# -- keys that a config.json of any family may have, and that influence no number of parameters ----


_SavedDtype = Literal[
    "auto",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "float8_e4m3fn",
    "float8_e5m2",
    "torch.float16",
    "torch.bfloat16",
    "torch.float32",
    "torch.float64",
    "torch.float8_e4m3fn",
    "torch.float8_e5m2",
]
"""Types of PyTorch in which checkpoints are saved."""
_ACTIVATIONS = (
    "gelu",
    "gelu_10",
    "gelu_accurate",
    "gelu_fast",
    "gelu_new",
    "gelu_python",
    "gelu_python_tanh",
    "gelu_pytorch_tanh",
    "hardswish",
    "laplace",
    "leaky_relu",
    "linear",
    "mish",
    "prelu",
    "quick_gelu",
    "relu",
    "relu2",
    "relu6",
    "sigmoid",
    "silu",
    "situ",
    "sqrtsoftplus",
    "swigluoai",
    "swish",
    "tanh",
    "xielu",
)
"""Activation functions by name (``ACT2CLS``, activations.py of transformers 5.23), and one that a model's
code computes itself."""


def _known_activation(name: str) -> str:
    if name not in _ACTIVATIONS:
        near = suggest(name, _ACTIVATIONS) or f"; known: {listing(list(_ACTIVATIONS))}"
        raise ValueError(f"transformers has no activation function {quoted(name)}{near}")
    return name


_Activation = Annotated[str, AfterValidator(_known_activation)]
_Positive = Annotated[float, Field(strict=True, gt=0)]
_NotNegative = Annotated[float, Field(strict=True, ge=0)]
_Fraction = Annotated[float, Field(strict=True, ge=0, le=1)]
_Number = Annotated[int, Field(strict=True, ge=1, le=1_000_000_000)]


def _lowest(value: object) -> object:
    """Return the lowest number of a list that has one for each layer."""
    numbers = isinstance(value, list) and value and all(type(one) in (int, float) for one in value)
    return min(value) if numbers else value  # type: ignore[call-overload]


class CommonKeys(Frozen):
    """CommonKeys are checked because a wrong value shows a damaged file."""

    model_config = ConfigDict(extra="ignore")

    dtype: _SavedDtype | None = None
    torch_dtype: _SavedDtype | None = None
    hidden_act: _Activation | None = None
    hidden_activation: _Activation | None = None
    activation_function: _Activation | None = None
    rms_norm_eps: _Positive | None = None
    layer_norm_eps: _Positive | None = None
    layer_norm_epsilon: _Positive | None = None
    rope_theta: Annotated[_Positive | None, BeforeValidator(_lowest)] = None
    routed_scaling_factor: _Positive | None = None
    router_aux_loss_coef: _NotNegative | None = None
    router_jitter_noise: _NotNegative | None = None
    query_pre_attn_scalar: _Positive | None = None
    attention_dropout: _Fraction | None = None
    hidden_dropout: _Fraction | None = None
    initializer_range: _Fraction | None = None
    pretraining_tp: _Number | None = None
    qk_head_dim: _Number | None = None
    original_max_position_embeddings: _Number | None = None
    expert_capacity: _Number | None = None
    num_nextn_predict_layers: Annotated[int, Field(strict=True, ge=0, le=1000)] | None = None
    norm_topk_prob: Flag | None = None
    output_router_logits: Flag | None = None
    use_cache: Flag | None = None
    transformers_version: str | None = None


class SavedType(NamedTuple):
    """The type in which a config.json states that the weights were saved."""

    name: str
    at: Location
    """Position of the key that states it."""

    @property
    def dtype(self) -> Dtype | None:
        """The data type, if a model may have it."""
        return self.name if self.name in DTYPE_BYTES else None

    @property
    def is_fp8(self) -> bool:
        """Whether it is a floating-point type of 8 bits."""
        return self.name.startswith("float8_")


def saved_type(document: Document, at: Location) -> SavedType | None:
    """Return the type in which a config.json states that the weights were saved; None where it states none.

    ``at`` is where the keys of the model are; the type may also be at the top.
    """
    inner: Any = document.data
    for key in at:
        inner = inner[key]
    for place, section in ((at, inner), ((), document.data)):
        for key in ("dtype", "torch_dtype"):
            value = section.get(key)
            if value is not None and value != "auto":
                return SavedType(shortened(str(value)).removeprefix("torch."), (*place, key))
    return None


# -- the section ``model`` of a scenario, and how it becomes a shape -------------------------------


_UNQUANTIZED = "none"
GGUF = ".gguf"
"""Ending of the name of a GGUF file."""


class _Resolved(NamedTuple):
    """What a model's name, file or keys describe."""

    label: str
    config: FamilyConfig
    quantization: Quantization | None = None
    """That which a config.json describes, or in which the named model was released."""
    notes: tuple[str, ...] = ()
    dtype: Dtype | None = None
    """That in which a file states that the weights were saved."""
    kept: Callable[[ModelShape], ModelShape] | None = None
    """What gives every tensor the form in which a file has it."""
    beside: tuple[Module, ...] = ()
    """Parts that it has beside the language model."""

    def having(self, *outer: Mapping[str, Any]) -> Self:
        """Return it with the parts that the configurations around that of the language model describe."""
        if not any(outer):
            return self
        from simoffload.models.towers import beside

        modules, notes = beside(outer, self.config.hidden_size)
        return self._replace(beside=modules, notes=(*self.notes, *notes))


class ModelSpec(Frozen):
    """A model by ``name``, by the path of a ``config`` (config.json), or by ``family`` and sizes.

    A plain text is a name, or the path of a ``config`` if it ends in .json or .gguf. Every
    further key is one of Hugging Face's and replaces that of the named model or
    config: ``{name: bloom-560m, num_hidden_layers: 960, hidden_size: 10240}``.
    """

    model_config = ConfigDict(extra="allow")

    name: str | None = None
    """A model that is known by name (``simoffload models list``)."""
    config: str | None = None
    """Path of a Hugging Face config.json in the scenario's folder, or of a GGUF file (.gguf; any part of a
    split one), of which only the header is read: every weight is stored as the file has it."""
    family: str | None = None
    """Family of a model of any shape, by Hugging Face's ``model_type``."""
    draft: Annotated[bool, Field(strict=True)] = False
    """Without effect, for files and recorded runs that have it: a family that is not known gives a draft."""
    draft_model: ModelSpec | None = None
    """Model that proposes tokens to this one (``workload.speculation``), such as llama-3.2-1b for
    llama-3.1-70b; a head such as EAGLE's is one with a ``config`` of its own."""
    dtype: Dtype | None = None
    """Data type of weights, activations and cache; by default that of a ``config`` (its key ``dtype`` or
    ``torch_dtype``; one of 8 bits selects ``quantization`` fp8),
    otherwise float16, and bfloat16 for experts in MXFP4 (gpt-oss), whose kernels need it,
    and for Gemma 2 and 3, which overflow in float16."""

    attention: Attention | None = None
    """Implementation of attention; by default that of transformers 5: "sdpa", except for BLOOM, Gemma 2,
    gpt-oss and Falcon-7B ("eager")."""
    norms: Literal["eager", "fused"] = "eager"
    """Implementation of RMSNorm: spelled out in single precision, as transformers does, or one kernel that
    saves its input in the model's type (``use_kernels`` of transformers 5, Liger, torchtitan)."""
    quantization: str | None = None
    """Form in which weights are stored, such as int4-g128, nf4-dq, fp8 or q4_k_m; "none": ``dtype``. By
    default the one that ``quantization_config`` of the ``config`` describes, or in which the named model was
    released (gpt-oss, DeepSeek-V3, Kimi-K2)."""
    routing: Literal["uniform"] | Routing | None = None
    """How tokens are routed to experts: ``uniform``, ``{zipf: s}`` or ``{frequencies: [...]}``, one for each
    expert of a layer; by default ``{zipf: 0.76}``, and ``uniform`` for Mixtral."""

    @model_validator(mode="before")
    @classmethod
    def _text_is_name(cls, raw: object) -> object:
        if not isinstance(raw, str):
            return raw
        return named_in_text(raw)

    @field_validator("quantization", mode="before")
    @classmethod
    def _in_lower_case(cls, name: object) -> object:
        if not isinstance(name, str):
            return name
        from simoffload.models.quantization import QUANTIZATIONS

        listed = next(iter(named(name.lower(), (_UNQUANTIZED, *QUANTIZATIONS))), "")
        return listed or _form_said(name).name or name.lower()  # files are called UD-Q4_K_XL

    @field_validator("quantization")
    @classmethod
    def _is_known(cls, name: str | None) -> str | None:
        if name is None:
            return name
        from simoffload.models.quantization import QUANTIZATIONS

        known = (_UNQUANTIZED, *QUANTIZATIONS)
        if name not in known:
            if near := suggest(name, known):
                raise ValueError(f"unknown quantization{near}")
            form = _form_said(name)
            rest = f"; write {either(form.instead)}" if form.instead else f"; known: {listing(known)}"
            raise ValueError(f"{form.wrong or 'unknown quantization'}{rest}")
        return name

    @model_validator(mode="after")
    def _check(self) -> Self:
        given = [key for key in ("name", "config", "family") if getattr(self, key) is not None]
        if len(given) != 1:
            written = " and ".join(given) or "none of them"
            raise ValueError(f'give one of "name", "config" and "family", not {written}')
        if self.config is None:
            _ = self._named  # so that a scenario's mistakes are found where the scenario is read
        return self

    @property
    def overrides(self) -> dict[str, Any]:
        """The further keys, in Hugging Face's names."""
        return dict(self.model_extra or {})

    @cached_property
    def _named(self) -> _Resolved:
        """The label and configuration of a model that needs no file."""
        if self.name is not None:
            try:
                found = find_model(self.name)
            except ValueError as error:
                raise invalid("name", str(error), self.name) from None
            size = found.size
            config = _configured(FAMILIES[size.family], size.config, self.overrides)
            stored, notes = size.released, size.notes
            if found.form is not None and self.quantization is None:
                from simoffload.models.quantization import QUANTIZATIONS

                stored = QUANTIZATIONS.get(found.form)
            if found.note and self.quantization is None:
                notes = (*notes, found.note)
            return _Resolved(self._label(found.name), config, stored, notes).having(size.around)
        family = str(self.family)
        if family not in FAMILIES:
            keys = Document("", {"model": {"model_type": family, **self.overrides}})
            try:
                return self._drafted(keys, ("model",))
            except InputError as error:
                raise invalid("family", _unknown(family, self.overrides, error), self.family) from None
        config = _configured(FAMILIES[family], {}, self.overrides)
        return _Resolved(f"{family} {config.num_hidden_layers}x{config.hidden_size}", config)

    def _label(self, name: str) -> str:
        changes = ", ".join(f"{key}={value}" for key, value in self.overrides.items())
        return f"{name} ({changes})" if changes else name

    def shape(self, *, root: Path | None = None, allow_path: bool = False) -> ModelShape:
        """Return the shape of the model; :func:`load_model` explains the arguments. Raises InputError."""
        found = self._resolved(root=root, allow_path=allow_path)
        name, config, quantization, notes, saved, kept, more = found
        routing = EVEN if self.routing == "uniform" else self.routing
        sizes = config.derived()
        if routing and (wrong := routing.problem(sizes.num_experts, sizes.experts_per_token)):
            raise InputError.at("model.routing", wrong)
        if self.quantization is not None and (quantization is None or quantization.name != self.quantization):
            from simoffload.models.quantization import QUANTIZATIONS

            quantization = QUANTIZATIONS.get(self.quantization)
        usual: Dtype = "float16" if config.own_traits.float16 else "bfloat16"
        dtype = self.dtype or (quantization and quantization.dtype) or saved or usual
        shape = config.shape(name=name, dtype=dtype, attention=self.attention, routing=routing)
        shape = shape.with_fused_norms() if self.norms == "fused" else shape
        shape = replace(shape, notes=(*notes, *shape.notes)) if notes else shape
        if more:
            outermost, *inside = shape.modules_before
            shape = replace(shape, modules_before=(outermost, *more, *inside))
        if self.draft_model is not None:
            proposes = self.draft_model.shape(root=root, allow_path=allow_path)
            shape = replace(shape, draft_model=proposes)
        if kept is not None and self.quantization is None:
            return kept(shape)
        if quantization is None:
            return shape
        from simoffload.models.quantization import quantized

        return quantized(shape, quantization)

    def hf_config(self, *, root: Path | None = None, allow_path: bool = False) -> dict[str, Any]:
        """Return the sizes in Hugging Face's keys, ``model_type`` included; otherwise like :meth:`shape`."""
        config = self._resolved(root=root, allow_path=allow_path).config
        fields = type(config).model_fields.items()
        left_out = {field.alias or name for name, field in fields if field.default is None}
        written = {
            key: value
            for key, value in config.model_dump(by_alias=True).items()
            if value is not None or key not in left_out
        }
        return {"model_type": config.family, **written}

    def _resolved(self, *, root: Path | None, allow_path: bool) -> _Resolved:
        """Return what the name, the file or the keys describe."""
        if self.config is None:
            return self._named
        path = _config_path(self.config, root=root, allow_path=allow_path)
        if path.suffix.lower() == GGUF:
            return self._from_gguf(path)
        document = read_config(path)
        label = _label_of(path, document)
        family, at = _family_of(document)
        if family is None:
            try:
                return self._drafted(document, at, label)
            except InputError as error:
                key = (*at, "model_type") if "model_type" in _inside(document.data, at) else ("model_type",)
                text = _unknown(
                    str(_inside(document.data, key[:-1]).get("model_type")), _inside(document.data, at), error
                )
                raise InputError([document.problem(key, text)]) from None
        model = _Resolved(self._label(label), self._from_file(document, family, at))
        return self._stored(model.having(*_around(document.data, at)), document, at)

    def _from_gguf(self, path: Path) -> _Resolved:
        """Return the model of a GGUF file."""
        from simoffload.models.gguf_file import gguf_config, read_gguf, stored_as

        header = read_gguf(path)
        found = gguf_config(header)
        config = self._with_overrides(Document(str(path), found.keys), found.family)
        return _Resolved(
            self._label(found.label),
            config,
            kept=partial(stored_as, header=header, quantization=found.quantization),
        )

    def _drafted(self, document: Document, at: Location, label: str | None = None) -> _Resolved:
        """Return the draft of a model of an unknown family, with the quantization that its file describes."""
        from simoffload.models.drafts import MARK, drafted

        overrides = {} if label is None else self.overrides
        config, notes = drafted(document, at, overrides)
        if label is None:
            label = f"{self.family} {config.num_hidden_layers}x{config.hidden_size}"
        name = f"{label if self.family else self._label(label)}{MARK}"
        model = _Resolved(name, config, notes=notes)
        return self._stored(model.having(*_around(document.data, at)), document, at)

    def _stored(self, model: _Resolved, document: Document, at: Location) -> _Resolved:
        """Return the model with the form of its weights that its file states. What the scenario replaces need
        not be supported. Raises InputError."""
        from simoffload.models.quantization import QUANTIZATIONS
        from simoffload.models.quantization_config import read_quantization

        described, saved = None, saved_type(document, at)
        if self.quantization is None:
            described = read_quantization(document, lambda: _rows(model.config), at=at)
            if described is None and not (saved and saved.is_fp8):
                _check_unstated(document, model.label)
        if saved is None or self.dtype is not None:
            return model._replace(quantization=described)
        if saved.is_fp8 and self.quantization is None and described is None:
            note = (
                f"the file states {saved.name} without a quantization_config: linear layers and experts are "
                "taken to be stored in fp8, the rest in 16 bits; quantization or dtype of model replaces this"
            )
            return model._replace(quantization=QUANTIZATIONS["fp8"], notes=(*model.notes, note))
        if saved.dtype is None and not saved.is_fp8:
            message = (
                f"weights in {saved.name} are not modelled; known: {listing(list(DTYPE_BYTES))}, and 8-bit "
                "types (float8_…); write dtype as a key of model in the scenario, or change it here"
            )
            raise InputError([document.problem(saved.at, message)])
        return model._replace(quantization=described, dtype=saved.dtype)

    def _from_file(self, document: Document, family: type[FamilyConfig], at: Location) -> FamilyConfig:

        validate(document, CommonKeys, at=at)
        return self._with_overrides(document, family, at)

    def _with_overrides(
        self, document: Document, family: type[FamilyConfig], at: Location = ()
    ) -> FamilyConfig:
        config = validate(document, family, at=at)
        unknown = _unknown_keys(self.overrides, family)
        if unknown:
            raise InputError(Problem("", None, None, f"model.{key}", message) for key, message, _ in unknown)
        changed = {**_inherited(document.data, at), **self.overrides}
        merged = family.replaced(config.model_dump(by_alias=True), changed)
        return validate(Document("", {"model": merged}), family, at=("model",))


def _form_said(text: str) -> Form:
    """Return the form that a text says alone, as the end of a name does."""
    from simoffload.models.quantization import form_of

    return form_of(form_words(text) or (text.lower(),), None)


_FILE = re.compile(r"(.*\.(?:json|gguf))(?::([^/:]+))?", re.IGNORECASE | re.DOTALL)
"""The path of a file that describes a model, and the form of its weights after a colon."""


def is_model_file(text: str) -> bool:
    """Return whether a text is the path of a file that describes a model, by its ending; after it may be a
    colon and the form of the weights."""
    return _FILE.fullmatch(text) is not None


def named_in_text(text: str) -> dict[str, str]:
    """Return the keys of a section ``model`` that a text stands for: a name, or the path of a file, with the
    form of the weights where the text says one."""
    if (file := _FILE.fullmatch(text)) is None:
        return {"name": text}
    path, form = file.groups()
    return {"config": path} if form is None else {"config": path, "quantization": form}


def _is_folder(path: str) -> bool:
    """Return whether a path is a folder that a text names: one with a slash, or no name of a listed model."""
    try:
        return Path(path).is_dir() and ("/" in path or not is_model(path))
    except (OSError, ValueError):
        return False


def model_file(text: str) -> str | None:
    """Return the path of the file by which a text names a model: of a GGUF file, of a config.json, or of the
    one that a folder has or lacks, with the form of the weights that the text says; None for any other text,
    such as the path of a scenario."""
    folder, colon, form = (text, "", "") if _is_folder(text) else text.rpartition(":")
    if folder and _is_folder(folder):
        return f"{Path(folder, _CONFIG)}{colon}{form}"
    if (file := _FILE.fullmatch(text)) is None:
        return None
    path = Path(file[1])
    if path.suffix.lower() == GGUF:
        return text
    try:
        if path.suffix != ".json" or not path.is_file():
            return None
        data = read_config(path).data
    except (OSError, ValueError, InputError):
        return None  # what is wrong is said where it is read as a scenario
    described = _OF_A_CONFIG.intersection(data) and not _OF_A_SCENARIO.intersection(data)
    return str(path) + text.removeprefix(file[1]) if described else None


def read_config(path: Path) -> Document:
    """Read a config.json. Raises InputError, which says of a folder without one what else is in it."""
    folder = path.parent
    if path.name != _CONFIG or exists(path) or not folder.is_dir():
        return read_document(path, of_python=True)
    inside = [str(one) for one in sorted(folder.iterdir()) if one.suffix.lower() in (*SUFFIXES, GGUF)]
    text = f"this folder has no {_CONFIG}, which describes a model; "
    text += (
        f"name a file in it: {either(inside[:_MOST_FILES])}" if inside else "name a file, or another folder"
    )
    raise InputError.at("", text, path=str(folder))


_MOST_FILES = 3
"""Files of a folder that a message names: our choice."""


def model_label(text: str) -> str:
    """Return the short name of a model that a text names: that of its folder for a config.json."""
    path = Path(named_in_text(text).get("config", text))
    if path.name == _CONFIG or (path.suffix == ".json" and path.is_file()):
        return _label_of(path, read_config(path))
    return path.name


def states_form(text: str) -> bool:
    """Return whether a text that names a model says in which form its weights are stored."""
    if is_model_file(text):
        return text.lower().endswith(GGUF) or "quantization" in named_in_text(text)
    try:
        return find_model(text).form is not None
    except ValueError:
        return False


def load_model(
    spec: ModelSpec | str | Mapping[str, Any], *, root: Path | None = None, allow_path: bool = False
) -> ModelShape:
    """Turn a name, the path of a file, a mapping or a spec into a shape.

    Parameters
    ----------
    root
        Folder that a ``config`` path starts from and may not leave; without one, the working directory
        and no such limit.
    allow_path
        Let a ``config`` path leave ``root``.

    Raises
    ------
    InputError
        For an unknown name, family or key, sizes that cannot be, and a file that is missing, outside
        ``root``, of another family, or quantized by an unknown method.
    """
    if not isinstance(spec, ModelSpec):
        plain = dict(spec) if isinstance(spec, Mapping) else spec
        spec = validate(Document("", {"model": plain}), ModelSpec, at=("model",))
    return spec.shape(root=root, allow_path=allow_path)


def _configured(
    family: type[FamilyConfig], base: Mapping[str, Any], overrides: Mapping[str, Any]
) -> FamilyConfig:
    unknown = _unknown_keys(overrides, family)
    if unknown:
        raise all_invalid(unknown)
    return family.model_validate(family.replaced(base, overrides))


def _unknown_keys(overrides: Mapping[str, Any], family: type[FamilyConfig]) -> list[tuple[str, str, Any]]:
    """Return (key, message, value) of the keys that the family does not have."""
    known = sorted({*family.known_keys(), *ModelSpec.model_fields})
    listed = f"; known: {', '.join(known)}"
    return [
        (key, f"unknown key of the {family.family} family{suggest(key, known) or listed}", value)
        for key, value in overrides.items()
        if key not in known
    ]


def _rows(config: FamilyConfig) -> frozenset[int]:
    """Return the lengths of rows of the matrices within the layers."""
    layers = set(config.modules().layers)
    return frozenset(one.columns for layer in layers for module in layer for one in module.parameters) - {0}


_TEXT = (
    *(("text_config",), ("language_config",), ("llm_config",)),
    ("thinker_config", "text_config"),
)
"""Sections in which models that take more than text have the keys of their language model."""


def _inside(data: Mapping[str, Any], at: Location) -> Mapping[str, Any]:
    """Return the section at a place; {} where there is none."""
    inner: Any = data
    for key in at:
        inner = inner.get(key) if isinstance(inner, Mapping) else None
    return inner if isinstance(inner, Mapping) else {}


def _around(data: Mapping[str, Any], at: Location) -> tuple[Mapping[str, Any], ...]:
    """Return the configurations around the section at a place; of a model without one its own."""
    return tuple(_inside(data, at[:end]) for end in range(max(1, len(at))))


def _inherited(data: Mapping[str, Any], at: Location) -> dict[str, Any]:
    """Return what the whole model states of its language model: whether embeddings are tied.

    They are not where one of both says so: files that transformers 5 has written state its default for the
    whole, although a head of its own is among the weights (Mistral Small 3.1).
    """
    key = "tie_word_embeddings"
    sections = (*_around(data, at), _inside(data, at)) if at else ()
    stated = [one[key] for one in sections if key in one]
    return {key: next((one for one in stated if one is not True), True)} if stated else {}


def _family_of(document: Document) -> tuple[type[FamilyConfig] | None, Location]:
    """Return the family of a config.json, None for one that is to be drafted, and where its keys are: in a
    section such as ``text_config`` in that of a model that takes more than text.

    ``model_type`` decides, and ``architectures`` where that is no family; of the whole where the section has
    neither.
    """
    data = document.data
    sections = [at for at in _TEXT if _inside(data, at)]
    if len(sections) > 1 and any(_inside(data, at) != _inside(data, sections[0]) for at in sections):
        both = " and ".join(".".join(map(str, at)) for at in sections[:2])
        text = f"{both} may both have the language model; write null for the one that has not"
        raise InputError([document.problem(sections[1], text)])
    at: Location = sections[0] if sections else ()
    found = _decided(document, at)
    if at and found is None and not any(_inside(data, at).get(key) for key in _OF_A_CONFIG):
        found = _decided(document, ())
    if found is None:
        if data.get("model_type") is None and not at:
            missing = f"missing; supported: {', '.join(FAMILIES)}"
            raise InputError([document.problem(("model_type",), missing)])
        if not isinstance(data.get("model_type", ""), str):
            message = f"this family is not supported; supported: {', '.join(FAMILIES)}"
            raise InputError([document.problem(("model_type",), message)])
    elif not at and data.get("model_type") in found.aliases and "hidden_size" not in data:
        message = f"must be a mapping with the configuration of the language model ({found.family})"
        raise InputError([document.problem(("text_config",), message)])
    elif _inside(data, at).get("is_encoder_decoder") is True:
        message = "an encoder with a decoder is not supported; language models are decoders alone"
        raise InputError([document.problem((*at, "is_encoder_decoder"), message)])
    return found, at


def _decided(document: Document, at: Location) -> type[FamilyConfig] | None:
    """Return the family that the section at a place states."""
    section = _inside(document.data, at)
    if family := family_called(section.get("model_type")):
        return family
    classes = section.get("architectures")
    named = [one for one in classes if isinstance(one, str)] if isinstance(classes, list) else []
    found = {one.family: one for one in map(family_of_class, named) if one is not None}
    if len(found) > 1:
        text = f"names the families {' and '.join(found)}; write the right one as model_type"
        raise InputError([document.problem((*at, "architectures"), text)])
    return next(iter(found.values()), None)


def _unknown(family: str, keys: Mapping[str, Any], error: InputError) -> str:
    """Return what is said of a family that is not known and whose keys give no draft, with the reason."""
    from simoffload.models.drafts import similar_families

    first = error.problems[0]
    key = first.key.split(".")[-1]
    reason = f"its keys give no draft: {key}{': ' if key else ''}{first.message}"
    text = f"this family is not supported{similar_families(keys, family)}; supported: {', '.join(FAMILIES)}"
    return f"{text}; {reason}"


def _config_path(text: str, *, root: Path | None, allow_path: bool) -> Path:
    path = (root or Path()) / text
    with file_errors(text):
        if path.is_dir():
            path /= "config.json"
    inside = root is None or resolved(path).is_relative_to(resolved(root))
    if not inside and not allow_path:
        raise InputError.at("model", f"{quoted(text)} is outside the scenario's folder")
    return path


_CONFIG = "config.json"
_OF_A_CONFIG = frozenset({"model_type", "architectures"})
_OF_A_SCENARIO = frozenset({"model", "platform", "workload", "strategy"})
_SNAPSHOT = re.compile(r"models--(?:.+--)?(.+)")
"""Folder of a model in the cache of the Hugging Face hub."""


def _label_of(path: Path, document: Document) -> str:
    """Return the name of a config.json: that of its folder or file, or the one that it states, whichever
    names a listed model; otherwise that of its folder or file."""
    file = path.parent.resolve() / path.name  # in the cache of the hub files are links
    held = file.parts[-4] if file.parent.parent.name == "snapshots" and len(file.parts) > 3 else ""
    if cached := _SNAPSHOT.fullmatch(held):
        return cached[1]
    name = path.stem if path.name != _CONFIG else file.parent.name
    short = re.sub(r"[-_.]config$", "", name.rpartition("--")[2]) or name
    stated = document.data.get("_name_or_path")
    known = stated.rstrip("/").rpartition("/")[2] if isinstance(stated, str) else ""
    if known and not resembles_model(short) and resembles_model(known):
        return known
    return short


_IN_CONFIG = re.compile(
    r"(?:nv|mx)?fp[48](?:a16)?|awq|gptq|int[48]|nf4|w\d+a\d+|w4afp8|bnb|[348]bits?|autoround"
)
"""Word of a name for a form that a config.json or a file beside it states."""
_BETWEEN_WORDS = re.compile(r"[-_.\s]+")


def _check_unstated(document: Document, label: str) -> None:
    """Raise InputError for a config.json that states no form of the weights although its name says one."""
    stated = document.data.get("_name_or_path")
    names = (label, stated.rpartition("/")[2] if isinstance(stated, str) else "")
    parts = [part for name in names for part in _BETWEEN_WORDS.split(name.lower())]
    terms = [part for part in parts if _IN_CONFIG.fullmatch(part)]
    if not terms:
        return
    from simoffload.models.quantization import form_of
    from simoffload.models.quantization_config import BESIDE

    word, form = terms[0], form_of(terms, None)
    give = form.name or either([*form.instead]) or "…"
    if "fp" in word:
        where = f"the format is in {BESIDE}; put it beside, or give quantization: {give}"
    else:
        where = f"give quantization: {give}"
    text = f"the name says {word.upper()}, but no key states in which format the weights are; {where}"
    raise InputError([document.problem((), f"{text} (none: 16 bits)")])
