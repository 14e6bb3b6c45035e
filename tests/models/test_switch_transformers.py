"""Switch Transformer: an encoder without a cache, a decoder with two, experts in some layers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simoffload import fit, load_scenario, simulate
from simoffload.cli import main
from simoffload.errors import InputError
from simoffload.models import load_model

INFERENCE = {
    "name": "switch",
    "model": "switch-base-128",
    "platform": "dgx-a100",
    "workload": {"kind": "inference", "batch_size": 8, "prompt_length": 500, "output_length": 12},
    "strategy": {"kind": "resident"},
}


def scenario(folder: Path, **changes: Any) -> Path:
    path = folder / "s.json"
    path.write_text(json.dumps({**INFERENCE, **changes}), encoding="utf-8")
    return path


def test_the_decoder_caches_every_position_once() -> None:
    """Cross-attention keeps those of the prompt, self-attention those of the result: both are as wide."""
    shape = load_model({"name": "switch-base-8", "num_layers": 12, "num_decoder_layers": 6})
    assert (shape.num_hidden_layers, shape.num_encoder_layers) == (18, 12)
    width = 2 * 12 * 64
    assert shape.kv_cache_bytes(batch=3, tokens=500 + 12) == 3 * 6 * 512 * width * 2


def test_experts_are_in_every_other_layer() -> None:
    shape = load_model("switch-base-8")
    sparse = [any(module.kind == "router" for module in layer) for layer in shape.layers]
    assert sparse == [False, True] * 12
    biases = [sum("relative_attention_bias" in module.name for module in layer) for layer in shape.layers]
    assert biases == [1] + 11 * [0] + [1] + 11 * [0]
    crossed = [any("EncDecAttention" in module.name for module in layer) for layer in shape.layers]
    assert crossed == [False] * 12 + [True] * 12
    every = load_model({"name": "switch-base-8", "num_sparse_encoder_layers": 12})
    assert sum(module.kind == "router" for layer in every.layers for module in layer) == 12 + 6


def test_one_expert_makes_the_dense_model_and_its_router() -> None:
    """The active parameters are those of a model with one expert, but for the rows of the routers."""
    one = load_model({"name": "switch-base-8", "num_experts": 1})
    assert one.active_parameters == one.num_parameters
    assert load_model("switch-base-8").active_parameters == one.num_parameters + 12 * 7 * 768


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_sparse_encoder_layers": 13}, "num_sparse_encoder_layers 13 is more than the 12 layers"),
        ({"num_sparse_decoder_layers": 13}, "num_sparse_decoder_layers 13 is more than the 12 layers"),
        ({"num_experts": 0}, "num_experts: must be at least 1"),
        ({"dense_act_fn": "gated"}, '"gated-gelu"'),
        ({"d_kv": "64"}, "d_kv: must be a whole number"),
        ({"d_model": 768, "hidden_size": 512}, "another name of it"),
    ],
)
def test_wrong_sizes_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        load_model({"name": "switch-base-8", **change})
    assert len(caught.value.problems) == 1


@pytest.mark.parametrize(
    ("strategy", "cache"),
    [
        ({"kind": "resident"}, 1.0),
        ({"kind": "zero_inference", "weights": "dram"}, 1.0),
        ({"kind": "tensor_parallel", "tensor_parallel_size": 2}, 0.5),
        ({"kind": "tensor_parallel", "pipeline_parallel_size": 2}, 1.0),
        ({"kind": "accelerate", "device_map": "cpu"}, 1.0),
    ],
)
def test_memory_of_inference(strategy: dict[str, Any], cache: float, tmp_path: Path) -> None:
    result = fit(load_scenario(scenario(tmp_path, strategy=strategy)))
    terms = {term.name: term.size for use in result.capacity for term in use.terms}
    positions = 500 + 12 - 1
    one = load_model("switch-base-128").kv_cache_bytes(batch=8, tokens=positions)
    assert terms["key-value cache"] == cache * one


def test_times_and_training_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    training = {
        "workload": {"kind": "training", "batch_size": 1, "sequence_length": 64},
        "strategy": {"kind": "zero_training"},
    }
    for changes in ({}, training):
        scenario(tmp_path, **changes)
        assert main(["run", "s.json"]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.count("\n") == 1
        assert ": model: switch_transformers has an encoder, which only the prompt passes through" in err


def test_checkpoints_of_its_weights_are_simulated(tmp_path: Path) -> None:
    """A checkpoint needs only the sizes."""
    path = scenario(
        tmp_path,
        workload={"kind": "checkpoint"},
        strategy={"kind": "checkpoint", "ranks": 8, "tier": "raid"},
    )
    assert simulate(load_scenario(path)).fits


@pytest.mark.parametrize(
    ("edits", "parameters"),
    [
        ({"num_sparse_decoder_layers": 3}, 619_339_008),
        ({"num_decoder_layers": 6}, 463_593_216),
        ({"encoder_sparse_step": 0}, 421_121_280),
    ],
)
def test_a_written_distance_of_layers_with_experts_decides(
    edits: dict[str, int], parameters: int, tmp_path: Path
) -> None:
    """transformers 5.23 sets further keys of a config.json last, so that they replace computed ones."""
    oracle = json.loads(Path(__file__).with_name("oracle-5.json").read_text(encoding="utf-8"))
    config = {**oracle["configs"]["switch-base-8"], **edits}
    (tmp_path / "c.json").write_text(json.dumps(config), encoding="utf-8")
    assert load_model({"config": "c.json"}, root=tmp_path).num_parameters == parameters
    fewer = {"config": "c.json", "num_sparse_decoder_layers": 3, "num_decoder_layers": 12}
    own = load_model({**fewer, "num_sparse_encoder_layers": 6}, root=tmp_path)
    named = load_model({"name": "switch-base-8", "num_sparse_decoder_layers": 3})
    assert own.num_parameters == named.num_parameters


def test_what_models_show_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "show", "switch-c-2048"]) == 0
    out = capsys.readouterr().out
    assert "1,571,509,451,168 parameters" in out
    assert "1,928,804,768 parameters active per token, 122,880 bytes of cache per token" in out
    assert "(15 layers of the encoder keep none)" in out
