"""Slips in hardware profiles."""

from __future__ import annotations

from tests.broken.slips import Case, drive, platform

CASES: tuple[Case, ...] = (
    # ---- hardware profiles ----
    drive(
        "drive-no-unit",
        '"7.0 GB/s"',
        "7.0",
        ("d.yaml:5:15: read.value:", '"7.0" has no unit; write e.g. "7.0 GB/s" (bytes) or "7.0 Gb/s" (bits)'),
    ),
    drive(
        "drive-no-unit-text",
        '"7.0 GB/s"',
        '"7.0"',
        ("d.yaml:5:15: read.value:", '"7.0" has no unit; write e.g. "7.0 GB/s" (bytes) or "7.0 Gb/s" (bits)'),
    ),
    drive(
        "drive-size-as-rate",
        '"7.0 GB/s"',
        '"7.0 GB"',
        ("d.yaml:5:15: read.value:", '"7.0 GB" is a size, not a rate', 'did you mean "7.0 GB/s"'),
    ),
    drive(
        "drive-rate-as-size",
        '"3.84 TB"',
        '"3.84 TB/s"',
        ("d.yaml:4:19: capacity.value:", '"3.84 TB/s" is a rate, not a size', 'did you mean "3.84 TB"'),
    ),
    drive(
        "drive-wrong-case",
        '"7.0 GB/s"',
        '"7.0 gb/s"',
        ("d.yaml:5:15: read.value:", '"7.0 gb/s": "gb/s" is not a unit of rate', 'did you mean "7.0 GB/s"'),
    ),
    drive(
        "drive-bits-size",
        '"3.84 TB"',
        '"3.84 Tb"',
        (
            "d.yaml:4:19: capacity.value:",
            '"3.84 Tb" counts bits, and sizes are counted in bytes (1 B = 8 b); did you mean 3.84 TB?',
        ),
    ),
    drive(
        "drive-negative",
        '"100 us"',
        '"-100 us"',
        ("d.yaml:7:23: read_latency.value:", 'must not be negative, got "-100 us"'),
    ),
    drive(
        "drive-nan",
        '"100 us"',
        '"nan us"',
        ("d.yaml:7:23: read_latency.value:", 'must be a finite time, got "nan us"'),
    ),
    drive(
        "drive-zero", '"7.0 GB/s"', '"0 GB/s"', ("d.yaml:5:15: read.value:", 'must be above 0, got "0 GB/s"')
    ),
    drive(
        "drive-too-large",
        '"3.84 TB"',
        '"3.84e30 TB"',
        ("d.yaml:4:19: capacity.value:", '"3.84e30 TB" is above the limit of 1e21 B; check the unit'),
    ),
    drive(
        "drive-transfers",
        '"7.0 GB/s"',
        '"16 GT/s"',
        ("d.yaml:5:15: read.value:", '"16 GT/s" counts transfers, not bytes'),
    ),
    drive(
        "drive-no-source",
        'write: {value: "3.8 GB/s", origin: spec, source: "data sheet", ',
        'write: {value: "3.8 GB/s", origin: spec, ',
        ("d.yaml:6:8: write.source:", "required key is missing"),
    ),
    drive(
        "drive-origin",
        'write: {value: "3.8 GB/s", origin: spec',
        'write: {value: "3.8 GB/s", origin: guess',
        ("d.yaml:6:36: write.origin:", 'must be "spec", "measured" or "estimate", got "guess"'),
    ),
    drive(
        "drive-date",
        "pcie:\n",
        "random_read: {value: 5, origin: spec, source: x, date: soon}\npcie:\n",
        ("d.yaml:9:56: random_read.date:", 'must be a date such as 2026-11-20, got "soon"'),
    ),
    drive(
        "drive-misspelt",
        "write_latency",
        "write_latncy",
        ("d.yaml:8:1: write_latncy:", "unknown key", 'did you mean "write_latency"'),
    ),
    drive(
        "drive-kind",
        "kind: drive",
        "kind: drvie",
        ("d.yaml:1:7: kind:", '"drvie" is not a kind of profile', 'did you mean "drive"'),
    ),
    drive("drive-no-kind", "kind: drive\n", "", ("d.yaml:1:1: kind:", "missing")),
    drive(
        "drive-id",
        "id: test-drive",
        "id: Test Drive",
        ("d.yaml:2:5: id:", 'must be text of the form ^[a-z0-9][a-z0-9.+-]{0,79}$, got "Test Drive"'),
    ),
    platform(
        "platform-unknown-host",
        "i5-14600k-96gb",
        "i5-14600k-96bg",
        ("p.yaml:6:7: host:", 'there is no host "i5-14600k-96bg"', 'did you mean "i5-14600k-96gb"'),
    ),
    platform(
        "platform-host-is-drive",
        "host: i5-14600k-96gb",
        "host: samsung-980-pro-2tb",
        ("p.yaml:6:7: host:", 'there is no host "samsung-980-pro-2tb"'),
    ),
    platform(
        "platform-no-gpus",
        "gpus: [cpu]",
        "gpus: []",
        ("p.yaml:8:7: gpus:", "must be a list of at least 1, got a list of 0"),
    ),
    platform(
        "platform-unknown-vertex",
        "gpus: [cpu]",
        "gpus: [plx0]",
        ("p.yaml:8:8: gpus[0]:", 'no vertex "plx0" (has: cpu)'),
    ),
    platform(
        "platform-tier-nowhere",
        ", at: [cpu]}",
        "}",
        ("p.yaml:11:9: tiers.nvme:", "give either `at` (local drives) or `through` (network adapters)"),
    ),
    platform(
        "platform-tier-name",
        "  nvme:",
        "  dram:",
        ("p.yaml:1:1:", '"dram" is reserved and cannot name anything else'),
    ),
    platform(
        "platform-missing-tiers",
        "at: [cpu]}",
        "at: [slot9]}",
        ("p.yaml:11:45: tiers.nvme.at[0]:", 'no vertex "slot9" (has: cpu)'),
    ),
    platform(
        "platform-host-outside",
        "host: i5-14600k-96gb",
        "host: ../../host.yaml",
        ("p.yaml:6:7: host:", '"../../host.yaml" is outside the folder from which files may be read'),
    ),
    platform(
        "platform-host-missing-file",
        "host: i5-14600k-96gb",
        "host: hosts/none.yaml",
        ("p.yaml:6:7: host:", "hosts/none.yaml: no such file"),
    ),
    platform(
        "platform-links",
        "gpu_links: none",
        "gpu_links: nvlink",
        ("p.yaml:9:12: gpu_links:", 'must be "switched" or "none", got "nvlink"'),
    ),
)
