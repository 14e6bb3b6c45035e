"""Documents: YAML and JSON files read with positions, and turned into pydantic models.

A file is data and nothing else: no tags, anchors or aliases, no key twice, bounded in size, depth and
length of its numbers. Every problem found names the file, line, column and key.
"""

from __future__ import annotations

from simoffload.documents.choices import quoted, suggest
from simoffload.documents.files import (
    SUFFIXES,
    exists,
    file_errors,
    parse_json,
    parse_yaml,
    read_document,
    resolved,
)
from simoffload.documents.overrides import Edit, edited, inserted, set_value, without
from simoffload.documents.tree import Document
from simoffload.documents.validation import validate

__all__ = [
    "SUFFIXES",
    "Document",
    "Edit",
    "edited",
    "exists",
    "file_errors",
    "inserted",
    "parse_json",
    "parse_yaml",
    "quoted",
    "read_document",
    "resolved",
    "set_value",
    "suggest",
    "validate",
    "without",
]
