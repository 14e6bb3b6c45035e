"""What checkpoints cost a run: the stall of each, the interval to choose, the work that failures throw away.

References
----------
J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 17 (1974) 530-531,
doi:10.1145/361147.361115.
J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", Future Generation
Computer Systems 22 (2006) 303-312, doi:10.1016/j.future.2004.11.016.
Both take failures to be a Poisson process, checkpoints to be flawless, and the run to be long.
"""

from __future__ import annotations

from math import exp, expm1, sqrt

from simoffload.results.checkpoint import Outlook

__all__ = [
    "daly_interval",
    "efficiency",
    "lost_work",
    "outlook",
    "run_mtbf",
    "stall_per_checkpoint",
    "stall_share",
    "young_interval",
]

_FEW = 700.0  # exp() of more than this is beyond a float: such a run gets nowhere


def stall_per_checkpoint(*, blocking_s: float, background_s: float = 0.0, window_s: float = 0.0) -> float:
    """[s] that training stands still for one checkpoint.

    ``blocking_s`` [s] passes before the call returns; ``background_s`` [s] of work begins then, and training
    waits for whatever of it is left after ``window_s`` [s].
    """
    return blocking_s + max(0.0, background_s - window_s)


def stall_share(*, stall_s: float, interval_s: float) -> float:
    """Fraction of the run time that goes into checkpoints, one after every ``interval_s`` [s] of training."""
    return stall_s / (interval_s + stall_s)


def run_mtbf(*, node_mtbf_s: float, nodes: int) -> float:
    """[s] between failures of a run that any failing node stops: independent nodes add their rates."""
    return node_mtbf_s / nodes


def young_interval(*, cost_s: float, mtbf_s: float) -> float:
    """[s] of training between checkpoints that cost ``cost_s`` [s] each, to first order: sqrt(2 C M).

    Young 1974; good while the cost is small beside ``mtbf_s`` [s].
    """
    return sqrt(2 * cost_s * mtbf_s)


def daly_interval(*, cost_s: float, mtbf_s: float) -> float:
    """[s] of training between checkpoints, to higher order.

    Daly 2006, eq. 37: sqrt(2CM) (1 + sqrt(C/2M)/3 + (C/2M)/9) - C while C < 2M, else M. Restarting does not
    move the optimum.
    """
    if cost_s >= 2 * mtbf_s:
        return mtbf_s
    ratio = cost_s / (2 * mtbf_s)
    return sqrt(2 * cost_s * mtbf_s) * (1 + sqrt(ratio) / 3 + ratio / 9) - cost_s


def efficiency(*, interval_s: float, cost_s: float, restart_s: float, mtbf_s: float) -> float:
    """Training done per time that passes, failures and checkpoints included.

    Daly 2006, eq. 20: interval / (M e^(R/M) (e^((interval + C)/M) - 1)), with R = ``restart_s`` [s] from a
    failure to the point where training goes on.
    """
    segment = (interval_s + cost_s) / mtbf_s
    if segment + restart_s / mtbf_s > _FEW:
        return 0.0
    return interval_s / (mtbf_s * exp(restart_s / mtbf_s) * expm1(segment))


def lost_work(*, segment_s: float, mtbf_s: float) -> float:
    """[s] that a failure throws away on average: what has passed of a segment (interval and checkpoint).

    The mean of the exponential distribution cut off at the segment's length L: M - L / (e^(L/M) - 1), a
    little less than half of the segment.
    """
    ratio = segment_s / mtbf_s
    if ratio < 1e-6:  # the difference of two nearly equal numbers: its series instead
        return segment_s / 2
    if ratio > _FEW:
        return mtbf_s
    return mtbf_s - segment_s / expm1(ratio)


def outlook(
    *,
    blocking_s: float,
    background_s: float,
    restore_s: float,
    overlap_s: float | None,
    interval_s: float | None,
    mtbf_s: float | None,
    restart_s: float,
) -> Outlook:
    """Put the times [s] of one checkpoint into a run.

    ``overlap_s`` [s] is how long training goes on before it waits for the background: None for until the
    next checkpoint. ``restart_s`` [s] is a restart without restoring. A checkpoint is of use only once it is
    complete, so a failure costs the background's time on top.
    """
    window = interval_s if overlap_s is None else overlap_s
    stall = stall_per_checkpoint(
        blocking_s=blocking_s,
        background_s=background_s,
        window_s=background_s if window is None else window,
    )
    restart = restart_s + restore_s
    result = Outlook(stall, blocking_s, background_s, blocking_s + background_s, restore_s, restart)
    if interval_s is not None:
        result = result._replace(
            interval_s=interval_s, share=stall_share(stall_s=stall, interval_s=interval_s)
        )
    if mtbf_s is None:
        return result
    hidden = blocking_s + background_s - stall
    least = background_s if overlap_s is None else overlap_s
    daly = max(daly_interval(cost_s=stall, mtbf_s=mtbf_s), least)

    def reached(interval: float) -> float:
        return efficiency(interval_s=interval, cost_s=stall, restart_s=restart + hidden, mtbf_s=mtbf_s)

    chosen = daly if interval_s is None else interval_s
    return result._replace(
        mtbf_s=mtbf_s,
        young_s=young_interval(cost_s=stall, mtbf_s=mtbf_s),
        daly_s=daly,
        efficiency=None if interval_s is None else reached(interval_s),
        best_efficiency=reached(daly) if daly else None,
        lost_work_s=lost_work(segment_s=chosen + stall, mtbf_s=mtbf_s) + hidden,
    )
