"""Requests for real runs, read from files that are written like scenarios."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from simoffload.documents import Document, Edit, Frozen, Location, edited, quoted, read_document, validate
from simoffload.errors import InputError, Problem
from simoffload.extensions.programs.fsdp import Fsdp
from simoffload.extensions.serving.simulate import requests_of
from simoffload.models import FAMILIES, ModelShape, ModelSpec
from simoffload.scenario.streams import StreamOptions
from simoffload.strategies import in_new_form
from simoffload.strategies.cache.kv_cache import DEFAULT, TRANSFORMERS, VLLM_BLOCK, KvCache, check_native
from simoffload.strategies.ds_config import DeepSpeedConfig
from simoffload.strategies.programs.accelerate import Accelerate, ModuleTree
from simoffload.strategies.programs.transformers import Transformers
from simoffload.strategies.programs.vllm import Vllm
from simoffload.workload import Computation, Inference, Training
from simoffload_calibrate.detect import SeenMachine, System

# -- facts about this machine ----------------------------------------------------------------------
# GPUs, CPU, memory and versions, but nothing that identifies its owner.


_PACKAGES = ("torch", "deepspeed", "transformers", "accelerate", "vllm", "numpy")


def machine_facts(system: System | None = None) -> dict[str, Any]:
    """Return GPU names, count and driver, CPU model and cores, memory [B], kernel and package versions.

    ``virtual`` says whether the machine is virtual (None if Linux does not report it), ``governor`` is the
    policy of the CPU clock (None where it is not visible, as in most virtual machines). ``system`` is a
    recorded machine in place of this one; cores, memory and versions are always those of this one.
    """
    system = system or System()
    seen = SeenMachine(system)
    facts: dict[str, Any] = {
        "cpu": seen.cpu or platform.processor() or platform.machine(),
        "virtual": None if seen.virtual is None else bool(seen.virtual),
        "governor": system.text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor") or None,
        "cores": os.cpu_count(),
        "numa_nodes": seen.numa_nodes or 1,
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }
    for package in _PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            facts[package] = version(package)
    return facts | _gpus(seen)


def _gpus(seen: SeenMachine) -> dict[str, Any]:
    """Return the GPUs that the driver lists."""
    gpus = seen.gpus if seen.system.output("nvidia-smi") else []
    if not gpus:
        return {"gpus": 0}
    facts: dict[str, Any] = {"gpus": len(gpus), "gpu": gpus[0].name}
    if driver := seen.system.text("/sys/module/nvidia/version"):
        facts["driver"] = driver
    if gpus[0].memory is not None:  # None where memory is the host's
        facts["hbm"] = int(gpus[0].memory) * 1024**2
    return facts


# -- what a run gives to vLLM: the options of its engine, the model's config.json, and requests ----
# Keys are those of ``EngineArgs`` of vLLM 0.25.1 (``engine/arg_utils.py``) and of Hugging Face.


_OFFLOADED = ("cpu_offload_gb", "offload_group_size", "offload_num_in_group", "offload_prefetch_step")
_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
}
"""The engine and its scheduler in one process, where steps are seen, without any network."""
_MODEL_LENGTH = 20_480
"""``max_model_len`` of the recorded streams (docs/measurements/vllm.md)."""
_FEW_GRAPHS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Batch sizes whose CUDA graphs are captured for a first look: the others take half of the engine's start."""


def engine_settings(
    strategy: Vllm, stream: StreamOptions | None, shape: ModelShape, hf_config: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the options of an engine and the content of its config.json.

    Raises InputError for settings that a run with random weights on one replica does not follow.
    """
    _check(strategy, stream)
    form = "" if shape.quantization is None else shape.quantization
    options: dict[str, Any] = {
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "seed": 0,
        "dtype": shape.dtype,
        "gpu_memory_utilization": strategy.gpu_memory_utilization,
        "max_num_batched_tokens": strategy.max_num_batched_tokens,
        "num_gpu_blocks_override": strategy.kv_blocks,
        "max_cudagraph_capture_size": strategy.max_cudagraph_capture_size,
        "tensor_parallel_size": strategy.tensor_parallel_size,
        "pipeline_parallel_size": strategy.pipeline_parallel_size,
        "enforce_eager": strategy.enforce_eager,
        "quantization": "fp8" if form == "fp8" else None,
    }
    if strategy.cpu_offload_gb or strategy.offload_group_size:
        options |= {key: getattr(strategy, key) for key in _OFFLOADED if getattr(strategy, key)}
    if stream is not None:
        stated = {
            "max_num_batched_tokens": stream.max_num_batched_tokens,
            "num_gpu_blocks_override": stream.kv_blocks,
            "max_num_seqs": stream.max_num_seqs,
            "block_size": stream.block_size,
            "enable_prefix_caching": None if stream.enable_prefix_caching else False,
            "async_scheduling": None if stream.async_scheduling else False,
        }
        options |= {key: value for key, value in stated.items() if value is not None}
    config = {
        **hf_config,
        "architectures": [FAMILIES[shape.family].traits.architecture],
        "torch_dtype": shape.dtype,
        **_quantization_config(form),
    }
    return {"options": {key: one for key, one in options.items() if one is not None}, "config": config}


def _check(strategy: Vllm, stream: StreamOptions | None) -> None:
    tier = strategy.offload_tier
    if strategy.data_parallel_size > 1:
        raise InputError.at("strategy.data_parallel_size", "one replica runs; set it to 1")
    if strategy.kv_cache != DEFAULT:
        raise InputError.at("strategy.kv_cache", "runs have vLLM's own cache in HBM; remove the section")
    if tier != "dram":
        raise InputError.at("strategy.offload_tier", f"vLLM offloads to dram, not to {tier}; remove it")
    if stream is not None and stream.scheduler != "vllm":
        raise InputError.at("stream.scheduler", f"vLLM has no {stream.scheduler} batches; remove it")


def _quantization_config(form: str) -> dict[str, Any]:
    """Return the keys of a config.json with which vLLM stores random weights in a form."""
    if form in ("", "fp8"):  # FP8 is an option of the engine, which quantizes at loading
        return {}
    bits, _, group = form.partition("-g")
    if bits in ("int4", "int8") and group:
        weights = {"num_bits": int(bits[3:]), "type": "int", "symmetric": True, "strategy": "group"}
        groups = {"group_0": {"targets": ["Linear"], "weights": {**weights, "group_size": int(group)}}}
        section: dict[str, Any] = {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "quantization_status": "compressed",
            "ignore": ["lm_head"],
            "config_groups": groups,
        }
    elif form == "mxfp4":
        kept = ("model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head")
        section = {"quant_method": "mxfp4", "modules_to_not_convert": list(kept)}
    else:
        text = f'"{form}" cannot be run with random weights; use none, fp8, int4-g128 or, of gpt-oss, mxfp4'
        raise InputError.at("model.quantization", text)
    return {"quantization_config": section}


def environment(options: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment variables that an engine needs, but for those that the user has set."""
    needed = dict(_ENVIRONMENT)
    if find_spec("flashinfer") is None:
        needed["VLLM_USE_FLASHINFER_SAMPLER"] = "0"
    if any(options.get(key) for key in _OFFLOADED):
        needed["VLLM_USE_V2_MODEL_RUNNER"] = "0"  # that of 0.25 ignores offloading without a word
    return {key: os.environ.get(key, value) for key, value in needed.items()}


def stream_requests(options: StreamOptions, root: Path | None, *, limit: int | None) -> dict[str, Any]:
    """Return the requests of a stream as columns; ``limit`` is the number of positions of the model.

    Raises InputError for a trace that cannot be read, and for requests that are too long.
    """
    requests = requests_of(options, root=root).requests
    longest = int((requests.prompt + requests.output).max())
    if limit is not None and longest > limit:
        raise InputError.at("stream", f"{longest} tokens in total exceed the {limit} positions of the model")
    columns: dict[str, Any] = {
        "arrival": requests.arrival.tolist(),
        "prompt": requests.prompt.tolist(),
        "output": requests.output.tolist(),
    }
    if any(requests.runs):
        columns["runs"] = [one and [list(run) for run in one] for one in requests.runs]
    if not requests.is_open:
        columns["after"] = requests.after.tolist()
    return columns


def engine_of(cases: Sequence[CalibrationRun], *, quick: bool) -> dict[str, Any] | None:
    """Return the settings of the engine that some cases share; None if they have none.

    A request may be as long as in the recorded runs, if the model and the cache are, as lengths decide how
    some kernels divide their work; ``quick`` captures fewer CUDA graphs.
    """
    engine = cases[0].engine
    if engine is None:
        return None
    options = dict(engine["options"])
    longest = max(case.longest_request for case in cases)
    room = [_MODEL_LENGTH, engine["config"].get("max_position_embeddings") or _MODEL_LENGTH]
    if blocks := options.get("num_gpu_blocks_override"):
        room.append(blocks * options.get("block_size", VLLM_BLOCK))
    options["max_model_len"] = max(longest, min(room))
    if quick:
        most = options.pop("max_cudagraph_capture_size", _FEW_GRAPHS[-1])
        options["cudagraph_capture_sizes"] = [one for one in _FEW_GRAPHS if one <= most]
    return {**engine, "options": options}


# -- requests for real runs, read from files that are written like scenarios -----------------------


_DEVICES = {"hbm": "none", "gpu": "none", "dram": "cpu", "cpu": "cpu", "nvme": "nvme"}
_KINDS = {"hbm": "hbm", "gpu": "hbm", "dram": "dram", "cpu": "dram"}
"""The kinds of tiers on which transformers keeps a cache, by the names that a run may give them."""
_NO_WORK = {"kind": "inference", "batch_size": 1, "prompt_length": 1, "output_length": 1}
"""The workload of a run with a stream, which is not run."""
_SCENARIO_ONLY = ("description", "platform", "nodes", "engine", "checkpoint", "dataset")
"""The keys of a scenario that a run on a real machine does not use."""


_MOST_GPUS = 8
"""GPUs of a run, which is made on one machine."""


class _ZeroInference(Frozen):
    """The part of ZeRO's section ``strategy`` that a real run supports."""

    kind: Literal["deepspeed"] = "deepspeed"
    ranks: Annotated[int, Field(strict=True, ge=1, le=_MOST_GPUS)] = 1
    weights: Literal["hbm", "gpu", "dram", "cpu", "nvme"] | None = None
    ds_config: dict[str, Any] = Field(default_factory=dict)
    kv_cache: KvCache = DEFAULT
    deepspeed_version: str | None = None
    """A version that is accepted but not used, because the installed version runs."""


class RunRequest(Frozen):
    """A request for one run: model, workload or stream, and strategy."""

    name: Annotated[str, Field(min_length=1, max_length=200)]
    model: ModelSpec
    workload: Computation
    stream: StreamOptions | None = None
    """Requests that arrive one after the other, instead of the workload."""
    strategy: Annotated[
        _ZeroInference | Fsdp | Accelerate | Transformers | Vllm, Field(discriminator="kind")
    ] = _ZeroInference()

    @property
    def kv_cache(self) -> KvCache:
        """Where and how keys and values are kept; the default of a program that trains only."""
        return DEFAULT if isinstance(self.strategy, Fsdp) else self.strategy.kv_cache

    @property
    def served(self) -> Vllm | None:
        """The strategy of a run of vLLM; None for another program."""
        return self.strategy if isinstance(self.strategy, Vllm) else None


@dataclass(frozen=True)
class CalibrationRun:
    """A request with everything resolved that the process with PyTorch needs."""

    request: RunRequest
    hf_config: Mapping[str, Any]
    """The model's configuration with Hugging Face's keys, including ``model_type``."""
    num_parameters: int
    weight_bytes: int
    """[B]"""
    dtype: str
    ds_config: Mapping[str, Any] | None = None
    """DeepSpeed's configuration; None for a run without DeepSpeed."""
    homes: Mapping[str, int | str] | None = None
    """Accelerate's device map by name of module; None with ``auto``, and for a run without Accelerate."""
    engine: Mapping[str, Any] | None = None
    """The settings of vLLM's engine (``engine_settings``); None for a run without vLLM."""
    requests: Mapping[str, Any] | None = None
    """The requests of a stream as columns; None for a workload."""

    @property
    def kind(self) -> str:
        """The kind of the strategy."""
        return self.request.strategy.kind

    @property
    def ranks(self) -> int:
        """The number of processes, each with one GPU; one process of Accelerate or vLLM may have several."""
        return 1 if self.engine is not None else self.request.strategy.ranks

    @property
    def batch(self) -> Inference | None:
        """The batch that an engine computes; None for a stream and for a run without an engine."""
        work = self.request.workload
        served = self.engine is not None and self.requests is None
        return work if served and isinstance(work, Inference) else None

    @property
    def device(self) -> str:
        """The device of offloaded parameters: none, cpu or nvme."""
        if self.ds_config is not None:
            return offload_device(self.ds_config)
        return offload_home(self.request.strategy.model_dump())

    @property
    def optimizer(self) -> str:
        """The device of offloaded optimizer states of training: none, cpu or nvme."""
        if self.ds_config is None:  # FSDP has them where it has the parameters
            return self.device if self.is_training else "none"
        return optimizer_device(self.ds_config) if self.is_training else "none"

    @property
    def is_training(self) -> bool:
        """Whether the run is training, not inference."""
        return isinstance(self.request.workload, Training)

    @property
    def host_bytes(self) -> int:
        """[B] Estimate of host memory: weights, and 16 B per parameter for an optimizer; runs of an engine
        share its memory."""
        weights = 0 if self.device == "none" or self.engine is not None else self.weight_bytes
        return weights + self.num_parameters * (16 if self.is_training else 0)

    @property
    def longest_request(self) -> int:
        """The most tokens of a request, prompt and output together."""
        if self.requests is not None:
            return max(map(sum, zip(self.requests["prompt"], self.requests["output"], strict=True)))
        return self.request.workload.max_context + 1

    @property
    def swap_bytes(self) -> int:
        """[B] Most bytes that the run writes to storage.

        These are the weights, also under tensor parallelism, whose ranks load them from files, and with the
        optimizer on storage 12 B of states and 4 B of gradients per parameter (seen in DeepSpeed's swap
        folders).
        """
        loaded = self.kind == "transformers"
        weights = self.weight_bytes if self.device == "nvme" or loaded else 0
        states = 16 if self.optimizer == "nvme" else 0
        return self.num_parameters * states + weights


def offload_home(strategy: Mapping[str, Any]) -> str:
    """Return the device of parameters that a strategy without DeepSpeed offloads, in the words of
    ``offload_device``.

    Of Accelerate it is the slowest that the device map names; with ``auto``, and if a number of layers stays
    on the GPU, the one of the others.
    """
    if "device_map" not in strategy:
        offloads = any(map(strategy.get, ("cpu_offload", "cpu_offload_gb", "offload_group_size")))
        return "cpu" if offloads else "none"
    chosen, folder = strategy["device_map"], strategy.get("offload_folder")
    homes = set(chosen.values()) if isinstance(chosen, Mapping) else {chosen}
    if "disk" in homes or (folder is not None and not isinstance(chosen, Mapping)):
        return "nvme"
    offloaded = "cpu" in homes if isinstance(chosen, Mapping) else chosen != "cuda"
    return "cpu" if offloaded else "none"


def offload_device(config: Mapping[str, Any]) -> str:
    """Return the device to which a ``ds_config`` offloads parameters: none, cpu or nvme."""
    return _device(config, "offload_param")


def optimizer_device(config: Mapping[str, Any]) -> str:
    """Return the device to which a ``ds_config`` offloads optimizer states: none, cpu or nvme."""
    return _device(config, "offload_optimizer")


def _device(config: Mapping[str, Any], key: str) -> str:
    zero = config.get("zero_optimization")
    section = zero.get(key) if isinstance(zero, Mapping) else None
    return str((section.get("device") if isinstance(section, Mapping) else None) or "none")


def offload_words(parameters: str, optimizer: str, *, training: bool) -> str:
    """Return where the parameters and, in training, the optimizer states of a run are offloaded: "none",
    "cpu" (all of them), "optimizer cpu", "parameters cpu" or "parameters nvme, optimizer cpu"."""
    if not training or parameters == optimizer:
        return parameters
    placed = {"parameters": parameters, "optimizer": optimizer}
    return ", ".join(f"{what} {device}" for what, device in placed.items() if device != "none")


def offload_config(device: str, *, optimizer: str | None = None) -> dict[str, Any]:
    """Return a ``ds_config`` with defaults that offloads parameters to "none", "cpu" or "nvme"."""
    zero: dict[str, Any] = {"stage": 3}
    if device != "none":
        zero["offload_param"] = {"device": device, "pin_memory": True}
    if optimizer not in (None, "none"):
        zero["offload_optimizer"] = {"device": optimizer, "pin_memory": True}
    return {"zero_optimization": zero}


def read_requests(
    paths: Sequence[Path], *, ranks: int | None = None, served: bool = False
) -> tuple[CalibrationRun, ...]:
    """Read files of one scenario each, or of a list of them under ``runs``.

    A list of numbers in ``workload`` or ``stream`` stands for a run with each of them. ``ranks`` replaces
    ``strategy.ranks`` of every run. Keys that a real run does not use (``_SCENARIO_ONLY``) are ignored.
    Raises InputError with all problems, such as runs without the key that ``ranks`` replaces, and runs that
    vLLM serves unless ``served`` is set, or then others.
    """
    cases: list[CalibrationRun] = []
    problems: list[Problem] = []
    names: dict[str, Path] = {}
    for path in paths:
        try:
            document = read_document(path)
            document = document if ranks is None else _with_ranks(document, ranks)
            for at, case in _cases(document, served=served):
                name = case.request.name
                if name in names:
                    text = f"{quoted(name)} is the name of an earlier run in {names[name]}; names must differ"
                    raise InputError([document.problem((*at, "name"), text)])
                names[name] = path
                cases.append(case)
        except InputError as error:
            problems.extend(error.problems)
    if problems:
        raise InputError(problems)
    return tuple(cases)


def request(data: Mapping[str, Any]) -> CalibrationRun:
    """Check one request that is given as plain values. Raises InputError."""
    return _case(Document("", {"run": dict(data)}), ("run",), served=None)


def _with_ranks(document: Document, ranks: int) -> Document:
    """Return the document with another number of ranks in every run."""
    runs = document.data.get("runs") if isinstance(document.data, dict) else None
    named: dict[Location, Any] = {(): document.data}
    if isinstance(runs, list):
        named = {("runs", index): run for index, run in enumerate(runs)}
    problems: list[Problem] = []
    for at, run in named.items():
        strategy = run.get("strategy") if isinstance(run, dict) else None
        if not isinstance(strategy, dict) or "ranks" not in strategy:
            text = f"states no ranks that --ranks {ranks} could replace"
            remedy = "write ranks: 1 (strategies other than ZeRO have no such key), or leave --ranks out"
            problems.append(document.problem((*at, "strategy"), f"{text}; {remedy}"))
    if problems:
        raise InputError(problems)
    return edited(document, [Edit((*at, "strategy", "ranks"), ranks) for at in named], option="--ranks")


def _cases(document: Document, *, served: bool) -> Iterator[tuple[Location, CalibrationRun]]:
    """Yield each run of a document with its place."""
    places: list[Location] = [()]
    if isinstance(document.data, dict) and "runs" in document.data:
        runs = document.data["runs"]
        if not isinstance(runs, list) or not runs:
            raise InputError(
                [document.problem(("runs",), "must be a list of runs, each written like a scenario")]
            )
        others = [key for key in document.data if key != "runs"]
        if others:
            raise InputError([document.problem((key,), 'unknown key next to "runs"') for key in others])
        places = [("runs", index) for index in range(len(runs))]
    for at in places:
        for each in _each(document, at):
            yield at, _case(each, at, served=served)


def _node(document: Document, at: Location) -> Any:
    node: Any = document.data
    for key in at:
        node = node[key]
    return node


def _each(document: Document, at: Location) -> Iterator[Document]:
    """Yield the document with every combination of the numbers that lists in a run's work stand for."""
    node = _node(document, at)
    lists = dict(_lists(node, ())) if isinstance(node, dict) else {}
    for values in product(*lists.values()):
        chosen = dict(zip(lists, values, strict=True))
        edits = [Edit((*at, *place), value) for place, value in chosen.items()]
        if chosen and isinstance(node.get("name"), str):
            parts = (f"{place[-1]} {value}" for place, value in chosen.items())
            edits.append(Edit((*at, "name"), ", ".join((node["name"], *parts))))
        yield edited(document, edits, in_place=True)


def _lists(node: Mapping[str, Any], at: Location) -> Iterator[tuple[Location, list[Any]]]:
    """Yield the lists of numbers within the work of a run, with their places."""
    for key, value in node.items():
        if isinstance(value, dict) and (at or key in ("workload", "stream")):
            yield from _lists(value, (*at, key))
        elif at and isinstance(value, list) and value and all(isinstance(one, int | float) for one in value):
            yield (*at, key), value


def _complete(node: dict[str, Any]) -> None:
    """Remove what only scenarios have, and set the kinds that may be left out as in them."""
    for key in _SCENARIO_ONLY:
        node.pop(key, None)
    if isinstance(strategy := node.get("strategy"), dict):
        strategy.setdefault("kind", "deepspeed")
        node["strategy"] = dict(in_new_form(strategy)[0])
    if "stream" in node:
        node.setdefault("workload", _NO_WORK)
    if isinstance(work := node.get("workload"), dict):
        work.setdefault("kind", "inference")


def _case(document: Document, at: Location, *, served: bool | None) -> CalibrationRun:
    """Return one run; ``served`` says whether it must be one of vLLM, or None that it may be."""
    node = _node(document, at)
    if isinstance(node, dict):
        _complete(node)
    checked = validate(document, RunRequest, at=at)
    _check_program(document, at, checked, served)
    shape = checked.model.shape(root=document.root)
    if shape.family not in FAMILIES:
        text = "transformers has no class for a draft; only models of a known family can be measured"
        raise InputError([document.problem((*at, "model"), text)])
    _check_length(document, at, checked, shape.max_position_embeddings)
    settings, hf_config = checked.strategy, checked.model.hf_config(root=document.root)
    config, homes, engine, requests = None, None, None, None
    served_by = checked.served
    if served_by is not None:
        if shape.num_experts and checked.model.routing is None:  # as routers with random weights choose
            model = checked.model.model_copy(update={"routing": "uniform"})
            checked = checked.model_copy(update={"model": model})
        try:
            engine = engine_settings(served_by, checked.stream, shape, hf_config)
            if checked.stream is not None:
                limit = shape.max_position_embeddings
                requests = stream_requests(checked.stream, document.root, limit=limit)
            _check_blocks(shape, checked, requests)
        except InputError as error:
            places = ((*at, *one.key.split(".")) for one in error.problems)
            found = zip(places, error.problems, strict=True)
            raise InputError(
                one if one.path else document.problem(place, one.message) for place, one in found
            ) from None
    else:
        _check_cache(document, at, checked, shape)
    if isinstance(settings, _ZeroInference):
        config = _zero_config(document, at, checked, settings)
    elif isinstance(settings, Fsdp):
        _check_fsdp(document, at, checked.workload, settings)
    elif isinstance(checked.workload, Training):
        text = f"must be inference: {settings.kind} does not train"
        raise InputError([document.problem((*at, "workload", "kind"), text)])
    elif isinstance(settings, Transformers) and settings.ranks != settings.tensor_parallel_size:
        text = "one copy of the model runs, divided by layers; set it to tensor_parallel_size"
        raise InputError([document.problem((*at, "strategy", "ranks"), text)])
    elif isinstance(settings, Accelerate):
        try:
            homes = settings.given_homes(ModuleTree(shape))
        except InputError as error:
            place = (*at, "strategy", "device_map")
            raise InputError([document.problem(place, one.message) for one in error.problems]) from None
    return CalibrationRun(
        request=checked,
        hf_config=hf_config,
        num_parameters=shape.num_parameters,
        weight_bytes=shape.weight_bytes,
        dtype=shape.dtype,
        ds_config=config,
        homes=homes,
        engine=engine,
        requests=requests,
    )


def _check_program(document: Document, at: Location, checked: RunRequest, served: bool | None) -> None:
    """Refuse a run of another program than the command starts, a stream of one that serves none, and more
    GPUs than a machine has."""
    kind = checked.strategy.kind
    if served and checked.served is None:
        text = f"{kind} is not what vLLM runs: use vllm, or simoffload calibrate deepspeed"
        raise InputError([document.problem((*at, "strategy", "kind"), text)])
    if served is False and checked.served is not None:
        text = (
            f"{kind} is run by vLLM here; use simoffload calibrate vllm, or transformers' tensor parallelism"
        )
        raise InputError([document.problem((*at, "strategy", "kind"), text)])
    if checked.stream is not None and checked.served is None:
        text = "only runs of vLLM serve streams (simoffload calibrate vllm); remove the section"
        raise InputError([document.problem((*at, "stream"), text)])
    if checked.served is not None and isinstance(checked.workload, Training):
        text = "must be inference: vLLM does not train"
        raise InputError([document.problem((*at, "workload", "kind"), text)])
    if not isinstance(checked.strategy, _ZeroInference) and (gpus := checked.strategy.gpus) > _MOST_GPUS:
        keys = ("ranks", *checked.strategy.traits.gpu_keys)
        key = max(keys, key=lambda one: getattr(checked.strategy, one, 0))
        text = f"a run is made on one machine with at most {_MOST_GPUS} GPUs, not {gpus:,}"
        raise InputError([document.problem((*at, "strategy", key), text)])


def _check_blocks(shape: ModelShape, checked: RunRequest, requests: Mapping[str, Any] | None) -> None:
    """Refuse fewer blocks than a batch, or the longest request of a stream, needs. Raises InputError."""
    strategy, work, stream = checked.strategy, checked.workload, checked.stream
    assert isinstance(strategy, Vllm)
    assert isinstance(work, Inference)
    if stream is None or requests is None:
        strategy.check_blocks(shape, sequences=work.batch_size, length=work.max_context)
        return
    changed = {
        key: value for key in ("max_num_batched_tokens", "kv_blocks") if (value := getattr(stream, key))
    }
    strategy.model_copy(update=changed).check_blocks(
        shape,
        sequences=1,
        length=max(map(sum, zip(requests["prompt"], requests["output"], strict=True))),
        size=stream.block_size or VLLM_BLOCK,
        remedy=f"{'stream' if stream.kv_blocks else 'strategy'}.kv_blocks",
    )


def _check_cache(document: Document, at: Location, checked: RunRequest, shape: ModelShape) -> None:
    """Refuse a cache that transformers does not have, and one of a run that generates nothing."""
    cache, place = checked.kv_cache, (*at, "strategy", "kv_cache")
    if cache == DEFAULT:
        return
    if isinstance(checked.workload, Training):
        raise InputError([document.problem(place, "training keeps no cache; remove the section")])
    if (kind := _KINDS.get(cache.tier)) is None:
        text = f'"{cache.tier}" is not possible: transformers keeps no cache there; use hbm or dram'
        raise InputError([document.problem((*place, "tier"), text)])
    try:
        check_native(cache, TRANSFORMERS, shape)
        cache.plain.model_copy(update={"tier": kind}).check(TRANSFORMERS, shape, what_if=False)
    except InputError as error:
        keys = ((*place, *one.key.split(".")[2:]) for one in error.problems)
        found = zip(keys, error.problems, strict=True)
        raise InputError([document.problem(key, one.message) for key, one in found]) from None


def _check_fsdp(document: Document, at: Location, work: Computation, settings: Fsdp) -> None:
    """Refuse what a run of FSDP does not do."""
    if not isinstance(work, Training):
        text = "must be training: fsdp does not generate"
        raise InputError([document.problem((*at, "workload", "kind"), text)])
    for key, usual in (("optimizer", "AdamW"), ("lora", None)):
        if getattr(settings, key) != usual:
            text = "all weights are trained with PyTorch's AdamW here; remove it"
            raise InputError([document.problem((*at, "strategy", key), text)])


def _zero_config(
    document: Document, at: Location, checked: RunRequest, settings: _ZeroInference
) -> Mapping[str, Any]:
    """Return the ``ds_config`` of a run. Raises InputError for one that the run would not follow."""
    if not settings.ds_config:
        device = _DEVICES.get(settings.weights or "", "none")
        return offload_config(device, optimizer=device if isinstance(checked.workload, Training) else None)
    config = validate(document, DeepSpeedConfig, at=(*at, "strategy", "ds_config"))
    _check_config(document, at, settings, config)
    return settings.ds_config


def _check_config(document: Document, at: Location, checked: _ZeroInference, config: DeepSpeedConfig) -> None:
    """Refuse settings that the run would not follow."""
    zero = config.zero_optimization
    place = (*at, "strategy", "ds_config", "zero_optimization")
    if zero.stage != 3:
        text = f"must be 3: these runs measure ZeRO-3 offload, got {zero.stage}"
        raise InputError([document.problem((*place, "stage"), text)])
    device = (zero.offload_param.device if zero.offload_param else None) or "none"
    wanted = _DEVICES.get(checked.weights or "")
    if wanted is not None and wanted != device:
        text = f'"{checked.weights}" contradicts ds_config, which offloads to "{device}"; leave one out'
        raise InputError([document.problem((*at, "strategy", "weights"), text)])


def _check_length(document: Document, at: Location, checked: RunRequest, limit: int | None) -> None:
    work = checked.workload
    training = isinstance(work, Training)
    tokens = work.sequence_length if isinstance(work, Training) else work.max_context
    if limit is not None and tokens > limit:
        key = "sequence_length" if training else "prompt_length"
        text = f"{tokens} tokens in total exceed the {limit} positions of the model"
        raise InputError([document.problem((*at, "workload", key), text)])
