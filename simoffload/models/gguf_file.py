"""The header of a GGUF file: its metadata, and name, type and size of every tensor; the data is never read.

The format, and what a file must keep to, are those of ggml/src/gguf.cpp and src/llama-model-loader.cpp of
llama.cpp@0c1e5709. The package ``gguf`` is not used: it maps the data as well, needs two more packages, and
has no bounds for counts, which a damaged file may set to anything.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import BinaryIO, NamedTuple, NoReturn

from simoffload.documents import exists, file_errors, file_size
from simoffload.errors import InputError, Problem, shortened
from simoffload.models.formats import GGUF_NUMBERS, WeightFormat

_SUFFIX = ".gguf"
Value = str | int | float | bool | tuple[int | float | bool, ...]
"""Values that metadata may have."""
_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_LARGEST = 100_000_000
"""[B] The largest header; those of large vocabularies have 20 MB."""
_MOST = 100_000
"""Most tensors, and most keys; the largest files have some thousands."""
_LONGEST_NAME = 63
_LONGEST_KEY = 65_535
_MOST_DIMENSIONS = 4
_LARGEST_TENSOR = 2**63 - 1
_MOST_KEPT = 10_000
"""Most values of a list that is kept, one for each layer; those of a vocabulary are skipped."""
_STRING, _LIST = 8, 9
_NUMBERS = {
    number: struct.Struct(f"<{code}")
    for number, code in zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True)
}
_LENGTH = struct.Struct("<Q")
_PART = re.compile(r"(?P<stem>.*)-(?P<part>[0-9]{5})-of-(?P<count>[0-9]{5})\.gguf")


class GgufTensor(NamedTuple):
    """A GgufTensor is what a file says of one of its tensors."""

    name: str
    dimensions: tuple[int, ...]
    """Number of weights along each dimension, that of a row first."""
    format: WeightFormat

    @property
    def numel(self) -> int:
        """The number of its weights."""
        return prod(self.dimensions)

    @property
    def bytes(self) -> int:
        """Size [B] in the file."""
        columns = self.dimensions[0]
        return self.format.stored_bytes(self.numel // columns, columns) if columns else 0


class GgufHeader(NamedTuple):
    """A GgufHeader is the metadata and the tensors of a file, or of all parts of a split one."""

    path: str
    metadata: Mapping[str, Value]
    """Values by key; texts and long lists of the vocabulary are left out."""
    tensors: Mapping[str, GgufTensor]
    """What the file says of each tensor."""

    def refuse(self, message: str, key: str = "") -> NoReturn:
        """Raise an InputError about the file."""
        raise InputError([Problem(self.path, None, None, key, message)])

    @property
    def stem(self) -> str:
        """Name of the file without its ending and the number of its part."""
        name = Path(self.path).name
        split = _PART.fullmatch(name)
        return split["stem"] if split else name.removesuffix(_SUFFIX)


def read_gguf(path: str | Path) -> GgufHeader:
    """Read the header of a file, and of the other parts if it is one of a split file.

    Raises InputError for a file that llama.cpp would not load: a damaged or truncated one, unknown types of
    tensors, tensors that occur twice, and missing parts.
    """
    split = _PART.fullmatch(Path(path).name)
    if split is None:
        header, part = _read_part(Path(path))
        if part.among > 1:
            header.refuse(f"is one of {part.among} parts, which are called like {_part_name('NAME', 1, 5)}")
        return header
    count = int(split["count"])
    paths = [Path(path).with_name(_part_name(split["stem"], 1 + at, count)) for at in range(count)]
    lacking = next((one for one in paths if not exists(one)), None)
    if lacking is not None or not paths:
        text = f"no such file; it is a part of {split['stem']}, and all {count} belong in one folder"
        raise InputError.at("", text, path=str(lacking or path))
    read = [_read_part(one) for one in paths]
    for at, (header, part) in enumerate(read):
        if (part.number, part.among) != (at, count):
            header.refuse(
                f"is part {part.number + 1} of {part.among} by its metadata, {at + 1} of {count} by its name"
            )
    first, _ = read[0]
    tensors = {name: one for header, _ in read for name, one in header.tensors.items()}
    if len(tensors) < sum(len(header.tensors) for header, _ in read):
        first.refuse("a tensor is in several of its parts; are they of one model?")
    if len(tensors) != first.metadata.get("split.tensors.count", len(tensors)):
        number = first.metadata["split.tensors.count"]
        first.refuse(f"its parts have {len(tensors)} tensors instead of {number}; are they of one model?")
    return first._replace(tensors=tensors)


def _part_name(stem: str, part: int, count: int) -> str:
    return f"{stem}-{part:05}-of-{count:05}{_SUFFIX}"


class _FilePart(NamedTuple):
    number: int
    among: int


def _read_part(path: Path) -> tuple[GgufHeader, _FilePart]:
    """Return the header of one file, and which part of all it is."""
    size = file_size(path)
    with file_errors(path), path.open("rb") as file:
        reader = _HeaderReader(str(path), file, size)
        header = reader.header()
    number, count = (header.metadata.get(f"split.{key}", usual) for key, usual in (("no", 0), ("count", 1)))
    if not isinstance(number, int) or not isinstance(count, int):
        header.refuse("is not a whole number", "split.no" if isinstance(count, int) else "split.count")
    return header, _FilePart(number, count)


class _HeaderReader:
    """A _HeaderReader reads a header from its beginning, no further into the file than it must."""

    def __init__(self, path: str, file: BinaryIO, size: int) -> None:
        self._path, self._file, self._size = path, file, size
        self._content = bytearray()
        self._at = 0

    def header(self) -> GgufHeader:
        """Return the header. Raises InputError."""
        tensors, keys = self._counts()
        metadata: dict[str, Value] = {}
        seen = set[str]()
        for _ in range(keys):
            key = self._text(_LONGEST_KEY, "key")
            if key in seen:
                self._refuse("occurs twice", key)
            seen.add(key)
            value = self._value(key)
            if value is not None:
                metadata[key] = value
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
            self._refuse(f"must be a power of two, not {alignment}", "general.alignment")
        return GgufHeader(self._path, metadata, self._tensors(tensors, alignment))

    def _counts(self) -> tuple[int, int]:
        """Return the numbers of tensors and of keys."""
        found = bytes(self._take(4)) if self._size >= 4 else b""
        if found != _MAGIC:
            self._refuse(f"is not a GGUF file: it begins with {found!r} instead of {_MAGIC!r}")
        version = self._number(4)
        if version & 0xFFFF == 0:
            self._refuse("is big-endian; convert it with gguf_convert_endian.py of llama.cpp")
        if version not in _VERSIONS:
            self._refuse(f"has version {version} of GGUF; known: 2 and 3 (llama.cpp writes 3)")
        counts = self._number(10), self._number(10)
        for what, count in zip(("tensors", "keys"), counts, strict=True):
            if count > _MOST:
                self._refuse(f"says that it has {count:,} {what}, of at most {_MOST:,}; it is damaged")
        return counts

    def _tensors(self, count: int, alignment: int) -> dict[str, GgufTensor]:
        """Return the tensors, which follow each other in the data, each from a multiple of ``alignment``."""
        found: dict[str, GgufTensor] = {}
        begin = end = 0
        for _ in range(count):
            one, offset = self._tensor()
            if one.name in found:
                self._refuse("the tensor occurs twice", one.name)
            if offset != begin:
                self._refuse(f"the tensor begins at byte {offset:,} of the data, not at {begin:,}", one.name)
            found[one.name] = one
            end = begin + one.bytes
            begin = -(-end // alignment) * alignment
        needed = -(-self._at // alignment) * alignment + end
        if count and needed > self._size:
            self._refuse(f"is truncated: it has {self._size:,} of {needed:,} bytes; was it downloaded whole?")
        return found

    def _tensor(self) -> tuple[GgufTensor, int]:
        """Return a tensor and the offset of its data [B]."""
        name = self._text(_LONGEST_NAME, "name of a tensor")
        ranks = self._number(4)
        if not 1 <= ranks <= _MOST_DIMENSIONS:
            self._refuse(f"the tensor has {ranks} dimensions, of 1 to {_MOST_DIMENSIONS}", name)
        dimensions = tuple(self._number(10) for _ in range(ranks))
        number, offset = self._number(4), self._number(10)
        if number not in GGUF_NUMBERS:
            self._refuse(f"the tensor has type {number}, which llama.cpp does not know or has dropped", name)
        one = GgufTensor(name, dimensions, GGUF_NUMBERS[number])
        if not 0 < one.numel <= _LARGEST_TENSOR:
            self._refuse(f"the tensor has dimensions {shortened(str(dimensions))}; it is damaged", name)
        if dimensions[0] % one.format.block:
            text = f"rows of {dimensions[0]} weights are no multiple of {one.format.block}"
            self._refuse(f"{text}, a block of {one.format.name}", name)
        return one, offset

    def _value(self, key: str) -> Value | None:
        """Return a value of metadata; None for a list that is not kept."""
        kind = self._number(4)
        if kind == _STRING:
            return self._text(self._size, "text", key)
        if kind in _NUMBERS:
            return self._number(kind)
        if kind != _LIST:
            self._refuse(f"has a value of the unknown type {kind}", key)
        kind, count = self._number(4), self._number(10)
        if kind == _STRING:
            self._skip_texts(count)
            return None
        if kind not in _NUMBERS:
            self._refuse(f"is a list of the unknown type {kind}", key)
        width = _NUMBERS[kind].size
        if count > _MOST_KEPT:
            self._take(count * width)
            return None
        return tuple(self._number(kind) for _ in range(count))

    def _number(self, kind: int) -> int:
        form = _NUMBERS[kind]
        value: int = form.unpack(self._take(form.size))[0]
        return value

    def _text(self, most: int, what: str, key: str = "") -> str:
        length = self._number(10)
        if length > most:
            self._refuse(f"the {what} has {length:,} bytes, of at most {most:,}; the file is damaged", key)
        try:
            return self._take(length).decode()
        except UnicodeDecodeError:
            self._refuse(f"the {what} is not UTF-8; the file is damaged", key)

    def _skip_texts(self, count: int) -> None:
        for _ in range(count):
            self._take(_LENGTH.unpack(self._take(_LENGTH.size))[0])

    def _take(self, count: int) -> bytes:
        """Return the next bytes of the file."""
        end = self._at + count
        if end > len(self._content):
            if end > self._size:
                self._refuse(f"is truncated: its header does not end within {self._size:,} bytes")
            if end > _LARGEST:
                self._refuse(f"its header has more than {_LARGEST // 10**6} MB; the file is damaged")
            self._content += self._file.read(max(end - len(self._content), len(self._content), 1 << 16))
            if end > len(self._content):
                self._refuse("became shorter while it was read")
        found = bytes(self._content[self._at : end])
        self._at = end
        return found

    def _refuse(self, message: str, key: str = "") -> NoReturn:
        raise InputError([Problem(self._path, None, None, key and shortened(key), message)])
