"""Sequences in which pieces occur several times in a row, as the tensors of equal layers do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import TypeVar, overload

from simoffload.limits import count_elements

T = TypeVar("T")
U = TypeVar("U")


class Repeated(Sequence[T]):
    """A Repeated is a sequence of pieces, each with the number of times that it occurs in a row.

    What is calculated from ``counted``, or by ``map``, takes as long as for the items that differ.
    """

    def __init__(self, *pieces: tuple[Iterable[T], int]) -> None:
        found = ((tuple(items), times) for items, times in pieces)
        self.pieces = tuple((items, times) for items, times in found if items and times > 0)

    @classmethod
    def once(cls, items: Iterable[T]) -> Repeated[T]:
        """Return a sequence in which nothing is known to repeat."""
        return cls((items, 1))

    @cached_property
    def counted(self) -> tuple[tuple[T, int], ...]:
        """The items of each piece with the number of times that the piece occurs."""
        return tuple([(one, times) for items, times in self.pieces for one in items])

    @property
    def distinct(self) -> tuple[T, ...]:
        """The items of each piece."""
        return tuple([one for items, _ in self.pieces for one in items])

    def map(self, value: Callable[[T], U]) -> Repeated[U]:
        """Return the values of all items, calculated once for those of each piece."""
        return Repeated(*((map(value, items), times) for items, times in self.pieces))

    def where(self, holds: Callable[[T], bool]) -> Repeated[T]:
        """Return the items for which a condition holds."""
        return Repeated(*((filter(holds, items), times) for items, times in self.pieces))

    def total(self, size: Callable[[T], int]) -> int:
        """Return the sum of the sizes of all items."""
        return sum(times * size(one) for one, times in self.counted)

    # -- as a sequence --------------------------------------------------------------------------

    @cached_property
    def _items(self) -> tuple[T, ...]:
        count_elements(len(self))
        found: tuple[T, ...] = ()
        for items, times in self.pieces:
            found += items * times
        return found

    def __len__(self) -> int:
        return sum(len(items) * times for items, times in self.pieces)

    def __iter__(self) -> Iterator[T]:
        return iter(self._items)

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[T, ...]: ...

    def __getitem__(self, index: int | slice) -> T | tuple[T, ...]:
        return self._items[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._items == tuple(other)

    def __hash__(self) -> int:
        return hash(self._items)

    def __repr__(self) -> str:
        return f"Repeated{self.pieces}"
