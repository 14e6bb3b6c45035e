"""What models have beside their language model: tensors as in transformers (towers-5.json), without work."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from simoffload.errors import InputError
from simoffload.models import ModelShape, load_model, module_cost
from simoffload.models.towers import beside

TOWERS = json.loads(Path(__file__).with_name("towers-5.json").read_text(encoding="utf-8"))
TEXT = {
    "model_type": "qwen3_vl_text",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 100,
}
VISION = {
    "depth": 2,
    "hidden_size": 32,
    "intermediate_size": 48,
    "patch_size": 4,
    "temporal_patch_size": 2,
    "spatial_merge_size": 2,
    "num_position_embeddings": 16,
    "out_hidden_size": 64,
    "deepstack_visual_indexes": [0],
}
WHOLE = {"model_type": "qwen3_vl", "text_config": TEXT, "vision_config": VISION}


def read(tmp_path: Path, config: dict[str, Any], **keys: Any) -> ModelShape:
    (tmp_path / "c.json").write_text(json.dumps(config), encoding="utf-8")
    return load_model({"config": "c.json", **keys}, root=tmp_path)


@pytest.mark.parametrize("name", TOWERS)
def test_every_tensor_is_that_of_transformers(name: str) -> None:
    expected = TOWERS[name]
    modules, notes = beside([expected["config"]], expected["width"])
    found: dict[str, list[int]] = {}
    for module in modules:
        for one in module.parameters:
            found.setdefault(re.sub(r"\.\d+(?=\.)", ".N", one.name), []).append(one.numel)
    assert {key: [len(sizes), *sorted(set(sizes))] for key, sizes in found.items()} == expected["tensors"]
    assert len(notes) == 1
    assert "not counted" not in notes[0]


def test_a_tower_is_in_memory_and_does_no_work(tmp_path: Path) -> None:
    whole, text = read(tmp_path, WHOLE), read(tmp_path, TEXT)
    (tower,) = (one for one in whole.modules_before if not one.share)
    assert whole.num_parameters == text.num_parameters + tower.num_parameters
    assert whole.weight_bytes == text.weight_bytes + 2 * tower.num_parameters
    assert whole.active_parameters == text.active_parameters
    assert whole.least_read_bytes == text.least_read_bytes
    cost = module_cost(whole, tower, batch=3, new_tokens=1, context=9)
    assert (cost.flops, cost.bytes) == (0.0, 0.0)
    assert whole.kinds == text.kinds
    (note,) = whole.notes
    assert f"model.visual ({tower.num_parameters:,})" in note


@pytest.mark.parametrize("form", ["fp8", "q4_k_m", "nf4"])
def test_a_tower_stays_in_16_bits(form: str, tmp_path: Path) -> None:
    whole, text = (read(tmp_path, one, quantization=form) for one in (WHOLE, TEXT))
    (tower,) = (one for one in whole.modules_before if not one.share)
    assert whole.weight_bytes == text.weight_bytes + 2 * tower.num_parameters


@pytest.mark.parametrize("section", ["text_config", "language_config", "llm_config"])
def test_sections_of_the_language_model(section: str, tmp_path: Path) -> None:
    config = {"model_type": "strange_vl", section: TEXT, "vision_config": VISION}
    assert read(tmp_path, config).num_parameters == read(tmp_path, WHOLE).num_parameters


def test_the_thinker_of_an_omni_model(tmp_path: Path) -> None:
    thinker = {
        "model_type": "thinker",
        "text_config": TEXT,
        "vision_config": VISION,
        "audio_config": {"a": 1},
    }
    config = {"model_type": "strange_omni", "thinker_config": thinker, "talker_config": {"b": 2}}
    found = read(tmp_path, config)
    assert found.num_parameters == read(tmp_path, WHOLE).num_parameters
    parts = "talker and its projector, audio and its projector"
    assert f"not counted, beside the language model: {parts}" in found.notes[0]


def test_a_size_that_is_missing_is_named(tmp_path: Path) -> None:
    vision = {key: value for key, value in VISION.items() if key != "depth"}
    found = read(tmp_path, {**WHOLE, "vision_config": vision})
    assert found.num_parameters == read(tmp_path, TEXT).num_parameters
    assert "vision and its projector (no depth in vision_config)" in found.notes[0]
    for wrong in ("two", -1, 10**15, None, {}):
        again = read(tmp_path, {**WHOLE, "vision_config": {**VISION, "depth": wrong}})
        assert "not counted" in again.notes[0]


def test_what_no_key_describes_is_named(tmp_path: Path) -> None:
    (note,) = read(tmp_path, {**WHOLE, "vision_config": {"model_type": "new"}}).notes
    assert note == "not counted, beside the language model: vision and its projector"


def test_embeddings_are_tied_unless_one_of_both_says_otherwise(tmp_path: Path) -> None:
    sizes = {}
    for outer in (None, True, False):
        for inner in (None, True, False):
            text = TEXT if inner is None else {**TEXT, "tie_word_embeddings": inner}
            whole = WHOLE if outer is None else {**WHOLE, "tie_word_embeddings": outer}
            sizes[outer, inner] = read(tmp_path, {**whole, "text_config": text}).num_parameters
    untied = sizes[None, None]
    tied = {both for both, size in sizes.items() if size == untied - 100 * 64}
    assert tied == {(None, True), (True, None), (True, True)}
    assert all(size == untied for both, size in sizes.items() if both not in tied)


def test_llama_4_has_its_tower_although_a_file_says_nothing_of_it() -> None:
    """The count is that of the released tensors of Scout, 108,641,793,536."""
    text = load_model("llama-4-scout").num_parameters
    modules, notes = beside([{"model_type": "llama4", "text_config": {}}], 5120)
    assert text + sum(one.num_parameters for one in modules) == 108_641_793_536
    assert "not counted" not in notes[0]
    assert not beside([{"model_type": "llama4", "vision_config": None}], 5120).modules


# -- which family a file is of -----------------------------------------------------------------


@pytest.mark.parametrize("kind", [None, "", "deepseek_ref", "qwen9"])
def test_architectures_decide_where_model_type_is_no_family(kind: str | None, tmp_path: Path) -> None:
    flat = {**TEXT, "model_type": kind, "architectures": ["Qwen3ForCausalLM"]}
    found = read(tmp_path, flat)
    assert found.family == "qwen3"
    assert found == read(tmp_path, TEXT)
    inner = {**WHOLE, "model_type": "strange_vl", "text_config": flat}
    assert read(tmp_path, inner).family == "qwen3"
    known = read(tmp_path, {**flat, "model_type": "llama"})
    assert known.family == "llama"


def test_the_whole_decides_where_the_section_says_nothing(tmp_path: Path) -> None:
    inner = {key: value for key, value in TEXT.items() if key != "model_type"}
    assert read(tmp_path, {**WHOLE, "text_config": inner}) == read(tmp_path, WHOLE)
    other = read(tmp_path, {**WHOLE, "text_config": {**inner, "model_type": "qwen9_text"}})
    assert other.family == "draft"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            {**WHOLE, "llm_config": {**TEXT, "hidden_size": 32}},
            "text_config and llm_config may both have the",
        ),
        (
            {**TEXT, "model_type": "new", "architectures": ["LlamaForCausalLM", "Qwen3ForCausalLM"]},
            "architectures: names the families llama and qwen3; write the right one as model_type",
        ),
        ({"model_type": "qwen3_vl", "vision_config": VISION}, "text_config: must be a mapping with the"),
        ({**TEXT, "is_encoder_decoder": True}, "is_encoder_decoder: an encoder with a decoder is not"),
        (
            {**WHOLE, "text_config": {**TEXT, "is_encoder_decoder": True}},
            "text_config.is_encoder_decoder: an",
        ),
        ({"architectures": ["BertModel"]}, "model_type: missing; supported: bloom"),
    ],
)
def test_what_is_not_clear_is_refused(config: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        read(tmp_path, config)


def test_two_sections_that_are_equal_are_one(tmp_path: Path) -> None:
    assert read(tmp_path, {**WHOLE, "llm_config": TEXT}) == read(tmp_path, WHOLE)
