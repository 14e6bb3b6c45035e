"""The document of advice: what to buy and to change first, then the scenario as it is."""

from __future__ import annotations

from collections.abc import Sequence

from simoffload.planning.advise import Advice, Search, ServiceLevel
from simoffload.planning.bandwidth import StorageCurve
from simoffload.report.document import ReportDocument
from simoffload.report.from_result import findings, result_document
from simoffload.report.sections.advice import advice_verdict, advised, purchase_verdict, searched
from simoffload.report.sections.costs import costs

__all__ = ["advice_document"]


def advice_document(
    advice: Advice,
    curve: StorageCurve | None,
    search: Search | None = None,
    *,
    budget: float | None = None,
    service: Sequence[ServiceLevel] = (),
    command: str = "",
) -> ReportDocument:
    """What would help, and what a search within ``budget`` and ``service`` found; ``curve`` says what faster
    storage would bring."""
    bought = (f"To buy: {purchase_verdict(search)}.",) if search is not None else ()
    looked = searched(search, budget=budget, service=service) if search is not None else ()
    as_it_is = (*findings(advice.result), *costs(advice.result, advice.economics))
    return result_document(advice.result, command=command)._replace(
        verdicts=(*bought, advice_verdict(advice)),
        sections=(*looked, *advised(advice, curve), *as_it_is),
    )
