"""Documents: YAML and JSON files read with positions, and turned into pydantic models.

A file holds only data: no tags, anchors or aliases, no key twice, and bounded size, depth and numbers. Every
problem found names the file, line, column and key.
"""

from __future__ import annotations

from simoffload.documents.document import (
    Document,
    DocumentLocation,
    Frozen,
    Location,
    candidates,
    either,
    folded,
    key_path,
    listing,
    named,
    nearest,
    quoted,
    same_name,
    suggest,
)
from simoffload.documents.edits import (
    Edit,
    edited,
    inserted,
    overlaid,
    parse_path,
    read_option,
    rename_keys,
    renamed_key,
    set_value,
    split_assignment,
    without,
)
from simoffload.documents.reader import (
    SUFFIXES,
    ds_config_text,
    exists,
    file_errors,
    file_size,
    parse_json,
    parse_yaml,
    read_document,
    read_text,
    resolved,
    yaml_text,
)
from simoffload.documents.validation import validate

__all__ = [
    "SUFFIXES",
    "Document",
    "DocumentLocation",
    "Edit",
    "Frozen",
    "Location",
    "candidates",
    "ds_config_text",
    "edited",
    "either",
    "exists",
    "file_errors",
    "file_size",
    "folded",
    "inserted",
    "key_path",
    "listing",
    "named",
    "nearest",
    "overlaid",
    "parse_json",
    "parse_path",
    "parse_yaml",
    "quoted",
    "read_document",
    "read_option",
    "read_text",
    "rename_keys",
    "renamed_key",
    "resolved",
    "same_name",
    "set_value",
    "split_assignment",
    "suggest",
    "validate",
    "without",
    "yaml_text",
]
