"""Optuna's NSGA-II over a catalogue that is too large to try in full.

Deb et al., "A fast and elitist multiobjective genetic algorithm: NSGA-II" (2002).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from simoffload.errors import InputError, Problem
from simoffload.planning.advise.catalogue import Dimension

if TYPE_CHECKING:
    import optuna

    from simoffload.planning.advise.purchases import SimulatedPurchase

__all__ = ["explore"]

_SEED = 20261121
_WORST = (0.0, 1e18)


def explore(
    space: Sequence[Dimension],
    evaluate: Callable[[Sequence[Dimension], Sequence[int]], SimulatedPurchase | None],
    *,
    trials: int,
) -> None:
    """Try ``trials`` combinations that look promising for a high rate and a low purchase.

    The first ones go through one dimension after the other and keep the fastest choice of each: NSGA-II by
    itself needs long where few choices work, or one dimension outweighs the others. The same catalogue gives
    the same trials. Raises InputError without the package optuna.
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
        if point is None or not point.meets:
            return _WORST
        return point.rate, min(point.purchase, _WORST[1])

    study = optuna.create_study(
        directions=["maximize", "minimize"],
        sampler=optuna.samplers.NSGAIISampler(population_size=max(2, min(24, trials)), seed=_SEED),
    )
    _climb(study, objective, space, trials=trials)
    study.optimize(objective, n_trials=trials - len(study.trials))


def _climb(
    study: optuna.Study,
    objective: Callable[[optuna.Trial], tuple[float, float]],
    space: Sequence[Dimension],
    *,
    trials: int,
) -> None:
    """Go through the dimensions until no other choice in any of them is faster."""
    before: dict[str, int] = {}
    fastest = {one.name: 0 for one in space}
    while fastest != before:
        before = fastest
        for dimension in sorted(space, key=lambda one: len(one.choices)):
            line = (fastest | {dimension.name: index} for index in range(len(dimension.choices)))
            done = [trial.params for trial in study.trials]
            new = [choice for choice in line if choice not in done][: trials - len(done)]
            for choice in new:
                study.enqueue_trial(choice)
            study.optimize(objective, n_trials=len(new))
            fastest = max(study.trials, key=lambda trial: trial.values[0]).params
