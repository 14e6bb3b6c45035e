"""GGUF files: the model, the tensors and their types, exactly; and what is wrong with damaged files."""

from __future__ import annotations

import random
import struct
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest

from simoffload.errors import InputError
from simoffload.models import load_model
from simoffload.models.formats import GGUF_TYPES
from simoffload.models.gguf_file import ARCHITECTURES, read_gguf, tensor_names
from tests.models.gguf_files import Tensor, header, llama, llama_tensors, tensors_of, text, written

_DENSE = """
    all attn_norm.weight h
    all attn_q.weight h,q
    all attn_k.weight h,k
    all attn_v.weight h,k
    all attn_output.weight q,h
"""
_OUTSIDE = """
    - token_embd.weight h,v
    - output_norm.weight h
"""
_HEAD = "- output.weight h,v\n"
_NETWORK = """
    all ffn_gate.weight h,f
    all ffn_up.weight h,f
    all ffn_down.weight f,h
"""
_EXPERTS = """
    moe ffn_gate_inp.weight h,e
    moe ffn_gate_exps.weight h,x,e
    moe ffn_up_exps.weight h,x,e
    moe ffn_down_exps.weight x,h,e
"""
_NORMED = "all attn_q_norm.weight d\n all attn_k_norm.weight d\n"
_BIASES = "all attn_q.bias q\n all attn_k.bias k\n all attn_v.bias k\n"
_FFN_NORM, _POST_NORM = "all ffn_norm.weight h\n", "all post_attention_norm.weight h\n"


class _Case:
    """Metadata and tensors of a released model; a name of one letter in the table is a size."""

    def __init__(
        self,
        name: str,
        architecture: str,
        table: str,
        *,
        layers: int,
        moe: int = -1,
        kinds: dict[str, range] | None = None,
        keys: dict[str, Any] | None = None,
        **sizes: int,
    ) -> None:
        self.name, self.architecture = name, architecture
        heads, kv = sizes["heads"], sizes.get("kv", sizes["heads"])
        sizes.setdefault("d", sizes["h"] // heads)
        sizes |= {"q": heads * sizes["d"], "k": kv * sizes["d"]}
        found: dict[str, Any] = {
            "block_count": layers,
            "embedding_length": sizes["h"],
            "context_length": 4096,
            "attention.head_count": heads,
            "attention.head_count_kv": kv,
            "attention.key_length": sizes["d"],
            "feed_forward_length": sizes.get("f", sizes.get("x", 0)),
            **({"expert_count": sizes["e"], "expert_used_count": sizes["used"]} if "e" in sizes else {}),
            **(keys or {}),
        }
        self.metadata = {"general.architecture": architecture, "general.file_type": 7}
        self.metadata |= {f"{architecture}.{key}": one for key, one in found.items()}
        of_kind = {"all": range(layers), "moe": range(max(moe, 0), layers), "dense": range(max(moe, 0))}
        self.tensors = tensors_of(table, of_kind | (kinds or {}), sizes)


_MOE = {"layers": 48, "h": 2048, "x": 768, "heads": 32, "kv": 4, "d": 128, "e": 128, "used": 8, "v": 151936}
_SHARED = """
    moe ffn_gate_shexp.weight h,s
    moe ffn_up_shexp.weight h,s
    moe ffn_down_shexp.weight s,h
"""
_NETWORK_DENSE = _NETWORK.replace("all", "dense")
_LATENT = """
    all attn_norm.weight h
    all attn_q_a.weight h,1536
    all attn_q_a_norm.weight 1536
    all attn_q_b.weight 1536,24576
    all attn_kv_a_mqa.weight h,576
    all attn_kv_a_norm.weight 512
    all attn_k_b.weight 128,512,128
    all attn_v_b.weight 512,128,128
    all attn_output.weight 16384,h
    moe exp_probs_b.bias e
"""
_LINEAR = """
    all attn_norm.weight h
    full attn_q.weight h,8192
    full attn_k.weight h,k
    full attn_v.weight h,k
    full attn_q_norm.weight d
    full attn_k_norm.weight d
    full attn_output.weight q,h
    linear attn_qkv.weight h,8192
    linear attn_gate.weight h,4096
    linear ssm_conv1d.weight 4,8192
    linear ssm_dt.bias 32
    linear ssm_a 32
    linear ssm_ba.weight h,64
    linear ssm_norm.weight 128
    linear ssm_out.weight 4096,h
    all ffn_gate_inp_shexp.weight h
"""
_FUSED = """
    all attn_norm.weight h
    all attn_norm.bias h
    all attn_qkv.weight h,w
    all attn_qkv.bias w
    all attn_output.weight h,h
    all attn_output.bias h
    all ffn_norm.weight h
    all ffn_norm.bias h
    all ffn_up.weight h,f
    all ffn_up.bias f
    all ffn_down.weight f,h
    all ffn_down.bias h
    - output_norm.bias h
"""
_LINEAR_LAYERS = [layer for layer in range(48) if (layer + 1) % 4]
CASES = [
    _Case(
        "llama-3.1-8b",
        "llama",
        _OUTSIDE + _HEAD + _DENSE + _FFN_NORM + _NETWORK + "- rope_freqs.weight 64",
        layers=32,
        h=4096,
        f=14336,
        heads=32,
        kv=8,
        v=128256,
    ),
    _Case(
        "mixtral-8x7b",
        "llama",
        _OUTSIDE + _HEAD + _DENSE + _FFN_NORM + _EXPERTS,
        layers=32,
        h=4096,
        x=14336,
        heads=32,
        kv=8,
        v=32000,
        e=8,
        used=2,
    ),
    _Case(
        "qwen2.5-0.5b",
        "qwen2",
        _OUTSIDE + _DENSE + _BIASES + _FFN_NORM + _NETWORK,
        layers=24,
        h=896,
        f=4864,
        heads=14,
        kv=2,
        v=151936,
    ),
    _Case(
        "qwen3-0.6b",
        "qwen3",
        _OUTSIDE + _DENSE + _NORMED + _FFN_NORM + _NETWORK,
        layers=28,
        h=1024,
        f=3072,
        heads=16,
        kv=8,
        d=128,
        v=151936,
    ),
    _Case("qwen3-30b-a3b", "qwen3moe", _OUTSIDE + _HEAD + _DENSE + _NORMED + _FFN_NORM + _EXPERTS, **_MOE),
    _Case(
        "gemma-2-2b",
        "gemma2",
        _OUTSIDE + _DENSE + _POST_NORM + _FFN_NORM + _NETWORK + "all post_ffw_norm.weight h",
        layers=26,
        h=2304,
        f=9216,
        heads=8,
        kv=4,
        d=256,
        v=256000,
        keys={"attention.sliding_window": 4096},
    ),
    _Case(
        "gemma-3-1b",
        "gemma3",
        _OUTSIDE + _DENSE + _NORMED + _POST_NORM + _FFN_NORM + _NETWORK + "all post_ffw_norm.weight h",
        layers=26,
        h=1152,
        f=6912,
        heads=4,
        kv=1,
        d=256,
        v=262144,
        keys={"attention.sliding_window": 512},
    ),
    _Case(
        "phi-3-mini",
        "phi3",
        _OUTSIDE
        + _HEAD
        + _FFN_NORM
        + """
            all attn_norm.weight h
            all attn_qkv.weight h,9216
            all attn_output.weight h,h
            all ffn_up.weight h,16384
            all ffn_down.weight f,h""",
        layers=32,
        h=3072,
        f=8192,
        heads=32,
        v=32064,
        keys={"rope.dimension_count": 96, "attention.sliding_window": 2047},
    ),
    _Case(
        "gpt-oss-20b",
        "gpt-oss",
        _OUTSIDE
        + _HEAD
        + _DENSE
        + _BIASES
        + _POST_NORM
        + _EXPERTS
        + """
            all attn_output.bias h
            all attn_sinks.weight heads
            all ffn_gate_inp.bias e
            all ffn_gate_exps.bias x,e
            all ffn_up_exps.bias x,e
            all ffn_down_exps.bias h,e""",
        layers=24,
        h=2880,
        x=2880,
        heads=64,
        kv=8,
        d=64,
        v=201088,
        e=32,
        used=4,
        keys={"attention.sliding_window": 128},
    ),
    _Case(
        "deepseek-v3",
        "deepseek2",
        _OUTSIDE + _HEAD + _LATENT + _FFN_NORM + _NETWORK_DENSE + _EXPERTS + _SHARED,
        layers=61,
        moe=3,
        h=7168,
        f=18432,
        x=2048,
        s=2048,
        heads=128,
        kv=1,
        d=576,
        v=129280,
        e=256,
        used=8,
        keys={
            "leading_dense_block_count": 3,
            "expert_shared_count": 1,
            "expert_gating_func": 2,
            "attention.q_lora_rank": 1536,
            "attention.kv_lora_rank": 512,
            "attention.key_length_mla": 192,
            "attention.value_length_mla": 128,
            "rope.dimension_count": 64,
        },
    ),
    _Case(
        "qwen3-next-80b-a3b",
        "qwen3next",
        _OUTSIDE + _HEAD + _LINEAR + _POST_NORM + _EXPERTS + _SHARED,
        layers=48,
        h=2048,
        x=512,
        s=512,
        heads=16,
        kv=2,
        d=256,
        v=151936,
        e=512,
        used=10,
        kinds={"full": range(3, 48, 4), "linear": _LINEAR_LAYERS},
        keys={
            "ssm.conv_kernel": 4,
            "ssm.state_size": 128,
            "ssm.group_count": 16,
            "ssm.time_step_rank": 32,
            "ssm.inner_size": 4096,
            "full_attention_interval": 4,
            "rope.dimension_count": 64,
        },
    ),
    _Case(
        "minimax-m2",
        "minimax-m2",
        _OUTSIDE
        + _HEAD
        + _DENSE
        + _FFN_NORM
        + _EXPERTS
        + """
            all attn_q_norm.weight q
            all attn_k_norm.weight k
            all exp_probs_b.bias e""",
        layers=62,
        h=3072,
        x=1536,
        heads=48,
        kv=8,
        d=128,
        v=200064,
        e=256,
        used=8,
        keys={"expert_feed_forward_length": 1536, "rope.dimension_count": 64},
    ),
    _Case(
        "glm-4.5",
        "glm4moe",
        _OUTSIDE + _HEAD + _DENSE + _NORMED + _BIASES + _POST_NORM + _NETWORK_DENSE + _EXPERTS + _SHARED,
        layers=92,
        moe=3,
        h=5120,
        f=12288,
        x=1536,
        s=1536,
        heads=96,
        kv=8,
        d=128,
        v=151552,
        e=160,
        used=8,
        keys={"leading_dense_block_count": 3, "expert_shared_count": 1, "rope.dimension_count": 64},
    ),
    _Case(
        "llama-4-scout",
        "llama4",
        _OUTSIDE + _HEAD + _DENSE + _FFN_NORM + _EXPERTS + _SHARED,
        layers=48,
        h=5120,
        x=8192,
        s=8192,
        heads=40,
        kv=8,
        d=128,
        v=202048,
        e=16,
        used=1,
        keys={"interleave_moe_layer_step": 1, "feed_forward_length": 16384},
    ),
    _Case(
        "phi-3.5-moe",
        "phimoe",
        _OUTSIDE
        + _HEAD
        + _DENSE
        + _BIASES
        + _FFN_NORM
        + _EXPERTS
        + """
            all attn_norm.bias h
            all attn_output.bias h
            all ffn_norm.bias h
            - output_norm.bias h
            - output.bias v""",
        layers=32,
        h=4096,
        x=6400,
        heads=32,
        kv=8,
        v=32064,
        e=16,
        used=2,
    ),
    _Case(
        "olmo-2-1b",
        "olmo2",
        _OUTSIDE
        + _HEAD
        + _DENSE.replace("all attn_norm.weight h", "")
        + _POST_NORM
        + _NETWORK
        + """
            all attn_q_norm.weight q
            all attn_k_norm.weight k
            all post_ffw_norm.weight h""",
        layers=16,
        h=2048,
        f=8192,
        heads=16,
        v=100352,
    ),
    _Case(
        "qwen1.5-moe-a2.7b",
        "qwen2moe",
        _OUTSIDE
        + _HEAD
        + _DENSE
        + _BIASES
        + _FFN_NORM
        + _EXPERTS
        + _SHARED
        + "all ffn_gate_inp_shexp.weight h",
        layers=24,
        h=2048,
        x=1408,
        s=5632,
        heads=16,
        v=151936,
        e=60,
        used=4,
    ),
    _Case(
        "bloom-560m",
        "bloom",
        _OUTSIDE + _FUSED + "- token_embd_norm.weight h\n- token_embd_norm.bias h",
        layers=24,
        h=1024,
        f=4096,
        w=3072,
        heads=16,
        v=250880,
    ),
    _Case(
        "pythia-70m", "gptneox", _OUTSIDE + _HEAD + _FUSED, layers=6, h=512, f=2048, w=1536, heads=8, v=50304
    ),
    _Case(
        "falcon-7b",
        "falcon",
        _OUTSIDE
        + """
            all attn_norm.weight h
            all attn_norm.bias h
            all attn_qkv.weight h,4672
            all attn_output.weight h,h
            all ffn_up.weight h,f
            all ffn_down.weight f,h
            - output_norm.bias h""",
        layers=32,
        h=4544,
        f=18176,
        heads=71,
        kv=1,
        v=65024,
    ),
]


@pytest.mark.parametrize("case", CASES, ids=[one.name for one in CASES])
def test_files_of_released_models_have_their_shapes(case: _Case, tmp_path: Path) -> None:
    file = written(tmp_path / f"{case.name}-Q8_0.gguf", case.metadata, case.tensors)
    found, named = load_model(str(file)), load_model({"name": case.name, "quantization": "none"})
    assert (found.name, found.quantization, found.notes) == (f"{case.name}, q8_0", "q8_0", named.notes)
    buffers = sum(one.numel for one in read_gguf(file).tensors.values() if one.name.endswith(_BUFFERS))
    assert found.num_parameters == named.num_parameters + buffers
    assert found.active_parameters == named.active_parameters + buffers
    assert found.kv_cache_bytes(batch=3, tokens=9000) == named.kv_cache_bytes(batch=3, tokens=9000)
    assert found.state_bytes == named.state_bytes
    assert (found.num_hidden_layers, found.family) == (named.num_hidden_layers, named.family)
    names = [module.name for layer in found.layers for module in layer]
    assert names == [module.name for layer in named.layers for module in layer]
    assert found.weight_bytes == sum(one.bytes for one in case.tensors)
    parts = (*enumerate(named.layers), (-1, (*named.modules_before, *named.modules_after)))
    owned = [(layer, one) for layer, modules in parts for module in modules for one in module.parameters]
    written_names = {name for layer, one in owned for name in tensor_names(named, layer, one)}
    assert written_names == {one.name for one in case.tensors if not one.name.endswith(_BUFFERS)}


_BUFFERS = ("rope_freqs.weight", "exp_probs_b.bias")


def test_every_architecture_has_a_case() -> None:
    assert {one.architecture for one in CASES} == ARCHITECTURES.keys() - {"mistral3"}


def test_mixed_types_are_those_of_the_file(tmp_path: Path) -> None:
    file = written(tmp_path / "small-Q4_K_M.gguf", llama(), llama_tensors())
    found = load_model({"config": "small-Q4_K_M.gguf"}, root=tmp_path)
    first, second = found.layers
    types = {
        (at, one.name): one.storage.format.name
        for at, layer in enumerate((first, second))
        for module in layer
        for one in module.parameters
        if one.storage is not None
    }
    assert types[0, "self_attn.v_proj.weight"] == "q6_k"
    assert types[1, "self_attn.v_proj.weight"] == "q4_k"
    assert types[1, "mlp.down_proj.weight"] == "q6_k"
    assert types[0, "input_layernorm.weight"] == "f32"
    assert found.weight_bytes == sum(one.bytes for one in llama_tensors()) < file.stat().st_size
    assert (found.name, found.vocab_size) == ("small, q4_k_m", 512)


def test_a_dynamic_mixture_is_that_of_its_file(tmp_path: Path) -> None:
    """Unsloth's types differ by tensor and layer; without the file they are an estimate, as a note says."""
    case = next(one for one in CASES if one.name == "mixtral-8x7b")
    cycle = ("iq4_xs", "q5_k", "q4_k", "iq3_xxs", "q6_k")
    tensors = [
        one if one.type == "f32" else one._replace(type=cycle[at % 5] if "exps" in one.name else "bf16")
        for at, one in enumerate(case.tensors)
    ]
    for part, some in enumerate((tensors[::2], tensors[1::2])):
        own = {"split.no": part, "split.count": 2, "split.tensors.count": len(tensors)}
        name = f"Mixtral-8x7B-UD-Q4_K_XL-0000{part + 1}-of-00002.gguf"
        written(tmp_path / name, {**(case.metadata if part == 0 else {}), **own}, some)
    found = load_model({"config": "Mixtral-8x7B-UD-Q4_K_XL-00001-of-00002.gguf"}, root=tmp_path)
    assert found.weight_bytes == sum(one.bytes for one in tensors)
    assert found.quantization == "ud-q4_k_xl"
    assert not any("Unsloth" in note for note in found.notes)
    guessed = load_model({"name": "mixtral-8x7b", "quantization": "UD-Q4_K_XL"})
    (note,) = (one for one in guessed.notes if "Unsloth" in one)
    assert "(an estimate); the file itself, named as the model, has its own types" in note


def test_another_quantization_replaces_that_of_the_file(tmp_path: Path) -> None:
    file = written(tmp_path / "small.gguf", llama(), llama_tensors())
    found = load_model({"config": str(file), "quantization": "q8_0"})
    assert found.quantization == "q8_0"
    assert {one.storage.format.name for one in found.layers[0][3].parameters if one.storage} == {"q8_0"}


def test_two_types_in_one_parameter_keep_their_bytes(tmp_path: Path) -> None:
    case = next(one for one in CASES if one.name == "mixtral-8x7b")
    tensors = [one._replace(type="q4_k") if "ffn_up_exps" in one.name else one for one in case.tensors]
    found = load_model(str(written(tmp_path / "a.gguf", case.metadata, tensors)))
    assert found.weight_bytes == sum(one.bytes for one in tensors)
    experts = next(one for one in found.layers[0] if one.name == "mlp.experts")
    assert experts.parameters[0].storage is not None
    assert experts.parameters[0].storage.format is GGUF_TYPES["q8_0"]  # the larger one


def test_a_fused_projection_is_divided(tmp_path: Path) -> None:
    def fused(one: Tensor) -> Tensor | None:
        if one.name.endswith(("attn_k.weight", "attn_v.weight")):
            return None
        if one.name.endswith("attn_q.weight"):
            return Tensor(one.name.replace("attn_q", "attn_qkv"), (256, 512), "q4_k")
        return one

    tensors = [made for one in llama_tensors() if (made := fused(one))]
    found = load_model(str(written(tmp_path / "a.gguf", llama(), tensors)))
    assert found.weight_bytes == sum(one.bytes for one in tensors)


def test_layers_that_predict_further_tokens_are_left_out_with_a_note(tmp_path: Path) -> None:
    more = [one for one in llama_tensors(layers=3) if one.name.startswith("blk.2.")]
    metadata = {**llama(layers=3), "llama.nextn_predict_layers": 1}
    found = load_model(str(written(tmp_path / "a.gguf", metadata, [*llama_tensors(), *more])))
    assert found.num_hidden_layers == 2
    assert found.notes[0].startswith(
        "368 kB of the file are in no module of llama and left out: blk.2.attn_norm.weight, "
    )


def _split(folder: Path, parts: int = 3) -> list[Path]:
    tensors, paths = llama_tensors(), []
    for part in range(parts):
        own = {"split.no": part, "split.count": parts, "split.tensors.count": len(tensors)}
        metadata = {**(llama() if part == 0 else {}), **own}
        path = folder / f"m-Q4_K_M-0000{part + 1}-of-0000{parts}.gguf"
        paths.append(written(path, metadata, tensors[part::parts]))
    return paths


def test_any_part_of_a_split_file_names_all_of_it(tmp_path: Path) -> None:
    paths = _split(tmp_path)
    whole = load_model(str(written(tmp_path / "m-Q4_K_M.gguf", llama(), llama_tensors())))
    for path in paths:
        found = load_model(str(path))
        assert (found.name, found.weight_bytes) == (whole.name, whole.weight_bytes)


def _refusal(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        load_model(str(path))
    assert len(caught.value.problems) == 1
    return str(caught.value)


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    paths = _split(tmp_path)
    paths[1].unlink()
    assert "m-Q4_K_M-00002-of-00003.gguf: no such file; it is a part of m-Q4_K_M, and all 3" in _refusal(
        paths[0]
    )
    renamed = paths[2].rename(paths[1])
    assert "is part 3 of 3 by its metadata, 2 of 3 by its name" in _refusal(_copy(renamed, paths[2]))
    alone = _copy(paths[0], tmp_path / "alone.gguf")
    assert "is one of 3 parts" in _refusal(alone)


def _copy(path: Path, to: Path) -> Path:
    to.write_bytes(path.read_bytes())
    return to


def test_parts_of_two_models_do_not_fit(tmp_path: Path) -> None:
    paths = _split(tmp_path)
    own = {"split.no": 1, "split.count": 3}
    written(paths[1], own, [Tensor("token_embd.weight", (256, 512), "q4_k")])
    assert "a tensor is in several of its parts" in _refusal(paths[0])
    written(paths[1], own, [])
    assert "its parts have 15 tensors instead of 22" in _refusal(paths[0])


_CHANGED = {
    "magic": ({"magic": b"GGML"}, "is not a GGUF file: it begins with b'GGML'"),
    "version": ({"version": 1}, "has version 1 of GGUF; known: 2 and 3"),
    "later version": ({"version": 4}, "has version 4"),
    "big-endian": ({"version": 3 << 24}, "is big-endian"),
    "tensors": (
        {"tensors": 10**18},
        "says that it has 1,000,000,000,000,000,000 tensors, of at most 100,000",
    ),
    "keys": ({"keys": 2**63}, "keys, of at most 100,000"),
    "more tensors": ({"tensors": 30_000}, "the tensor has 0 dimensions"),
}


@pytest.mark.parametrize(("changed", "message"), _CHANGED.values(), ids=_CHANGED)
def test_beginnings_that_cannot_be(changed: dict[str, Any], message: str, tmp_path: Path) -> None:
    whole, _ = header(llama(), llama_tensors())
    _, _, tensors, keys = struct.unpack_from("<4sIQQ", whole)
    fields = {"magic": b"GGUF", "version": 3, "tensors": tensors, "keys": keys} | changed
    (tmp_path / "a.gguf").write_bytes(struct.pack("<4sIQQ", *fields.values()) + whole[24:])
    began = perf_counter()
    assert message in _refusal(tmp_path / "a.gguf")
    assert perf_counter() - began < 2


def _with(*tensors: Tensor) -> list[Tensor]:
    names = {one.name for one in tensors}
    return [one for one in llama_tensors() if one.name not in names] + list(tensors)


def _without(name: str) -> list[Tensor]:
    return [one for one in llama_tensors() if one.name != name]


_Q = "blk.0.attn_q.weight"
_WRONG: dict[str, tuple[dict[str, Any], list[Tensor], str]] = {
    "architecture": ({"general.architecture": "rwkv7"}, llama_tensors(), '"rwkv7" is not supported'),
    "no architecture": (
        {"general.architecture": 7},
        llama_tensors(),
        "general.architecture: missing, or not",
    ),
    "no tensors": ({}, [], "has no tensors"),
    "lacks one": ({}, _without(_Q), f"has no tensor {_Q} or blk.0.attn_qkv.weight"),
    "another size": ({}, _with(Tensor(_Q, (256, 128), "q4_k")), f"{_Q}: has 32,768 weights; by the metadata"),
    "twice": ({}, [*llama_tensors(), llama_tensors()[4]], "blk.0.attn_norm.weight: the tensor occurs twice"),
    "rows": ({}, _with(Tensor(_Q, (100, 256), "q4_k")), f"{_Q}: rows of 100 weights are no multiple of 256"),
    "lists": ({"llama.attention.head_count": [4, 2]}, llama_tensors(), "differs between layers"),
    "heads": ({"llama.attention.head_count": 0}, llama_tensors(), "num_attention_heads"),
    "layers": ({"llama.block_count": "many"}, llama_tensors(), "num_hidden_layers"),
    "alignment": ({"general.alignment": 12}, llama_tensors(), "general.alignment: must be a power of two"),
    "no size": ({"llama.embedding_length": -1.5}, llama_tensors(), "hidden_size"),
}


@pytest.mark.parametrize(("metadata", "tensors", "message"), _WRONG.values(), ids=_WRONG)
def test_models_that_cannot_be(
    metadata: dict[str, Any], tensors: list[Tensor], message: str, tmp_path: Path
) -> None:
    assert message in _refusal(written(tmp_path / "a.gguf", {**llama(), **metadata}, tensors))


def test_types_that_ggml_does_not_have(tmp_path: Path) -> None:
    whole, size = header({}, [Tensor("a", (32,))])
    at = whole.index(text("a")) + len(text("a")) + 4 + 8
    for number in (4, 31, 38, 43, 2**32 - 1):
        (tmp_path / "a.gguf").write_bytes(
            whole[:at] + struct.pack("<I", number) + whole[at + 4 :] + bytes(size)
        )
        assert f"a: the tensor has type {number}, which llama.cpp does not know" in _refusal(
            tmp_path / "a.gguf"
        )


def test_a_truncated_file_is_refused_wherever_it_ends(tmp_path: Path) -> None:
    file = written(tmp_path / "a.gguf", llama(), llama_tensors())
    whole = file.read_bytes()
    head, _ = header(llama(), llama_tensors())
    for end in (*range(0, len(head), 97), len(head), len(whole) - 40):
        file.write_bytes(whole[:end])
        message = _refusal(file)
        assert "truncated" in message or "is not a GGUF file" in message


@pytest.mark.parametrize("length", [2**63, 2**40, 10**9])
def test_texts_and_lists_of_absurd_length_take_no_time_and_no_memory(length: int, tmp_path: Path) -> None:
    start = struct.pack("<4sIQQ", b"GGUF", 3, 0, 1)
    values = {
        "key": struct.pack("<Q", length),
        "text": text("k") + struct.pack("<IQ", 8, length),
        "texts": text("k") + struct.pack("<IIQ", 9, 8, length),
        "numbers": text("k") + struct.pack("<IIQ", 9, 4, length),
        "lists": text("k") + struct.pack("<IIQ", 9, 9, length),
    }
    began = perf_counter()
    for name, one in values.items():
        (tmp_path / f"{name}.gguf").write_bytes(start + one + bytes(64))
        _refusal(tmp_path / f"{name}.gguf")
    assert perf_counter() - began < 2


def test_hundreds_of_damaged_headers_give_one_message_each(tmp_path: Path) -> None:
    chance = random.Random(38)
    whole, size = header(llama(vocabulary=32), llama_tensors(vocabulary=32))
    file, refused = tmp_path / "a.gguf", 0
    for _ in range(400):
        damaged = bytearray(whole)
        for _ in range(chance.choice((1, 1, 3, 20))):
            at = chance.randrange(len(damaged))
            if chance.random() < 0.3:
                damaged[at : at + 8] = chance.randbytes(min(8, len(damaged) - at))
            else:
                damaged[at] = chance.randrange(256)
        file.write_bytes(damaged + bytes(size))
        messages = _messages(file)
        refused += bool(messages)
        assert all(one and "\n" not in one for one in messages)
    assert refused > 200


def _messages(file: Path) -> list[str]:
    try:
        load_model(str(file))
    except InputError as error:
        return [one.message for one in error.problems]
    return []
