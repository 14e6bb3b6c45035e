"""Questions of what to change and what it costs that make no sense."""

from __future__ import annotations

from tests.broken.slips import DRIVE, SCENARIO, Case, command

COSTS = """\
kind: costs
id: mine
name: mine
date: 2026-11-01
electricity: -1
"""

CASES: tuple[Case, ...] = (
    command(
        "advise-no-scenario",
        "advise",
        ("simoffload advise:", "name a model or a scenario, such as simoffload advise"),
    ),
    command(
        "advise-unknown-scenario", "advise ddn/bloom-176", ("ddn/bloom-176:", 'did you mean "ddn/bloom-176b"')
    ),
    command(
        "advise-two-targets",
        "advise s.yaml --on dram,raid",
        ("--on: dram,raid:", "only one target is possible, not 2; compare takes several"),
    ),
    command(
        "advise-on-twice",
        "advise s.yaml --on dram --on raid",
        ("--on: dram,raid:", "only one target is possible, not 2; compare takes several"),
    ),
    command(
        "advise-unknown-target", "advise s.yaml --on nvme", ("--on:", 'no tier "nvme" on platform "dgx-a100"')
    ),
    *(
        command(
            f"advise-budget-{name}",
            f"advise s.yaml --budget={value}",
            ("simoffload advise:", f'argument --budget: "{value}" is not an amount above 0'),
        )
        for name, value in {"zero": "0", "negative": "-5", "text": "much", "endless": "inf"}.items()
    ),
    command(
        "advise-slo-unknown",
        "advise s.yaml --slo tpto=5s",
        ("--slo: tpto=5s:", 'unknown metric "tpto"', 'did you mean "tpot"'),
    ),
    command("advise-slo-no-limit", "advise s.yaml --slo tpot", ("--slo: tpot:", "has no limit; write e.g.")),
    command("advise-slo-no-unit", "advise s.yaml --slo tpot=200", ("--slo: tpot=200:", "unit")),
    command(
        "advise-slo-of-other-work",
        "advise s.yaml --slo step=10s",
        ("--slo: step=10s:", "step is no limit of this kind of work; it has ttft, prompt_tokens_per_s, tpot"),
    ),
    command(
        "advise-platform-unknown",
        "advise s.yaml --platforms dgx-a1000",
        ("there is no platform", 'there is no platform "dgx-a1000"', 'did you mean "dgx-a100"'),
    ),
    command(
        "advise-platform-empty",
        "advise s.yaml --platforms dgx-h100,,",
        ("simoffload advise:", 'argument --platforms: "dgx-h100,," has an empty entry'),
    ),
    command(
        "advise-objective-unknown",
        "advise s.yaml --objective costs",
        (
            "--objective: costs: is not one of throughput, latency, cost, ttft, prompt_tokens_per_s, tpot, ",
            'did you mean "cost"',
        ),
    ),
    *(
        Case(
            f"costs-{argv.split()[0]}-{name}",
            (*argv.split(), "--costs", "c.yaml"),
            (line,),
            {"s.yaml": SCENARIO, **files},
        )
        for argv in ("run s.yaml", "compare s.yaml --on dram,raid", "advise s.yaml")
        for name, files, line in (
            ("missing", {}, ("c.yaml:", "no such file")),
            ("of-another-kind", {"c.yaml": DRIVE}, ("c.yaml:1:7: kind:", "costs")),
            ("not-yaml", {"c.yaml": "kind: [costs"}, ("c.yaml:", "not valid YAML")),
            ("negative", {"c.yaml": COSTS}, ("c.yaml:5:14: electricity:", "must be at least 0, got -1")),
        )
    ),
)
