"""The sizes that every family has in its configuration, and their conversion to a shape."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from inspect import isabstract
from typing import Annotated, Any, ClassVar, NamedTuple, Self

from pydantic import ConfigDict, Field, ModelWrapValidatorHandler, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from simoffload.documents import Frozen
from simoffload.errors import shortened
from simoffload.models.modules import Attention, Dtype, Module, Traits
from simoffload.models.shape import DEFAULT, Layer, ModelShape, Routing, grouped

_OF_ALL = {"mtp_num_hidden_layers": "num_nextn_predict_layers"}
"""Other names of keys of every family."""

# Limits far above any model, so that a typing error gives a message instead of a very long run.
Count = Annotated[int, Field(strict=True, ge=1, le=100_000)]
Width = Annotated[int, Field(strict=True, ge=1, le=1_000_000)]
Extent = Annotated[int, Field(strict=True, ge=1, le=10_000_000)]  # vocabulary, positions, feed-forward
Flag = Annotated[bool, Field(strict=True)]


TIME_IS_A_BOUND = (
    "the time of recurrent layers is a lower bound: only vLLM's kernels that update states were measured"
)


class ModuleLists(NamedTuple):
    """A model's modules in the order of their pre-forward hooks."""

    before: tuple[Module, ...]
    layers: tuple[Layer, ...]
    """Every layer; equal ones are best the same object."""
    after: tuple[Module, ...]


class Derived(NamedTuple):
    """Derived sizes have the same names in all families."""

    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    max_position_embeddings: int | None
    projected_key_value_heads: int | None = None
    softcapped: bool = False
    value_head_dim: int | None = None
    latent_width: int | None = None
    latent_rank: int | None = None
    num_experts: int = 0
    experts_per_token: int = 0


class FamilyConfig(Frozen, ABC):
    """A configuration with Hugging Face's keys; keys without influence on the shape are ignored.

    A family is a class with ``family``, ``traits``, ``derived()``, ``modules()`` and, if layers have sliding
    windows, ``windows()``. Every class must state the first two itself: Python refuses one that would inherit
    them (TypeError).
    """

    model_config = ConfigDict(extra="ignore")

    family: ClassVar[str]
    """Hugging Face's ``model_type`` of this family."""
    traits: ClassVar[Traits]
    spellings: ClassVar[Mapping[str, str]] = {}
    """Other names that Hugging Face accepts for a key of this family."""
    routing: ClassVar[Routing] = DEFAULT
    """How unevenly tokens are routed to experts unless a scenario states it."""
    aliases: ClassVar[tuple[str, ...]] = ()
    """Other ``model_type`` of which it is the language model: of models that take more than text, and of the
    section in which they have its keys."""
    by_layer: ClassVar[tuple[str, ...]] = ("layer_types", "mlp_layer_types")
    """Keys of lists with an entry for each layer, of which a family has some. With another number of layers a
    file's lists do not apply, but what the family does without them."""
    further: ClassVar[int] = 0
    """Number of modules that predict further tokens where ``num_nextn_predict_layers`` is not stated."""

    num_hidden_layers: Count
    hidden_size: Width
    num_attention_heads: Count
    vocab_size: Extent
    num_nextn_predict_layers: Annotated[int, Field(strict=True, ge=0, le=1000)] | None = None
    """Number of modules that predict further tokens; ``mtp_num_hidden_layers`` is another name."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        if isabstract(cls) and "family" not in cls.__dict__:
            return  # what several families have in common
        own = {"family", "traits"} - cls.__dict__.keys()
        lacking = sorted(own | cls.__abstractmethods__)
        if lacking:
            raise TypeError(f"the family of class {cls.__name__} lacks {', '.join(lacking)}")

    @model_validator(mode="wrap")
    @classmethod
    def _one_spelling(cls, raw: object, check: ModelWrapValidatorHandler[Self]) -> Self:
        if not isinstance(raw, Mapping):
            return check(raw)
        written: dict[str, str] = {}
        clashes: set[str] = set()
        found: list[InitErrorDetails] = []
        for given, value in raw.items():
            other = written.setdefault(cls.usual_name(str(given), raw), given)
            if (type(raw[other]), raw[other]) != (type(value), value):
                clashes |= {other, given}
                twice = f"is {_shown(value)}, and {other}, another name of it, {_shown(raw[other])}; keep one"
                found.append(_detail(given, twice, value))
        try:
            config = check(cls._unpadded({name: raw[given] for name, given in written.items()}))
            if not found:
                config.check_lists()
                return config.checked()
        except ValidationError as error:
            found += (one for one in _as_written(error, written) if clashes.isdisjoint(one["loc"]))
        raise ValidationError.from_exception_data("model", found)

    @classmethod
    def usual_name(cls, key: str, keys: Mapping[str, Any]) -> str:  # noqa: ARG003
        """Return the first spelling of a key, which may depend on the others beside it."""
        return cls.spellings.get(key, _OF_ALL.get(key, key))

    @classmethod
    def replaced(cls, base: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
        """Return the configuration ``base`` with the values of ``overrides``.

        Keys of ``overrides`` may have any accepted spelling; the result has the first spelling of each.
        """
        gone = {cls.usual_name(key, overrides) for key in overrides}
        gone |= set(cls.by_layer if "num_hidden_layers" in gone else ())
        return {**{key: value for key, value in base.items() if key not in gone}, **overrides}

    @classmethod
    def _unpadded(cls, keys: dict[str, Any]) -> dict[str, Any]:
        """Return keys in which lists of layers end before those of modules that predict further tokens."""
        depth, more = keys.get("num_hidden_layers"), keys.get("num_nextn_predict_layers", cls.further)
        for key in cls.by_layer:
            listed = keys.get(key)
            if isinstance(listed, list) and type(depth) is type(more) is int and len(listed) == depth + more:
                keys[key] = listed[:depth]
        return keys

    @classmethod
    def known_keys(cls) -> frozenset[str]:
        """Return every key that may be set, in every spelling."""
        fields = (field.alias or name for name, field in cls.model_fields.items())
        return frozenset({*fields, *cls.spellings, *_OF_ALL})

    def shape(
        self,
        *,
        name: str,
        dtype: Dtype,
        attention: Attention | None = None,
        routing: Routing | None = None,
    ) -> ModelShape:
        """Return the shape of the model."""
        modules = self.modules()
        updates = any(one.chunked.flops for layer in set(modules.layers) for one in layer)
        return ModelShape(
            family=self.family,
            name=name,
            hidden_size=self.hidden_size,
            num_attention_heads=self.num_attention_heads,
            vocab_size=self.vocab_size,
            dtype=dtype,
            attention=attention or self.default_attention,
            traits=self.own_traits,
            routing=routing or self.routing,
            modules_before=modules.before,
            groups=grouped(_marked(modules.layers, self.windows())),
            modules_after=modules.after,
            notes=(*self.notes, TIME_IS_A_BOUND) if updates else self.notes,
            predictors=self.predictors,
            **self.derived()._asdict(),
        )

    def check_lists(self) -> None:
        """Raise pydantic's ValidationError if a list has not one entry for each layer."""
        for key in self.by_layer:
            self._one_for_each_layer(key, getattr(self, key, None))

    def checked(self) -> Self:
        """Return the configuration itself; pydantic's ValidationError if its sizes contradict each other."""
        return self

    @property
    def default_attention(self) -> Attention:
        """The implementation of attention that transformers 5 uses by default."""
        return self.traits.attention

    @property
    def own_traits(self) -> Traits:
        """The traits of the family, where they depend on the model those of the model."""
        return self.traits

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about what the shape does not contain, or only bounds."""
        return ()

    @property
    def predictors(self) -> tuple[int, ...]:
        """The number of the layer that each module which predicts a further token is like: the last one."""
        stated = self.num_nextn_predict_layers
        return (-1,) * (self.further if stated is None else stated)

    @abstractmethod
    def derived(self) -> Derived:
        """Return the model's sizes under the names that all families share."""

    def windows(self) -> tuple[int | None, ...]:
        """Return the sliding window of the attention of each layer; None for one without."""
        return (None,) * self.num_hidden_layers

    @abstractmethod
    def modules(self) -> ModuleLists:
        """Return every module in the order of the pre-forward hooks."""

    def _one_for_each_layer(self, key: str, listed: Sized | None) -> None:
        if listed is not None and len(listed) != self.num_hidden_layers:
            message = f"{key} lists {len(listed)} layers, num_hidden_layers is {self.num_hidden_layers}"
            raise invalid(key, message, len(listed))

    def _whole_heads(self) -> None:
        if self.hidden_size % self.num_attention_heads:
            raise invalid(
                "num_attention_heads",
                f"hidden_size {self.hidden_size} is not a multiple of num_attention_heads "
                f"{self.num_attention_heads}",
                self.num_attention_heads,
            )


def _marked(layers: Sequence[Layer], windows: Sequence[int | None]) -> list[Layer]:
    """Return layers of which the first module is marked as the layer itself, and attention with its window;
    equal layers remain the same object."""
    known: dict[tuple[int, int | None], Layer] = {}
    for layer, window in zip(layers, windows, strict=True):
        if (id(layer), window) not in known:
            block, *inside = layer
            known[id(layer), window] = (
                block._replace(code="block"),
                *(one._replace(window=window) if one.kind == "attention" else one for one in inside),
            )
    return [known[id(layer), window] for layer, window in zip(layers, windows, strict=True)]


def _as_written(error: ValidationError, written: Mapping[str, str]) -> Iterator[InitErrorDetails]:
    """Yield the problems with the keys as the user spelled them; ``written`` maps keys to their spelling."""
    for one in error.errors(include_url=False):
        message = re.sub(r"\w+", lambda word: written.get(word[0], word[0]), one["msg"])
        problem = PydanticCustomError("model_shape", "{message}", {"message": message})
        kind = problem if one["type"] == "model_shape" else one["type"]
        loc = tuple(written.get(str(part), part) for part in one["loc"])
        yield InitErrorDetails(type=kind, loc=loc, input=one["input"], ctx=one.get("ctx", {}))


def _shown(value: object) -> str:
    return shortened(repr(value))


def invalid(key: str, message: str, value: object) -> ValidationError:
    """Return an error that pydantic reports at ``key`` of the object that it validates."""
    return all_invalid([(key, message, value)])


def all_invalid(problems: Iterable[tuple[str, str, object]]) -> ValidationError:
    """Return one error for several (key, message, value)."""
    return ValidationError.from_exception_data("model", [_detail(*problem) for problem in problems])


def _detail(key: str, message: str, value: object) -> InitErrorDetails:
    problem = PydanticCustomError("model_shape", "{message}", {"message": message})
    return InitErrorDetails(type=problem, loc=(key,), input=value)
