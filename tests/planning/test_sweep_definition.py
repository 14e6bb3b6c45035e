"""From a scenario with axes to its points."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simoffload.documents import parse_yaml
from simoffload.errors import InputError
from simoffload.extensions.sweep import definition
from simoffload.extensions.sweep.definition import Sweep, define_sweep, find_points
from tests.cli.conftest import SCENARIO
from tests.planning.conftest import Define

SECTION = """\
sweep:
  axes:
    workload.batch_size: {choices: [1, 2, 4]}
    strategy.ranks: {range: {min: 1, max: 4, step: 1}}
  constraints: ["batch_size * strategy.ranks <= 4"]
"""


def values(sweep: Sweep) -> list[tuple[object, ...]]:
    return [sweep.grid.values(index) for index in find_points(sweep).combination]


def test_the_last_axis_changes_fastest_and_constraints_leave_points_out(define: Define) -> None:
    assert values(define(SECTION)) == [(1, 1), (1, 2), (1, 3), (1, 4), (2, 1), (2, 2), (4, 1)]


def test_an_axis_of_the_command_line_replaces_that_of_the_file(define: Define) -> None:
    sweep = define(SECTION, axes=["strategy.ranks=2", "workload.output_length=1,2"])
    assert values(sweep) == [(1, 2, 1), (1, 2, 2), (2, 2, 1), (2, 2, 2)]


def test_constraints_see_names_short_names_and_the_scenario(define: Define) -> None:
    axes = ["workload.batch_size=1,2,3"]
    assert values(define(axes=axes, constraints=["workload.batch_size > strategy.ranks"])) == [(3,)]
    named = "sweep: {axes: {workload.batch_size: {name: b, choices: [1, 2, 3]}}, constraints: [b != 2]}\n"
    assert values(define(named)) == [(1,), (3,)]
    lengths = "prompt_length: 8, output_length: 2"
    whole = [f"workload=[{{batch_size: 1, {lengths}}}, {{batch_size: 9, {lengths}}}]"]
    assert len(values(define(axes=whole, constraints=["workload.batch_size == 9"]))) == 1


def test_equal_scenarios_are_simulated_once_and_stay_points(define: Define) -> None:
    sweep = define(
        axes=["workload.batch_size=2,1,2", "description=a,b", "engine.decode_extrapolation=on,off"]
    )
    points = find_points(sweep)
    assert len(points) == 12
    # batch 2 comes twice; a description decides nothing
    assert list(points.first) == [0, 1, 0, 1, 4, 5, 4, 5, 0, 1, 0, 1]
    assert (points.unique, points.duplicates) == ([0, 1, 4, 5], 8)


def test_spellings_of_a_name_are_one_scenario(define: Define) -> None:
    names = "model=bloom-560m,bigscience/bloom-560m,BLOOM_560m"
    points = find_points(define(axes=[names, "platform=dgx-a100,DGX_A100"]))
    assert (len(points), points.unique) == (6, [0])


def test_files_count_by_their_content(define: Define, tmp_path: Path) -> None:
    config = {"zero_optimization": {"offload_param": {"buffer_size": 4e9}}}
    for name in ("a", "b"):
        (tmp_path / f"{name}.json").write_text(json.dumps(config))
    (tmp_path / "c.json").write_text(json.dumps({**config, "aio": {"queue_depth": 8}}))
    sweep = define(axes=["strategy.ds_config=a.json,b.json,c.json"])
    assert list(find_points(sweep).first) == [0, 0, 2]
    model = {"model_type": "opt", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4}
    for name, layers in (("one", 2), ("two", 2), ("three", 3)):
        (tmp_path / f"{name}.json").write_text(
            json.dumps({**model, "num_hidden_layers": layers, "ffn_dim": 256, "vocab_size": 100})
        )
    sweep = define(axes=["model=[{config: one.json}, {config: one.json}, {config: three.json}]"])
    assert list(find_points(sweep).first) == [0, 0, 2]


def test_the_hash_of_a_sweep_sees_what_results_depend_on(define: Define, tmp_path: Path) -> None:
    def hashed(**options: object) -> str:
        return find_points(define(**options)).sweep_hash

    config = tmp_path / "ds.json"
    config.write_text('{"aio": {"queue_depth": 8}}')
    axes = ["strategy.ds_config=ds.json", "workload.batch_size=1,2"]
    before = hashed(axes=axes)
    assert hashed(axes=axes) == before
    assert hashed(axes=[*axes[:1], "workload.batch_size=2,1"]) != before
    assert hashed(axes=axes, constraints=["batch_size < 9"]) != before
    config.write_text('{"aio": {"queue_depth": 9}}')
    assert hashed(axes=axes) != before


def test_an_axis_reaches_into_a_ds_config_file(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text('{"aio": {"queue_depth": 8}, "zero_optimization": {"stage": 3}}')
    scenario = SCENARIO.partition("  ds_config")[0] + "  ds_config: ds.json\n"
    document = parse_yaml(scenario, name="s.yaml", root=tmp_path)
    sweep = define_sweep(document, axes=["strategy.ds_config.aio.queue_depth=4,16"])
    found = [sweep.grid.document(index).data["strategy"]["ds_config"] for index in (0, 1)]
    assert [one["aio"]["queue_depth"] for one in found] == [4, 16]
    assert found[0]["zero_optimization"] == {"stage": 3}


@pytest.mark.parametrize(
    ("text", "options", "place", "message"),
    [
        ("", {}, "small.yaml", "nothing to vary"),
        ("sweep: 3\n", {}, "small.yaml:10:8: sweep", "must be a mapping, got 3"),
        ("sweep: {axis: {}}\n", {}, "small.yaml:10:9: sweep.axis", 'did you mean "axes"?'),
        ("sweep: {axes: [1]}\n", {}, "small.yaml:10:15: sweep.axes", "must be a mapping, got a list of 1"),
        (
            "sweep: {axes: {workload.batch: {choices: [1]}}}\n",
            {},
            "small.yaml:10:",
            'did you mean "batch_size"?',
        ),
        ("sweep: {axes: {platform.a.b: {choices: [1]}}}\n", {}, "small.yaml:10:", "this is a single value"),
        ("sweep: {axes: {nodes: [1]}}\n", {}, "small.yaml:10:23: sweep.axes.nodes", "write {choices: [1, 2,"),
        ("sweep: {constraints: 3}\n", {"axes": ["nodes=1"]}, "small.yaml:10:22", "must be a list, got 3"),
        ("", {"axes": ["workload.batch=1,2"]}, "--axis: workload.batch", 'did you mean "batch_size"?'),
        ("", {"axes": ["workload.batch_size=0,-1"]}, "--axis: workload.batch_size", "at least 1, got 0"),
        ("", {"axes": ["profiles.hdr201.achieved=1 GB/s"]}, "--axis: profiles.hdr201.achieved", '"hdr200"?'),
        ("", {"axes": ["nodes=1", "nodes=1"]}, "--axis: nodes", "is given twice"),
        (
            "",
            {"axes": ["workload.batch_size=1", "workload=[{}]"]},
            "--axis: workload.batch_size",
            "is within the axis workload",
        ),
        ("", {"axes": ["workload.batch_size=1,2", "nodes=1,1"], "most": 3}, "sweep.axes", "2 x 2 = 4 points"),
        ("", {"axes": ["nodes=1"], "constraints": ["node < 3"]}, "--constraint", 'did you mean "nodes"?'),
        (
            "",
            {"axes": ["nodes=1"], "constraints": ["batch_size < 3"]},
            "--constraint",
            "the axes are nodes",
        ),
        (
            "",
            {
                "axes": ["profiles.gen4.latency=1 us", "profiles.hdr200.latency=1 us"],
                "constraints": ["latency < 3"],
            },
            "--constraint",
            '"latency" may be profiles.gen4.latency or profiles.hdr200.latency',
        ),
    ],
)
def test_slips(define: Define, text: str, options: dict[str, object], place: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        define(text, **options)
    rendered = str(caught.value.problems[0])
    assert rendered.startswith(place), rendered
    assert message in rendered


def test_what_the_constraints_say_of_points_is_said_with_the_point(define: Define) -> None:
    with pytest.raises(InputError, match=r"divides by zero .*batch_size = 2"):
        find_points(define(axes=["workload.batch_size=1,2"], constraints=["1 / (batch_size - 2) < 0"]))
    with pytest.raises(InputError, match="none of 2 combinations meets the constraints"):
        find_points(define(axes=["workload.batch_size=1,2"], constraints=["batch_size > 2"]))


_BUCKET = "strategy.ds_config.zero_optimization.stage3_prefetch_bucket_size"


@pytest.mark.parametrize(
    ("axes", "messages"),
    [
        (["workload.batch_size=1,2,0"], ["workload.batch_size: must be at least 1, got 0"]),
        (
            ["workload.batch_size=1,0", "model=bloom-560m,bloom-9b"],
            [
                "workload.batch_size: must be at least 1, got 0",
                'model: unknown model "bloom-9b"; did you mean "bloom-7b1"?',
            ],
        ),
        (
            ["platform=dgx-a100,dgx-a10"],
            ['platform: there is no platform "dgx-a10"; did you mean "dgx-a100"?'],
        ),
        (
            ["strategy.weights=nosuch,raid"],
            [
                (
                    'strategy.weights: no tier "nosuch" on platform "dgx-a100" '
                    "(has: hbm (or gpu), dram (or cpu), raid, nfs, ai400x2)"
                )
            ],
        ),
        (
            ["profiles.hdr200.achieved=20 GB/s,20 GB"],
            ['profiles.hdr200.achieved: "20 GB" is a size, not a rate; did you mean "20 GB/s"?'],
        ),
        (
            ["equipment.pcie.gen4=gen4,gen9"],
            [
                'equipment.pcie.gen4: there is no pcie "gen9"; did you mean "gen6", "gen5" or "gen4"?',
            ],
        ),
        ([f"{_BUCKET}=0,-5"], [f'{_BUCKET}: must be "auto" or at least 0, got -5']),
        (
            ["strategy=[{ranks: 1, weights: dram}, {rank: 1}, {rank: 2}]"],
            [
                (
                    'strategy: "{"rank": 1}" and "{"rank": 2}": strategy.rank: unknown key; did you mean '
                    '"ranks"?; no program has it'
                )
            ],
        ),
    ],
)
def test_values_that_no_scenario_can_have_are_refused(
    define: Define, axes: list[str], messages: list[str]
) -> None:
    with pytest.raises(InputError) as caught:
        define(axes=axes)
    assert list(map(str, caught.value.problems)) == [f"--axis: {one}" for one in messages]


def test_a_refused_value_of_a_file_is_named_with_its_line(define: Define) -> None:
    with pytest.raises(InputError) as caught:
        define("sweep:\n  axes:\n    workload.batch_size:\n      choices: [1, 2, none]\n")
    assert str(caught.value) == (
        'small.yaml:13:23: sweep.axes."workload.batch_size".choices[2]: must be a whole number, got "none"'
    )


def test_what_is_refused_only_in_combination_is_a_row(define: Define) -> None:
    """A tier of one of two platforms, numbers of a device of that platform, keys of one of two strategies."""
    axes = ["strategy.weights=raid,ai400x2", "platform=dgx-2,dgx-a100", "profiles.hdr200.achieved=1 GB/s"]
    assert len(find_points(define(axes=axes))) == 4
    assert len(find_points(define(axes=["strategy.kind=transformers,deepspeed"]))) == 2


def test_a_long_axis_is_checked_at_its_ends(define: Define, monkeypatch: pytest.MonkeyPatch) -> None:
    checked = []
    monkeypatch.setattr(definition, "resolve", lambda *_, **__: checked.append(1))
    define(axes=["workload.batch_size=range(min=1, max=5000, step=1)", "strategy.ranks=1,2"])
    assert len(checked) <= 1010
    monkeypatch.undo()
    with pytest.raises(InputError, match="must be at least 1, got 0"):
        define(axes=["workload.batch_size=range(min=0, max=5000, step=1)"])


@pytest.mark.parametrize("name", ["index", "fits", "error", "ttft_s", "warnings"])
def test_an_axis_has_no_name_of_another_column(define: Define, name: str) -> None:
    section = f"sweep: {{axes: {{workload.batch_size: {{name: {name}, choices: [1, 2]}}}}}}\n"
    with pytest.raises(InputError, match=f'sweep.axes.*"{name}" is the name of another column'):
        define(section)


def test_what_is_varied_is_no_axis(define: Define) -> None:
    with pytest.raises(InputError, match="an axis cannot vary the section sweep"):
        define(axes=["sweep=1,2"])


def test_points_in_the_middle_may_work(define: Define) -> None:
    """The platforms at both ends have no tier of that name."""
    sweep = define(axes=["platform=dgx-2,dgx-a100,h100-2nvme"], constraints=[])
    assert len(find_points(sweep)) == 3


def test_a_context_without_room_for_the_work_is_refused_as_of_a_run(define: Define) -> None:
    axis = "workload.context={}"
    section = "workload.prompt_length=8,16"
    with pytest.raises(InputError, match="tokens have no room for"):
        define(axes=[axis.format("1,2"), section])
    assert define(axes=[axis.format("1000,2000"), section]).grid.size == 4
