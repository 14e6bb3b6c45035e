"""Optuna's NSGA-II over a catalogue that is too large to try in full.

Deb et al., "A fast and elitist multiobjective genetic algorithm: NSGA-II" (2002).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from simoffload.errors import InputError, Problem
from simoffload.planning.advise.catalogue import Dimension

if TYPE_CHECKING:
    import optuna

    from simoffload.planning.advise.purchases import Point

__all__ = ["explore"]

_SEED = 20261121
_WORST = (0.0, 1e18)


def explore(
    space: Sequence[Dimension],
    evaluate: Callable[[Sequence[Dimension], Sequence[int]], Point | None],
    *,
    trials: int,
) -> None:
    """Try ``trials`` combinations that look promising for a high rate and a low purchase.

    The same catalogue gives the same trials. Raises InputError without the package optuna.
    """
    try:
        import optuna
    except ImportError:
        text = "needs the package optuna: pip install 'simoffload[search]', or narrow the search"
        raise InputError((Problem("--method", None, None, "optuna", text),)) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)

    def objective(trial: optuna.Trial) -> tuple[float, float]:
        choice = [trial.suggest_int(one.name, 0, len(one.choices) - 1) for one in space]
        point = evaluate(space, choice)
        if point is None or not point.meets or not math.isfinite(point.purchase):
            return _WORST
        return point.rate, point.purchase

    study = optuna.create_study(
        directions=["maximize", "minimize"],
        sampler=optuna.samplers.NSGAIISampler(population_size=min(24, trials), seed=_SEED),
    )
    study.optimize(objective, n_trials=trials)
