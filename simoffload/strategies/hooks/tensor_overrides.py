"""Tensors that patterns of their names send to a device: llama.cpp's ``--override-tensor`` (``-ot``).

Reference: common/arg.cpp (``parse_tensor_buffer_overrides``) and src/llama-model-loader.cpp
(``create_tensor``) of llama.cpp@0c1e5709. A list is divided at commas, each pattern from its device at the
first "="; the first pattern that is found anywhere in the name of a tensor decides. An automaton looks for
them in a time that grows with the length of the name alone, where ``std::regex`` may need one that grows
exponentially.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from typing import Annotated, NamedTuple

from pydantic import BeforeValidator

from simoffload.documents import quoted, suggest
from simoffload.errors import InputError
from simoffload.models import ModelShape, Module
from simoffload.models.gguf_file import tensor_names
from simoffload.models.module_names import ANY_TEXT, VALID, Automaton, conditions_of, read_expression
from simoffload.models.module_names import Sequence as Parts

CPU, _GPU = "CPU", "CUDA0"
_LONGEST, _MOST = 1000, 1000
"""Most characters of a pattern, and most patterns."""

Overrides = Annotated[
    tuple[str, ...], BeforeValidator(lambda value: (value,) if isinstance(value, str) else value)
]
"""Patterns as a list, or one of them."""
Shares = dict[tuple[int, str], Fraction]
"""Share of the bytes of a module, by the number of its layer (-1: outside) and its name, that is in host
memory."""


class TensorOverride(NamedTuple):
    """A TensorOverride is a pattern of names with its device."""

    text: str
    place: str
    on_cpu: bool
    searches: tuple[tuple[Automaton, bool], ...]
    """What must be found, or must not."""

    def found_in(self, name: str) -> bool:
        """Return whether the pattern is found in the name of a tensor."""
        return all(automaton.match(name) == wanted for automaton, wanted in self.searches)


def read_overrides(texts: Sequence[str], path: str) -> tuple[TensorOverride, ...]:
    """Read PATTERN=DEVICE. Raises InputError for what is not valid, and for another device."""
    found = [_read(one, f"{path}[{number}]") for number, text in enumerate(texts) for one in text.split(",")]
    if len(found) > _MOST:
        raise InputError.at(path, f"{len(found):,} patterns; at most {_MOST:,} may be")
    return tuple(found)


def _read(text: str, place: str) -> TensorOverride:
    pattern, sign, device = text.partition("=")
    if not pattern or not sign:
        raise InputError.at(place, f'{quoted(text)} is not PATTERN=DEVICE, such as "ffn_.*_exps=CPU"')
    if device not in (CPU, _GPU):
        known = f"{suggest(device, (CPU, _GPU))}; those of {CPU} and {_GPU} are"
        raise InputError.at(place, f"tensors on {quoted(device)} are not simulated{known}")
    if len(pattern) > _LONGEST:
        raise InputError.at(place, f"has {len(pattern):,} characters; at most {_LONGEST:,} may be")
    try:
        expression = read_expression(pattern)
        anywhere = expression if pattern.startswith("^") else Parts((ANY_TEXT, expression))
        searches = tuple([(Automaton([part]), wanted) for part, wanted in conditions_of(anywhere)])
    except ValueError as error:
        raise InputError.at(place, f"the pattern {quoted(pattern)}: {error}; {VALID}") from None
    return TensorOverride(text, place, device == CPU, searches)


def overridden(
    model: ModelShape, overrides: Sequence[TensorOverride], holds: Callable[[int, Module], bool]
) -> Shares:
    """Return the shares of the modules of which a pattern is found in the name of a tensor.

    ``holds`` returns whether a module is in host memory without patterns. Raises InputError for a pattern
    that decides nothing, or that sends a tensor to the GPU which other settings send to the CPU.
    """
    found, seen = Shares(), set[str]()
    for layer, module in _modules(model):
        size, on_cpu, decided = 0, Fraction(0), False
        inside = holds(layer, module)
        for one in module.parameters:
            names = tensor_names(model, layer, one)
            stored = one.stored_bytes(model.dtype_bytes)
            size += stored
            for name in names:
                first = next((each for each in overrides if each.found_in(name)), None)
                if first is not None:
                    decided = True
                    seen.add(first.place + first.text)
                    _check(first, name, inside)
                here = inside if first is None else first.on_cpu
                on_cpu += Fraction(stored * here, len(names))
            on_cpu += stored * inside * (not names)
        if decided and size:
            found[layer, module.name] = on_cpu / size
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
    if first.on_cpu or not inside:
        return
    if name == "token_embd.weight":
        text = "has embeddings on the GPU, which is not simulated: they are looked up in host memory"
    else:
        text = (
            f"sends {name} to the GPU, but gpu_layers, cpu_moe or cpu_ffn to the CPU; leave one of them out"
        )
    raise InputError.at(first.place, f"{quoted(first.text)} {text}")
