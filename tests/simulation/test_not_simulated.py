"""Where a model exceeds the GPUs of a desktop, answers name programs that compute on the CPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

import simoffload as so
from simoffload.hardware.wiring import Setting
from simoffload.planning.compare import compare_scenarios
from simoffload.report.from_comparison import comparison_document
from simoffload.report.from_result import result_document
from simoffload.results.capacity import TierUse
from simoffload.simulation import fit
from simoffload.simulation.capacity import not_simulated
from simoffload.units import formatted_apart

NAMED = "llama.cpp (strategy.kind llama_cpp) computes layers or experts on the CPU"


def named(scenario: str, *overrides: str) -> int:
    """Number of warnings with the sentence, in a result and in its document."""
    result = fit(so.load_scenario(scenario, overrides=list(overrides)))
    found = sum(NAMED in one and "several times faster" in one for one in result.warnings)
    assert found == sum(NAMED in one for one in result_document(result).warnings)
    return found


@pytest.mark.parametrize(
    ("scenario", "overrides", "times"),
    [
        ("serving/llama-3.1-70b", (), 1),
        ("serving/llama-3.1-70b", ("model={name: llama-3.1-8b}",), 0),
        ("llama-cpp/gpt-oss-120b", (), 0),  # fits
        ("llama-cpp/gpt-oss-120b", ("platform=rtx-4090-desktop", "strategy={kind: vllm}"), 1),
        (
            "llama-cpp/gpt-oss-120b",
            ("model={name: llama-3.1-70b}", "strategy={kind: vllm}"),
            1,
        ),  # unified memory
        ("serving/qwen3-235b-a22b", (), 0),  # a server
        ("serving/gpt-oss-120b", ("model={name: llama-3.1-405b}",), 0),
        ("serving/llama-3.1-70b", ("strategy={kind: llama_cpp}", "model.quantization=q4_k_m"), 0),
        ("superoffload/qwen3-14b", ("platform=rtx-4090-desktop",), 0),  # training
    ],
)
def test_the_sentence_is_said_where_it_decides(scenario: str, overrides: tuple[str, ...], times: int) -> None:
    """On desktops and unified memory, for a model that generates and does not fit."""
    if times == 0 and "superoffload" in scenario:
        assert not not_simulated(so.load_scenario(scenario, overrides=list(overrides)))
    else:
        assert named(scenario, *overrides) == times


def test_a_comparison_says_it_once_for_its_rows() -> None:
    """Also of a target that is refused."""
    one = so.load_scenario(
        "llama-cpp/gpt-oss-120b", overrides=["platform=rtx-4090-desktop", "strategy={kind: vllm}"]
    )
    found = compare_scenarios({"a": one})
    document = comparison_document(list(found.results.values()))
    assert sum(NAMED in text for text in document.warnings) == 1
    assert NAMED in str(found.to_dict())


@pytest.mark.parametrize(
    ("setting", "display", "desktop"),
    [
        ("desk", "false", True),  # without a monitor
        ("rack", "false", True),  # the card is one for desktops
        (None, "true", True),
        ("desk", None, True),
        ("rack", None, False),
        (None, None, False),
    ],
)
def test_the_desk_or_the_class_of_the_card_decides(
    setting: Setting | None, display: str | None, desktop: bool
) -> None:
    """Neither a name nor whether a display is connected."""
    stated = [f"profiles.accelerator/rtx-4090.display={display}"] if display else []
    one = so.load_scenario("serving/llama-3.1-70b", overrides=stated)
    gpu = one.machine.accelerator
    gpu = gpu if display else gpu.model_copy(update={"display": None})
    changed = replace(one, machine=replace(one.machine, accelerator=gpu, setting=setting))
    assert changed.machine.is_personal is desktop
    assert len(not_simulated(changed)) == desktop


@pytest.mark.parametrize(("gpus", "words"), [(1, "the GPU"), (2, "both GPUs"), (3, "the 3 GPUs together")])
def test_it_names_the_gpus(gpus: int, words: str) -> None:
    one = so.load_scenario("serving/llama-3.1-70b", overrides=["model={name: llama-3.1-405b}"])
    (text,) = not_simulated(replace(one, machine=replace(one.machine, gpus=gpus)))
    assert f"does not fit {words}: llama.cpp" in text


@pytest.mark.parametrize(
    ("needed", "has", "texts"),
    [
        (79.236 * 2**30, 79.194 * 2**30, ("79.24 GiB", "79.19 GiB")),
        (2**30 * 80 + 1, 2**30 * 80, ("80.000000001 GiB", "80.000000000 GiB")),
        (120.4 * 2**30, 120.1 * 2**30, ("120.4 GiB", "120.1 GiB")),
        (9 * 2**30, 8 * 2**30, ("9 GiB", "8 GiB")),
    ],
)
def test_sizes_that_differ_look_different(needed: float, has: float, texts: tuple[str, str]) -> None:
    """However small the difference; the sentence of a tier has them."""
    assert formatted_apart(needed, has, binary=True) == texts
    use = TierUse("hbm", "hbm", "per GPU", int(needed), int(has), ())
    assert use.sentence() == f"hbm needs {texts[0]} per GPU, has {texts[1]}"
