"""Names of releases that are not listed."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from pathlib import Path

import pytest

from simoffload.errors import InputError
from simoffload.models import (
    ModelShape,
    canonical_model,
    find_model,
    is_model,
    list_models,
    load_model,
    model_file,
    model_label,
)


@pytest.mark.parametrize(
    ("name", "listed"),
    [
        ("Qwen3-235B", "qwen3-235b-a22b"),
        ("Qwen/Qwen3-235B-A22B-Instruct-2507", "qwen3-235b-a22b"),
        ("Qwen3-30B-A3B-Thinking-2507", "qwen3-30b-a3b"),
        ("DeepSeek-R1-0528", "deepseek-v3"),
        ("deepseek-ai/DeepSeek-V3-0324", "deepseek-v3"),
        ("DeepSeek-V2-Chat", "deepseek-v2"),
        ("Kimi-K2-Instruct-0905", "kimi-k2"),
        ("Qwen3-8B-Base", "qwen3-8b"),
        ("Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("GLM-4.5", "glm-4.5"),
        ("zai-org/GLM-4.7", "glm-4.5"),  # not GLM-4.7-Flash
        ("meta-llama/Llama-3.3-70B-Instruct", "llama-3.3-70b"),
        ("Qwen/Qwen3-32B", "qwen3-32b"),
        ("openai/gpt-oss-120b", "gpt-oss-120b"),
        ("mistralai/Mistral-Small-24B-Instruct-2501", "mistral-small"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b"),
        ("bigscience/bloom", "bloom-176b"),
        ("Llama 3.3 70B", "llama-3.3-70b"),
        ("llama_3.3_70b", "llama-3.3-70b"),
    ],
)
def test_a_release_is_its_model(name: str, listed: str) -> None:
    assert load_model(name) == load_model(listed)
    assert is_model(name)
    assert is_model(name.rpartition("/")[2])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("llama-3.1", '"llama-3.1" may be llama-3.1-8b, llama-3.1-70b, llama-3.1-405b; write which'),
        ("Llama-3.1-7B-Instruct", "unknown model"),
        ("-instruct", "unknown model"),
        ("pythia", "may be "),
        ("mistralai/Mistral-Small-Instruct-2409", "unknown model"),  # 22 billion parameters, not 24
        ("mistralai/Mistral-7B-Instruct-v0.2", "unknown model"),
        ("moonshotai/Kimi-K2-Thinking", "its experts are stored in 4 bits"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", "unknown model"),  # ties no embeddings
        ("google/gemma-2b", "unknown model"),
        ("mlx-community/Qwen3-8B-MLX-4bit", "a format of Apple's MLX, which no program here runs"),
        ("RedHatAI/Qwen3-8B-quantized.w8a8", "not modelled; write qwen3-8b:int8-g128 or the path"),
        ("qwen3-8b-4bit", "does not say in which form; write qwen3-8b:int4-g128 (GPTQ, AWQ), "),
        ("qwen3-8b:q4_k_x", 'is called "q4-k-x"; write qwen3-8b:q4_k_s, qwen3-8b:q4_k_m, qwen3-8b:q4_k_l'),
        ("qwen3-8b:70b", 'unknown model "qwen3-8b:70b"'),
        ("llama3.4:70b", 'did you mean "llama-3.3-70b"?'),
        ("qwen3.5-400b", 'did you mean "qwen3.5-397b-a17b"?'),
        ("qwen4-8b", 'did you mean "qwen3-8b"?'),
        ("Qwen/Qwen3-VL-7B-Instruct", 'did you mean "qwen3-vl-8b"?'),
        ("google/gemma-4-27b-it", 'did you mean "gemma-4-26b-a4b"?'),
        ("deepseek-v5", 'did you mean "deepseek-v4-pro" or "deepseek-v4-flash"?'),
        ("kimi-k4", 'did you mean "kimi-k3"?'),
        ("gemma-3n-e4b", 'did you mean "gemma-3-4b"?'),
        ("13b", 'did you mean "opt-13b", "llama-2-13b" or "olmo-2-13b"?'),
        ("gpt-oss", '"gpt-oss" may be gpt-oss-20b, gpt-oss-120b; write which'),
    ],
)
def test_what_may_be_several_is_refused(name: str, message: str) -> None:
    assert not is_model(name)
    with pytest.raises(InputError, match=re.escape(message)):
        load_model(name)


@pytest.mark.parametrize(
    ("name", "row", "form"),
    [
        ("Qwen/Qwen3-30B-A3B-Instruct-2507-FP8", "qwen3-30b-a3b", "fp8"),
        ("RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic", "llama-3.3-70b", "fp8-channel"),
        ("amd/Llama-3.1-70B-Instruct-FP8-KV", "llama-3.1-70b", "fp8"),
        ("Qwen/Qwen3-32B-AWQ", "qwen3-32b", "int4-g128"),
        ("Qwen/Qwen2.5-72B-Instruct-GPTQ-Int4", "qwen2.5-72b", "int4-g128"),
        ("Qwen/Qwen2.5-72B-Instruct-GPTQ-Int8", "qwen2.5-72b", "int8-g128"),
        ("hugging-quants/Meta-Llama-3.1-8B-Instruct-AWQ-INT4", "llama-3.1-8b", "int4-g128"),
        ("RedHatAI/Meta-Llama-3.1-70B-Instruct-quantized.w4a16", "llama-3.1-70b", "int4-g128"),
        ("unsloth/Llama-3.3-70B-Instruct-bnb-4bit", "llama-3.3-70b", "nf4-dq"),
        ("nvidia/Qwen3-235B-A22B-NVFP4", "qwen3-235b-a22b", "nvfp4"),
        ("nvidia/DeepSeek-R1-0528-FP4", "deepseek-v3", "nvfp4"),
        ("unsloth/Qwen3-30B-A3B-Instruct-2507-GGUF", "qwen3-30b-a3b", "q4_k_m"),
        ("hf.co/unsloth/Qwen3-8B-GGUF:UD-Q4_K_XL", "qwen3-8b", "ud-q4_k_xl"),
        ("qwen3-8b:Q4_K_M", "qwen3-8b", "q4_k_m"),
        ("Qwen3-8B-IQ4_NL", "qwen3-8b", "iq4_nl"),
        ("bartowski/google_gemma-3-27b-it-GGUF", "gemma-3-27b", "q4_k_m"),
        ("google/gemma-3-27b-it-qat-q4_0-gguf", "gemma-3-27b", "q4_0"),
        ("llama3.3:70b", "llama-3.3-70b", "q4_k_m"),  # what Ollama loads
        ("llama3.3:70b-instruct-q4_K_M", "llama-3.3-70b", "q4_k_m"),
        ("llama3.3:70b-instruct-fp16", "llama-3.3-70b", "none"),
        ("llama3.3:latest", "llama-3.3-70b", "q4_k_m"),
        ("gemma3:27b", "gemma-3-27b", "q4_k_m"),
        ("deepseek-r1:70b", "llama-3.3-70b", "q4_k_m"),  # distilled, into that shape
        ("deepseek-r1:671b", "deepseek-v3", "q4_k_m"),
        ("qwen3-coder:30b", "qwen3-30b-a3b", "q4_k_m"),
        ("qwen3-coder-30b", "qwen3-30b-a3b", None),
        ("gpt-oss:120b", "gpt-oss-120b", None),
        ("unsloth/gpt-oss-120b-GGUF", "gpt-oss-120b", None),  # MXFP4, as released
        ("unsloth/gpt-oss-20b-BF16", "gpt-oss-20b", "none"),
        ("deepseek-ai/DeepSeek-V3.1", "deepseek-v3", None),
        ("deepseek-v3:fp8", "deepseek-v3", None),
        ("unsloth/Qwen3-8B-128K-GGUF", "qwen3-8b", "q4_k_m"),
        ("https://huggingface.co/Qwen/Qwen3-8B", "qwen3-8b", None),
    ],
)
def test_a_name_says_the_form_of_the_weights(name: str, row: str, form: str | None) -> None:
    found = find_model(name)
    assert (found.name, found.form) == (row, form)
    stated = {"name": row} if form is None else {"name": row, "quantization": form}
    assert load_model(name) == load_model(stated)
    assert load_model(canonical_model(name)) == load_model(stated)


def test_what_a_scenario_states_comes_before_the_name() -> None:
    assert load_model({"name": "qwen3-8b:fp8", "quantization": "q4_k_m"}).name == "qwen3-8b, q4_k_m"
    assert load_model({"name": "qwen3-8b:fp8", "quantization": "none"}) == load_model("qwen3-8b")


def test_gguf_files_of_gpt_oss_keep_its_experts() -> None:
    released, other = load_model("gpt-oss-20b"), load_model("unsloth/gpt-oss-20b-GGUF:Q4_K_M")
    assert other.weight_bytes == released.weight_bytes
    (note,) = other.notes
    assert note.startswith("experts are in MXFP4 as released, as they are in GGUF files called Q4_K_M")


def test_a_name_of_many_words_costs_no_time() -> None:
    assert not is_model("qwen3-8b" + "-instruct-fp8" * 10**5)


def test_every_id_of_the_hub_in_the_data_is_its_model() -> None:
    for name in list_models():
        for alias in find_model(name).size.names:
            assert find_model(f"some-organisation/{alias}").name == name


CONFIG = json.dumps(
    {
        "model_type": "llama",
        "num_hidden_layers": 2,
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "vocab_size": 1000,
        "max_position_embeddings": 2048,
        "dtype": "bfloat16",
    }
)


def written(folder: Path, **more: object) -> str:
    """Write a config.json into a new folder and return its path."""
    folder.mkdir(parents=True)
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(CONFIG) | more))
    return str(file)


@pytest.mark.parametrize(
    ("folder", "stated", "name"),
    [
        ("Qwen3-8B", None, "Qwen3-8B"),
        ("mine", "meta-llama/Llama-3.1-8B", "Llama-3.1-8B"),
        ("mine", "/data/checkpoint-400", "mine"),
        ("Qwen3-8B", "meta-llama/Llama-3.1-8B", "Qwen3-8B"),
        ("models--Qwen--Qwen3-8B/snapshots/0a1b2c", None, "Qwen3-8B"),
    ],
)
def test_a_config_json_has_the_name_of_its_folder_or_the_one_it_states(
    folder: str, stated: str | None, name: str, tmp_path: Path
) -> None:
    file = written(tmp_path / folder, _name_or_path=stated)
    assert load_model({"config": file}).name == model_label(file) == name
    assert model_file(file) == model_file(f"{Path(file).parent}/") == file


@pytest.mark.parametrize(
    ("name", "give"),
    [
        ("Llama-3.1-8B-MXFP4-v2", "mxfp4"),
        ("Llama-3.1-8B-MXFP8", "mxfp8"),
        ("Llama-3.1-8B-NVFP4A16", "nvfp4-a16"),
        ("Llama-3.1-8B.w4a16", "int4-g128"),
        ("Llama-3.1-8B-Int4-RL", "int4-g128"),
        ("Llama-3.1-8B-AWQ", "int4-g128"),
        ("Llama-3.1-8B-GPTQ-Int8", "int8-g128"),
        ("Llama-3.1-8B-quantized.w8a8", "int8-g128"),
        ("Llama-3.1-8B-bnb-4bit", "nf4-dq"),
    ],
)
def test_every_word_for_a_format_needs_a_key(name: str, give: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"give quantization: {give} "):
        load_model(written(tmp_path / name))


@pytest.mark.parametrize("name", ["Llama-3.1-8B-Instruct-NVFP4", "Llama-3.1-8B-FP4", "Llama-3.1-8B-FP8"])
def test_a_config_json_whose_name_alone_says_a_format_is_refused(name: str, tmp_path: Path) -> None:
    form = "fp8" if name.endswith("FP8") else "nvfp4"
    file = written(tmp_path / name)
    text = f"the format is in hf_quant_config.json; put it beside, or give quantization: {form} "
    with pytest.raises(InputError, match=re.escape(text)):
        load_model(file)
    beside = Path(file).with_name("hf_quant_config.json")
    beside.write_text("{}")
    with pytest.raises(InputError, match=r"hf_quant_config.json:1:1: quant_algo is missing; valid: FP8, "):
        load_model(file)
    beside.write_text(json.dumps({"quantization": {"quant_algo": form.upper()}}))
    assert load_model(file).quantization == form
    beside.unlink()
    assert load_model({"config": file, "quantization": form}).quantization == form
    assert load_model({"config": file, "quantization": "none"}).quantization is None
    released = written(tmp_path / "stated" / name, quantization_config={"quant_method": "fp8"})
    assert load_model(released).quantization == "fp8"


def test_a_name_that_the_file_states_may_say_the_format(tmp_path: Path) -> None:
    file = written(tmp_path / "mine", _name_or_path="nvidia/Llama-3.1-8B-Instruct-FP4")
    with pytest.raises(InputError, match="the name says FP4, but no key states"):
        load_model(file)


COLLECTED = Path(__file__).parents[2].parent / "shared" / "data" / "model-configs"


@pytest.mark.skipif(not COLLECTED.is_dir(), reason="the collection of config.json files is not here")
def test_collected_files_are_read_in_their_format_or_refused() -> None:
    read = 0
    for file in sorted(COLLECTED.glob("*_config.json")):
        with suppress(InputError):
            shape = load_model(str(file))
            quantized = '"quantization_config"' in file.read_text()
            assert (shape.quantization is not None) is quantized, file
            named = shape.unquantized_name.removesuffix(" (draft)")
            assert named == file.name.removesuffix("_config.json").partition("--")[2]
            read += 1
    assert read >= 20


@pytest.mark.skipif(not COLLECTED.is_dir(), reason="the collection of config.json files is not here")
def test_every_collected_file_is_a_model_by_its_id() -> None:
    """With the tensors of its file; the name of Llama 4 has no tower, and the file of Step-3.7 none."""
    for file in sorted(COLLECTED.glob("*_config.json")):
        identifier = file.name.removesuffix("_config.json").replace("--", "/")
        rows = {
            find_model(one).name for one in (identifier, identifier.upper(), identifier.partition("/")[2])
        }
        (row,) = rows
        both = [{"name": row, "quantization": "none"}, {"config": str(file), "quantization": "none"}]
        (named, towers), (read, others) = map(parameters, map(load_model, both))
        assert named == read, identifier
        assert towers == others or row.startswith(("llama-4", "step-3.7")), identifier


def parameters(shape: ModelShape) -> tuple[int, int]:
    """Those of the language model, and of what is beside it."""
    beside = sum(one.num_parameters for one in shape.modules_before if not one.share)
    return shape.num_parameters - beside, beside


def test_years_are_stated() -> None:
    assert [name for name in list_models() if find_model(name).size.year is None] == [
        "bloom-mod-1",
        "bloom-mod-2",
    ]
