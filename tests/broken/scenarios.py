"""Slips in a scenario."""

from __future__ import annotations

from tests.broken.slips import SCENARIO, Case, scenario

DRAAM = ("s.yaml:12:12: strategy.weights:", 'no tier "draam" on platform "dgx-a100"')

CASES: tuple[Case, ...] = (
    # ---- numbers, text and units in a scenario ----
    scenario(
        "batch-negative",
        "batch_size: 2",
        "batch_size: -2",
        ("s.yaml:6:15: workload.batch_size:", "must be at least 1, got -2"),
    ),
    scenario(
        "batch-zero",
        "batch_size: 2",
        "batch_size: 0",
        ("s.yaml:6:15: workload.batch_size:", "must be at least 1, got 0"),
    ),
    scenario(
        "batch-fraction",
        "batch_size: 2",
        "batch_size: 2.5",
        ("s.yaml:6:15: workload.batch_size:", "must be a whole number, got 2.5"),
    ),
    scenario(
        "batch-text",
        "batch_size: 2",
        "batch_size: two",
        ("s.yaml:6:15: workload.batch_size:", 'must be a whole number, got "two"'),
    ),
    scenario(
        "batch-nan",
        "batch_size: 2",
        "batch_size: .nan",
        ("s.yaml:6:15: workload.batch_size:", "must be a finite number, got .nan"),
    ),
    scenario(
        "batch-infinite",
        "batch_size: 2",
        "batch_size: .inf",
        ("s.yaml:6:15: workload.batch_size:", "must be a finite number, got .inf"),
    ),
    scenario(
        "batch-1e400",
        "batch_size: 2",
        "batch_size: 1e400",
        ("s.yaml:6:15: workload.batch_size:", "1e400 is too large for a number"),
    ),
    scenario(
        "batch-too-many-digits",
        "batch_size: 2",
        "batch_size: " + "9" * 40,
        ("s.yaml:6:15: workload.batch_size:", "an integer of 40 digits is too long (at most 30)"),
    ),
    scenario(
        "batch-huge",
        "batch_size: 2",
        "batch_size: 1000000000",
        ("s.yaml:6:15: workload.batch_size:", "must be at most 1000000, got 1000000000"),
    ),
    scenario(
        "batch-true",
        "batch_size: 2",
        "batch_size: true",
        ("s.yaml:6:15: workload.batch_size:", "must be a whole number, got true"),
    ),
    scenario(
        "batch-null",
        "batch_size: 2",
        "batch_size:",
        ("s.yaml:6:14: workload.batch_size:", "must be a whole number, got nothing"),
    ),
    scenario(
        "batch-list",
        "batch_size: 2",
        "batch_size: [2]",
        ("s.yaml:6:15: workload.batch_size:", "must be a whole number, got a list of 1"),
    ),
    scenario(
        "name-empty",
        "name: small",
        'name: ""',
        ("s.yaml:1:7: name:", 'must be text of at least 1 characters, got ""'),
    ),
    scenario("name-number", "name: small", "name: 7", ("s.yaml:1:7: name:", "must be text, got 7")),
    scenario(
        "two-problems",
        "batch_size: 2\n  prompt_length: 8",
        "batch_size: -2\n  prompt_length: many",
        ("s.yaml:6:15: workload.batch_size:", "must be at least 1, got -2"),
        ("s.yaml:7:18: workload.prompt_length:", 'must be a whole number, got "many"'),
    ),
    # ---- keys ----
    scenario(
        "unknown-key",
        "batch_size: 2",
        "batchsize: 2",
        ("s.yaml:6:3: workload.batchsize:", "unknown key", 'did you mean "batch_size"'),
    ),
    scenario("unknown-top-key", "workload:", "extra: 1\nworkload:", ("s.yaml:4:1: extra:", "unknown key")),
    scenario(
        "missing-workload-key",
        "  output_length: 4\n",
        "",
        ("s.yaml:5:3: workload.output_length:", "required key is missing"),
    ),
    scenario("missing-model", "model: bloom-560m\n", "", ("s.yaml:1:1: model:", "required key is missing")),
    scenario(
        "workload-is-text",
        SCENARIO[SCENARIO.index("workload:") : SCENARIO.index("strategy:")],
        "workload: all\n",
        ("s.yaml:4:11: workload:", 'must be a mapping, got "all"'),
    ),
    scenario(
        "strategy-is-list",
        SCENARIO[SCENARIO.index("strategy:") :],
        "strategy: [deepspeed]\n",
        ("s.yaml:9:11: strategy:", "must be a mapping, got a list of 1"),
    ),
    scenario(
        "strategy-kind",
        "kind: deepspeed",
        "kind: deepsped",
        (
            "s.yaml:10:9: strategy.kind:",
            'must be "best", ',
            ' "vllm", ',
            ' or "checkpoint", got "deepsped"',
            'did you mean "deepspeed"',
        ),
    ),
    scenario(
        "duplicate-key",
        "batch_size: 2",
        "batch_size: 2\n  batch_size: 3",
        ("s.yaml:7:3: workload.batch_size:", "key given twice (first on line 6)"),
    ),
    scenario(
        "wrong-case",
        "name: small",
        "Name: small",
        ("s.yaml:1:1: Name:", "unknown key", 'did you mean "name"'),
    ),
    # ---- what a scenario refers to ----
    scenario(
        "unknown-model",
        "bloom-560m",
        "blom-560m",
        ("s.yaml:2:8: model:", 'unknown model "blom-560m"', 'did you mean "bloom-560m"'),
    ),
    scenario(
        "equipment-missing-file",
        "strategy:",
        "equipment:\n  tiers:\n    x: {profile: drives/x.yaml, at: [cpu]}\nstrategy:",
        ("s.yaml:11:18: equipment.tiers.x.profile:", "drives/x.yaml: no such file"),
    ),
    scenario(
        "equipment-long-name",
        "strategy:",
        f"equipment: {{accelerator: {'a' * 300}.yaml}}\nstrategy:",
        ("s.yaml:9:26: equipment.accelerator:", "aaa.yaml: cannot be read: File name too long"),
    ),
    scenario(
        "equipment-pcie-missing-file",
        "strategy:",
        "equipment: {pcie: {gen4: none.yaml}}\nstrategy:",
        ("s.yaml:9:26: equipment.pcie.gen4:", "none.yaml: no such file"),
    ),
    scenario(
        "model-two-ways",
        "model: bloom-560m",
        "model: {name: bloom-560m, family: bloom}",
        ("s.yaml:2:8: model:", 'give one of "name", "config" and "family", not name and family'),
    ),
    scenario(
        "model-unknown-key",
        "model: bloom-560m",
        "model: {name: bloom-560m, num_hiden_layers: 3}",
        (
            "s.yaml:2:45: model.num_hiden_layers:",
            "unknown key of the bloom family",
            'did you mean "num_hidden_layers"',
        ),
    ),
    scenario(
        "model-heads",
        "model: bloom-560m",
        "model: {name: bloom-560m, num_attention_heads: 7}",
        (
            "s.yaml:2:48: model.num_attention_heads:",
            "hidden_size 1024 is not a multiple of num_attention_heads 7",
        ),
    ),
    scenario(
        "model-zero-layers",
        "model: bloom-560m",
        "model: {name: bloom-560m, num_hidden_layers: 0}",
        ("s.yaml:2:46: model.num_hidden_layers:", "must be at least 1, got 0"),
    ),
    scenario(
        "model-config-missing",
        "model: bloom-560m",
        "model: {config: none/config.json}",
        ("s.yaml:2:8: model:", "none/config.json: no such file"),
    ),
    scenario(
        "model-config-outside",
        "model: bloom-560m",
        "model: {config: ../../etc/config.json}",
        ("s.yaml:2:8: model:", '"../../etc/config.json" is outside the scenario\'s folder'),
    ),
    scenario(
        "model-config-absolute",
        "model: bloom-560m",
        "model: {config: /etc/hostname}",
        ("s.yaml:2:8: model:", '"/etc/hostname" is outside the scenario\'s folder'),
    ),
    scenario(
        "unknown-platform",
        "dgx-a100",
        "dgx-a10",
        ("s.yaml:3:11: platform:", 'there is no platform "dgx-a10"', 'did you mean "dgx-a100"'),
    ),
    scenario(
        "platform-outside",
        "platform: dgx-a100",
        "platform: ../p.yaml",
        ("s.yaml:3:11: platform:", '"../p.yaml" is outside the folder from which files may be read'),
    ),
    scenario(
        "platform-is-drive",
        "platform: dgx-a100",
        "platform: samsung-pm1733-3.84tb",
        ("s.yaml:3:11: platform:", 'there is no platform "samsung-pm1733-3.84tb"'),
    ),
    scenario(
        "unknown-tier",
        "weights: raid",
        "weights: raid5",
        ("s.yaml:12:12: strategy.weights:", 'no tier "raid5" on platform "dgx-a100"', 'did you mean "raid"'),
    ),
    scenario(
        "no-ranks", "ranks: 2", "ranks: 0", ("s.yaml:11:10: strategy.ranks:", "must be at least 1, got 0")
    ),
    scenario(
        "too-many-ranks",
        "ranks: 2",
        "ranks: 9",
        ("s.yaml:11:10: strategy.ranks:", "9 ranks, but the platform has 8 GPUs; lower it or raise nodes"),
    ),
    scenario(
        "no-nodes",
        "platform: dgx-a100",
        "platform: dgx-a100\nnodes: 0",
        ("s.yaml:4:8: nodes:", "must be at least 1, got 0"),
    ),
    scenario(
        "nodes-without-network",
        "platform: dgx-a100",
        "platform: h100-2nvme\nnodes: 2",
        ("s.yaml:4:8: nodes:", "h100-2nvme has no network between hosts"),
    ),
    scenario(
        "engine-limit",
        "name: small",
        "name: small\nengine: {max_events: 0}",
        ("s.yaml:2:22: engine.max_events:", "must be at least 1, got 0"),
    ),
    scenario(
        "engine-key",
        "name: small",
        "name: small\nengine: {rank_symetry: off}",
        ("s.yaml:2:10: engine.rank_symetry:", "unknown key", 'did you mean "rank_symmetry"'),
    ),
    scenario(
        "engine-old-and-new-key",
        "name: small",
        "name: small\nengine: {fold: off, rank_symmetry: off}",
        ("s.yaml:2:10: engine.fold:", "is the old name of engine.rank_symmetry, which is given too"),
    ),
    # ---- keys of models in other spellings ----
    scenario(
        "alias-wrong-value",
        "model: bloom-560m",
        "model:\n  family: bloom\n  n_layer: many\n  n_head: 0\n  n_embed: 64",
        ("s.yaml:4:12: model.n_layer:", 'must be a whole number, got "many"'),
        ("s.yaml:5:11: model.n_head:", "must be at least 1, got 0"),
    ),
    scenario(
        "alias-sizes-that-do-not-go-together",
        "model: bloom-560m",
        "model:\n  family: bloom\n  n_layer: 2\n  n_head: 7\n  n_embed: 64",
        ("s.yaml:5:11: model.n_head:", "n_embed 64 is not a multiple of n_head 7"),
    ),
    scenario(
        "alias-of-experts",
        "model: bloom-560m",
        "model:\n  name: mixtral-8x7b\n  num_experts: [8]",
        ("s.yaml:4:16: model.num_experts:", "must be a whole number, got a list of 1"),
    ),
    Case(
        "alias-in-config",
        ("run", "s.yaml"),
        (
            ("s.yaml:5:11: model.n_head:", "hidden_size 64 is not a multiple of n_head 7"),
            ("s.yaml:15:12: strategy.weights:", DRAAM[1]),
        ),
        {
            "s.yaml": SCENARIO.replace(
                "model: bloom-560m", "model:\n  config: c.json\n  # of the file\n  n_head: 7"
            ).replace("weights: raid", "weights: draam"),
            "c.json": '{"model_type": "bloom", "n_layer": 2, "n_head": 8, "n_embed": 64}',
        },
    ),
    Case(
        "alias-in-config-json",
        ("check", "c.json"),
        (("c.json:3:14: n_layer:", 'must be a whole number, got "2"'),),
        {"c.json": '{"model_type": "bloom",\n "n_embed": 64, "n_head": 8,\n  "n_layer": "2"}'},
    ),
    Case(
        "show-config-json",
        ("models", "show", "c.json"),
        (("c.json:1:36: n_layer:", "must be a whole number"),),
        {"c.json": '{"model_type": "bloom", "n_layer": "2", "n_head": 8, "n_embed": 64}'},
    ),
    Case(
        "alias-twice-in-config-json",
        ("check", "c.json"),
        (("c.json:4:24: num_hidden_layers:", "is 3, and n_layer, another name of it, 2; keep one"),),
        {
            "c.json": '{"model_type": "bloom",\n  "n_layer": 2,\n  "n_embed": 64, "n_head": 8,\n'
            '  "num_hidden_layers": 3}'
        },
    ),
    Case(
        "alias-twice-and-a-wrong-size-in-config-json",
        ("check", "c.json"),
        (
            ("c.json:2:14: n_layer:", "must be at least 1, got 0"),
            ("c.json:3:35: n_embed:", "is 4097, and hidden_size, another name of it, 4096; keep one"),
        ),
        {
            "c.json": '{"model_type": "bloom",\n  "n_layer": 0, "n_head": 32,\n'
            '  "hidden_size": 4096, "n_embed": 4097}'
        },
    ),
    Case(
        "sweep-of-a-wrong-scenario",
        ("sweep", "s.yaml", "--axis", "strategy.ranks=1,2", "--dry-run"),
        (("s.yaml:6:15: workload.batch_size:", "must be at least 1, got 0"),),
        {"s.yaml": SCENARIO.replace("batch_size: 2", "batch_size: 0")},
    ),
    Case(
        "sweep-over-wrong-values",
        ("sweep", "s.yaml", "--axis", "workload.batch_size=0,-1", "--dry-run"),
        (("--axis: workload.batch_size:", "must be at least 1, got 0"),),
        {"s.yaml": SCENARIO},
    ),
    # ---- several at once ----
    scenario(
        "tier-and-batch",
        "batch_size: 2",
        "batch_size: two\n  tier: x",
        ("s.yaml:6:15: workload.batch_size:", 'must be a whole number, got "two"'),
        ("s.yaml:7:3: workload.tier:", "unknown key"),
    ),
    *(
        Case(
            f"unknown-tier-beside-{what}",
            ("check", "s.yaml"),
            lines,
            {"s.yaml": SCENARIO.replace("weights: raid", "weights: draam").replace(*change)},
        )
        for what, change, lines in (
            (
                "batch",
                ("batch_size: 2", "batch_size: two"),
                (("s.yaml:6:15: workload.batch_size:", 'got "two"'), DRAAM),
            ),
            (
                "model",
                ("bloom-560m", "blom-560m"),
                (("s.yaml:2:8: model:", 'unknown model "blom-560m"'), DRAAM),
            ),
            (
                "profile",
                ("name: small", "name: small #\nprofiles: {nothing: {read: 1 GB/s}}"),
                (
                    ("s.yaml:2:12: profiles.nothing:", "no profile of that name"),
                    ("s.yaml:13:12: strategy.weights:", DRAAM[1]),
                ),
            ),
            (
                "ds_config",
                ("stage: 3", "stage: three"),
                (DRAAM, ("s.yaml:16:14: strategy.ds_config.zero_optimization.stage:", 'got "three"')),
            ),
        )
    ),
)
