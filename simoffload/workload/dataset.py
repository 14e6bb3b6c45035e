"""The data that training reads, and the loader that reads it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from simoffload.documents import Frozen
from simoffload.units import PositiveBytes, Seconds

__all__ = ["READ_AHEAD", "Dataset"]

PAGE = 4096
"""Size [B] of a page of the page cache."""
READ_AHEAD = 128 * 1024
"""Bytes [B] that Linux reads ahead of a reader by default (read_ahead_kb; VM_READAHEAD_PAGES,
include/linux/pagemap.h)."""

Count = Annotated[int, Field(strict=True, ge=1, le=10**15)]


class Dataset(Frozen):
    """Samples on a storage tier, read by worker processes as in PyTorch's DataLoader.

    A worker makes complete batches, one sample after the other; all times and counts are of one worker of one
    rank. Sizes are those on storage: compressed, if the samples are.
    """

    tier: Annotated[str, Field(min_length=1, max_length=40)]
    """Storage tier of the platform that holds the files."""
    sample_size: PositiveBytes
    """Size of one sample [B], equal for all samples or their mean."""
    samples: Count
    """Number of samples in the data set."""
    samples_per_file: Count = 1
    """Number of samples in each file or shard."""
    shuffle: Literal["none", "shard", "full"] = "full"
    """"full": every sample is a random read. "shard": files are redistributed to the ranks in every epoch and
    each is read from its beginning (WebDataset, tar and TFRecord shards). "none": always the same order."""
    epochs: Annotated[Count, Field(le=1_000_000)] = 1
    """Number of times that all samples are read; what the page cache keeps is read faster."""
    workers: Annotated[int, Field(strict=True, ge=0, le=4096)] = 2
    """Loader processes of each rank (``num_workers``); 0: the training process reads between its steps.
    DeepSpeed's loader has 2 (deepspeed/runtime/dataloader.py, ``num_local_io_workers``), PyTorch's and the
    Hugging Face Trainer's 0."""
    prefetch_factor: Annotated[Count, Field(le=100_000)] = 2
    """Number of batches that each worker makes in advance (2 is PyTorch's default)."""
    page_cache: bool = True
    """Whether reads go through the host's page cache; if not, nothing is found there and nothing is
    copied."""
    request_size: PositiveBytes = READ_AHEAD
    """Size of the requests [B] in which long reads arrive at the storage."""
    requests_in_flight: Annotated[Count, Field(le=1_000_000)] = 1
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
