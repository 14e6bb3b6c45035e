"""Broken input of every kind: what is given, and the one line for each problem that must come back."""

from __future__ import annotations

from typing import NamedTuple

SCENARIO = """\
name: small
model: bloom-560m
platform: dgx-a100
workload:
  kind: inference
  batch_size: 2
  prompt_length: 8
  output_length: 4
strategy:
  kind: zero_inference
  ranks: 2
  weights: raid
  deepspeed_version: 0.9.1
  ds_config:
    zero_optimization:
      stage: 3
      offload_param:
        buffer_count: 5
        buffer_size: 4e9
    aio:
      block_size: 1048576
      queue_depth: 32
      thread_count: 4
"""

DRIVE = """\
kind: drive
id: test-drive
name: "A drive for tests"
capacity: {value: "3.84 TB", origin: spec, source: "data sheet", date: 2026-11-20}
read: {value: "7.0 GB/s", origin: spec, source: "data sheet", date: 2026-11-20}
write: {value: "3.8 GB/s", origin: spec, source: "data sheet", date: 2026-11-20}
read_latency: {value: "100 us", origin: spec, source: "data sheet", date: 2026-11-20}
write_latency: {value: "25 us", origin: spec, source: "data sheet", date: 2026-11-20}
pcie:
  profile: gen4
  lanes: {value: 4, origin: spec, source: "data sheet", date: 2026-11-20}
"""

PLATFORM = """\
kind: platform
id: test-platform
name: "A machine for tests"
wiring:
  - {about: "all of it", origin: estimate, source: "made up", date: 2026-11-20}
host: i5-14600k-96gb
accelerator: rtx-4090
gpus: [cpu]
gpu_links: none
tiers:
  nvme: {profile: samsung-980-pro-2tb, at: [cpu]}
"""

DS_CONFIG = """\
{
  "zero_optimization": {
    "stage": 3,
    "offload_param": {"device": "nvme", "nvme_path": "/local_nvme", "buffer_size": 1e8}
  },
  "aio": {"block_size": 1048576, "queue_depth": 8}
}
"""


class Case(NamedTuple):
    """Files in a fresh folder, a command in that folder, and the lines that it must answer."""

    id: str
    argv: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]
    """For every line expected on standard error the texts that it must hold, in order."""
    files: dict[str, str | bytes] = {}
    stdin: bytes = b""


def _edited(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in the text"
    return text.replace(old, new)


def scenario(id: str, old: str, new: str, *lines: tuple[str, ...], command: str = "run") -> Case:
    """The good scenario with one slip."""
    return Case(id, (command, "s.yaml"), lines, {"s.yaml": _edited(SCENARIO, old, new)})


def drive(id: str, old: str, new: str, *lines: tuple[str, ...]) -> Case:
    """The good drive with one slip."""
    return Case(id, ("check", "d.yaml"), lines, {"d.yaml": _edited(DRIVE, old, new)})


def platform(id: str, old: str, new: str, *lines: tuple[str, ...]) -> Case:
    """The good platform with one slip."""
    return Case(id, ("profiles", "check", "p.yaml"), lines, {"p.yaml": _edited(PLATFORM, old, new)})


def ds_config(id: str, old: str, new: str, *lines: tuple[str, ...]) -> Case:
    """The good ds_config.json with one slip."""
    return Case(id, ("check", "ds.json"), lines, {"ds.json": _edited(DS_CONFIG, old, new)})


def raw(id: str, content: str | bytes, *lines: tuple[str, ...], name: str = "s.yaml", command: str = "run") -> Case:
    """A file that is nothing of the kind."""
    return Case(id, (command, name), lines, {name: content})


def command(id: str, words: str, *lines: tuple[str, ...], **files: str | bytes) -> Case:
    """A command line that cannot work, beside a good scenario."""
    named = {name.replace("_", "."): content for name, content in files.items()}
    return Case(id, tuple(words.split()), lines, {"s.yaml": SCENARIO, **named})


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{y}: &{y} [{', '.join([f'*{x}'] * 9)}]\n" for x, y in zip("abcdefgh", "bcdefghi", strict=True)
)

CASES = (
    # ---- numbers, text and units in a scenario ----
    scenario("batch-negative", "batch_size: 2", "batch_size: -2"),
    scenario("batch-zero", "batch_size: 2", "batch_size: 0"),
    scenario("batch-fraction", "batch_size: 2", "batch_size: 2.5"),
    scenario("batch-text", "batch_size: 2", "batch_size: two"),
    scenario("batch-nan", "batch_size: 2", "batch_size: .nan"),
    scenario("batch-infinite", "batch_size: 2", "batch_size: .inf"),
    scenario("batch-1e400", "batch_size: 2", "batch_size: 1e400"),
    scenario("batch-too-many-digits", "batch_size: 2", "batch_size: " + "9" * 40),
    scenario("batch-huge", "batch_size: 2", "batch_size: 1000000000"),
    scenario("batch-true", "batch_size: 2", "batch_size: true"),
    scenario("batch-null", "batch_size: 2", "batch_size:"),
    scenario("batch-list", "batch_size: 2", "batch_size: [2]"),
    scenario("name-empty", "name: small", 'name: ""'),
    scenario("name-number", "name: small", "name: 7"),
    scenario("two-problems", "batch_size: 2\n  prompt_length: 8", "batch_size: -2\n  prompt_length: many"),
    # ---- keys ----
    scenario("unknown-key", "batch_size: 2", "batchsize: 2"),
    scenario("unknown-top-key", "workload:", "extra: 1\nworkload:"),
    scenario("missing-workload-key", "  output_length: 4\n", ""),
    scenario("missing-model", "model: bloom-560m\n", ""),
    scenario("workload-is-text", SCENARIO[SCENARIO.index("workload:") : SCENARIO.index("strategy:")], "workload: all\n"),
    scenario("strategy-is-list", SCENARIO[SCENARIO.index("strategy:") :], "strategy: [zero_inference]\n"),
    scenario("strategy-kind", "kind: zero_inference", "kind: zero_inferense"),
    scenario("strategy-missing", SCENARIO[SCENARIO.index("strategy:") :], ""),
    scenario("duplicate-key", "batch_size: 2", "batch_size: 2\n  batch_size: 3"),
    scenario("wrong-case", "name: small", "Name: small"),
    # ---- what a scenario refers to ----
    scenario("unknown-model", "bloom-560m", "blom-560m"),
    scenario("model-two-ways", "model: bloom-560m", "model: {name: bloom-560m, family: bloom}"),
    scenario("model-unknown-key", "model: bloom-560m", "model: {name: bloom-560m, num_hiden_layers: 3}"),
    scenario("model-heads", "model: bloom-560m", "model: {name: bloom-560m, num_attention_heads: 7}"),
    scenario("model-zero-layers", "model: bloom-560m", "model: {name: bloom-560m, num_hidden_layers: 0}"),
    scenario("model-config-missing", "model: bloom-560m", "model: {config: none/config.json}"),
    scenario("model-config-outside", "model: bloom-560m", "model: {config: ../../etc/config.json}"),
    scenario("model-config-absolute", "model: bloom-560m", "model: {config: /etc/hostname}"),
    scenario("unknown-platform", "dgx-a100", "dgx-a10"),
    scenario("platform-outside", "platform: dgx-a100", "platform: ../p.yaml"),
    scenario("platform-is-drive", "platform: dgx-a100", "platform: samsung-pm1733-3.84tb"),
    scenario("unknown-tier", "weights: raid", "weights: raid5"),
    scenario("no-ranks", "ranks: 2", "ranks: 0"),
    scenario("too-many-ranks", "ranks: 2", "ranks: 9"),
    scenario("no-nodes", "platform: dgx-a100", "platform: dgx-a100\nnodes: 0"),
    scenario("nodes-without-network", "platform: dgx-a100", "platform: h100-2nvme\nnodes: 2"),
    scenario("engine-limit", "name: small", "name: small\nengine: {max_events: 0}"),
    scenario("engine-key", "name: small", "name: small\nengine: {token: off}"),
    # ---- DeepSpeed's settings within a scenario ----
    scenario("version", "deepspeed_version: 0.9.1", "deepspeed_version: newest"),
    scenario("version-number", "deepspeed_version: 0.9.1", "deepspeed_version: 0.9"),
    scenario("stage", "stage: 3", "stage: 2"),
    scenario("stage-unknown", "stage: 3", "stage: 4"),
    scenario("buffer-count", "buffer_count: 5", "buffer_count: 0"),
    scenario("buffer-too-small", "buffer_size: 4e9", "buffer_size: 1e6"),
    scenario("buffer-fraction", "buffer_size: 4e9", "buffer_size: 1.5"),
    scenario("not-enough-buffers", "buffer_count: 5", "buffer_count: 1"),
    scenario("queue-depth-unit", "queue_depth: 32", 'queue_depth: "32"'),
    scenario("block-size-unit", "block_size: 1048576", "block_size: 1 MiB"),
    scenario("ds-config-missing", SCENARIO[SCENARIO.index("  ds_config:") :], "  ds_config: ds.json\n"),
    scenario("ds-config-outside", SCENARIO[SCENARIO.index("  ds_config:") :], "  ds_config: ../ds.json\n"),
    scenario("ds-config-list", SCENARIO[SCENARIO.index("  ds_config:") :], "  ds_config: [1]\n"),
    # ---- YAML that is refused ----
    raw("yaml-bomb", BOMB),
    scenario("yaml-anchor", "model: bloom-560m", "model: &m bloom-560m"),
    scenario("yaml-alias", "platform: dgx-a100", "platform: *m"),
    scenario("yaml-tag", "batch_size: 2", "batch_size: !!int 2"),
    scenario("yaml-python-tag", "name: small", "name: !!python/object/apply:os.system [echo]"),
    scenario("yaml-merge", "workload:\n", "workload:\n  <<: {}\n"),
    scenario("yaml-tab", "  batch_size: 2", "\tbatch_size: 2"),
    scenario("yaml-colon", "name: small", "name: small: one"),
    raw("yaml-truncated", SCENARIO[: SCENARIO.index("ranks")] + "ds_config: {aio: {block_size: 1"),
    raw("yaml-deep", "a: " + "[" * 5000 + "]" * 5000),
    raw("yaml-two-documents", SCENARIO + "---\nname: again\n"),
    raw("yaml-list-at-top", "- name: small\n- model: x\n"),
    raw("yaml-text-at-top", "just words\n"),
    raw("empty", ""),
    raw("only-comments", "# nothing\n"),
    raw("binary", bytes(range(256)) * 4),
    raw("latin-1", "name: caf\xe9\n".encode("latin-1")),
    raw("zip", b"PK\x03\x04\x14\x00\x00\x00\x08\x00"),
    raw("huge", "# filler\n" * 200_000),
    raw("many-entries", "a: [" + "1," * 60_000 + "1]\n"),
    raw("control-character", "name: \x1b[31mred\n"),
    # ---- JSON ----
    raw("json-truncated", '{"name": "small", "model": ', name="s.json"),
    raw("json-nan", '{"name": "small", "batch": NaN}', name="s.json"),
    raw("json-infinite", '{"name": "small", "batch": -Infinity}', name="s.json"),
    raw("json-duplicate", '{"name": "a", "name": "b"}', name="s.json"),
    raw("json-trailing-comma", '{"name": "a",}', name="s.json"),
    raw("json-comment", '{"name": "a" // no\n}', name="s.json"),
    raw("json-list", "[1, 2]", name="s.json"),
    raw("json-deep", '{"a":' * 3000 + "1" + "}" * 3000, name="s.json"),
    raw("json-1e400", '{"name": 1e400}', name="s.json"),
    # ---- ds_config.json ----
    ds_config("ds-negative", '"queue_depth": 8', '"queue_depth": -8'),
    ds_config("ds-device", '"nvme"', '"disk"'),
    ds_config("ds-stage", '"stage": 3', '"stage": 1'),
    ds_config("ds-text-number", "1e8", '"1e8"'),
    ds_config("ds-aio-list", '{"block_size": 1048576, "queue_depth": 8}', "[]"),
    ds_config("ds-nan", "1048576", "NaN"),
    # ---- Hugging Face's config.json ----
    raw("hf-unknown-family", '{"model_type": "mamba"}', name="config.json", command="check"),
    raw("hf-no-family", '{"architectures": ["BloomForCausalLM"]}', name="config.json", command="check"),
    raw("hf-missing-keys", '{"model_type": "llama", "hidden_size": 64}', name="config.json", command="check"),
    raw("hf-wrong-type", '{"model_type": "bloom", "hidden_size": "64"}', name="config.json", command="check"),
    raw("hf-quantized", '{"model_type": "bloom", "quantization_config": {"bits": 4}}', name="config.json", command="check"),
    # ---- hardware profiles ----
    drive("drive-no-unit", '"7.0 GB/s"', "7.0"),
    drive("drive-no-unit-text", '"7.0 GB/s"', '"7.0"'),
    drive("drive-size-as-rate", '"7.0 GB/s"', '"7.0 GB"'),
    drive("drive-rate-as-size", '"3.84 TB"', '"3.84 TB/s"'),
    drive("drive-wrong-case", '"7.0 GB/s"', '"7.0 gb/s"'),
    drive("drive-bits-size", '"3.84 TB"', '"3.84 Tb"'),
    drive("drive-negative", '"100 us"', '"-100 us"'),
    drive("drive-nan", '"100 us"', '"nan us"'),
    drive("drive-zero", '"7.0 GB/s"', '"0 GB/s"'),
    drive("drive-too-large", '"3.84 TB"', '"3.84e30 TB"'),
    drive("drive-transfers", '"7.0 GB/s"', '"16 GT/s"'),
    drive("drive-no-source", 'write: {value: "3.8 GB/s", origin: spec, source: "data sheet", ', 'write: {value: "3.8 GB/s", origin: spec, '),
    drive("drive-origin", 'write: {value: "3.8 GB/s", origin: spec', 'write: {value: "3.8 GB/s", origin: guess'),
    drive("drive-date", 'pcie:\n', 'random_read: {value: 5, origin: spec, source: x, date: soon}\npcie:\n'),
    drive("drive-misspelt", "write_latency", "write_latncy"),
    drive("drive-kind", "kind: drive", "kind: drvie"),
    drive("drive-no-kind", "kind: drive\n", ""),
    drive("drive-id", "id: test-drive", "id: Test Drive"),
    platform("platform-unknown-host", "i5-14600k-96gb", "i5-14600k-96bg"),
    platform("platform-host-is-drive", "host: i5-14600k-96gb", "host: samsung-980-pro-2tb"),
    platform("platform-no-gpus", "gpus: [cpu]", "gpus: []"),
    platform("platform-unknown-vertex", "gpus: [cpu]", "gpus: [plx0]"),
    platform("platform-tier-nowhere", ", at: [cpu]}", "}"),
    platform("platform-tier-name", "  nvme:", "  dram:"),
    platform("platform-missing-tiers", "at: [cpu]}", "at: [slot9]}"),
    platform("platform-host-outside", "host: i5-14600k-96gb", "host: ../../host.yaml"),
    platform("platform-links", "gpu_links: none", "gpu_links: nvlink"),
    # ---- files and folders ----
    Case("no-such-file", ("run", "none.yaml"), ()),
    Case("no-such-name", ("run", "ddn/bloom-176"), ()),
    Case("a-folder", ("run", "folder"), (), {"folder/x.txt": ""}),
    Case("wrong-suffix", ("check", "notes.txt"), (), {"notes.txt": "name: x"}),
    raw("not-recognized", "colour: blue\n", command="check"),
    Case("several-files", ("check", "a.yaml", "b.yaml", "none.yaml"), (), {"a.yaml": SCENARIO.replace("batch_size: 2", "batch_size: -1"), "b.yaml": DRIVE.replace("kind: drive", "kind: drvie")}),
    Case("stdin-empty", ("run", "-"), ()),
    Case("stdin-binary", ("run", "-"), (), stdin=b"\xff\xfe\x00"),
    Case("stdin-broken", ("run", "-"), (), stdin=SCENARIO.replace("ranks: 2", "ranks: two").encode()),
    # ---- the command line ----
    command("no-command", ""),
    command("unknown-command", "rum s.yaml"),
    command("unknown-option", "run s.yaml --fast"),
    command("no-scenario", "run"),
    command("set-no-value", "run s.yaml --set workload.batch_size"),
    command("set-no-argument", "run s.yaml --set"),
    command("set-no-key", "run s.yaml --set =3"),
    command("set-unknown-key", "run s.yaml --set workload.batch=3"),
    command("set-wrong-type", "run s.yaml --set workload.batch_size=many"),
    command("set-into-value", "run s.yaml --set model.layers.x=3"),
    command("set-bad-yaml", "run s.yaml --set workload.batch_size=[1"),
    command("set-tag", "run s.yaml --set name=!!str&x"),
    command("on-unknown", "compare s.yaml --on dram,disk"),
    command("on-empty", "compare s.yaml --on dram,,raid"),
    command("on-twice", "compare s.yaml --on dram,dram"),
    command("on-unknown-platform", "compare s.yaml --on dgx-a1000:dram"),
    command("on-two-scenarios", "compare s.yaml s.yaml --on dram"),
    command("compare-one", "compare s.yaml"),
    command("compare-same", "compare s.yaml s.yaml"),
    command("baseline-unknown", "compare s.yaml --on dram,raid --baseline nfs"),
    command("output-is-file", "run s.yaml --output-dir s.yaml"),
    Case("output-not-empty", ("run", "s.yaml", "--output-dir", "out"), (), {"s.yaml": SCENARIO, "out/thesis.txt": "x"}),
    Case("output-of-another", ("run", "s.yaml", "--output-dir", "out"), (), {"s.yaml": SCENARIO, "out/result.json": "{}"}),
    Case("output-below-file", ("run", "s.yaml", "--output-dir", "s.yaml/out"), (), {"s.yaml": SCENARIO}),
    command("trace-without-folder", "run s.yaml --trace"),
    command("profile-unknown", "profiles show dgx-a1000"),
    command("profile-kind-unknown", "profiles list drives"),
    command("profiles-no-action", "profiles"),
    command("model-show-unknown", "models show lama-2-7b"),
    command("fit-unknown-target", "fit s.yaml --on nvme"),
)
