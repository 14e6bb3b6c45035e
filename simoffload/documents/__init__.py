"""Documents: YAML and JSON files read with positions, and turned into pydantic models.

A file is data and nothing else: no tags, anchors or aliases, no key twice, bounded in size, depth and
length of its numbers. Every problem found names the file, line, column and key.
"""

from __future__ import annotations

from simoffload.documents.choices import suggest
from simoffload.documents.files import SUFFIXES, parse_json, parse_yaml, read_document
from simoffload.documents.overrides import set_value
from simoffload.documents.tree import Document
from simoffload.documents.validation import validate

__all__ = [
    "SUFFIXES",
    "Document",
    "parse_json",
    "parse_yaml",
    "read_document",
    "set_value",
    "suggest",
    "validate",
]
