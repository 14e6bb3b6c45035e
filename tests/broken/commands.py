"""Files that are not there, and command lines that make no sense."""

from __future__ import annotations

from tests.broken.slips import DRIVE, SCENARIO, Case, command, raw

CASES: tuple[Case, ...] = (
    # ---- files and folders ----
    Case("no-such-file", ("run", "none.yaml"), (("none.yaml:", "no such file"),)),
    Case(
        "no-such-name",
        ("run", "ddn/bloom-176"),
        (
            (
                "ddn/bloom-176:",
                "no such file, and no shipped scenario or model of that name",
                'did you mean "ddn/bloom-176b"',
            ),
        ),
    ),
    Case(
        "check-no-such-name",
        ("check", "ddn/bloom-176", "dgx-a1000", "nothing-like-it-at-all"),
        (
            (
                "ddn/bloom-176:",
                "no such file, and no shipped scenario or profile of that name",
                'did you mean "ddn/bloom-176b"',
            ),
            (
                "dgx-a1000:",
                "no such file, and no shipped scenario or profile of that name",
                'did you mean "dgx-a100"',
            ),
            (
                "nothing-like-it-at-all:",
                "no such file, and no shipped scenario or profile of that name",
            ),
        ),
    ),
    Case(
        "profiles-check-no-such-name",
        ("profiles", "check", "dgx-a1000"),
        (
            (
                "dgx-a1000:",
                "no such file, and no shipped profile of that name",
                'did you mean "dgx-a100"',
            ),
        ),
    ),
    Case(
        "a-folder",
        ("run", "folder"),
        (("folder:", "this folder has no config.json", "name a file, or another folder"),),
        {"folder/x.txt": ""},
    ),
    Case(
        "a-folder-with-other-files",
        ("run", "./folder"),
        (("folder:", "no config.json", "name a file in it: folder/m.gguf or folder/s.yaml"),),
        {"folder/s.yaml": SCENARIO, "folder/m.gguf": ""},
    ),
    *(
        Case(
            f"broken-model-{number}",
            ("fit", *argv, "--gpu", "rtx-4090"),
            (("my-model/config.json:2:1:", "not valid JSON"),),
            {"my-model/config.json": '{"model_type": "llama"\n"hidden_size": 8}'},
        )
        for number, argv in enumerate(
            (
                ("my-model",),
                ("./my-model:q4_k_m",),
                ("--model", "my-model"),
                ("qwen3-8b", "--model", "my-model"),
            )
        )
    ),
    Case(
        "unknown-form-of-a-folder",
        ("fit", "my-model:exl2", "--gpu", "rtx-4090"),
        (("my-model:exl2: model.quantization:", "in exl2", "write q4_k_m"),),
        {"my-model/config.json": '{"model_type": "llama"}'},
    ),
    Case(
        "wrong-suffix",
        ("check", "notes.txt"),
        (("notes.txt:", "the name of a document ends in .yaml, .yml or .json"),),
        {"notes.txt": "name: x"},
    ),
    raw(
        "not-recognized",
        "colour: blue\n",
        ("s.yaml:", "not recognized: a scenario has model, platform, workload and strategy"),
        command="check",
    ),
    Case(
        "several-files",
        ("check", "a.yaml", "b.yaml", "none.yaml"),
        (
            ("a.yaml:6:15: workload.batch_size:", "must be at least 1, got -1"),
            ("b.yaml:1:7: kind:", '"drvie" is not a kind of profile', 'did you mean "drive"'),
            ("none.yaml:", "no such file"),
        ),
        {
            "a.yaml": SCENARIO.replace("batch_size: 2", "batch_size: -1"),
            "b.yaml": DRIVE.replace("kind: drive", "kind: drvie"),
        },
    ),
    Case("stdin-empty", ("run", "-"), (("<stdin>:", "the document is empty"),)),
    Case("stdin-binary", ("run", "-"), (("<stdin>:", "is not text in UTF-8"),), stdin=b"\xff\xfe\x00"),
    Case(
        "stdin-profile",
        ("check", "-"),
        (("<stdin>:1:1:", "a profile must be a file, not standard input"),),
        stdin=DRIVE.encode(),
    ),
    Case(
        "stdin-broken",
        ("run", "-"),
        (("<stdin>:11:10: strategy.ranks:", 'must be a whole number, got "two"'),),
        stdin=SCENARIO.replace("ranks: 2", "ranks: two").encode(),
    ),
    # ---- the command line ----
    command(
        "unknown-command",
        "rum s.yaml",
        (
            "simoffload:",
            '"rum" is not one of run, compare, fit, advise, reach, check, profiles,',
            'did you mean "run"',
        ),
    ),
    command(
        "unknown-option",
        "run s.yaml --fast",
        ("simoffload run:", "unrecognized arguments: --fast; see simoffload run --help"),
    ),
    command(
        "run-on-no-tier",
        "run s.yaml --on tape",
        ("--on:", 'no tier "tape" on platform'),
    ),
    command(
        "gpu-unknown",
        "run opt-30b --gpu rtx-409",
        ("--gpu:", 'there is no accelerator "rtx-409"', 'did you mean "rtx-4090"'),
    ),
    command(
        "gpu-in-no-platform",
        "run opt-30b --gpu rtx-4090 --gpus 9",
        (
            "--gpus:",
            "no shipped platform has 9 GPUs rtx-4090; the largest has 2, and one takes",
            "give fewer",
        ),
    ),
    command(
        "gpus-not-possible",
        "run s.yaml --gpus 99",
        ("--gpus:", "dgx-a100 does not take 99 GPUs; name the GPU without a platform"),
    ),
    command(
        "memory-without-unit",
        "run opt-30b --gpu rtx-4090 --memory 64",
        ("--memory:", '"64" has no unit; write e.g. "64 GB"'),
    ),
    command(
        "drive-unknown",
        "run opt-30b --gpu rtx-4090 --drive tape",
        ("--drive:", 'there is no drive, raid, nfs, pfs, nvmeof or remote "tape"'),
    ),
    command(
        "array-of-unknown-drives",
        "run opt-30b --gpu rtx-4090 --drive 2xsamsung-98-pro-2tb",
        ("--drive:", 'there is no drive "samsung-98-pro-2tb"; did you mean "samsung-980-pro-2tb"'),
    ),
    command(
        "server-without-network",
        "run opt-30b --gpu t4 --drive ddn-ai400x2",
        ("--drive:", "gcp-t4 has no network adapter, over which ddn-ai400x2 is reached"),
    ),
    command(
        "model-unknown",
        "run s.yaml --model opt-31b",
        ("--model:", "opt-31b"),
    ),
    command(
        "no-scenario",
        "run",
        ("simoffload run:", "name a model or a scenario, such as simoffload run gpt-oss-120b"),
    ),
    command(
        "set-no-value",
        "run s.yaml --set workload.batch_size",
        ("--set:", '"workload.batch_size" has no value; write e.g. workload.batch_size=16'),
    ),
    command(
        "set-no-argument",
        "run s.yaml --set",
        ("simoffload run:", "argument --set: expected one argument; see simoffload run --help"),
    ),
    command(
        "set-no-key",
        "run s.yaml --set =3",
        ("--set:", '"" is not the path of a key; write e.g. tiers[1].capacity=40 GB'),
    ),
    command(
        "set-unknown-key",
        "run s.yaml --set workload.batch=3",
        ("--set: workload.batch:", "unknown key", 'did you mean "batch_size"'),
    ),
    command(
        "set-wrong-type",
        "run s.yaml --set workload.batch_size=many",
        ("--set: workload.batch_size:", 'must be a whole number, got "many"'),
    ),
    command(
        "set-into-value",
        "run s.yaml --set platform.gpus=3",
        ("--set: platform:", 'this is a single value, so it has no entry "gpus"'),
    ),
    command(
        "set-two-words",
        "run s.yaml --set workload.batch_size 8",
        ("simoffload run: unrecognized arguments: 8; --set takes one word", "--set workload.batch_size=8"),
    ),
    command(
        "set-without-a-space",
        "run s.yaml --set strategy={kind:x}",
        ("--set: strategy:", "a space is missing after the colon; write kind: x"),
    ),
    command(
        "set-key-called-like-the-kind",
        'run s.yaml --set strategy={"kind":"vllm","tensor_parallel":2}',
        ("--set: strategy.tensor_parallel: unknown key", 'did you mean "tensor_parallel_size"?'),
    ),
    command(
        "set-bad-yaml",
        "run s.yaml --set workload.batch_size=[1",
        ("--set: workload.batch_size:", "not valid YAML: did not find expected ',' or ']' while parsing a"),
    ),
    command(
        "set-tag",
        "run s.yaml --set name=!!str&x",
        ("--set: name:", 'tags such as "!!str&x" are not accepted'),
    ),
    command(
        "on-unknown", "compare s.yaml --on dram,disk", ("--on:", 'no tier "disk" on platform "dgx-a100"')
    ),
    command(
        "on-empty",
        "compare s.yaml --on dram,,raid",
        ("simoffload compare:", 'argument --on: "dram,,raid" has an empty entry'),
    ),
    command("on-twice", "compare s.yaml --on dram,dram", ("--on:", 'target "dram" is given twice')),
    command("on-repeated", "compare s.yaml --on dram --on dram", ("--on:", 'target "dram" is given twice')),
    command(
        "on-unknown-platform",
        "compare s.yaml --on dgx-a1000:dram",
        ("--on:", 'there is no platform "dgx-a1000"', 'did you mean "dgx-a100"'),
    ),
    command(
        "on-two-scenarios",
        "compare s.yaml s.yaml --on dram",
        ("simoffload compare:", "a scenario is given twice"),
    ),
    command("compare-one", "compare s.yaml", ("simoffload compare:", "one scenario is not a comparison")),
    command("compare-same", "compare s.yaml s.yaml", ("simoffload compare:", "a scenario is given twice")),
    command(
        "baseline-unknown",
        "compare s.yaml --on dram,raid --baseline nfs",
        ("baseline:", '"nfs" is not one of what is compared: dram, raid'),
    ),
    command(
        "output-is-file",
        "run s.yaml --output-dir s.yaml",
        ("--output-dir: s.yaml:", "is a file, not a folder"),
    ),
    Case(
        "output-not-empty",
        ("run", "s.yaml", "--output-dir", "out"),
        (("--output-dir: out:", 'is not empty (it contains "thesis.txt")'),),
        {"s.yaml": SCENARIO, "out/thesis.txt": "x"},
    ),
    Case(
        "output-of-another",
        ("run", "s.yaml", "--output-dir", "out"),
        (("--output-dir: out:", "is not empty (it contains files of another program)"),),
        {"s.yaml": SCENARIO, "out/result.json": "{}"},
    ),
    Case(
        "output-below-file",
        ("run", "s.yaml", "--output-dir", "s.yaml/out"),
        (("--output-dir: s.yaml/out:", 'is below "s.yaml", which is not a folder'),),
        {"s.yaml": SCENARIO},
    ),
    command("trace-without-folder", "run s.yaml --trace", ("simoffload run:", "--trace needs --output-dir")),
    command(
        "profile-unknown",
        "profiles show dgx-a1000",
        ("there is no profile", 'there is no profile "dgx-a1000"', 'did you mean "dgx-a100"'),
    ),
    command(
        "profile-kind-unknown",
        "profiles list drivs",
        ("kind:", '"drivs" is not a kind of profile', 'did you mean "drive"'),
    ),
    command(
        "profiles-no-action",
        "profiles",
        ("simoffload profiles:", "name an action, one of list, show, check, import; such as simoffload"),
    ),
    # ---- what people type first ----
    *(
        command(f"typed-{number}", line, (start, *texts))
        for number, (line, start, *texts) in enumerate(
            (
                ("qwen3-8b --gpu rtx-4090", "simoffload:", "such as simoffload run qwen3-8b --gpu rtx-4090"),
                ("--gpu rtx-4090 qwen3-8b", "simoffload:", "a command comes first"),
                ("run llama 70b", "simoffload run:", "arguments: 70b", "run takes one name here"),
                ("run opt-30b --gpu RTX 4090", "simoffload run:", "arguments: 4090", "--gpu 'RTX 4090'"),
                ("run opt-30b --gpu 4090 --memory 64 GB", "simoffload run:", "--memory '64 GB'"),
                ("run opt-30b --ram 64GB", "simoffload run:", "instead of --ram write --memory 64GB;"),
                ("run opt-30b --quant q4", "simoffload run:", "instead of --quant write MODEL:q4_k_m"),
                ("run opt-30b --users=8", "simoffload run:", "--users=8;", "write simoffload stream MODEL"),
                ("fit opt-30b --machine", "simoffload fit:", "instead of --machine write --machines;"),
                ("check", "simoffload check:", "are required: FILE; such as simoffload check scenario.yaml"),
                (
                    "sweep s.yaml --axis workload.batch_size=1..4",
                    "--axis: workload.batch_size.choices:",
                    '"1..4" is no value; write the values, such as 1,4',
                ),
                (
                    "run opt-30b 4090",
                    "simoffload run:",
                    "arguments: 4090; rtx-4090 is a GPU: --gpu rtx-4090;",
                ),
                (
                    "run 4090 opt-30b",
                    "simoffload run:",
                    "arguments: opt-30b; rtx-4090 is a GPU: --gpu rtx-4090;",
                ),
                (
                    "reach s.yaml --by users --slo ttft=2s",
                    "--by: users:",
                    "simoffload stream --slo ttft=2s finds",
                ),
                (
                    "reach s.yaml --by power_limit --slo ttft=2s",
                    "--by: power_limit:",
                    "write profiles.ID.power_limit",
                ),
                (
                    "compare opt-30b --gpu 4090 --gpu 5090",
                    "simoffload compare:",
                    "given twice; compare MODEL --platforms",
                ),
                ("check qwen3-8b", "qwen3-8b:", "needs no check: simoffload models show qwen3-8b"),
                ("stream ddn/bloom-mod-2", "ddn/bloom-mod-2:1:1:", "has no section stream"),
                ("run opt-30b --context 32k", "simoffload run:", "above 0; write 32768"),
                ("run opt-30b --gpus two", "simoffload run:", '"two" is not a whole number from 0;'),
                ("run opt-30b --gpu 2x4090", "--gpu:", "a number of GPUs; write --gpu 4090 --gpus 2"),
                (
                    "run opt-30b --gpu 4090,5090",
                    "--gpu:",
                    "several GPUs; name one (compare MODEL --platforms",
                ),
                ("run opt-30b --gpu dgx-h100", "--gpu:", "is a machine: --set platform=dgx-h100"),
                ("run opt-30b --gpu samsung-980-pro-2tb", "--gpu:", "a drive: --drive samsung-980-pro-2tb"),
                ("run opt-30b --gpu 7900-xtx", "--gpu:", "list: simoffload profiles list gpu"),
                ("run 4090", "4090:", "no such file", "rtx-4090 is a GPU: --gpu rtx-4090"),
                ("run 13b", "13b:", "no such file", 'did you mean "opt-13b"', "config.json or .gguf file"),
                (
                    "run grok-5",
                    "grok-5:",
                    "no such file",
                    "name any other model by its config.json",
                ),
                (
                    "compare opt-30b --gpu 4090,5090",
                    "simoffload compare:",
                    "--gpu names one GPU",
                    "compare opt-30b --platforms rtx-4090-desktop,rtx-5090-workstation",
                ),
                (
                    "run s.yaml --set power_limit=280",
                    "--set: power_limit:",
                    "profiles.ID.power_limit, with the id",
                ),
                ("run s.yaml --set read_limit=5GB/s", "--set: read_limit:", "profiles.ID.read_limit", "host"),
                (
                    "run s.yaml --set strategy.gpu_layers=3",
                    "--set: strategy.gpu_layers:",
                    "key of deepspeed; it is one of llama_cpp (known here: kind, ranks",
                ),
                (
                    "run s.yaml --set strategy.optimizer=dram",
                    "--set: strategy.optimizer:",
                    "key of deepspeed; it is one of deepspeed (training) and fsdp (training)",
                ),
                ("run s.yaml --set workload.kind=train", "--set: workload.kind:", 'did you mean "training"?'),
                (
                    "run opt-30b --gpu 4090 --program sglang",
                    "--program: sglang:",
                    "is no program that is modelled; it is one of best, vllm",
                ),
                ("run s.yaml --set pcie=gen5", "--set: pcie:", 'did you mean "equipment.pcie"?'),
                (
                    "run s.yaml --set workload.context=32k",
                    "--set: workload.context:",
                    'got "32k"; write 32768',
                ),
                (
                    "run s.yaml --set stream.users=20",
                    "--set: stream.users:",
                    "write stream.arrivals={kind: closed",
                ),
                ("run s.yaml --set model.quantization=4bit", "--set: model.quantization:", "int4-g128 (GPTQ"),
            )
        )
    ),
    command(
        "model-show-unknown",
        "models show lama-2-7b",
        ("model:", 'unknown model "lama-2-7b"', 'did you mean "llama-2-7b"'),
    ),
    command("fit-unknown-target", "fit s.yaml --on nvme", ("--on:", 'no tier "nvme" on platform "dgx-a100"')),
)
