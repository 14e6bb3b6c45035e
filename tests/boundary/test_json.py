"""JSON as data: the same tree, positions and limits as YAML."""

from __future__ import annotations

import pytest

from simoffload.documents import parse_json
from simoffload.errors import InputError

CONFIG = """\
{
\t"hidden_size": 14336,
\t"rope": {"factor": 8e0, "type": null},
\t"names": ["\\u00b5", "\\ud83d\\ude00", true, -0.5]
}
"""


def test_a_tree_and_the_places_of_its_entries() -> None:
    document = parse_json(CONFIG, name="config.json")
    assert document.data == {
        "hidden_size": 14336,
        "rope": {"factor": 8.0, "type": None},
        "names": ["µ", "😀", True, -0.5],
    }
    assert type(document.data["hidden_size"]) is int
    assert document.position(()) == (1, 1)
    assert document.position(("hidden_size",)) == (2, 17)
    assert document.key_position(("hidden_size",)) == (2, 2)
    assert document.position(("names", 3)) == (4, 44)
    assert document.written(("rope", "factor")) == "8e0"
    assert document.written(("rope", "type")) == "null"
    assert document.written(("names", 0)) is None


def test_what_yaml_would_not_read() -> None:
    """A key of more than 1024 characters, a colon on the next line, an escaped slash, tabs before a brace."""
    long = "k" * 2000
    document = parse_json(f'\t{{"{long}"\n:\n"a\\/b"}}', name="f.json")
    assert document.data == {long: "a/b"}
    assert document.position((long,)) == (3, 1)
    assert document.key_position((long,)) == (1, 3)


def refused(text: str) -> str:
    """Return the message about a text that cannot be read."""
    with pytest.raises(InputError) as caught:
        parse_json(text, name="f.json")
    return str(caught.value)


@pytest.mark.parametrize("text", ['{"a":1}', ' {"a" : 1 } \n', '{"a":\r\n1}'])
def test_space_means_nothing(text: str) -> None:
    assert parse_json(text, name="f.json").data == {"a": 1}


@pytest.mark.parametrize("text", ['{"a": []}', '{"a": [ ]}'])
def test_nothing_in_a_list(text: str) -> None:
    assert parse_json(text, name="f.json").data == {"a": []}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", ": the document is empty"),
        ("null", ": the document is empty"),
        ("[1]", ":1:1: must have keys and values at its top level, not a list"),
        ('"text"', ":1:1: must have keys and values at its top level, not a single value"),
        ('{"a": 1,\n "a": 2}', ":2:2: a: key given twice (first on line 1)"),
        ('{"a": {"b": 1, "b": 2}}', ":1:16: a.b: key given twice (first on line 1)"),
        ('{"a": NaN}', ":1:7: a: NaN is not a number; write a finite one"),
        ('{"a": [1, -Infinity]}', ":1:11: a[1]: -Infinity is not a number; write a finite one"),
        ('{"a": 1e400}', ":1:7: a: 1e400 is too large for a number (at most 1.8e308)"),
        ('{"a": ' + "9" * 31 + "}", ":1:7: a: an integer of 31 digits is too long (at most 30)"),
        ('{"a": 0.' + "9" * 60 + "}", ":1:7: a: a number of 62 characters is too long (at most 60)"),
        ('{"a": ' + "[" * 40 + "]" * 40 + "}", ":1:38: a[0][0]: nested deeper than 32 levels"),
        ('{"a":' * 40 + "1" + "}" * 40, ":1:161: a.a.a: nested deeper than 32 levels"),
        ('{"a": "\\ud800"}', ":1:7: a: text may not contain a NUL character or half of a surrogate pair"),
        ('{"a\\u0000": 1}', ":1:2: text may not contain a NUL character or half of a surrogate pair"),
        ('{"a": "\x07"}', ":1:8: not text: it contains the character U+0007"),
        ("{'a': 1}", ":1:2: not valid JSON: expecting property name enclosed in double quotes"),
        ('{"a": 1,}', ":1:8: not valid JSON: illegal trailing comma before end of object"),
        ('{"a": [1,\n]}', ":1:9: not valid JSON: illegal trailing comma before end of array"),
        ("{1: 2}", ":1:2: not valid JSON: expecting property name enclosed in double quotes"),
        ("{", ":1:2: not valid JSON: expecting property name enclosed in double quotes"),
        ('{"a" 1}', ":1:6: not valid JSON: expecting ':' delimiter"),
        ('{"a": [1 2]}', ":1:10: not valid JSON: expecting ',' delimiter"),
        ('{"a": 01}', ":1:8: not valid JSON: expecting ',' delimiter"),
        ('{"a": 0x10}', ":1:8: not valid JSON: expecting ',' delimiter"),
        ('{"a": tru}', ":1:7: not valid JSON: expecting value"),
        ('{"a":', ":1:6: not valid JSON: expecting value"),
        ('{"a": "x', ":1:7: not valid JSON: unterminated string starting at"),
        ('{"a": "\t"}', ":1:8: not valid JSON: invalid control character at"),
        ('{"a": 1} {"b": 2}', ":1:10: not valid JSON: extra data after the end"),
        ('// no comments\n{"a": 1}', ":1:1: not valid JSON: expecting value"),
    ],
)
def test_refused_documents(text: str, message: str) -> None:
    assert refused(text) == f"f.json{message}"


def test_documents_have_a_size() -> None:
    assert refused('{"a": ' + "9" * 5000 + "}").endswith("an integer of 5000 digits is too long (at most 30)")
    assert refused('{"a": ' + "[" * 100_000).endswith("nested deeper than 32 levels")
    assert refused('{"a": [' + "1," * 50_000 + "1]}") == "f.json:1:100004: more than 50000 entries"
    assert refused('{"a": "' + "x" * 1_000_000 + '"}') == "f.json: larger than 1 MB"
