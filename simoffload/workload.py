"""Workloads: generate tokens, train, or save and restore checkpoints; and the data that training reads."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from math import ceil, floor
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from simoffload.documents import Frozen
from simoffload.units import PositiveBytes, Seconds

WholeNumber = Annotated[int, Field(strict=True, ge=1)]
_ROUNDING = 1e-9
"""Part of a step, or of a token, that is a rounding of sums of shares."""


# -- inference -----------------------------------------------------------------------------------

Method = Literal["draft_model", "mtp", "ngram"]
"""What proposes tokens, with vLLM's names: another model (``model.draft_model``, also a head with a
configuration of its own), the model's modules that predict further tokens, or the text itself, which costs
nothing."""
Share = Annotated[float, Field(ge=0, le=1)]


class Speculation(Frozen):
    """Speculative decoding: a draft proposes tokens, and one pass of the model verifies all of them.

    A step feeds in the last token of each sequence and those proposed for it, and yields those accepted and
    one of its own. Rejected tokens are computed in vain (Leviathan et al., arXiv 2211.17192). Give one of
    ``acceptance`` and ``acceptance_length``; both depend on texts and models, and are no prediction.
    """

    method: Method | None = None
    """What proposes tokens; by default ``model.draft_model``, or without one the model's own modules
    (``mtp``)."""
    num_speculative_tokens: Annotated[WholeNumber, Field(le=1000)]
    """Number of tokens that are proposed for each sequence in a step."""
    acceptance: Share | tuple[Share, ...] | None = None
    """Share of the tokens that are accepted if all before them in their step are; or for each of them the
    share of steps in which it is, as vLLM logs it ("Per-position acceptance rate")."""
    acceptance_length: Annotated[float, Field(ge=1, le=1001)] | None = None
    """Mean number of tokens that a step yields, its own included, as vLLM logs it ("Mean acceptance length").
    """

    @property
    def tokens_per_step(self) -> float:
        """The mean number of tokens that a step yields for each sequence.

        With a share a it is 1 + a + … + a^k = (1 - a^(k+1)) / (1 - a) (arXiv 2211.17192, equation 1).
        """
        if self.acceptance_length is not None:
            return self.acceptance_length
        if isinstance(self.acceptance, tuple):
            return 1.0 + sum(self.acceptance)
        share = self.acceptance or 0.0
        return sum(share**place for place in range(self.num_speculative_tokens + 1))

    @model_validator(mode="after")
    def _check(self) -> Self:
        most, rates = self.num_speculative_tokens, self.acceptance
        if (rates is None) == (self.acceptance_length is None):
            raise ValueError(
                "give one of acceptance, such as 0.7, and acceptance_length, such as 2.5 tokens per step"
            )
        if self.acceptance_length is not None and self.acceptance_length > most + 1:
            raise ValueError(
                f"acceptance_length {self.acceptance_length:g} is more than a step can yield: the "
                f"{most} of num_speculative_tokens and one; lower it, or propose more"
            )
        if isinstance(rates, tuple) and len(rates) != most:
            raise ValueError(
                f"acceptance lists {len(rates)} positions, num_speculative_tokens is {most}; give one share "
                "for each, or one number"
            )
        if isinstance(rates, tuple) and any(later > earlier for earlier, later in pairwise(rates)):
            raise ValueError(
                "acceptance rises from a position to the next, but a token is accepted only if all before it "
                "are: give the share of steps in which each is, as vLLM logs it"
            )
        return self


class Inference(Frozen):
    """Greedy generation with a key-value cache: one prefill, then one forward pass per token.

    Batches are per rank, as ZeRO-Inference runs data-parallel: every rank generates for its own
    prompts while all ranks share the weights.
    """

    kind: Literal["inference"] = "inference"
    batch_size: Annotated[WholeNumber, Field(le=1_000_000)]
    """Number of sequences per rank."""
    prompt_length: Annotated[WholeNumber, Field(le=10_000_000)]
    """Number of tokens of each prompt."""
    output_length: Annotated[WholeNumber, Field(le=10_000_000)]
    """Tokens generated per sequence; the prefill yields the first, each decode step one more."""
    context: Annotated[WholeNumber, Field(le=10_000_000)] | None = None
    """Number of tokens of a sequence for which memory must have room (llama.cpp's ``-c``, vLLM's
    ``max_model_len``), at least prompt and output; by default these alone. Times are those of prompt and
    output."""
    speculation: Speculation | None = None
    """Speculative decoding; None: a decode step yields one token."""

    @property
    def proposed(self) -> int:
        """The number of tokens that are proposed for each sequence in a step; 0 without speculation."""
        return 0 if self.speculation is None else self.speculation.num_speculative_tokens

    @property
    def tokens_per_step(self) -> float:
        """The mean number of tokens that a decode step yields for each sequence."""
        return 1.0 if self.speculation is None else self.speculation.tokens_per_step

    @property
    def decode_steps(self) -> int:
        """The number of forward passes after the prefill; what the last one yields beyond the output is
        discarded."""
        return ceil((self.output_length - 1) / self.tokens_per_step - _ROUNDING)

    def context_at(self, step: int) -> int:
        """Return the tokens in the key-value cache after decode step ``step``, of which the first is number
        1, with those that it rejects."""
        return self.prompt_length + floor((step - 1) * self.tokens_per_step + _ROUNDING) + 1 + self.proposed

    @property
    def max_context(self) -> int:
        """The number of tokens in the key-value cache after the last pass, with those that are proposed."""
        return self.prompt_length + self.output_length - 1 + self.proposed

    @property
    def no_room(self) -> str:
        """Why the context is too small for prompt and output; "" if it is not. Only a context that is asked
        for together with these lengths is refused: that of a file may be older than longer prompts."""
        needed = self.prompt_length + self.output_length
        if self.context is None or self.context >= needed:
            return ""
        lengths = f"{self.prompt_length:,} in and {self.output_length:,} out"
        text = f"{self.context:,} tokens have no room for {lengths}; give at least {needed:,}"
        return f"{text}, or lower workload.prompt_length or output_length"

    @property
    def room(self) -> int:
        """The number of tokens of a sequence for which the key-value cache must have room."""
        return max(self.max_context, self.context or 0)

    @property
    def filled(self) -> Self:
        """The same work until the cache of every sequence is full, by which its memory is planned."""
        more = self.room - self.max_context
        return self.model_copy(update={"output_length": self.output_length + more}) if more else self


# -- training ------------------------------------------------------------------------------------


class Training(Frozen):
    """Steps of training; a step is one or more micro-steps (forward, backward) and the optimizer's update."""

    kind: Literal["training"]
    batch_size: Annotated[WholeNumber, Field(le=1_000_000)]
    """Sequences per rank in one micro-step (``train_micro_batch_size_per_gpu``)."""
    sequence_length: Annotated[WholeNumber, Field(le=10_000_000)]
    """Number of tokens of each sequence."""
    gradient_accumulation_steps: Annotated[WholeNumber, Field(le=100_000)] = 1
    """Number of micro-steps per optimizer step."""
    gradient_checkpointing: bool = True
    """Whether only the input of each layer is kept, and the backward pass recomputes the rest."""
    use_reentrant: bool = False
    """Whether PyTorch's older implementation of checkpointing is used, the default before transformers 5."""
    steps: Annotated[WholeNumber, Field(le=1000)] = 4
    """Steps of a real run (``calibrate deepspeed``), of which the first two are not counted; a simulation
    shows one step of the steady state."""

    write_caches: Literal["steady", "empty"] = "steady"
    """State of the drives' write caches at the start of a step: ``steady``, as the drives had time to empty
    them over many steps; ``empty``, as in a run's first step on idle drives."""

    @property
    def max_context(self) -> int:
        """The number of tokens to which the last position attends."""
        return self.sequence_length

    @property
    def tokens(self) -> int:
        """The number of tokens of one micro-step of one rank."""
        return self.batch_size * self.sequence_length


# -- checkpoints ---------------------------------------------------------------------------------

Count = Annotated[int, Field(strict=True, ge=1, le=1_000_000_000)]
Positive = Annotated[Seconds, Field(gt=0)]
"""A time [s] above zero."""

Contents = Literal["zero", "sharded", "model_only", "consolidated"]
"""``zero``: what DeepSpeed's ``save_checkpoint`` writes at a ZeRO stage. ``sharded``: weights and optimizer
states, an equal part of both by every rank (torch.distributed.checkpoint, MLPerf Storage). ``model_only``:
only the weights, a part by every rank. ``consolidated``: ``save_16bit_model``, all weights in one file of
rank 0, gathered first at stage 3 (``stage3_gather_16bit_weights_on_model_save``)."""

Optimizer = Literal["adam", "momentum", "sgd", "adam_8bit"]
"""Optimizer states kept in addition to the fp32 master weights: two in fp32 (``adam``), one (``momentum``,
also Lion), none (``sgd``), two of one byte (``adam_8bit``)."""

DataParallelWriters = Literal["none", "replica", "socket", "machine"]
"""DeepSpeed's ``data_parallel``: which ranks write parts of the states that all ranks hold."""

Mode = Literal["blocking", "decoupled", "snapshot"]
"""``blocking``: training waits until the files are written. ``decoupled``: DeepSpeed's writer process, which
finishes before the next optimizer step. ``snapshot``: torch.distributed.checkpoint's ``async_save``, a copy
into host memory that a background thread writes."""


class Writer(Frozen):
    """DeepSpeed's ``checkpoint.writer`` and the ``aio`` settings that it uses, with its names and its
    defaults."""

    type: Literal["torch_save", "python", "fast"] = "torch_save"
    """``torch_save``: no writer section, PyTorch opens the file. ``python``: buffered writes of a Python file
    object. ``fast``: FastPersist, O_DIRECT from a pinned buffer, fsync at the end."""
    checkpoint_serialization: bool = True
    """Whether PyTorch's zip format is used, whose CRC-32 is computed over every byte; otherwise the older
    format."""
    patched_torch: bool = False
    """Whether torch/serialization.py passes tensors directly to the fast writer, as with FastPersist's patch;
    without the patch they pass through Python byte by byte."""
    io_buffer_size: PositiveBytes = 64 * 2**20
    """Size of the write buffer [B]."""
    io_buffer_double: bool = True
    """Whether one half of the buffer is filled while the other half is written."""
    data_parallel: DataParallelWriters = "none"
    block_size: PositiveBytes = 2**20
    """Block size [B] of asynchronous I/O: ``aio.block_size``."""
    queue_depth: Count = 8
    """Queue depth of asynchronous I/O: ``aio.queue_depth``."""
    intra_op_parallelism: Count = 1
    """Threads that share one request: ``aio.intra_op_parallelism``."""
    use_gds: bool = False
    """``aio.use_gds``: the buffer is in HBM and written from there."""

    @property
    def is_direct(self) -> bool:
        """Whether FastPersist copies tensors directly into its buffer."""
        return self.type == "fast" and self.patched_torch and not self.checkpoint_serialization

    @property
    def portion(self) -> int:
        """The bytes [B] written at a time from the buffer."""
        return max(1, self.io_buffer_size // 2) if self.io_buffer_double else self.io_buffer_size

    @model_validator(mode="after")
    def _check(self) -> Self:
        self.check()
        return self

    def check(self) -> None:
        """Raise ValueError for options that contradict each other."""
        if self.type != "fast" and (self.patched_torch or self.use_gds):
            raise ValueError("patched_torch and use_gds need type: fast; set it or leave them out")
        if self.use_gds and not self.is_direct:
            raise ValueError(
                "use_gds needs patched_torch: true and checkpoint_serialization: false; otherwise PyTorch "
                "hands the writer bytes in host memory"
            )
        if self.data_parallel != "none" and not self.is_direct:
            raise ValueError(
                "data_parallel splits files only with type: fast, patched_torch: true and "
                "checkpoint_serialization: false; otherwise every writer writes all bytes"
            )


class _Options(Frozen):
    """The options of every checkpoint, in a simulated run or not."""

    contents: Contents = "zero"
    writer: Writer = Writer()
    """The writer of the files, with its settings."""
    mode: Mode = "blocking"
    pin_memory: bool = True
    """Whether the snapshot goes to page-locked memory that is kept for the next one; otherwise to newly
    allocated pageable memory."""
    fsync: bool = False
    """Whether buffered writes are flushed before the call returns; FastPersist always flushes."""
    jobs: Annotated[Count, Field(le=10_000)] = 1
    """Number of equal runs that write to the same filesystem simultaneously."""
    keep: Count = 1
    """Number of checkpoints on the tier, including the one that is being written."""
    interval: Positive | None = None
    """Training time [s] between checkpoints."""
    interval_steps: Count | None = None
    """Optimizer steps between checkpoints, instead of ``interval``."""
    node_mtbf: Positive | None = None
    """Mean time [s] between failures of one node."""
    restart_time: Seconds = 0.0
    """Time [s] from a failure until the job runs again and begins to restore."""


class TrainingCheckpoints(_Options):
    """Checkpoints of a run that is itself simulated, so that its states and step times are known."""

    tier: Annotated[str, Field(min_length=1)]
    """Storage tier of the platform to which they are written."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.interval is not None and self.interval_steps is not None:
            raise ValueError("give interval or interval_steps, not both")
        return self


class Checkpointing(_Options):
    """Checkpoints of a training run that is not itself simulated, one at a time, and their cost for the
    run."""

    kind: Literal["checkpoint"] = "checkpoint"
    stage: Annotated[int, Field(strict=True, ge=0, le=3)] = 3
    """ZeRO stage; at stage 3 the model states of ``save_checkpoint`` contain no weights."""
    optimizer: Optimizer = "adam"
    offload_optimizer: Literal["none", "cpu", "nvme"] = "none"
    """``zero_optimization.offload_optimizer.device``: where the optimizer states are stored."""
    sub_group_size: Count = 1_000_000_000
    """``zero_optimization.sub_group_size`` [elements]; at stage 3 one tensor of a sub-group has this many."""
    step_time: Positive | None = None
    """Time [s] of one optimizer step, all its micro-batches included."""
    update_time: Seconds = 0.0
    """Part of ``step_time`` [s] after the backward passes: training waits for a decoupled checkpoint before
    it."""

    @property
    def max_context(self) -> int:
        """Always 0, as no tokens are processed."""
        return 0

    @property
    def interval_s(self) -> float | None:
        """The training time [s] between checkpoints, however it was given."""
        if self.interval_steps is None or self.step_time is None:
            return self.interval
        return self.interval_steps * self.step_time

    @property
    def overlap_s(self) -> float | None:
        """The training time [s] during which a checkpoint is written before training waits for it; None:
        until the next checkpoint."""
        if self.mode != "decoupled":
            return None
        return 0.0 if self.step_time is None else self.step_time - self.update_time

    @model_validator(mode="after")
    def _check(self) -> Self:
        self.check()
        return self

    def check(self) -> None:
        """Raise ValueError for options that contradict each other."""
        for text in (*self._about_time(), *self._about_mode(), *self._about_stage()):
            raise ValueError(text)

    def _about_time(self) -> Iterator[str]:
        if self.interval is not None and self.interval_steps is not None:
            yield "give interval or interval_steps, not both"
        if self.interval_steps is not None and self.step_time is None:
            yield "interval_steps needs step_time; give it, or interval instead"
        if self.step_time is not None and self.update_time > self.step_time:
            yield f"update_time {self.update_time:g} s is more than step_time {self.step_time:g} s"

    def _about_mode(self) -> Iterator[str]:
        if self.mode == "decoupled" and self.writer.type == "torch_save":
            yield "mode: decoupled needs a writer section: set writer.type to fast or python"
        if self.mode != "blocking" and self.contents == "consolidated":
            yield "contents: consolidated needs mode: blocking, as save_16bit_model waits for its file"
        if self.mode == "snapshot" and self.writer.type != "torch_save":
            yield "mode: snapshot writes with torch.distributed.checkpoint; leave out DeepSpeed's writer"

    def _about_stage(self) -> Iterator[str]:
        device = self.offload_optimizer
        least = {"none": 0, "cpu": 1, "nvme": 3}[device]
        if self.stage < least:
            yield f"offload_optimizer: {device} needs stage: {least} or above"
        if self.stage in {1, 2} and self.writer.data_parallel != "none":
            yield (
                "with data_parallel at stages 1 and 2 DeepSpeed writes only a part of each rank's optimizer "
                "states (FastFileWriter splits every file); leave it out, or set stage to 0 or 3"
            )
        if device == "nvme" and (self.mode != "blocking" or self.contents == "sharded"):
            yield "offload_optimizer: nvme is copied file by file; it needs contents: zero and mode: blocking"


# -- data ----------------------------------------------------------------------------------------

PAGE = 4096
"""Size [B] of a page of the page cache."""
READ_AHEAD = 128 * 1024
"""Bytes [B] that Linux reads ahead of a reader by default (read_ahead_kb; VM_READAHEAD_PAGES,
include/linux/pagemap.h)."""

LargeCount = Annotated[int, Field(strict=True, ge=1, le=10**15)]


class Dataset(Frozen):
    """Samples on a storage tier, read by worker processes as in PyTorch's DataLoader.

    A worker makes complete batches, one sample after the other; all times and counts are of one worker of one
    rank. Sizes are those on storage: compressed, if the samples are.
    """

    tier: Annotated[str, Field(min_length=1, max_length=40)]
    """Storage tier of the platform that holds the files."""
    sample_size: PositiveBytes
    """Size of one sample [B], equal for all samples or their mean."""
    samples: LargeCount
    """Number of samples in the data set."""
    samples_per_file: LargeCount = 1
    """Number of samples in each file or shard."""
    shuffle: Literal["none", "shard", "full"] = "full"
    """"full": every sample is a random read. "shard": files are redistributed to the ranks in every epoch and
    each is read from its beginning (WebDataset, tar and TFRecord shards). "none": always the same order."""
    epochs: Annotated[LargeCount, Field(le=1_000_000)] = 1
    """Number of times that all samples are read; what the page cache keeps is read faster."""
    workers: Annotated[int, Field(strict=True, ge=0, le=4096)] = 2
    """Loader processes of each rank (``num_workers``); 0: the training process reads between its steps.
    DeepSpeed's loader has 2 (deepspeed/runtime/dataloader.py, ``num_local_io_workers``), PyTorch's and the
    Hugging Face Trainer's 0."""
    prefetch_factor: Annotated[LargeCount, Field(le=100_000)] = 2
    """Number of batches that each worker makes in advance (2 is PyTorch's default)."""
    page_cache: bool = True
    """Whether reads go through the host's page cache; if not, nothing is found there and nothing is
    copied."""
    request_size: PositiveBytes = READ_AHEAD
    """Size of the requests [B] in which long reads arrive at the storage."""
    requests_in_flight: Annotated[LargeCount, Field(le=1_000_000)] = 1
    """Requests in flight of one worker. A blocking read has one; io_uring, GPUDirect Storage readers and DALI
    have more."""
    open_time: Seconds = 0.0
    """Time [s] to open a file; stas00/ml-engineering measured 11 us on a local NVMe and 2.3 ms on Lustre."""
    decode_time: Seconds = 0.0
    """CPU time [s] to decompress, decode, augment and tokenize one sample, without contention."""
    decoded_size: PositiveBytes | None = None
    """Size of a sample in a batch [B]; None: as on storage."""

    @property
    def size(self) -> int:
        """The size [B] of all samples."""
        return self.samples * self.sample_size

    @property
    def files(self) -> int:
        """The number of files or shards."""
        return -(-self.samples // self.samples_per_file)

    @property
    def scattered(self) -> bool:
        """Whether samples are read from random places of a file rather than from its beginning."""
        return self.shuffle == "full" and self.samples_per_file > 1

    @property
    def bytes_per_read(self) -> float:
        """The bytes [B] that storage delivers per sample, on average.

        Scattered samples begin anywhere in a page, so s bytes touch 1 + (s - 1) / 4096 pages; a file of its
        own begins with a page; reads in order, or without the page cache, cost no more than their bytes.
        """
        if not self.page_cache or (self.shuffle != "full" and self.samples_per_file > 1):
            return self.sample_size
        if self.scattered:
            return PAGE + self.sample_size - 1
        return -(-self.sample_size // PAGE) * PAGE

    @property
    def request(self) -> int:
        """The size [B] of one request: the largest allowed for reads in order, otherwise at most one
        sample."""
        if self.shuffle == "full" or self.samples_per_file == 1:
            return min(self.request_size, round(self.bytes_per_read))
        return self.request_size

    @property
    def in_flight(self) -> int:
        """The bytes [B] that one worker has in flight while it reads."""
        wanted = self.requests_in_flight * self.request
        if self.shuffle == "full" or self.samples_per_file == 1:
            return min(wanted, round(self.bytes_per_read))
        return wanted


Computation = Annotated[Inference | Training, Field(discriminator="kind")]
"""A workload that runs a model on GPUs."""
Workload = Annotated[Inference | Training | Checkpointing, Field(discriminator="kind")]
