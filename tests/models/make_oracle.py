"""Write what Hugging Face says about every named size: parameters, order of hooks, FLOPs.

Run it in an environment of its own (torch for the CPU is enough, no weights are loaded):

    pip install torch transformers==5.23.0 pyyaml    # or transformers==4.46.3
    python tests/models/make_oracle.py

It writes ``oracle-5.json`` (or ``oracle-4.json``) beside itself:

* ``sizes``: for every name in ``sizes.yaml``, built on the meta device at full depth: the total (tied
  weights once), and the tensors outside the layers and in each of them; where layers differ, ``runs`` lists
  the tensors of each run of equal layers with its length, or those of one period where kinds alternate;
  ``kinds`` and ``order`` are those of layers in no regular turn.
* ``configs``: for some of them, what transformers' own class writes as ``config.json`` (5.x only);
  ``within``: the same as ``text_config`` of a model that takes more than text.
  In a file of their own, ``towers-5.json``, what such models have beside their language model: names and
  sizes of its tensors on the meta device, those that differ in numbers alone together.
* ``calls``: for a tiny model of each kind, the modules in the order of their forward pre-hooks in a prefill
  and a decode step with a cache and eager attention, and the matrix FLOPs that torch counts in that step.
  Names of a layer's modules are relative to the layer; the model's own and the layer's own are class names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
import transformers
import yaml
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, PretrainedConfig

HERE = Path(__file__).parent
SIZES = HERE.parents[1] / "simoffload" / "models" / "sizes.yaml"
MAJOR = transformers.__version__.split(".")[0]
BEFORE_5 = ("bloom", "opt", "llama", "mixtral")
"""Families of which the modules are known as 4.46.3 calls them, too."""
WRITTEN = (
    *("qwen2.5-0.5b", "qwen3-0.6b", "mistral-7b-v0.1", "mistral-nemo", "gemma-2-2b", "gemma-3-1b"),
    *("phi-3-mini", "phi-4-mini", "pythia-70m", "gpt-neox-20b", "falcon-7b", "falcon-40b"),
    *("qwen1.5-moe-a2.7b", "qwen3-30b-a3b", "deepseek-v2-lite", "deepseek-v3", "gpt-oss-20b"),
    *("llama-4-scout", "llama-4-maverick", "glm-4.5-air", "phi-3.5-moe"),
    *("bloom-560m", "opt-350m", "llama-3.2-1b", "mixtral-8x7b", "kimi-k2"),
    *("olmo-2-7b", "minimax-m2", "qwen3-next-80b-a3b", "qwen3.5-27b", "qwen3.5-35b-a3b"),
    *("nemotron-3-nano-30b-a3b", "kimi-linear-48b-a3b"),
    *("gemma-4-26b-a4b", "deepseek-v3.2", "glm-5.2", "deepseek-v4-pro", "deepseek-v4-flash", "minimax-m3"),
    *("granite-4.0-h-small", "falcon-h1-34b", "bamba-9b", "minimax-text-01", "lfm2-1.2b", "lfm2-8b-a1b"),
    *("step-3.5-flash", "mimo-7b", "mimo-v2-flash"),
    *("glm-4.7-flash", "mistral-small-4", "dots.llm1", "ernie-4.5-21b-a3b"),
    *("jamba-1.5-mini", "ling-3.0-flash"),
    *("hunyuan-7b", "hunyuan-a13b", "k-exaone-236b-a23b"),
    *("smollm3-3b", "olmo-3-7b", "ernie-4.5-0.3b", "seed-oss-36b", "apertus-8b"),
    *("exaone-4-32b", "glm-4-32b-0414", "olmoe-1b-7b", "command-r7b"),
)
"""Sizes whose ``config.json`` is kept: at least one of each family."""
WITHIN = {
    "llama-4-scout": "llama4",
    "gemma-3-4b": "gemma3",
    "mistral-small-3.1": "mistral3",
    "qwen3.5-27b": "qwen3_5",
    "qwen3.5-35b-a3b": "qwen3_5_moe",
}
"""Sizes whose ``config.json`` is kept as that of a model of this type, which takes more than text."""
SMALL = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "vocab_size": 50}
TINY = {
    "bloom": ("bloom", SMALL),
    "opt": ("opt", {**SMALL, "ffn_dim": 64, "max_position_embeddings": 16}),
    "opt-post-norm": (
        "opt",
        {
            **SMALL,
            "ffn_dim": 64,
            "max_position_embeddings": 16,
            "word_embed_proj_dim": 16,
            "do_layer_norm_before": False,
        },
    ),
    "opt-plain": (
        "opt",
        {**SMALL, "ffn_dim": 64, "enable_bias": False, "layer_norm_elementwise_affine": False},
    ),
    "llama": ("llama", {**SMALL, "intermediate_size": 48, "num_key_value_heads": 2}),
    "llama-tied": (
        "llama",
        {
            **SMALL,
            "intermediate_size": 48,
            "head_dim": 6,
            "tie_word_embeddings": True,
            "attention_bias": True,
            "mlp_bias": True,
        },
    ),
    "mixtral": (
        "mixtral",
        {**SMALL, "intermediate_size": 48, "num_key_value_heads": 2, "num_local_experts": 4},
    ),
}
GATED = {**SMALL, "intermediate_size": 48, "num_key_value_heads": 2}
WIDE = {**GATED, "head_dim": 12}
FALCON = {**SMALL, "ffn_hidden_size": 48}
TINY |= {
    "qwen2": ("qwen2", GATED),
    "qwen2-window": (
        "qwen2",
        {**GATED, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
    ),
    "qwen3": ("qwen3", WIDE),
    "qwen3-bias": ("qwen3", {**WIDE, "attention_bias": True, "tie_word_embeddings": True}),
    "mistral": ("mistral", {**GATED, "sliding_window": None}),
    "mistral-window": ("mistral", {**WIDE, "sliding_window": 4}),
    "gemma2": ("gemma2", {**WIDE, "sliding_window": 4}),
    "gemma2-plain": ("gemma2", {**WIDE, "attn_logit_softcapping": None, "attention_bias": True}),
    "gemma3": ("gemma3_text", {**WIDE, "sliding_window": 4, "sliding_window_pattern": 2}),
    "gemma3-sliding": ("gemma3_text", {**WIDE, "sliding_window": 4}),
    "phi3": ("phi3", {**GATED}),
    "phi3-window": (
        "phi3",
        {**GATED, "sliding_window": 4, "partial_rotary_factor": 0.5},
    ),
    "gpt-neox": ("gpt_neox", {**SMALL, "intermediate_size": 48}),
    "gpt-neox-sequential": (
        "gpt_neox",
        {**SMALL, "intermediate_size": 48, "use_parallel_residual": False, "attention_bias": False},
    ),
    "falcon": ("falcon", FALCON),
    "falcon-groups": ("falcon", {**FALCON, "num_kv_heads": 2, "new_decoder_architecture": True}),
    "falcon-one-norm": (
        "falcon",
        {**FALCON, "num_kv_heads": 2, "new_decoder_architecture": True, "num_ln_in_parallel_attn": 1},
    ),
    "falcon-sequential": ("falcon", {**FALCON, "parallel_attn": False, "multi_query": False, "bias": True}),
}
ROUTED = {**GATED, "num_experts_per_tok": 2, "num_local_experts": 4}
LATENT = {
    **SMALL,
    "intermediate_size": 48,
    "moe_intermediate_size": 20,
    "n_routed_experts": 16,
    "num_experts_per_tok": 2,
    "kv_lora_rank": 12,
    "q_lora_rank": 10,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
    "num_key_value_heads": 4,
}
QWEN = {**GATED, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 20}
NEXT = {
    **QWEN,
    "head_dim": 12,
    "shared_expert_intermediate_size": 24,
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 6,
    "linear_value_head_dim": 10,
}
GLM = {**GATED, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 20}
LLAMA4 = {**ROUTED, "num_experts_per_tok": 1, "head_dim": 12, "intermediate_size_mlp": 60}
TINY |= {
    "qwen2-moe": ("qwen2_moe", {**QWEN, "shared_expert_intermediate_size": 24}),
    "qwen2-moe-mixed": ("qwen2_moe", {**QWEN, "mlp_only_layers": [0], "qkv_bias": False}),
    "qwen2-moe-dense": ("qwen2_moe", {**QWEN, "decoder_sparse_step": 3}),
    "qwen3-moe": ("qwen3_moe", {**QWEN, "head_dim": 12}),
    "qwen3-moe-mixed": ("qwen3_moe", {**QWEN, "decoder_sparse_step": 2, "attention_bias": True}),
    "deepseek-v2": ("deepseek_v2", {**LATENT, "first_k_dense_replace": 1}),
    "deepseek-v2-direct": ("deepseek_v2", {**LATENT, "q_lora_rank": None, "n_shared_experts": 1}),
    "deepseek-v2-dense": ("deepseek_v2", {**LATENT, "first_k_dense_replace": 2, "mlp_bias": True}),
    "deepseek-v3": ("deepseek_v3", {**LATENT, "first_k_dense_replace": 1}),
    "deepseek-v3-dense": ("deepseek_v3", {**LATENT, "first_k_dense_replace": 2, "attention_bias": True}),
    "kimi-k2": ("kimi_k2", {**LATENT, "first_k_dense_replace": 0}),
    "gpt-oss": ("gpt_oss", {**ROUTED, "head_dim": 12, "sliding_window": 4}),
    "llama4": ("llama4_text", {**LLAMA4, "interleave_moe_layer_step": 2}),
    "llama4-plain": ("llama4_text", {**LLAMA4, "no_rope_layers": [1, 0], "use_qk_norm": False}),
    "glm4-moe": ("glm4_moe", {**GLM, "use_qk_norm": True, "attention_bias": True}),
    "glm4-moe-dense": ("glm4_moe", {**GLM, "first_k_dense_replace": 2}),
    "phimoe": ("phimoe", {**ROUTED, "attention_bias": True, "lm_head_bias": True}),
    "olmo2": ("olmo2", GATED),
    "olmo2-bias": ("olmo2", {**GATED, "attention_bias": True, "tie_word_embeddings": True}),
    "minimax-m2": ("minimax_m2", {**ROUTED, "head_dim": 12}),
    "qwen3-next": ("qwen3_next", {**NEXT, "num_hidden_layers": 4, "layer_types": None}),
    "qwen3-next-mixed": ("qwen3_next", {**NEXT, "mlp_only_layers": [0], "attention_bias": True}),
}
INDEXED = {**LATENT, "index_n_heads": 2, "index_head_dim": 8, "index_topk": 4}
TINY |= {
    "deepseek-v32": ("deepseek_v32", {**INDEXED, "first_k_dense_replace": 1}),
    "deepseek-v32-dense": ("deepseek_v32", {**INDEXED, "first_k_dense_replace": 2, "attention_bias": True}),
    "glm-dsa": ("glm_moe_dsa", {**INDEXED, "mlp_layer_types": ["sparse", "dense"]}),
    "glm-dsa-shared": (
        "glm_moe_dsa",
        {**INDEXED, "num_hidden_layers": 4, "first_k_dense_replace": 4, "index_topk_freq": 2},
    ),
    "glm-dsa-pattern": ("glm_moe_dsa", {**INDEXED, "first_k_dense_replace": 2, "index_topk_pattern": "FS"}),
}
COMPRESSED = {
    **SMALL,
    "num_hidden_layers": 4,
    "head_dim": 16,
    "q_lora_rank": 10,
    "moe_intermediate_size": 20,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "o_groups": 2,
    "o_lora_rank": 6,
    "index_n_heads": 2,
    "index_head_dim": 8,
    "index_topk": 2,
    "sliding_window": 4,
    "hc_mult": 2,
    "partial_rotary_factor": 0.25,
    # Rows end with the last token of the prompt and that of the step, so that both call the same modules.
    "compress_rates": {"compressed_sparse_attention": 2, "heavily_compressed_attention": 3},
}
TINY |= {
    "deepseek-v4": ("deepseek_v4", COMPRESSED),
    "deepseek-v4-ratios": ("deepseek_v4", {**COMPRESSED, "compress_ratios": [0, 4, 128, 4, 0]}),
}
DELTA = {key: value for key, value in NEXT.items() if key.startswith(("head", "layer", "linear"))}
MAMBA = {
    **{key: value for key, value in SMALL.items() if key != "num_hidden_layers"},
    "num_key_value_heads": 2,
    "head_dim": 12,
    "intermediate_size": 48,
    "mamba_num_heads": 6,
    "mamba_head_dim": 8,
    "n_groups": 2,
    "ssm_state_size": 10,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 20,
    "moe_shared_expert_intermediate_size": 24,
}
KDA = {
    **{key: value for key, value in LATENT.items() if key not in ("q_lora_rank", "n_routed_experts")},
    "num_local_experts": 4,
    "linear_num_heads": 3,
    "linear_head_dim": 6,
    "layer_types": ["linear_attention", "full_attention"],
    "mlp_layer_types": ["dense", "sparse"],
}
TINY |= {
    "qwen3.5": ("qwen3_5_text", {**GATED, **DELTA}),
    "qwen3.5-bias": ("qwen3_5_text", {**GATED, **DELTA, "attention_bias": True, "tie_word_embeddings": True}),
    "qwen3.5-moe": ("qwen3_5_moe_text", NEXT),
    "nemotron-h": (
        "nemotron_h",
        {**MAMBA, "layers_block_type": ["linear_attention", "mlp", "full_attention"]},
    ),
    "nemotron-h-bias": (
        "nemotron_h",
        {
            **MAMBA,
            "layers_block_type": ["mlp", "linear_attention", "full_attention"],
            "use_bias": True,
            "mlp_bias": True,
            "use_conv_bias": False,
        },
    ),
    "nemotron-h-moe": ("nemotron_h", {**MAMBA, "layers_block_type": ["moe", "full_attention"]}),
    "nemotron-h-latent": (
        "nemotron_h",
        {
            **MAMBA,
            "layers_block_type": ["linear_attention", "moe", "full_attention"],
            "moe_latent_size": 16,
        },
    ),
    "kimi-linear": ("kimi_linear", KDA),
}
MAMBA_2 = {
    **GATED,
    "mamba_n_heads": 6,
    "mamba_n_groups": 2,
    "mamba_d_state": 10,
    "mamba_expand": 3,
}
HYBRID = {**MAMBA_2, "layer_types": ["linear_attention", "full_attention"], "shared_intermediate_size": 24}
CONVOLVED = {**GATED, "layer_types": ["conv", "full_attention"], "conv_bias": True}
TINY |= {
    "granite-hybrid": ("granitemoehybrid", {**HYBRID, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "granite-hybrid-dense": (
        "granitemoehybrid",
        {
            **HYBRID,
            "num_local_experts": 0,
            "num_experts_per_tok": 0,
            "position_embedding_type": "rope",
            "attention_bias": True,
            "mamba_proj_bias": True,
        },
    ),
    "falcon-h1": ("falcon_h1", {**MAMBA_2, "mamba_d_ssm": 48}),
    "falcon-h1-bias": (
        "falcon_h1",
        {
            **MAMBA_2,
            "mamba_d_ssm": 48,
            "mamba_rms_norm": True,
            "projectors_bias": True,
            "mlp_bias": True,
            "attention_bias": True,
            "mamba_conv_bias": False,
        },
    ),
    "bamba": ("bamba", {**MAMBA_2, "attn_layer_indices": [1], "mlp_bias": True}),
    "minimax": ("minimax", {**ROUTED, "head_dim": 12, "layer_types": ["linear_attention", "full_attention"]}),
    "ling-3": (
        "bailing_hybrid",
        {
            **{key: value for key, value in KDA.items() if not key.startswith(("linear", "mlp", "layer"))},
            "layer_group_size": 2,
            "head_dim": 6,
            "n_group": 2,
            "topk_group": 1,
            "first_k_dense_replace": 1,
        },
    ),
    "jamba": (
        "jamba",
        {
            **{key: value for key, value in ROUTED.items() if key != "num_local_experts"},
            "num_experts": 4,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "mamba_d_state": 10,
            "mamba_proj_bias": True,
        },
    ),
    "lfm2": ("lfm2", CONVOLVED),
    "lfm2-plain": ("lfm2", {**CONVOLVED, "block_auto_adjust_ff_dim": False, "tie_word_embeddings": False}),
    "lfm2-moe": (
        "lfm2_moe",
        {
            **CONVOLVED,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 20,
            "num_dense_layers": 1,
        },
    ),
}
BLOCKS = {
    **ROUTED,
    "head_dim": 12,
    "dense_intermediate_size": 56,
    "shared_intermediate_size": 20,
    "index_n_heads": 2,
    "index_head_dim": 8,
    "index_block_size": 2,
    "index_topk_blocks": 2,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
}
FREQUENT = {"sparse_num_index_heads": 2, "sparse_index_dim": 6, "sparse_attention_freq": [0, 1]}
TINY |= {
    "minimax-m3": (
        "minimax_m3",
        {**BLOCKS, "layer_types": ["minimax_m3_sparse"] * 2, "mlp_layer_types": ["sparse", "dense"]},
    ),
    "minimax-m3-section": (
        "minimax_m3",
        {
            **{key: value for key, value in BLOCKS.items() if not key.startswith("index")},
            "sparse_attention_config": FREQUENT,
            "moe_layer_freq": [0, 1],
        },
    ),
}
KINDS = ["sliding_attention", "full_attention"]
GEMMA4 = {
    **WIDE,
    "sliding_window": 4,
    "global_head_dim": 16,
    "vocab_size_per_layer_input": 50,
    "layer_types": KINDS,
}
TINY |= {
    "gemma4": ("gemma4_text", {**GEMMA4, "hidden_size_per_layer_input": 6}),
    "gemma4-shared": (
        "gemma4_text",
        {
            **GEMMA4,
            "num_hidden_layers": 4,
            "layer_types": KINDS * 2,
            "num_kv_shared_layers": 2,
            "use_double_wide_mlp": True,
            "hidden_size_per_layer_input": 6,
        },
    ),
    "gemma4-experts": (
        "gemma4_text",
        {
            **GEMMA4,
            "hidden_size_per_layer_input": 0,
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
            "enable_moe_block": True,
            "num_experts": 4,
            "top_k_experts": 2,
            "moe_intermediate_size": 20,
        },
    ),
}
STEP = {
    **WIDE,
    "n_routed_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 20,
    "share_expert_dim": 24,
    "sliding_window": 4,
    "layer_types": KINDS[::-1],
    "num_sliding_attention_heads": 6,
}
TINY |= {
    "step3p7": ("step3p7", {**STEP, "mlp_layer_types": ["dense", "sparse"]}),
    "step3p7-dense": ("step3p7", {**STEP, "mlp_layer_types": ["dense"] * 2, "attention_bias": True}),
}
MIMO = {
    **{key: value for key, value in STEP.items() if key not in ("share_expert_dim", "num_local_experts")},
    "v_head_dim": 8,
    "num_key_value_heads": 2,
}
MIMO.pop("num_sliding_attention_heads")
TINY |= {
    "mimo": ("mimo", WIDE),
    "mimo-v2": ("mimo_v2_flash", {**MIMO, "mlp_layer_types": ["dense", "sparse"]}),
    "mimo-v2-dense": ("mimo_v2_flash", {**MIMO, "mlp_layer_types": ["dense"] * 2, "attention_bias": True}),
}
TINY |= {
    "glm4-moe-lite": ("glm4_moe_lite", {**LATENT, "num_hidden_layers": 3}),
    "glm4-moe-lite-listed": ("glm4_moe_lite", {**LATENT, "mlp_layer_types": ["sparse", "dense"]}),
    "mistral4": ("mistral4", {**LATENT, "first_k_dense_replace": 1}),
    "dots1": (
        "dots1",
        {
            **GLM,
            "n_shared_experts": 2,
            "first_k_dense_replace": 1,
            "max_window_layers": 1,
            "sliding_window": 4,
        },
    ),
    "ernie4.5-moe": (
        "ernie4_5_moe",
        {**GATED, "moe_num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 20},
    ),
    "ernie4.5-moe-interval": (
        "ernie4_5_moe",
        {
            **GATED,
            "num_hidden_layers": 4,
            "moe_num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 20,
            "use_bias": True,
            "moe_layer_start_index": 0,
            "moe_layer_interval": 2,
            "moe_layer_end_index": 2,
            "moe_num_shared_experts": 0,
        },
    ),
}
TINY |= {
    "hunyuan-dense": ("hunyuan_v1_dense", WIDE),
    "hunyuan-dense-bias": (
        "hunyuan_v1_dense",
        {**WIDE, "attention_bias": True, "tie_word_embeddings": True},
    ),
    "hunyuan-moe": ("hunyuan_v1_moe", {**WIDE, "num_experts": 4, "moe_topk": [2, 2]}),
    "exaone-moe": (
        "exaone_moe",
        {**QWEN, "head_dim": 12, "num_hidden_layers": 4, "sliding_window": 4, "num_shared_experts": 2},
    ),
}
TINY |= {
    "smollm3": ("smollm3", {**GATED, "num_hidden_layers": 4, "tie_word_embeddings": True}),
    "smollm3-listed": (
        "smollm3",
        {**GATED, "no_rope_layers": [0, 1], "attention_bias": True, "mlp_bias": True},
    ),
    "olmo3": ("olmo3", {**GATED, "num_hidden_layers": 4, "sliding_window": 4}),
    "ernie4.5": ("ernie4_5", {**WIDE, "use_bias": True}),
    "seed-oss": ("seed_oss", WIDE),
    "seed-oss-bias": ("seed_oss", {**WIDE, "attention_out_bias": True, "mlp_bias": True}),
    "apertus": ("apertus", GATED),
    "exaone4": ("exaone4", {**WIDE, "num_hidden_layers": 4, "sliding_window": 4}),
    "exaone4-whole": (
        "exaone4",
        {**WIDE, "sliding_window": None, "layer_types": ["full_attention"] * 2, "tie_word_embeddings": True},
    ),
    "glm4": ("glm4", WIDE),
    "glm4-unbiased": ("glm4", {**WIDE, "attention_bias": False}),
    "olmoe": ("olmoe", {**GATED, "num_experts": 4, "num_experts_per_tok": 2}),
    "cohere2": ("cohere2", {**GATED, "num_hidden_layers": 4, "sliding_window": 4}),
}
NOT_MAPPED = {"mistral4": "Mistral4ForCausalLM"}
"""Classes of models that ``AutoModelForCausalLM`` does not know."""
CLASSES = {"mimo": "qwen2", "kimi_k2": "deepseek_v3", "minimax_m3": "minimax_m3_vl_text"}
"""Families that transformers has under another name."""
ELSEWHERE = ["kimi-k3", "llama-3.3-nemotron-super-49b"]
"""Sizes of which transformers has no code, or code without all of their parts."""
PARTS = {"step3p7": "Step3p5ForCausalLM"}
"""Families that transformers has only within models that take more than text, and the name of the model."""
SIGLIP = {"model_type": "siglip_vision_model", "vision_use_head": False}
TOWERS: dict[str, tuple[str, dict[str, Any]]] = {
    **{
        one: (one, {})
        for one in ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe")
    },
    **{
        one: (one, {})
        for one in ("kimi_k25", "llama4", "mistral3", "gemma3", "llava", "internvl", "glm4v_moe")
    },
    "gemma4": ("gemma4", {"audio_config": {}, "vision_config": {}}),
    **{one: (one, {}) for one in ("step3p7", "minimax_m3_vl", "llava_next", "llava_onevision")},
    "llava-pixtral": ("llava", {"vision_config": {"model_type": "pixtral"}}),
    "llava-siglip": ("llava", {"vision_config": SIGLIP}),
    "internvl-6b": ("internvl", {"vision_config": {"attention_bias": True, "use_qk_norm": True}}),
}
"""Models that take more than text, at the sizes of their classes unless stated."""
PROMPT = 5
LAYER = re.compile(r"^.*?\.(?:h|layers)\.(\d+)(?:\.|$)")


def place(name: str, class_name: str) -> tuple[int | None, str]:
    """The layer that a module is in, if any, and its name there."""
    match = LAYER.match(name)
    if match is None:
        return None, name or class_name
    return int(match[1]), name[match.end() :] or class_name


def own_tensors(module: torch.nn.Module, name: str) -> dict[str, int]:
    return {
        f"{name}.{key}": tensor.numel() for key, tensor in module._parameters.items() if tensor is not None
    }


def size_entry(model: torch.nn.Module) -> dict[str, object]:
    outside: dict[str, int] = {}
    layers: dict[int, dict[str, int]] = {}
    for full_name, module in model.named_modules():
        layer, name = place(full_name, type(module).__name__)
        tensors = outside if layer is None else layers.setdefault(layer, {})
        tensors.update(own_tensors(module, name))
    total = sum(parameter.numel() for parameter in model.parameters())  # a shared tensor comes once
    runs = [(tensors, len(list(run))) for tensors, run in groupby(layers[index] for index in sorted(layers))]
    if len(runs) == 1:
        return {"total": total, "outside": outside, "layer": layers[0]}
    if len(runs) > 2:
        every = [layers[index] for index in sorted(layers)]
        count = len(every)
        period = next(p for p in range(1, count + 1) if all(every[i] == every[i % p] for i in range(count)))
        if period > count // 2:  # kinds in no regular turn
            kinds = [one for at, one in enumerate(every) if one not in every[:at]]
            return {
                "total": total,
                "outside": outside,
                "kinds": kinds,
                "order": [kinds.index(one) for one in every],
            }
        runs = [(one, 1) for one in every[:period]]
    return {"total": total, "outside": outside, "runs": runs}


def call_entry(model: torch.nn.Module) -> dict[str, object]:
    seen: list[tuple[int | None, str]] = []
    for full_name, module in model.named_modules():
        where = place(full_name, type(module).__name__)
        module.register_forward_pre_hook(lambda *_, where=where: seen.append(where))
    with torch.no_grad():
        cache = model(torch.ones(1, PROMPT, dtype=torch.long), use_cache=True).past_key_values
        prefill, seen[:] = list(seen), []
        with FlopCounterMode(display=False) as counter:
            model(torch.ones(1, 1, dtype=torch.long), past_key_values=cache, use_cache=True)
    assert seen == prefill
    layers = {layer for layer, _ in seen if layer is not None}
    by_layer = [[name for where, name in seen if where == layer] for layer in sorted(layers)]
    outside = [name for layer, name in seen if layer is None]
    first = next(index for index, (layer, _) in enumerate(seen) if layer is not None)
    return {
        "before": outside[:first],
        **(
            {"layer": by_layer[0]}
            if all(names == by_layer[0] for names in by_layer)
            else {"layers": by_layer}
        ),
        "after": outside[first:],
        "decode_matrix_flops": counter.get_total_flops(),
    }


def tower_entry(kind: str, config: Mapping[str, object]) -> dict[str, Any]:
    hf_config = AutoConfig.for_model(kind, **config)
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(hf_config)
    tensors: dict[str, list[int]] = {}
    for name, tensor in model.named_parameters():
        if "language_model" not in name and "lm_head" not in name:
            tensors.setdefault(re.sub(r"\.\d+(?=\.)", ".N", name), []).append(tensor.numel())
    data = json.loads(hf_config.to_json_string(use_diff=False))
    sections = ("vision_config", "audio_config")
    plain = {name: _scalars(data[name]) for name in sections if data.get(name)}
    outer = {key: value for key, value in _scalars(data).items() if "token" not in key}
    return {
        "config": {**outer, **plain},
        "width": hf_config.get_text_config().hidden_size,
        "tensors": tensors,
    }


def _scalars(data: Mapping[str, Any]) -> dict[str, Any]:
    kinds = (int, float, str, list)
    return {key: one for key, one in data.items() if isinstance(one, kinds) and not key.startswith("_")}


def written(config: PretrainedConfig, family: str) -> dict[str, Any]:
    """What the class writes; ``model_type`` is the family's own."""
    return {**json.loads(config.to_json_string()), "model_type": family}


def configured(family: str, config: Mapping[str, object]) -> PretrainedConfig:
    if family in PARTS:
        return AutoConfig.for_model(family, text_config=dict(config)).text_config
    return AutoConfig.for_model(CLASSES.get(family, family), **config)


class Text(torch.nn.Module):
    """The language model of another one, with its head."""

    def __init__(self, whole: Any) -> None:
        super().__init__()
        self.model, self.lm_head = whole.model.language_model, whole.lm_head

    def forward(self, tokens: torch.Tensor, **keys: Any) -> Any:
        found = self.model(tokens, **keys)
        self.lm_head(found.last_hidden_state[:, -1:])
        return found


def build(family: str, config: Mapping[str, object], *, device: str) -> torch.nn.Module:
    if family in PARTS:
        whole = AutoConfig.for_model(family, text_config=dict(config))
        with torch.device(device):
            model = AutoModelForImageTextToText.from_config(whole, attn_implementation="eager")
        return type(PARTS[family], (Text,), {})(model).eval()
    hf_config = configured(family, config)
    hf_config.pad_token_id = None  # tiny vocabularies do not have it
    made = getattr(transformers, NOT_MAPPED[family])._from_config if family in NOT_MAPPED else None
    with torch.device(device):
        model = (made or AutoModelForCausalLM.from_config)(hf_config, attn_implementation="eager")
    model.tie_weights()
    return model.eval()


def compact(towers: Mapping[str, Any]) -> str:
    """A line for each model."""
    for one in towers.values():
        one["tensors"] = {name: [len(sizes), *sorted(set(sizes))] for name, sizes in one["tensors"].items()}
    lines = (f"{json.dumps(name)}: {json.dumps(one)}" for name, one in towers.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main() -> None:
    sizes = {
        name: size
        for name, size in yaml.safe_load(SIZES.read_text(encoding="utf-8")).items()
        if (MAJOR != "4" or size["family"] in BEFORE_5) and name not in ELSEWHERE
    }
    oracle: dict[str, Any] = {
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "prompt": PROMPT,
        "elsewhere": ELSEWHERE,
        "calls": {
            name: {"family": family, "config": config, **call_entry(build(family, config, device="cpu"))}
            for name, (family, config) in TINY.items()
            if MAJOR != "4" or family in BEFORE_5
        },
        "sizes": {},
    }
    for name, size in sizes.items():
        entry = size_entry(build(size["family"], size["config"], device="meta"))
        oracle["sizes"][name] = entry
        print(f"{name:16} {entry['total']:>20,}", flush=True)
    if MAJOR != "4":
        oracle["configs"] = {
            name: written(configured(sizes[name]["family"], sizes[name]["config"]), sizes[name]["family"])
            for name in WRITTEN
        }
        oracle["within"] = {
            name: written(AutoConfig.for_model(outer, text_config=sizes[name]["config"]), outer)
            for name, outer in WITHIN.items()
        }
        towers = {name: tower_entry(kind, config) for name, (kind, config) in TOWERS.items()}
        (HERE / "towers-5.json").write_text(compact(towers), encoding="utf-8")
    (HERE / f"oracle-{MAJOR}.json").write_text(json.dumps(oracle, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
