"""What is handed out as ``simoffload.NAME``: wrong arguments are refused, in words of Python."""

from __future__ import annotations

import inspect
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import simoffload as so
from simoffload.public import public

FUNCTIONS = {
    name: function
    for name in so.__all__
    if name != "metric" and not isinstance(function := getattr(so, name), type)
}
REQUIRED = {
    one: dict.fromkeys(
        key
        for key, parameter in inspect.signature(function).parameters.items()
        if parameter.default is parameter.empty and parameter.kind not in (2, 4)
    )
    for one, function in FUNCTIONS.items()
}
ARGUMENTS = [
    (name, key)
    for name, function in FUNCTIONS.items()
    for key, one in inspect.signature(function).parameters.items()
    if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
]
NONE_OF_ANY: tuple[Any, ...] = (object(), b"bytes", {1, 2}, iter(()), int)


@pytest.mark.parametrize(("name", "key"), ARGUMENTS)
def test_every_argument_refuses_what_it_cannot_be(name: str, key: str) -> None:
    for value in NONE_OF_ANY:
        with pytest.raises(so.InputError, match=rf"(?m)^{key}: must be .*, got "):
            FUNCTIONS[name](**REQUIRED[name] | {key: value})


@pytest.mark.parametrize(
    "options", ["gpu", "gpus", "memory", "drive", "platform", "program", "on", "context", "overrides"]
)
def test_what_is_named_beside_a_scenario_refuses_it_too(options: str) -> None:
    for value in NONE_OF_ANY:
        with pytest.raises(so.InputError, match=rf"^{options}: must be .*, got "):
            so.simulate("qwen3-8b", **{options: value})


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_no_function_takes_an_unknown_argument(name: str) -> None:
    with pytest.raises(so.InputError, match=r"^bogus: is no argument"):
        FUNCTIONS[name](**REQUIRED[name], bogus=1)


def test_a_missing_argument_is_a_type_error_as_of_any_function() -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'scenario'"):
        so.simulate()  # type: ignore[call-arg]


def test_all_wrong_arguments_are_told_at_once() -> None:
    with pytest.raises(so.InputError) as error:
        so.reach("qwen3-8b", slo=5, by=3)  # type: ignore[arg-type]
    assert [one.key for one in error.value.problems] == ["slo", "by"]


def test_what_was_given_is_told_briefly() -> None:
    for value, shown in (
        (None, "None"),
        (-1, "-1"),
        (float("nan"), "nan"),
        (1 << 16_609, "a number of 16610 bits"),
        (list(range(10**6)), "[0, 1, 2, 3, 4, 5, ...]"),
        (pd.DataFrame({"a": [1]}), "a DataFrame"),
        (Path("x"), "a PosixPath"),
    ):
        with pytest.raises(so.InputError) as error:
            so.sensitivity("accelerate/opt-30b", change=value)  # type: ignore[arg-type]
        assert str(error.value) == f"change: must be a number above 0, got {shown}"


def refusing(text: str) -> Callable[..., None]:
    def sweep(
        *axes: str, overwrite: bool = False, workers: int = 1, slo: str = "", overrides: str = ""
    ) -> None:
        _ = axes, overwrite, workers, slo, overrides
        raise so.InputError.at("workload.batch_size", text, path="--set")

    return public(sweep)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("give --overwrite", "give overwrite=True"),
        ("or give --workers 1", "or give workers=1"),
        ("with --set nodes=N", 'with overrides={"nodes": "N"}'),
        ("write --axis a.b=1,2", 'write "a.b=1,2"'),
        ("each with a --slo of its own", "each with a slo of its own"),
        ("after engine.timeout (--timeout)", "after engine.timeout"),
        ("vllm serve --max-num-seqs 8", "vllm serve --max-num-seqs 8"),
    ],
)
def test_refusals_name_arguments_where_commands_name_options(text: str, told: str) -> None:
    with pytest.raises(so.InputError) as error:
        refusing(text)()
    assert str(error.value) == f"overrides: workload.batch_size: {told}"


def test_public_functions_can_be_sent_to_other_processes() -> None:
    for function in FUNCTIONS.values():
        assert pickle.loads(pickle.dumps(function)) is function


def test_every_docstring_names_no_option_of_a_command() -> None:
    for name, function in FUNCTIONS.items():
        assert not re.search(r"``--(?!bufferSize)", function.__doc__ or ""), name
