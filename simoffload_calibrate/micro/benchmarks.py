"""The microbenchmarks: one class says all that the plan, processes, record and profiles know of each.

A benchmark from outside derives from ``Microbenchmark`` and is registered with ``register``. Nothing here
imports PyTorch: what runs is named, and child processes import it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

from simoffload.errors import InputError
from simoffload_calibrate.micro.noise import pooled, pooled_steps

if TYPE_CHECKING:
    from simoffload.models import ModelShape
    from simoffload_calibrate.micro.profiles import Measured
    from simoffload_calibrate.runs import CalibrationRun

_MICRO = __name__.rpartition(".")[0]
_DEEPSPEED = ("torch", "deepspeed")
_MODELS_RUN = ("torch", "transformers", "deepspeed")
_EAGER_RUN = ("torch", "transformers", "accelerate")

Fits = dict[str, Any]
"""Values by their keys in profiles, such as ``pcie.latency`` or ``host.eager.hook``: each a ``Fitted``, or a
value as profiles write it."""


class BenchmarkSetting(NamedTuple):
    """The conditions under which a benchmark runs."""

    ranks: int
    """The number of processes, each with one GPU."""
    quick: bool
    """Whether one round with fewer points is measured."""
    deep: bool
    """Whether models with many layers are measured, too."""


class Microbenchmark:
    """A benchmark of a component: what it runs, needs and gives, and how its times are pooled and fitted."""

    name: ClassVar[str]
    """The name in the record."""
    section: ClassVar[str]
    """The name of its section on the command line, which several may share; ``name`` if there is none."""

    runs: ClassVar[str] = ""
    """The function that measures in a child process, as ``module:function``. It gets a ``child.Job`` and
    returns plain values, in which lists under keys that end in "seconds" are repetitions; ``SkippedError`` is
    the reason why it cannot. Empty for what only older records have."""
    process: ClassVar[Literal["plain", "deepspeed", "separate"]] = "plain"
    """The kind of process: DeepSpeed replaces functions of PyTorch, and a separate process may crash."""
    seconds: ClassVar[float] = 0.0
    """[s] Time of a round on a slow host: an H100's virtual machine at 1.4 times its shortest time; of each
    number of GPUs in ``counts``."""
    building: ClassVar[float] = 0.0
    """[s] Additional time of the first round, in which memory is allocated and models are built."""
    quick: ClassVar[float | None] = None
    """[s] Time of the only round of a quick measurement, ``building`` included; of each number of GPUs. None:
    not part of it."""
    rounds: ClassVar[tuple[int, ...]] = (1,)
    """The rounds in which it is measured."""
    host: ClassVar[bool] = True
    """Whether a slow host thread changes the results."""
    once: ClassVar[bool] = False
    """Whether later rounds only measure what time did not allow in an earlier one."""

    needs_gpu: ClassVar[bool] = True
    packages: ClassVar[tuple[str, ...]] = ("torch",)
    """The packages that must be installed."""
    compiled: ClassVar[bool] = False
    """Whether it needs operations that DeepSpeed compiles."""
    storage: ClassVar[bool] = False
    """Whether it needs a folder that the user names."""
    ranks: ClassVar[Literal["one", "most", "extremes"]] = "one"
    """The numbers of processes: "most" is one for each GPU, "extremes" one and the most."""
    fewest: ClassVar[int] = 2
    """The fewest GPUs with which "most" is measured."""
    counts: ClassVar[tuple[int, ...]] = ()
    """Numbers of GPUs that work at once within the group of all; all of them are always measured."""

    gives: ClassVar[tuple[str, ...]] = ()
    """The keys of profiles, or of tables in them, that have no value of the machine without it."""
    without: ClassVar[str] = "no value of the profiles depends on it"
    """What its lack means, where no value comes from the other platform instead."""
    merged: ClassVar[str] = ""
    """The key of the record under which its results and those of others are pooled; by default its name, with
    a table by numbers of processes if these are several."""

    def __init_subclass__(cls) -> None:
        if "name" in vars(cls) and not hasattr(cls, "section"):
            cls.section = cls.name

    def processes(self, gpus: int) -> list[int]:
        """Return the numbers of processes with which it is measured; none if there are too few GPUs."""
        most = [gpus] if gpus >= self.fewest else []
        return {"one": [1], "most": most, "extremes": sorted({1, gpus})}[self.ranks]

    def numbers(self, ranks: int) -> list[int]:
        """Return the numbers of GPUs that work at once in a group of ``ranks``, in rising order."""
        return sorted({*(count for count in self.counts if count < ranks), ranks})

    def inputs(self, setting: BenchmarkSetting) -> Mapping[str, Any]:  # noqa: ARG002 - a method to override
        """Return what its function needs beside the job, such as shapes or models, as plain values."""
        return {}

    def pooled(self, found: Sequence[Mapping[str, Any]]) -> Any:
        """Return one result of all rounds: lower quartiles, and their spread under keys with "_spread"."""
        return pooled(found)

    def failures(self, result: Mapping[str, Any]) -> Mapping[str, str]:  # noqa: ARG002
        """Return the reasons why parts of a result are missing, by a name for the user."""
        return {}

    def fit(self, measured: Measured) -> Fits:  # noqa: ARG002
        """Return the values of profiles that a record gives; empty where it was not measured.

        What earlier benchmarks gave is in ``measured.fitted`` and ``measured.profile``.
        """
        return {}


def _below(profile: str, fitted: Mapping[str, Any]) -> Fits:
    return {f"{profile}.{key}": one for key, one in fitted.items()}


# -- links and memory -----------------------------------------------------------------------------


class Copies(Microbenchmark):
    """Copies between host memory and one GPU, by size."""

    name = "copies"
    runs = f"{_MICRO}.links:measure_copies"
    seconds, building, quick, rounds = 4.5, 0.5, 5.0, (1, 2, 3)
    gives = ("pcie.host_to_device", "pcie.device_to_host", "pcie.both_ways", "pcie.latency", "host.pageable")

    def fit(self, measured: Measured) -> Fits:
        """Return rates by size, the share of both ways at once, and the wait for a small copy."""
        from simoffload_calibrate.micro.fit_parts import fit_pageable, fit_pcie

        return _below("pcie", fit_pcie(measured.sections)) | _below("host", fit_pageable(measured.sections))


class CopiesTogether(Microbenchmark):
    """Copies of several GPUs at once, from which ``Dram`` has the rate of host memory."""

    name, section = "copies_together", "copies"
    runs = f"{_MICRO}.links:measure_copies_together"
    process = "deepspeed"
    seconds, building, quick, rounds = 1.3, 3.5, 1.0, (1, 2)
    ranks, counts = "most", (1, 2, 3, 4, 6, 8)
    gives = ("host.stream_fraction", "host.from_gpu_traffic", "host.pageable_traffic")


class CopiesSubsets(Microbenchmark):
    """Copies of subsets of the GPUs, which show those that share a switch or a socket."""

    name, section = "copies_subsets", "copies"
    runs = f"{_MICRO}.links:measure_copies_subsets"
    process = "deepspeed"
    seconds, building, rounds, host, once = 10.0, 0.5, (1, 2), False, True
    ranks, fewest = "most", 3
    without = "platform.yaml does not show which GPUs share a switch or a socket"


class Dram(Microbenchmark):
    """Copies within host memory, by threads."""

    name = "dram"
    runs = f"{_MICRO}.host:measure_memory"
    seconds, building, quick, rounds = 1.4, 0.8, 0.7, (1, 2, 3)
    needs_gpu = False
    gives = ("host.memcpy_rate", "host.stream_fraction", "host.memory_bandwidth", "host.pinned_allocation")

    def fit(self, measured: Measured) -> Fits:
        """Return the rates of the CPU's copies, and of all traffic that was seen, copies of GPUs included."""
        from simoffload_calibrate.micro.fit_parts import fit_bandwidth

        return _below("host", fit_bandwidth(measured.sections, measured.base.host.memory_bandwidth.value))


class MemoryReads(Microbenchmark):
    """Reads of host memory, by threads."""

    name = "memory_reads"
    runs = f"{_MICRO}.cpu:measure_reads"
    seconds, building, quick, rounds = 1.5, 0.2, 0.5, (1, 2, 3)
    needs_gpu = False
    gives = ("host.cpu_products",)

    def fit(self, measured: Measured) -> Fits:
        """Return the share of the bandwidth with which the CPU reads weights."""
        from simoffload_calibrate.micro.fit_parts import fit_reads

        return _below("host.cpu_products", fit_reads(measured))


class GgmlProducts(Microbenchmark):
    """Products of ggml on the CPU, by format, tokens and threads, and its changes to the GPU and back, where
    llama-cpp-python is installed."""

    name = "ggml"
    runs = f"{_MICRO}.cpu:measure_products"
    seconds, building, quick = 18.0, 2.0, 18.0
    needs_gpu = False
    gives = ("host.cpu_products",)

    def fit(self, measured: Measured) -> Fits:
        """Return the rates of a thread and of kernels, and the times of meetings and changes of device."""
        from simoffload_calibrate.micro.fit_parts import fit_products

        return _below("host.cpu_products", fit_products(measured))


class CollectiveCalls(Microbenchmark):
    """All-gathers and reduce-scatters among GPUs."""

    name = "collectives"
    runs = f"{_MICRO}.links:measure_collectives"
    process = "deepspeed"
    seconds, building, quick = 2.2, 3.0, 2.5
    ranks, counts = "most", (2, 4, 8)
    gives = ("accelerator.interconnect",)

    def fit(self, measured: Measured) -> Fits:
        """Return rate and latency of links among GPUs, if they have any."""
        from simoffload_calibrate.micro.fit_parts import fit_links

        return _below("accelerator.interconnect", fit_links(measured))


# -- the GPU --------------------------------------------------------------------------------------


class Hbm(Microbenchmark):
    """Copies within GPU memory, by their size."""

    name = "hbm"
    runs = f"{_MICRO}.gpu:measure_memory"
    seconds, building, quick, host = 0.7, 0.2, 0.7, False
    gives = ("accelerator.hbm_efficiency",)

    def fit(self, measured: Measured) -> Fits:
        """Return the share of the bandwidth that copies reach, and the bandwidth if they exceed it."""
        from simoffload_calibrate.micro.fit_parts import fit_hbm

        bandwidth = measured.base.accelerator.hbm_bandwidth.value
        return _below("accelerator", fit_hbm(measured.sections, bandwidth))


class Kernels(Microbenchmark):
    """The smallest kernels, and those that PyTorch does not vectorize."""

    name = "kernels"
    runs = f"{_MICRO}.gpu:measure_kernels"
    seconds, building, quick, host = 0.8, 0.2, 0.8, False
    gives = ("accelerator.kernel_latency", "accelerator.strided_rate", "accelerator.join_rate")

    def fit(self, measured: Measured) -> Fits:
        """Return the time of a kernel that does nothing, and the rates of those that are not vectorized."""
        from simoffload_calibrate.micro.fit_parts import fit_kernel_latency, fit_strided

        latency = fit_kernel_latency(measured.sections)
        found = {"kernel_latency": latency[1]} if latency else {}
        return _below("accelerator", found | fit_strided(measured.sections))


class Matmul(Microbenchmark):
    """Matrix products of the shapes of known models."""

    name = "matmul"
    runs = f"{_MICRO}.gpu:measure_matmul"
    seconds, building, quick, rounds, host = 8.0, 0.5, 3.5, (1, 3), False
    gives = ("accelerator.matmul_efficiency", "accelerator.float16_share")
    models = (
        *("opt-6.7b", "llama-3-8b", "opt-1.3b", "bloom-7b1"),
        *("opt-30b", "opt-66b", "llama-3-70b", "bloom-176b"),
    )
    """Models whose linear layers are measured, common ones first."""
    variant_models = models[:2]
    """Models of which they are also measured in float16, with bias, and as the operator ``@``."""

    def inputs(self, setting: BenchmarkSetting) -> Mapping[str, Any]:  # noqa: ARG002
        """Return the pairs (in, out) of linear layers, each once."""
        chosen = {"matmul_shapes": self.models, "matmul_variants": self.variant_models}
        return {key: list(dict.fromkeys(_linear_shapes(names))) for key, names in chosen.items()}

    def fit(self, measured: Measured) -> Fits:
        """Return the share of the peak by FLOP, against memory and kernels of this GPU."""
        from simoffload_calibrate.micro.fit_parts import fit_gpu_products

        return _below("accelerator", fit_gpu_products(measured.sections, measured.base.accelerator))


def _linear_shapes(models: Sequence[str]) -> Iterator[tuple[int, int]]:
    from simoffload.models import load_model

    for model in map(load_model, models):
        for module in (*model.layers[0], *model.modules_after):
            if module.kind == "linear" and module.in_features and module.out_features:
                yield module.in_features, module.out_features


class AttentionKernels(Microbenchmark):
    """Scores, softmax and values, fused and eager."""

    name = "attention"
    runs = f"{_MICRO}.gpu:measure_attention"
    seconds, building, quick, host = 3.0, 0.5, 1.2, False
    gives = ("accelerator.fused_attention", "accelerator.eager_attention")
    models = ("opt-6.7b", "llama-3-8b", "bloom-7b1")

    def inputs(self, setting: BenchmarkSetting) -> Mapping[str, Any]:  # noqa: ARG002
        """Return family, heads and width of the attention of known models."""
        from simoffload.models import load_model

        def shape(name: str, model: ModelShape) -> dict[str, Any]:
            heads = {"heads": model.num_attention_heads, "kv_heads": model.num_key_value_heads}
            return {"model": name, "family": model.family, **heads, "head_dim": model.head_dim}

        return {"attention_shapes": [shape(name, load_model(name)) for name in self.models]}

    def fit(self, measured: Measured) -> Fits:
        """Return the shares of their ideal speed, on the GPU as it was measured."""
        from simoffload.hardware import Accelerator
        from simoffload_calibrate.micro.fit_parts import fit_attention

        gpu = Accelerator.model_validate(measured.profile("accelerator"))
        return _below("accelerator", fit_attention(measured.sections, gpu))


# -- the host thread ------------------------------------------------------------------------------


class HooksDecode(Microbenchmark):
    """Decode steps of small models under ZeRO-3."""

    name, section, merged = "hooks_decode", "hooks", "hooks"
    runs = f"{_MICRO}.hooks:measure_decode"
    process, compiled, packages, needs_gpu = "deepspeed", True, _MODELS_RUN, False
    seconds, building, quick, rounds = 10.0, 22.0, 24.0, (1, 2, 3)
    ranks = "extremes"
    gives: ClassVar[tuple[str, ...]] = ("host.deepspeed",)

    def cases(self, setting: BenchmarkSetting) -> tuple[Sequence[CalibrationRun], Sequence[CalibrationRun]]:
        """Return the small models to fit, and those that are held back from the fit."""
        from simoffload_calibrate import small_models

        return small_models.small_cases(setting.ranks), small_models.held_back_cases(setting.ranks)

    def inputs(self, setting: BenchmarkSetting) -> Mapping[str, Any]:
        """Return the small models as cases of a run."""
        from simoffload_calibrate.launch import case_data

        fitted, held_back = self.cases(setting)
        chosen = fitted if setting.quick else (*fitted, *held_back)
        cases = [case_data(index, case, trace=True) for index, case in enumerate(chosen)]
        return {"cases": [{**case, "held_back": case["index"] >= len(fitted)} for case in cases]}

    def pooled(self, found: Sequence[Mapping[str, Any]]) -> Any:
        """Return one entry for each small model, with the fast half of its passes."""
        return pooled_steps(found)

    def failures(self, result: Mapping[str, Any]) -> Mapping[str, str]:
        """Return why small models could not be built."""
        return {f"{self.merged}, {one['name']}": one["error"] for one in result["failed"]}

    def fit(self, measured: Measured) -> Fits:
        """Return the factor of the host thread and its costs, as far as steps or probes show them."""
        from simoffload_calibrate.micro.fit_programs import fit_thread

        thread = fit_thread(measured.raw, measured.node)
        if thread is None:
            return {}
        measured.report(thread)
        return _below("host", thread.fits(measured.sections.get(self.merged, {}).get("runs", ())))


class HooksTraining(HooksDecode):
    """Training steps of small models under ZeRO-3."""

    name = "hooks_training"
    runs = f"{_MICRO}.hooks:measure_training"
    seconds, building, quick = 16.0, 36.0, 28.0
    gives = ("host.training",)

    def cases(self, setting: BenchmarkSetting) -> tuple[Sequence[CalibrationRun], Sequence[CalibrationRun]]:
        """Return the small models to fit, and those that are held back from the fit."""
        from simoffload_calibrate import small_models

        return (
            small_models.small_training_cases(setting.ranks, deep=setting.deep),
            small_models.held_back_training_cases(setting.ranks, deep=setting.deep),
        )

    def fit(self, measured: Measured) -> Fits:  # noqa: ARG002
        """Return nothing: the costs of both kinds of steps are fitted together, by ``HooksDecode``."""
        return {}


class Eager(Microbenchmark):
    """Decode steps of small models without DeepSpeed: on the GPU and under Accelerate."""

    name = "eager"
    runs = f"{_MICRO}.eager:measure_eager"
    packages = _EAGER_RUN
    seconds, building, quick = 2.0, 5.4, 4.0
    gives = ("host.eager",)

    def inputs(self, setting: BenchmarkSetting) -> Mapping[str, Any]:
        """Return the small models as cases of a run."""
        from simoffload_calibrate.launch import case_data
        from simoffload_calibrate.small_models import eager_cases

        cases = enumerate(eager_cases(setting.ranks))
        return {"cases": [case_data(index, case, trace=False) for index, case in cases]}

    def fit(self, measured: Measured) -> Fits:
        """Return the costs of launches, of Accelerate's hooks, and of sums over several GPUs."""
        from simoffload_calibrate.micro.fit_programs import fit_eager

        return _below("host.eager", fit_eager(measured.sections, measured.node))


class EagerTogether(Eager):
    """Decode steps of small models that are divided among all GPUs."""

    name = "eager_together"
    process, ranks = "deepspeed", "most"
    building, quick = 6.0, 6.0
    gives = ("host.eager.all_reduce",)

    def fit(self, measured: Measured) -> Fits:  # noqa: ARG002
        """Return nothing: what division costs is fitted beside the models on one GPU."""
        return {}


class FsdpSteps(Microbenchmark):
    """Steps of tiny models under FSDP, which two older records have and nothing measures any more."""

    name = "fsdp"
    gives = ("host.fsdp",)

    def fit(self, measured: Measured) -> Fits:
        """Return the costs of FSDP's functions and of AdamW."""
        from simoffload_calibrate.micro.fit_programs import fit_fsdp

        return _below("host.fsdp", fit_fsdp(measured.sections, measured.node))


class CpuAdam(Microbenchmark):
    """Steps of DeepSpeed's CPU Adam, by threads."""

    name = "cpu_adam"
    runs = f"{_MICRO}.host:measure_adam"
    process, compiled, packages, needs_gpu = "deepspeed", True, _DEEPSPEED, False
    seconds, building, quick, rounds = 2.3, 2.1, 3.5, (1, 2)
    gives = ("host.cpu_optimizer",)

    def fit(self, measured: Measured) -> Fits:
        """Return the rates of one thread and of all, of Adam and of the search for overflow."""
        from simoffload_calibrate.micro.fit_programs import fit_cpu_optimizer

        return _below("host.cpu_optimizer", fit_cpu_optimizer(measured.sections, measured.machine))


class CpuAdamTogether(Microbenchmark):
    """Steps of CPU Adam on all ranks at once, which ``CpuAdam`` fits with its own."""

    name, section = "cpu_adam_together", "cpu_adam"
    runs = f"{_MICRO}.host:measure_adam_together"
    process, compiled, packages, needs_gpu = "deepspeed", True, _DEEPSPEED, False
    seconds, building, quick, rounds = 8.5, 4.0, 2.5, (1, 2)
    ranks = "most"
    gives = ("host.cpu_optimizer",)


# -- storage --------------------------------------------------------------------------------------


class PageFaults(Microbenchmark):
    """Page faults of a mapped file that memory does not hold, by threads."""

    name = "page_faults"
    runs = f"{_MICRO}.cpu:measure_page_faults"
    seconds, quick, rounds = 4.0, 4.0, (1, 2)
    needs_gpu, storage = False, True
    gives = ("host.cpu_products.page_faults", "host.read_ahead")

    def fit(self, measured: Measured) -> Fits:
        """Return the rate at which pages of a file enter memory."""
        from simoffload_calibrate.micro.fit_parts import fit_page_faults

        return _below("host", fit_page_faults(measured))


class StorageSweep(Microbenchmark):
    """Reads and writes with DeepSpeed's aio in a folder."""

    name = "storage"
    runs = f"{_MICRO}.storage:measure_storage"
    process, compiled, packages, needs_gpu, storage = "deepspeed", True, _DEEPSPEED, False, True
    seconds, building, quick, rounds = 35.0, 5.0, 20.0, (1, 2)
    gives = ("drive",)
    without = "no drive.yaml is written"

    def fit(self, measured: Measured) -> Fits:
        """Return a drive: rates, latencies, and the lanes that carry them."""
        from simoffload_calibrate.micro.fit_parts import fit_storage

        section = measured.sections.get(self.name)
        return _below("drive", fit_storage(section, measured.date)) if section else {}


class StorageGds(Microbenchmark):
    """Reads into GPU memory with GPUDirect Storage."""

    name, section = "storage_gds", "storage"
    runs = f"{_MICRO}.storage:measure_gds"
    process, compiled, packages, storage = "separate", True, _DEEPSPEED, True
    seconds, building, quick, host = 10.0, 10.0, 20.0, False


_SHIPPED = (
    *(Copies(), Kernels(), Dram(), MemoryReads(), Hbm(), Matmul(), HooksDecode(), Eager(), EagerTogether()),
    *(CpuAdam(), HooksTraining(), PageFaults(), StorageSweep(), CopiesTogether(), CopiesSubsets()),
    *(CollectiveCalls(), CpuAdamTogether(), AttentionKernels(), GgmlProducts(), StorageGds(), FsdpSteps()),
)
"""In the order of a round: short ones, and those that matter most to predictions, come first."""
_registered: dict[str, Microbenchmark] = {}


def register(benchmark: type[Microbenchmark]) -> type[Microbenchmark]:
    """Register a microbenchmark from outside, so that ``calibrate micro`` measures it; also a decorator.

    Registering a class again replaces it. Raises ValueError if another one has its name.
    """
    known = microbenchmark(benchmark.name)
    if known and (type(known).__module__, type(known).__qualname__) != (
        benchmark.__module__,
        benchmark.__qualname__,
    ):
        raise ValueError(f"the microbenchmark {benchmark.name} is known already, as {type(known).__name__}")
    _registered[benchmark.name] = benchmark()
    return benchmark


def microbenchmarks() -> tuple[Microbenchmark, ...]:
    """Return all microbenchmarks in the order of a round."""
    return (*_SHIPPED, *_registered.values())


def microbenchmark(name: str) -> Microbenchmark | None:
    """Return a microbenchmark by its name in records, with or without a number of processes."""
    return next((one for one in microbenchmarks() if one.name == name.partition("/")[0]), None)


def sections() -> tuple[str, ...]:
    """Return the names of sections on the command line."""
    return tuple(dict.fromkeys(one.section for one in microbenchmarks() if one.runs))


def need_storage(names: Collection[str]) -> bool:
    """Return whether one of the sections with these names needs a folder that the user names."""
    return any(one.storage for one in microbenchmarks() if one.section in names)


def missing_sections(raw: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a sentence for each section that a record lacks because its run ended early."""
    begun = {one["section"] for one in raw.get("rounds", ())}
    sentences = []
    for key in map(str, raw.get("unfinished", ())):
        name = key.partition("/")[0]
        of_it = [one for one in microbenchmarks() if name in (one.name, one.merged)]
        given = [key for one in of_it for key in one.gives if "." in key]
        effect = next((one.without for one in of_it), Microbenchmark.without)
        if given:
            effect = f"{_in_files(given)} come from the other platform"
        verb = "completed" if key in begun else "measured"
        sentences.append(f"{key} was not {verb} because the run ended early: {effect}")
    return tuple(sentences)


def _in_files(keys: Sequence[str]) -> str:
    """Return keys of profiles as a list with their files."""
    files: dict[str, list[str]] = {}
    for key in keys:
        profile, _, inner = key.partition(".")
        files.setdefault(profile, []).append(inner)
    lists = [
        f"{' and '.join([', '.join(names[:-1]), names[-1]] if names[1:] else names)} of {profile}.yaml"
        for profile, names in files.items()
    ]
    return " and ".join(lists)


# -- the request for a measurement, and the sections of it on one machine --------------------------


class MeasurementRequest(NamedTuple):
    """A request for a measurement, as the user stated it."""

    sections: tuple[str, ...]
    """The names of the sections to measure: the ``section`` of microbenchmarks."""
    gpus: int | None
    """The number of GPUs to use; None for all."""
    storage: Path | None
    """The folder in which storage is measured."""
    storage_size: int | None
    """[B] Size of the files that are written; None for 2 GiB or a quarter of the free space."""
    quick: bool
    """Whether to measure one round with fewer points."""
    record: Path | None = None
    """The file that is rewritten after every section, so that a run that ends early loses nothing."""
    seconds: float | None = None
    """[s] Time limit of the measurement; None for the usual time."""
    resumed: Mapping[str, Any] | None = None
    """The record of an earlier run that this one continues."""


def refusal(option: str, message: str) -> InputError:
    """Return an InputError about an option of the command line."""
    return InputError.at("", message, path=option)


class SkippedError(Exception):
    """A section cannot be measured on this machine, or failed; the text of the exception is the reason."""


class Context(NamedTuple):
    """The circumstances of one measurement of a section."""

    round: int
    """The number of the round, counted from 1."""
    again: int
    """The number of earlier measurements of the section in this round."""
    seconds: float
    """[s] Time limit, after which the section returns the results that it has."""


class MeasurementSection(NamedTuple):
    """A section of the measurement on this machine, which is measured in several rounds."""

    name: str
    """The key of the section in the record."""
    run: Callable[[Context], Mapping[str, Any]]
    """The function that measures and returns the results. It raises SkippedError."""
    seconds: float
    """[s] Expected time of a round."""
    building: float = 0.0
    """[s] Additional time of the first round."""
    rounds: tuple[int, ...] = (1, 2, 3)
    """The rounds in which the section is measured."""
    host: bool = True
    """Whether a slow host thread changes the results; times that depend on the GPU alone do not change."""
    once: bool = False
    """Whether later rounds only measure what time did not allow in an earlier one."""
