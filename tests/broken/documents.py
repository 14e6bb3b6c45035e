"""What is no YAML or JSON, or more than data."""

from __future__ import annotations

from tests.broken.slips import SCENARIO, Case, raw, scenario

BOMB = """\
a: &a [x, x, x]
b: &b [*a, *a, *a]
c: [*b, *b, *b]
"""

CASES: tuple[Case, ...] = (
    # ---- YAML that is refused ----
    raw(
        "yaml-bomb",
        BOMB,
        ("s.yaml:1:4: a:", "anchors"),
        ("s.yaml:2:4: b:", "anchors"),
        *((f"s.yaml:2:{8 + 4 * i}: b[{i}]:", "aliases") for i in range(3)),
        *((f"s.yaml:3:{5 + 4 * i}: c[{i}]:", "aliases") for i in range(3)),
    ),
    scenario(
        "yaml-anchor",
        "model: bloom-560m",
        "model: &m bloom-560m",
        ("s.yaml:2:8: model:", 'anchors ("&name") are not accepted; remove it'),
    ),
    scenario(
        "yaml-alias",
        "platform: dgx-a100",
        "platform: *m",
        ("s.yaml:3:11: platform:", 'aliases ("*name") are not accepted; write the value out'),
    ),
    scenario(
        "yaml-tag",
        "batch_size: 2",
        "batch_size: !!int 2",
        ("s.yaml:6:15: workload.batch_size:", 'tags such as "!!int" are not accepted'),
    ),
    scenario(
        "yaml-python-tag",
        "name: small",
        "name: !!python/object/apply:os.system [echo]",
        ("s.yaml:1:7: name:", 'tags such as "!!python/object/apply:os.system" are not accepted'),
    ),
    scenario(
        "yaml-merge",
        "workload:\n",
        "workload:\n  <<: {}\n",
        ("s.yaml:5:3: workload:", 'merge keys ("<<") are not accepted; write the keys out'),
    ),
    scenario(
        "yaml-tab",
        "  batch_size: 2",
        "\tbatch_size: 2",
        ("s.yaml:6:1:", "not valid YAML: found a tab character that violates indentation"),
    ),
    scenario(
        "yaml-colon",
        "name: small",
        "name: small: one",
        ("s.yaml:1:12:", 'not valid YAML: a value that contains ": " needs quotes'),
    ),
    raw(
        "yaml-truncated",
        SCENARIO[: SCENARIO.index("ranks")] + "ds_config: {aio: {block_size: 1",
        ("s.yaml:12:1:", "not valid YAML: did not find expected ',' or '}' while parsing a"),
    ),
    raw("yaml-deep", "a: " + "[" * 5000 + "]" * 5000, ("s.yaml:1:35:", "nested deeper than 32 levels")),
    raw(
        "yaml-two-documents",
        SCENARIO + "---\nname: again\n",
        ("s.yaml:24:1:", "a second document begins; a file may contain only one"),
    ),
    raw(
        "yaml-list-at-top",
        "- name: small\n- model: x\n",
        ("s.yaml:1:1:", "must have keys and values at its top level, not a list"),
    ),
    raw(
        "yaml-text-at-top",
        "just words\n",
        ("s.yaml:1:1:", "must have keys and values at its top level, not a single value"),
    ),
    raw("empty", "", ("s.yaml:", "the document is empty")),
    raw("only-comments", "# nothing\n", ("s.yaml:", "the document is empty")),
    raw("binary", bytes(range(256)) * 4, ("s.yaml:2:", "not text in UTF-8 (byte 0x80)")),
    raw("latin-1", "name: caf\xe9\n".encode("latin-1"), ("s.yaml:1:", "not text in UTF-8 (byte 0xe9)")),
    raw(
        "zip",
        b"PK\x03\x04\x14\x00\x00\x00\x08\x00",
        ("s.yaml:1:3:", "not text: it contains the character U+0003"),
    ),
    raw("huge", "# filler\n" * 200_000, ("s.yaml:", "larger than 1 MB (1800000 bytes)")),
    raw("many-entries", "a: [" + "1," * 60_000 + "1]\n", ("s.yaml:1:100001:", "more than 50000 entries")),
    raw(
        "control-character",
        "name: \x1b[31mred\n",
        ("s.yaml:1:7:", "not text: it contains the character U+001B"),
    ),
    # ---- JSON ----
    raw(
        "json-truncated",
        '{"name": "small", "model": ',
        ("s.json:1:28:", "not valid JSON: expecting value"),
        name="s.json",
    ),
    raw(
        "json-nan", '{"name": "small", "batch": NaN}', ("s.json:1:28:", "NaN is not a number"), name="s.json"
    ),
    raw(
        "json-infinite",
        '{"name": "small", "batch": -Infinity}',
        ("s.json:1:28:", "-Infinity is not a number"),
        name="s.json",
    ),
    raw(
        "json-duplicate",
        '{"name": "a", "name": "b"}',
        ("s.json:1:15: name:", "key given twice (first on line 1)"),
        name="s.json",
    ),
    raw(
        "json-trailing-comma",
        '{"name": "a",}',
        ("s.json:1:1", "not valid JSON: "),
        name="s.json",
    ),
    raw(
        "json-comment",
        '{"name": "a" // no\n}',
        ("s.json:1:14:", "not valid JSON: expecting ',' delimiter"),
        name="s.json",
    ),
    raw(
        "json-list",
        "[1, 2]",
        ("s.json:1:1:", "must have keys and values at its top level, not a list"),
        name="s.json",
    ),
    raw(
        "json-deep",
        '{"a":' * 3000 + "1" + "}" * 3000,
        ("s.json:1:161:", "nested deeper than 32 levels"),
        name="s.json",
    ),
    raw("json-1e400", '{"name": 1e400}', ("s.json:1:10:", "1e400 is too large for a number"), name="s.json"),
)
