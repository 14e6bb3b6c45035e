"""How predictions compare with what others published."""

from __future__ import annotations

from simoffload.validation.published import PublishedRow, compare_published
from simoffload.validation.ratios import published_ratios
from simoffload.validation.tables import Reference, load_references

__all__ = ["PublishedRow", "Reference", "compare_published", "load_references", "published_ratios"]
