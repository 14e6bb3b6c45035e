"""Published and measured runs: what fitted must fit, and bytes on storage to the third digit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simoffload.hardware import load_platform
from simoffload.models import ModelShape, load_model
from simoffload.strategies.ds_config import DeepSpeedConfig
from simoffload.strategies.memory import activations_of
from simoffload.strategies.programs.zero_training import ZeroTraining
from tests.strategies.training.memory_cases import account, fits, gpt, sizes, workload


@pytest.mark.parametrize(
    ("params", "gib"), [("hbm", 211.9), ("nvme", 238.4)], ids=["xin-16b-c1-space", "xin-16b-c3-space"]
)
def test_xinnors_bytes_on_storage(params: str, gib: float) -> None:
    """16 and 18 B for each of 14.22e9 parameters; the run itself had 96 GB of memory and of GPU."""
    model = load_model(
        {"name": "llama-3.1-8b", "num_hidden_layers": 64, "vocab_size": 32000, "dtype": "bfloat16"}
    )
    offload = {"device": "nvme", "buffer_size": 1.4e8}
    zero = {
        "stage": 3,
        "offload_optimizer": {"device": "nvme"},
        **({"offload_param": offload} if params == "nvme" else {}),
    }
    machine, memory_stages = account(
        model,
        zero,
        platform="xinnor-workstation",
        weights=params,
        optimizer="nvme",
        work=workload(1, 4096),
        version="0.18.3",
        sections={"aio": {"block_size": 1 << 19}},
    )
    assert sum(sizes(memory_stages, "nvme").values()) / 2**30 == pytest.approx(gib, abs=0.05)
    assert fits(machine, memory_stages)


@pytest.mark.parametrize(
    ("name", "model", "stage", "batch", "ran"),
    [
        ("zo20-10b", (50, 4096, 32), 2, 10, True),
        ("z2off-13b", (64, 4096, 32), 2, 4, True),
        ("20B is out of ZeRO-2's reach", (98, 4096, 32), 2, 1, False),
        ("z3off-20b", (98, 4096, 32), 3, 8, True),
        ("z3off-40b", (50, 8192, 64), 3, 8, True),
    ],
)
def test_deepspeeds_offload_on_one_v100(
    name: str, model: tuple[int, int, int], stage: int, batch: int, ran: bool
) -> None:
    """GPT-2 with 1024 tokens on a DGX-2's V100 of 32 GB beside 1.5 TB; the first batch alone is published
    (DeepSpeed's docs/assets/images/zero3-offload-1-v100.png and zero_offload_dp1_10B_log.png)."""
    zero = {
        "stage": stage,
        "reduce_bucket_size": 5e7 if stage == 2 else 5e8,
        "offload_optimizer": {"device": "cpu"},
        **({"offload_param": {"device": "cpu"}} if stage == 3 else {}),
    }
    machine, memory_stages = account(
        gpt(*model),
        zero,
        platform="dgx-2",
        weights="dram" if stage == 3 else "hbm",
        optimizer="dram",
        work=workload(batch, 1024),
        version="0.9.1",
    )
    assert fits(machine, memory_stages) is ran, name


def test_zero_infinity_trains_50_billion_parameters_on_a_dgx_2() -> None:
    """zinf-1776: 16 GPUs, 26 sequences of 1024 on each, parameters and optimizer on the drives."""
    model = gpt(62, 8192, 64)
    zero = {
        "stage": 3,
        "offload_optimizer": {"device": "nvme"},
        "offload_param": {"device": "nvme"},
        "sub_group_size": 1e8,
    }
    machine, memory_stages = account(
        model,
        zero,
        platform="dgx-2",
        weights="raid",
        optimizer="raid",
        ranks=16,
        work=workload(26, 1024),
        version="0.9.1",
        sections={"activation_checkpointing": {"cpu_checkpointing": True}},
    )
    assert model.num_parameters / 1e9 == pytest.approx(50.4, abs=0.2)
    assert fits(machine, memory_stages)


def qwen(*, layers: int, hidden: int, intermediate: int, heads: int) -> ModelShape:
    """Qwen2.5 without the biases of its projections."""
    return load_model(
        {
            "family": "llama",
            "num_hidden_layers": layers,
            "hidden_size": hidden,
            "intermediate_size": intermediate,
            "num_attention_heads": heads,
            "num_key_value_heads": 2,
            "vocab_size": 151936,
            "tie_word_embeddings": True,
            "dtype": "bfloat16",
        }
    )


@pytest.mark.parametrize("zenflow", [False, True])
def test_qwen_3b_trains_under_zero_2_offload_on_two_a100(zenflow: bool) -> None:
    """zf-3b-*: 4 sequences of 512 on each A100 of 40 GB."""
    model = qwen(layers=36, hidden=2048, intermediate=11008, heads=16)
    assert model.num_parameters / 1e9 == pytest.approx(3.09, abs=0.01)
    zero = {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": True}}
    if zenflow:
        zero |= {
            "overlap_comm": True,
            "zenflow": {"topk_ratio": 0.1, "update_interval": 4, "overlap_step": True},
        }
    machine, memory_stages = account(model, zero, optimizer="dram", ranks=2, work=workload(4, 512))
    assert fits(machine, memory_stages)


def test_qwen_1_5b_trains_under_zero_2_without_offload_on_two_a100() -> None:
    """zf-15b-none."""
    model = qwen(layers=28, hidden=1536, intermediate=8960, heads=12)
    assert fits(*account(model, {"stage": 2}, ranks=2, work=workload(4, 512)))


def test_activations_per_token_of_a_published_fit() -> None:
    """mle-peak-*: Llama-3.1-8B with checkpointing takes 0.00043 GiB for every token (stas00/ml-engineering,
    insights/when-to-upgrade-gpus). Its kernels (Liger) fuse norms, feed-forward network and loss, so that
    ours with fused norms, but without the others and without the loss, come out somewhat higher."""
    model = load_model({"name": "llama-3.1-8b", "dtype": "bfloat16", "norms": "fused"})
    found = activations_of(model, workload(1, 65536))
    per_token = (found.kept + found.layer) / 65536
    assert 1.0 < per_token / (0.00043 * 2**30) < 1.1


def test_a_model_of_13b_without_checkpointing_fits_with_fused_norms() -> None:
    """pytorch/torchtitan@395a5262, docs/performance.md: LLaMA 13B, 2 x 4,096 tokens on each of 64 A100 of 80
    GB, no checkpointing, ``norm_type = "fused_rmsnorm"``. RMSNorm as transformers spells it out needs more.
    """
    work = workload(2, 4096, gradient_checkpointing=False)
    found = {}
    for norms in ("eager", "fused"):
        model = load_model({"name": "llama-2-13b", "dtype": "bfloat16", "norms": norms})
        found[norms] = fits(*account(model, {"stage": 3}, ranks=64, platform="dgx-a100-80g", work=work))
    assert found == {"eager": False, "fused": True}


def test_the_peak_of_a_recorded_run(repository: Path) -> None:
    """OPT-1.3B on one H200, parameters and optimizer in host memory: our bound above PyTorch's own peak."""
    recorded = json.loads(
        (repository / "validation/measured/fit/h200-f/runs.json").read_text(encoding="utf-8")
    )
    case = next(
        one for one in recorded["runs"] if one["name"] == "opt-1.3b, params and optimizer cpu, b4 s512"
    )
    work = workload(case["workload"]["batch_size"], case["workload"]["sequence_length"])
    strategy = ZeroTraining(ranks=1, ds_config=DeepSpeedConfig.model_validate(case["ds_config"]))
    model = load_model({**case["model"], "attention": case["attention"]})
    plan = strategy.plan(model, work, load_platform("dgx-h200").machine())
    assert plan.peak is not None
    _, memory_stages = account(
        model,
        case["ds_config"]["zero_optimization"],
        platform="dgx-h200",
        weights="dram",
        optimizer="dram",
        work=work,
        peak=plan.peak,
    )
    held = sizes(memory_stages, "hbm")
    tensors = sum(held.values()) - held["CUDA context, NCCL and workspace"]
    assert 1.0 < tensors / case["memory"]["hbm_peak"] < 1.2
