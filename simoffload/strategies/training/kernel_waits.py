"""Waits of the gradients' kernels for those of the compute stream.

A matrix product occupies the registers and shared memory of all SMs, and all its thread blocks start
before those of a kernel that was launched later on another stream. A kernel of the gradients' stream thus
starts with the last blocks of the product that is running, and the copies after it wait with it.
"""

from __future__ import annotations

from dataclasses import dataclass

WAITS_PER_GRADIENT = 0.88
"""Wait of a gradient's kernels at the boundary in durations of a product, while products run without a pause:
26.7 ms for 49.8 gradients next to products of 0.606 ms on an H100 (docs/measurements/training.md)."""


@dataclass(slots=True)
class KernelWaits:
    """KernelWaits estimate how long the gradients of a bucket wait for kernels of the compute stream.

    The host launches kernels of the next layers while the gradients' stream moves a bucket, and both begin
    at about the same time: gradients wait in the part of that time in which the compute stream is busy.
    """

    gradients: int = 0
    """Number of gradients of the last bucket."""
    alone: int = 0
    """Time that the last bucket takes on the gradients' stream without waits [ps]."""
    busy: int = 0
    """Time of kernels of the compute stream since the last bucket [ps]."""
    kernels: int = 0
    """Number of kernels of the compute stream since the last bucket."""

    @property
    def state(self) -> tuple[int, ...]:
        """The state that determines all further waits."""
        return (self.gradients, self.alone, self.busy, self.kernels)

    def launched(self, duration: int, *, kernels: int) -> None:
        """Count ``kernels`` of the compute stream that take ``duration`` [ps] in total."""
        if self.gradients and duration:
            self.busy += duration
            self.kernels += kernels

    def bucket(self, gradients: int, alone: int) -> int:
        """Return the wait of the last bucket [ps], and begin a bucket of ``gradients`` that takes ``alone``
        [ps]."""
        wait = 0
        if self.kernels:
            longest = self.gradients * WAITS_PER_GRADIENT * self.busy / self.kernels
            wait = round(longest * min(1.0, self.busy / (self.alone + longest)))
        self.gradients, self.alone, self.busy, self.kernels = gradients, alone, 0, 0
        return wait
