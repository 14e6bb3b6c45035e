"""What a page cache finds, against a simulated one."""

from __future__ import annotations

import random
from collections import OrderedDict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simoffload.extensions.storage.data_loading import (
    predict_data_loading,
    random_hit_ratio,
    sequential_hit_ratio,
)
from simoffload.hardware import Machine, load_platform
from tests.simulation.data_loading.conftest import GB, MB, dataset


class Lru:
    """A page cache that drops what was not used for the longest time."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._items: OrderedDict[int, None] = OrderedDict()

    def hit(self, item: int) -> bool:
        """Ask for an item; whether it was there."""
        found = item in self._items
        self._items[item] = None
        self._items.move_to_end(item)
        if len(self._items) > self._size:
            self._items.popitem(last=False)
        return found


def simulated_hits(items: int, cached: float, hosts: int, epoch: int, seed: int) -> float:
    """Fraction of ``epoch`` found by the first of ``hosts`` that read disjoint random parts."""
    dice, cache, order = random.Random(seed), Lru(round(cached * items)), list(range(items))
    hits = 0
    for _ in range(epoch):
        dice.shuffle(order)
        mine = order[: items // hosts]
        hits = sum(cache.hit(item) for item in mine)
    return hits / (items // hosts)


@pytest.mark.parametrize(
    ("cached", "hosts", "epoch"),
    [
        (0.25, 1, 2),
        (0.5, 1, 3),
        (0.9, 1, 2),
        (0.5, 2, 2),
        (0.5, 2, 6),
        (0.8, 2, 8),
        (0.3, 4, 8),
        (0.3, 4, 3),
        (0.1, 4, 4),
        (1, 4, 3),
    ],
)
def test_hits_are_those_of_a_simulated_cache(cached: float, hosts: int, epoch: int) -> None:
    found = simulated_hits(8_000, cached, hosts, epoch, seed=7)
    assert random_hit_ratio(cached, share=1 / hosts, epoch=epoch) == pytest.approx(found, abs=0.02)


def test_hits_of_one_host_in_closed_form() -> None:
    """Half of the data in memory saves 15 % of the reads, not half: 0.5 + 0.5 ln 0.5."""
    assert random_hit_ratio(0.5) == pytest.approx(0.1534264)
    assert random_hit_ratio(0.5, epoch=9) == random_hit_ratio(0.5)
    assert random_hit_ratio(0) == random_hit_ratio(0.7, epoch=1) == 0
    assert random_hit_ratio(1) == random_hit_ratio(2.5) == 1


def test_many_hosts_read_as_if_at_random() -> None:
    assert random_hit_ratio(0.4, share=1e-3, epoch=20_000) == pytest.approx(0.4, abs=1e-3)


@given(st.floats(0, 1), st.floats(0, 1), st.integers(1, 64), st.integers(1, 40))
def test_more_memory_and_more_epochs_never_find_less(a: float, b: float, hosts: int, epoch: int) -> None:
    low, high = sorted((a, b))
    share = 1 / hosts
    less, more = (random_hit_ratio(one, share=share, epoch=epoch) for one in (low, high))
    assert -1e-12 <= less <= more + 1e-12 <= 1 + 1e-9
    assert random_hit_ratio(low, share=share, epoch=epoch + 1) >= less - 1e-12


def test_sequential_reads_are_found_all_or_not_at_all() -> None:
    assert (sequential_hit_ratio(99, 100), sequential_hit_ratio(100, 100)) == (0, 1)


def test_a_scan_that_does_not_fit_finds_nothing(small: Machine) -> None:
    """90 GB of memory less 16 MB of batches: a scan of 89 GB is found whole, one of 91 GB not at all."""
    for size, hit_ratio in ((89, 1.0), (91, 0.0)):
        data = dataset(shuffle="none", samples=size * 1000, samples_per_file=1000, page_cache=True, epochs=3)
        data_loading = predict_data_loading(data, small, ranks=1, batch_size=8, step_time=0.1)
        assert [epoch.hit_ratio for epoch in data_loading.epochs] == [0, hit_ratio]
        assert [(epoch.first, epoch.repeats) for epoch in data_loading.epochs] == [(1, 1), (2, 2)]
        assert data_loading.warm.needed == pytest.approx((1 - hit_ratio) * 80 * MB)


def test_a_shuffled_dataset_of_twice_the_memory(small: Machine) -> None:
    data = dataset(samples=180_000, page_cache=True, request_size="2 MB", epochs=5)
    data_loading = predict_data_loading(
        data, small, ranks=1, batch_size=8, step_time=4e-3, free_host_memory=90 * GB + 16 * MB
    )
    assert data_loading.cache == 90 * GB
    assert data_loading.warm.hit_ratio == pytest.approx(0.1534264)
    assert data_loading.warm.needed == pytest.approx(data_loading.cold.needed * (1 - 0.1534264))
    assert data_loading.warm.starvation < data_loading.cold.starvation
    assert sum(epoch.repeats for epoch in data_loading.epochs) == 5
    assert data_loading.duration_s == pytest.approx(
        data_loading.cold.duration_s + 4 * data_loading.warm.duration_s
    )


def test_epochs_of_several_hosts_are_told_apart_until_they_hardly_differ(round_numbers: Path) -> None:
    two = load_platform(round_numbers / "small.yaml").machine(nodes=2)
    data = dataset(samples=50_000, page_cache=True, epochs=400)
    data_loading = predict_data_loading(data, two, ranks=8, batch_size=8, step_time=0.1)
    ratios = [epoch.hit_ratio for epoch in data_loading.epochs]
    assert ratios[:4] == [0, 0.5, 0.75, 0.875]  # all fits: what it read before, a host finds again
    assert sum(epoch.repeats for epoch in data_loading.epochs) == 400
    assert ratios == sorted(ratios)
    assert len(data_loading.epochs) < 30
