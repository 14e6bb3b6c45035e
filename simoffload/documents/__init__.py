"""Documents: YAML and JSON files read with positions, and turned into pydantic models.

A file is data and nothing else: no tags, anchors or aliases, no key twice, bounded in size, depth and
length of its numbers. Every problem found names the file, line, column and key.
"""

from __future__ import annotations

from simoffload.documents.choices import quoted, suggest
from simoffload.documents.document import Document, DocumentLocation
from simoffload.documents.edits import Edit, edited, inserted, set_value, without
from simoffload.documents.files import (
    SUFFIXES,
    exists,
    file_errors,
    read_document,
    read_text,
    resolved,
)
from simoffload.documents.reader import parse_json, parse_yaml
from simoffload.documents.validation import validate
from simoffload.documents.writer import ds_config_text, yaml_text

__all__ = [
    "SUFFIXES",
    "Document",
    "DocumentLocation",
    "Edit",
    "ds_config_text",
    "edited",
    "exists",
    "file_errors",
    "inserted",
    "parse_json",
    "parse_yaml",
    "quoted",
    "read_document",
    "read_text",
    "resolved",
    "set_value",
    "suggest",
    "validate",
    "without",
    "yaml_text",
]
