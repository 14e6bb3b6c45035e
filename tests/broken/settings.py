"""Slips in DeepSpeed's and Hugging Face's own files."""

from __future__ import annotations

from tests.broken.slips import DS_CONFIG, SCENARIO, Case, ds_config, raw, scenario

CASES: tuple[Case, ...] = (
    # ---- DeepSpeed's settings within a scenario ----
    scenario(
        "version",
        "deepspeed_version: 0.9.1",
        "deepspeed_version: newest",
        (
            "s.yaml:13:22: strategy.deepspeed_version:",
            '"newest" is not a DeepSpeed version; write e.g. "0.16.4"',
        ),
    ),
    scenario(
        "version-number",
        "deepspeed_version: 0.9.1",
        "deepspeed_version: 0.9",
        (
            "s.yaml:13:22: strategy.deepspeed_version:",
            'must be text; write "0.9" in quotes',
        ),
    ),
    scenario(
        "stage",
        "stage: 3",
        "stage: 2",
        (
            "s.yaml:16:14: strategy.ds_config.zero_optimization.stage:",
            "2 does not offload parameters; ZeRO-Inference needs 3",
        ),
    ),
    scenario(
        "stage-unknown",
        "stage: 3",
        "stage: 4",
        ("s.yaml:16:14: strategy.ds_config.zero_optimization.stage:", "must be 0, 1, 2 or 3, got 4"),
    ),
    scenario(
        "buffer-count",
        "buffer_count: 5",
        "buffer_count: 0",
        (
            "s.yaml:18:23: strategy.ds_config.zero_optimization.offload_param.buffer_count:",
            "must be at least 1, got 0",
        ),
    ),
    scenario(
        "buffer-too-small",
        "buffer_size: 4e9",
        "buffer_size: 1e6",
        (
            "s.yaml:19:22: strategy.ds_config.zero_optimization.offload_param.buffer_size:",
            "DeepSpeed would stop here: More elements 128450560 than buffer size",
        ),
    ),
    scenario(
        "buffer-fraction",
        "buffer_size: 4e9",
        "buffer_size: 1.5",
        (
            "s.yaml:19:22: strategy.ds_config.zero_optimization.offload_param.buffer_size:",
            'must be "auto" or a whole number, got 1.5',
        ),
    ),
    scenario(
        "not-enough-buffers",
        "buffer_count: 5",
        "buffer_count: 1",
        (
            "s.yaml:18:23: strategy.ds_config.zero_optimization.offload_param.buffer_count:",
            "DeepSpeed would stop here: Not enough buffers 0 for swapping 1",
        ),
    ),
    scenario(
        "queue-depth-unit",
        "queue_depth: 32",
        'queue_depth: "32"',
        ("s.yaml:22:20: strategy.ds_config.aio.queue_depth:", 'must be a whole number, got "32"'),
    ),
    scenario(
        "block-size-unit",
        "block_size: 1048576",
        "block_size: 1 MiB",
        ("s.yaml:21:19: strategy.ds_config.aio.block_size:", 'must be a whole number, got "1 MiB"'),
    ),
    scenario(
        "ds-config-missing",
        SCENARIO[SCENARIO.index("  ds_config:") :],
        "  ds_config: ds.json\n",
        ("s.yaml:14:14: strategy.ds_config:", "ds.json: no such file"),
    ),
    scenario(
        "ds-config-outside",
        SCENARIO[SCENARIO.index("  ds_config:") :],
        "  ds_config: ../ds.json\n",
        ("s.yaml:14:14: strategy.ds_config:", '"../ds.json" is outside the folder of the scenario'),
    ),
    Case(
        "ds-config-file",
        ("run", "s.yaml"),
        (("ds.json:6:49: aio.queue_depth:", "must be at least 1, got 0"),),
        {
            "s.yaml": SCENARIO[: SCENARIO.index("  ds_config:")] + "  ds_config: ds.json\n",
            "ds.json": DS_CONFIG.replace('"queue_depth": 8', '"queue_depth": 0'),
        },
    ),
    scenario(
        "ds-config-list",
        SCENARIO[SCENARIO.index("  ds_config:") :],
        "  ds_config: [1]\n",
        ("s.yaml:14:14: strategy.ds_config:", "must be a mapping, got a list of 1"),
    ),
    # ---- ds_config.json ----
    ds_config(
        "ds-negative",
        '"queue_depth": 8',
        '"queue_depth": -8',
        ("ds.json:6:49: aio.queue_depth:", "must be at least 1, got -8"),
    ),
    ds_config(
        "ds-device",
        '"nvme"',
        '"disk"',
        (
            "ds.json:4:33: zero_optimization.offload_param.device:",
            'must be "none", "cpu" or "nvme", got "disk"',
        ),
    ),
    ds_config(
        "ds-stage",
        '"stage": 3',
        '"stage": 1',
        (
            "ds.json:4:33: zero_optimization.offload_param.device:",
            '"nvme" needs stage 3, not 1: below it parameters are not partitioned',
        ),
    ),
    ds_config(
        "ds-text-number",
        "1e8",
        '"1e8"',
        (
            "ds.json:4:84: zero_optimization.offload_param.buffer_size:",
            'must be "auto" or a whole number of elements (not bytes), e.g. 4e9, got "1e8"',
        ),
    ),
    ds_config(
        "ds-aio-list",
        '{"block_size": 1048576, "queue_depth": 8}',
        "[]",
        ("ds.json:6:10: aio:", "must be a mapping, got a list of 0"),
    ),
    ds_config(
        "ds-old-name",
        '"stage": 3',
        '"stage": 3, "cpu_offload_param": true',
        (
            "ds.json:3:38: zero_optimization.cpu_offload_param:",
            "is the old name of offload_param: {device: cpu}; write that",
        ),
    ),
    ds_config(
        "ds-amp",
        '"aio":',
        '"optimizer": {"type": "AdamW"}, "amp": {"enabled": true}, "aio":',
        ("ds.json:6:54: amp.enabled:", "amp cannot be combined with ZeRO"),
    ),
    ds_config("ds-nan", "1048576", "NaN", ("ds.json:6:25:", "NaN is not a number")),
    # ---- Hugging Face's config.json ----
    raw(
        "hf-unknown-family",
        '{"model_type": "mamba"}',
        (
            "config.json:1:16: model_type:",
            "this family is not supported; ",
            "supported: bloom, opt, llama, mixtral",
        ),
        name="config.json",
        command="check",
    ),
    raw(
        "hf-no-family",
        '{"architectures": ["GPT2LMHeadModel"]}',
        ("config.json:1:1: model_type:", "missing; supported: bloom, opt, llama, mixtral"),
        name="config.json",
        command="check",
    ),
    raw(
        "hf-missing-keys",
        '{"model_type": "llama", "hidden_size": 64}',
        ("config.json:1:1: num_hidden_layers:", "required key is missing"),
        ("config.json:1:1: num_attention_heads:", "required key is missing"),
        ("config.json:1:1: vocab_size:", "required key is missing"),
        ("config.json:1:1: intermediate_size:", "required key is missing"),
        name="config.json",
        command="check",
    ),
    raw(
        "hf-wrong-type",
        '{"model_type": "bloom", "hidden_size": "64"}',
        ("config.json:1:1: num_hidden_layers:", "required key is missing"),
        ("config.json:1:1: num_attention_heads:", "required key is missing"),
        ("config.json:1:40: hidden_size:", 'must be a whole number, got "64"'),
        name="config.json",
        command="check",
    ),
    raw(
        "hf-quantized",
        '{"model_type": "bloom", "quantization_config": {"bits": 4}, '
        '"n_layer": 2, "hidden_size": 64, "n_head": 8, "vocab_size": 100}',
        ("config.json:1:48: quantization_config.quant_method:", "is missing; supported: gptq, awq"),
        name="config.json",
        command="check",
    ),
)
