"""A cache of the values that were asked for last, such as what follows from objects that are slow to hash."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class Recent(threading.local, Generic[K, T]):
    """A Recent has the values of the last ``most`` keys that a thread asked for.

    A value must keep the objects that its key names by ``id()``, so that no other gets the same identity.
    """

    def __init__(self, most: int = 32) -> None:
        self._most = most
        self._values: OrderedDict[K, T] = OrderedDict()

    def get(self, key: K, make: Callable[[], T]) -> T:
        """Return the value of a key, which is made if it is not there."""
        if key in self._values:
            self._values.move_to_end(key)
            return self._values[key]
        found = self._values[key] = make()
        if len(self._values) > self._most:
            self._values.popitem(last=False)
        return found
