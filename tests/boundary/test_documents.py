"""YAML as data: its scalars, the positions of its entries, and everything that is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from simoffload.documents import parse_json, parse_yaml, read_document, reader, yaml_text
from simoffload.errors import InputError, Problem

PLATFORM = """\
# two tiers
name: dgx-a100
tiers:
  - kind: dram
    capacity: 1 TiB
  - kind: nvme
    capacity: 15.36 TB   # four drives
    rate: [25, 1e9]
links: {pcie: {lanes: 16}}
"""

BEGUN = "that begins on line 1"
ENTRIES = "indent all entries equally"
WRONG, ALIKE = "not valid YAML: wrong indentation", "indent all entries of a mapping or list equally"
FLOW = f"while parsing a flow sequence {BEGUN}"


def refused(text: str) -> str:
    """Return the message about a text that cannot be read."""
    with pytest.raises(InputError) as caught:
        parse_yaml(text, name="f.yaml")
    return str(caught.value)


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("1e9", 1e9),
        ("1.0e9", 1e9),
        ("1E+9", 1e9),
        ("1e-3", 0.001),
        ("-.5", -0.5),
        ("1.", 1.0),
        ("16", 16),
        ("-16", -16),
        ("+16", 16),
        ("017", 17),
        ("0x1F", 31),
        ("0o17", 15),
        ("9" * 30, int("9" * 30)),
        ("true", True),
        ("False", False),
        ("null", None),
        ("~", None),
        ("", None),
        (".inf", math.inf),
        ("-.INF", -math.inf),
        # Text to YAML 1.2, whatever YAML 1.1 made of it.
        ("NO", "NO"),
        ("on", "on"),
        ("y", "y"),
        ("12:30", "12:30"),
        ("1_000", "1_000"),
        ("0b11", "0b11"),
        ("-0x10", "-0x10"),
        ("2026-11-20", "2026-11-20"),
        ("inf", "inf"),
        ("nan", "nan"),
        ("-.nan", "-.nan"),
        ("40 GB", "40 GB"),
        ("١٢", "١٢"),
        ("'1e9'", "1e9"),
        ('"true"', "true"),
        ("|-\n  two\n  lines", "two\nlines"),
        ("=", "="),
    ],
)
def test_scalars(written: str, value: object) -> None:
    read = parse_yaml(f"key: {written}\n", name="f.yaml").data["key"]
    assert read == value
    assert type(read) is type(value)


def test_undefined_number() -> None:
    assert math.isnan(parse_yaml("key: .nan", name="f.yaml").data["key"])


def test_a_tree_and_the_places_of_its_entries() -> None:
    document = parse_yaml(PLATFORM, name="p.yaml")
    assert document.data == {
        "name": "dgx-a100",
        "tiers": [
            {"kind": "dram", "capacity": "1 TiB"},
            {"kind": "nvme", "capacity": "15.36 TB", "rate": [25, 1e9]},
        ],
        "links": {"pcie": {"lanes": 16}},
    }
    assert document.position(()) == (2, 1)
    assert document.position(("name",)) == (2, 7)
    assert document.key_position(("name",)) == (2, 1)
    assert document.position(("tiers", 1)) == (6, 5)
    assert document.key_position(("tiers", 1)) == (6, 5)
    assert document.position(("tiers", 1, "rate", 1)) == (8, 16)
    assert document.position(("links", "pcie", "lanes")) == (9, 23)
    assert document.written(("tiers", 1, "rate", 1)) == "1e9"


def test_an_unknown_place_is_the_nearest_known_one() -> None:
    document = parse_yaml(PLATFORM, name="p.yaml")
    assert document.position(("tiers", 1, "latency")) == (6, 5)
    assert document.position(("tiers", 7, "latency")) == (4, 3)
    assert document.position(("power",)) == (2, 1)
    assert document.written(("power",)) is None
    assert document.problem(("tiers", 1, "kind"), "no such device") == Problem(
        "p.yaml", 6, 11, "tiers[1].kind", "no such device"
    )


def test_keys_that_need_quotes_get_them() -> None:
    document = parse_yaml('"a.b": {"": {"x y": 1}}', name="f.yaml")
    assert document.problem(("a.b", "", "x y"), "wrong").key == '"a.b".""."x y"'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: &x 1", 'f.yaml:1:4: a: anchors ("&name") are not accepted; remove it'),
        ("&x a: 1", 'f.yaml:1:1: anchors ("&name") are not accepted; remove it'),
        ("a: *x", 'f.yaml:1:4: a: aliases ("*name") are not accepted; write the value out'),
        ("%TAG ! x\n---\na: 5", "f.yaml:1:1: directives about tags (%TAG) are not accepted; remove the line"),
        (
            "# b\n%TAG ! x\n---\na: 5",
            "f.yaml:2:1: directives about tags (%TAG) are not accepted; remove the line",
        ),
        ("a: !!str 5", 'f.yaml:1:4: a: tags such as "!!str" are not accepted; remove the tag'),
        ("a: ! 5", 'f.yaml:1:4: a: tags such as "!" are not accepted; remove the tag'),
        (
            "a: !!python/object/apply:os.system ['ls']",
            'f.yaml:1:4: a: tags such as "!!python/object/apply:os.system" are not accepted; remove the tag',
        ),
        ("a:\n  b: 1\n  c: 2\n  b: 3", "f.yaml:4:3: a.b: key given twice (first on line 2)"),
        ("a: 1\n'a': 2", "f.yaml:2:1: a: key given twice (first on line 1)"),
        ("1: a", 'f.yaml:1:1: key "1" is not text unless it is in quotes'),
        ("true: a", 'f.yaml:1:1: key "true" is not text unless it is in quotes'),
        ("?\n: a", 'f.yaml:1:2: key "" is not text unless it is in quotes'),
        (f"{'9' * 31}: a", f'f.yaml:1:1: key "{"9" * 31}" is not text unless it is in quotes'),
        ("[a]: 1", "f.yaml:1:1: a key must be text"),
        ("? {a: b}\n: 1", "f.yaml:1:3: a key must be text"),
        ("<<: {a: 1}", 'f.yaml:1:1: merge keys ("<<") are not accepted; write the keys out'),
        ("a: 1\n---\nb: 2", "f.yaml:2:1: a second document begins; a file may contain only one"),
        (f"a: {'9' * 31}", "f.yaml:1:4: a: an integer of 31 digits is too long (at most 30)"),
        (f"a: 0x{'f' * 40}", "f.yaml:1:4: a: an integer of 42 digits is too long (at most 30)"),
        (f"a: 0.{'9' * 60}", "f.yaml:1:4: a: a number of 62 characters is too long (at most 60)"),
        ("a: 1e400", "f.yaml:1:4: a: 1e400 is too large for a number (at most 1.8e308)"),
        (f"a: {'[' * 40}", "f.yaml:1:35: a[0][0]: nested deeper than 32 levels"),
        ("- " * 40, "f.yaml:1:65: [0][0][0]: nested deeper than 32 levels"),
        (f"? {'? ' * 40}", 'f.yaml:1:65: "?"."?"."?": nested deeper than 32 levels'),
        ("", "f.yaml: the document is empty"),
        ("# only a comment\n", "f.yaml: the document is empty"),
        ("null", "f.yaml: the document is empty"),
        ("- 1", "f.yaml:1:1: must have keys and values at its top level, not a list"),
        ("text", "f.yaml:1:1: must have keys and values at its top level, not a single value"),
        ("a: \0", "f.yaml:1:4: not text: it contains the character U+0000"),
        ("a: 1\nb: \x1b[2J", "f.yaml:2:4: not text: it contains the character U+001B"),
        ("a: \ud800", "f.yaml:1:4: not text: it contains the character U+D800"),
        (
            'a: "\\0"',
            "f.yaml:1:4: a: text may not contain a NUL character or half of a surrogate pair",
        ),
        # Syntax
        ("a: b: c", 'f.yaml:1:5: not valid YAML: a value that contains ": " needs quotes'),
        ("a:\n\tb: 1", "f.yaml:2:1: not valid YAML: a tab cannot indent; use spaces"),
        ("a: @x", 'f.yaml:1:4: not valid YAML: a value cannot start with "@"; put it in quotes'),
        (
            "a: [1, 2\nb: 3",
            f"f.yaml:2:2: not valid YAML: did not find expected ',' or ']' {FLOW}",
        ),
        (
            "a:\n  b: 1\n c: 2\n",
            f"f.yaml:3:2: {WRONG}: column 2 matches no entry of the block that begins on line 1; {ALIKE}",
        ),
        (
            "a: 1\n  b: 2\n",
            f"f.yaml:2:4: {WRONG}: deeper than line 1, which ends with a value; indent both equally",
        ),
        (
            "- a: 1\n - b\n",
            f"f.yaml:2:2: {WRONG}: column 2 matches no entry of the block that begins on line 1; {ALIKE}",
        ),
        (
            "  a: 1\nb: 2\n",
            f"f.yaml:2:1: {WRONG}: further left than the lines above; {ENTRIES}",
        ),
        ("a: 1\nb: c: d\n", 'f.yaml:2:5: not valid YAML: a value that contains ": " needs quotes'),
        (
            "a: 'x",
            "f.yaml:1:6: not valid YAML: found unexpected end of stream while scanning a quoted scalar",
        ),
    ],
)
def test_refused_documents(text: str, message: str) -> None:
    assert refused(text) == message


def test_documents_have_a_size() -> None:
    assert refused(f"a: [{'1,' * 50_000}]") == "f.yaml:1:100001: more than 50000 entries"
    assert refused("a: " + "x" * 1_000_000) == "f.yaml: larger than 1 MB"


def test_everything_refused_is_told_at_once() -> None:
    assert refused("a: &x 1\nb: *x\nc: !!int 5\na: 2\n1: d\n").split("\n") == [
        'f.yaml:1:4: a: anchors ("&name") are not accepted; remove it',
        'f.yaml:2:4: b: aliases ("*name") are not accepted; write the value out',
        'f.yaml:3:4: c: tags such as "!!int" are not accepted; remove the tag',
        "f.yaml:4:1: a: key given twice (first on line 1)",
        'f.yaml:5:1: key "1" is not text unless it is in quotes',
    ]


def test_but_no_more_than_people_read() -> None:
    assert len(refused(f"a: [{'*x, ' * 1000}]").split("\n")) == 50


def test_a_bomb_is_refused_at_its_first_anchor() -> None:
    layers = [f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 9)}]" for i in range(1, 20)]
    lines = refused("\n".join(["l0: &l0 [lol]", *layers])).split("\n")
    assert lines[0] == 'f.yaml:1:5: l0: anchors ("&name") are not accepted; remove it'


def test_the_slower_parser_gives_the_same_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = parse_yaml(PLATFORM, name="p.yaml")
    monkeypatch.setattr(reader, "_LOADER", yaml.SafeLoader)
    slow = parse_yaml(PLATFORM, name="p.yaml")
    assert slow.data == fast.data
    assert slow.marks == fast.marks
    assert refused("a: &x 1") == 'f.yaml:1:4: a: anchors ("&name") are not accepted; remove it'
    assert refused("a:\n\tb: 1") == "f.yaml:2:1: not valid YAML: a tab cannot indent; use spaces"


def test_a_file_is_read_with_its_folder(tmp_path: Path) -> None:
    for name in ("p.yaml", "p.yml"):
        path = tmp_path / name
        path.write_bytes(b"\xef\xbb\xbfname: \xc2\xb5\r\nsize: 1 GB\r\n")
        document = read_document(path)
        assert document.data == {"name": "µ", "size": "1 GB"}
        assert document.path == str(path)
        assert document.root == tmp_path
        assert document.position(("size",)) == (2, 7)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("p.yaml", b"", ": the document is empty"),
        ("p.json", b" \n", ": the document is empty"),
        ("p.yaml", b"a: 1\nb: \xff", ":2: not text in UTF-8 (byte 0xff)"),
        ("p.yaml", "a: 1".encode("utf-16"), ":1: not text in UTF-8 (byte 0xff)"),
        ("p.yaml", b"\x7fELF\x02\x01", ":1:1: not text: it contains the character U+007F"),
        ("p.toml", b"a = 1", ": the name of a document ends in .yaml, .yml or .json"),
        ("p", b"a: 1", ": the name of a document ends in .yaml, .yml or .json"),
        ("p.json", b"a: 1", ":1:1: not valid JSON: expecting value"),
    ],
)
def test_refused_files(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_document(path)
    assert str(caught.value) == f"{path}{message}"


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "file.yaml").write_text("a: 1")
    (tmp_path / "large.yaml").write_text("a: " + "x" * 1_000_000)
    refusals = {
        "missing.yaml": "no such file",
        "folder.yaml": "is a folder, not a file",
        "large.yaml": "larger than 1 MB (1000003 bytes)",
        "file.yaml/inside.yaml": "cannot be read: Not a directory",
    }
    for name, message in refusals.items():
        with pytest.raises(InputError) as caught:
            read_document(tmp_path / name)
        assert str(caught.value) == f"{tmp_path / name}: {message}"
    with pytest.raises(InputError, match="not a regular file"):
        read_document(_linked_to(Path("/dev/zero"), tmp_path / "zero.yaml"))
    with pytest.raises(InputError, match="cannot be read: its name holds a NUL character"):
        read_document(Path("a\0.yaml"))


def _linked_to(target: Path, link: Path) -> Path:
    link.symlink_to(target)
    return link


# Beyond the first plane, JSON writes two escapes for one character, and YAML does not read them.
names = st.text(st.characters(codec="utf-8", exclude_characters="\0", max_codepoint=0xFFFF), max_size=8)
finite = st.floats(allow_nan=False, allow_infinity=False)
scalars = st.none() | st.booleans() | st.integers(-(10**28), 10**28) | finite | names
trees = st.recursive(scalars, lambda tree: st.lists(tree) | st.dictionaries(names, tree), max_leaves=20)


@given(st.dictionaries(names, trees))
def test_any_tree_comes_back_from_both_formats(tree: dict[str, Any]) -> None:
    text = json.dumps(tree, indent=2)
    from_yaml = parse_yaml(text, name="f")
    from_json = parse_json(text, name="f")
    assert from_yaml.data == from_json.data == tree
    assert from_yaml.marks == from_json.marks
    assert parse_json(json.dumps(tree, indent="\t"), name="f").data == tree


@given(st.dictionaries(names, trees), st.booleans())
def test_any_tree_comes_back_from_what_is_written(tree: dict[str, Any], flow: bool) -> None:
    assert parse_yaml(yaml_text(tree, flow=flow), name="f").data == tree


def test_text_that_yaml_1_2_takes_for_a_number_is_written_in_quotes() -> None:
    tree = {"name": "1e5", "plain": "two words", "1e5": ["0o17", "NO", 1e5]}
    assert yaml_text(tree) == 'name: "1e5"\nplain: two words\n"1e5":\n- "0o17"\n- \'NO\'\n- 100000.0\n'
    assert parse_yaml(yaml_text(tree), name="f").data == tree


@given(st.text(max_size=60) | st.text("{}[]:,-?&*!|>'\"%@`#~<= \n\t.019eExa\\", max_size=60))
def test_any_text_is_read_or_refused_in_printable_lines(text: str) -> None:
    for parse in (parse_yaml, parse_json):
        try:
            lines = [json.dumps(parse(text, name="f").data)]
        except InputError as error:
            lines = str(error).split("\n")
        assert all(line.isprintable() for line in lines)
