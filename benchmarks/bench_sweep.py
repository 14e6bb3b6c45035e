"""Measure a sweep of BLOOM-176B, prefill and 32 tokens: points per second, and memory of each process.

python benchmarks/bench_sweep.py [--points 10000] [--workers 2] [--profile]

The full sweep is 10 batch sizes x 25 bandwidths of the filesystem x 10 prefetch buckets x 4 tiers, on eight
ranks that share its cables. Fewer points take fewer values of each. ``--profile`` prints instead the time
of a point in addition to ``simulate``.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from simoffload.documents import read_document
from simoffload.extensions.sweep.definition import Sweep, define_sweep, find_points
from simoffload.extensions.sweep.run import job_of, run_sweep, usable_cores
from simoffload.scenario import ScenarioCache, find_scenario, resolve

_BUCKET = "strategy.ds_config.zero_optimization.stage3_prefetch_bucket_size"


def sweep(points: int) -> Sweep:
    """Define a sweep of about this number of points."""
    share = (points / 10_000) ** (1 / 3)
    batches, rates, buckets = (max(2, round(share * most)) for most in (10, 25, 10))
    path = find_scenario("ddn/bloom-176b")
    assert path is not None
    axes = (
        "workload.output_length=33",
        f"workload.batch_size=range(min=1, max=64, n={batches}, scale=log)",
        f"profiles.ddn-ai400x2.read=range(min=20 GB/s, max=90 GB/s, n={rates})",
        f"{_BUCKET}=range(min=0, max=400000000, n={buckets})",
        "strategy.weights=dram,raid,nfs,ai400x2",
    )
    return define_sweep(read_document(path), axes=axes)


def run(points: int, workers: int) -> None:
    """Run the sweep as users run it."""
    started = time.perf_counter()
    defined = sweep(points)
    found = find_points(defined)
    prepared = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        summary = run_sweep(defined, found, [Path(folder) / "result.csv"], workers=workers)
    seconds = time.perf_counter() - prepared
    print(
        f"{len(found):,} points ({len(found.unique):,} simulations, {summary.failed:,} failed): "
        f"{prepared - started:.2f} s to prepare, {seconds:.1f} s with {workers} workers, "
        f"{len(found.unique) / seconds:,.0f}/s, {seconds * workers / len(found.unique) * 1e3:.2f} ms each"
    )
    for name, who in (("this process", resource.RUSAGE_SELF), ("largest worker", resource.RUSAGE_CHILDREN)):
        print(f"peak of {name}: {resource.getrusage(who).ru_maxrss / 1e3:.0f} MB")


def profile(points: int) -> None:
    """Print the time to find a point, and to resolve it in a worker."""
    defined = sweep(points)
    started = time.perf_counter()
    found = find_points(defined)
    ended = time.perf_counter()
    cache = ScenarioCache.restored(defined.cache.snapshot())
    for combination in found.combination:
        resolve(defined.grid.document(combination), cache=cache)
    resolved = time.perf_counter() - ended
    size = len(job_of(defined).content) / 1e3
    print(
        f"{len(found):,} points: {(ended - started) / len(found) * 1e6:.0f} us each to find, "
        f"{resolved / len(found) * 1e6:.0f} us each to resolve; {size:.0f} kB sent with a chunk to a cluster"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--points", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=usable_cores())
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args(arguments)
    if options.profile:
        profile(options.points)
    else:
        run(options.points, options.workers)


if __name__ == "__main__":
    main()
