"""Targets as people list them: a platform before one holds for those after it."""

from __future__ import annotations

from pathlib import Path

import pytest

from simoffload.documents import Edit
from simoffload.errors import InputError
from simoffload.planning.compare import compare
from simoffload.planning.remedies import smallest_changes
from simoffload.planning.targets import on_targets
from simoffload.scenario import LoadedScenario, read_scenario
from tests.cli.conftest import SCENARIO


@pytest.fixture(scope="module")
def scenario() -> LoadedScenario:
    return read_scenario("ddn/bloom-7b1")


def places(moved: dict[str, LoadedScenario]) -> list[tuple[str, str, str]]:
    return [
        (label, one.machine.platform, one.scenario.strategy.model_dump()["weights"])
        for label, one in moved.items()
    ]


def test_a_platform_holds_until_the_next(scenario: LoadedScenario) -> None:
    listed = ["raid", "dgx-h100:dram", "raid", "dgx-a100:nfs", "ai400x2"]
    assert places(on_targets(scenario, listed)) == [
        ("raid", "dgx-a100", "raid"),
        ("dgx-h100:dram", "dgx-h100", "dram"),
        ("dgx-h100:raid", "dgx-h100", "raid"),
        ("nfs", "dgx-a100", "nfs"),
        ("ai400x2", "dgx-a100", "ai400x2"),
    ]


def test_the_scenarios_own_platform_keeps_its_name(scenario: LoadedScenario) -> None:
    moved = on_targets(scenario, ["dgx-a100:dram", "raid", "dgx-h100:raid"])
    assert [one.name for one in moved.values()] == ["bloom-7b1", "bloom-7b1", "bloom-7b1 on dgx-h100"]


def test_a_colon_alone_leads_back(scenario: LoadedScenario) -> None:
    assert list(on_targets(scenario, ["dgx-h100:raid", ":raid", "dram"])) == ["dgx-h100:raid", "raid", "dram"]


def test_a_platform_file_is_its_own_by_any_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shipped = read_scenario("ddn/bloom-7b1").machine.profiles[0].path
    text = (Path(__file__).parents[2] / shipped).read_text()
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "mine.yaml").write_text(text.replace("id: dgx-a100", "id: mine"))
    (tmp_path / "study" / "s.yaml").write_text(SCENARIO.replace("platform: dgx-a100", "platform: mine.yaml"))
    monkeypatch.chdir(tmp_path)
    moved = on_targets(read_scenario("study/s.yaml"), ["study/mine.yaml:raid", "dgx-a100:raid"])
    assert [(label, place) for label, place, _ in places(moved)] == [
        ("raid", "mine"),
        ("dgx-a100:raid", "dgx-a100"),
    ]


@pytest.mark.parametrize("folder", ["study", "elsewhere", "elsewhere/platform"])
def test_what_would_fit_on_a_platform_of_any_folder(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its changes are planned on the machine of the file, which a scenario by itself may not name."""
    shipped = read_scenario("ddn/bloom-7b1").machine.profiles[0].path
    text = (Path(__file__).parents[2] / shipped).read_text().replace("id: dgx-a100", "id: mine")
    for name in ("study", folder):
        (tmp_path / name).mkdir(exist_ok=True, parents=True)
    (tmp_path / folder / "mine.yaml").write_text(text)
    (tmp_path / "study" / "s.yaml").write_text(SCENARIO.replace("bloom-560m", "bloom-176b"))
    monkeypatch.chdir(tmp_path)
    base = read_scenario("study/s.yaml")
    (moved,) = on_targets(base, [f"{folder}/mine.yaml:hbm"]).values()
    (own,) = on_targets(base, ["hbm"]).values()
    assert moved.machine.platform == "mine"
    remedies = [one.assignments for one in smallest_changes(moved)]
    assert remedies == [one.assignments for one in smallest_changes(own)]
    assert ("nodes=2", "strategy.ranks=16") in remedies


@pytest.mark.parametrize(
    ("targets", "label"),
    [
        (["raid", "dgx-a100:raid"], "raid"),
        (["dgx-h100:raid", "raid"], "dgx-h100:raid"),
        (["dgx-h100:raid", "dgx-a100:raid", "dgx-h100:dram", "raid"], "dgx-h100:raid"),
    ],
)
def test_the_same_place_twice_is_refused(scenario: LoadedScenario, targets: list[str], label: str) -> None:
    with pytest.raises(InputError) as caught:
        on_targets(scenario, targets)
    (problem,) = caught.value.problems
    assert problem.message == f'target "{label}" is given twice'


def test_an_unknown_platform_is_told_once(scenario: LoadedScenario) -> None:
    with pytest.raises(InputError) as caught:
        on_targets(scenario, ["dgx-h10:dram", "raid", "nfs"])
    (problem,) = caught.value.problems
    assert problem.message == 'there is no platform "dgx-h10"; did you mean "dgx-h100"?'


def test_no_targets_are_nothing_to_compare(scenario: LoadedScenario) -> None:
    with pytest.raises(InputError, match="nothing to compare; name at least one"):
        compare(scenario, [])


def test_what_is_refused_elsewhere_is_told_at_its_line(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(SCENARIO.replace("buffer_size: 4e9", "buffer_size: 1000").replace("raid", "dram"))
    with pytest.raises(InputError, match=rf"{path}:\d+:\d+: .*buffer_size"):
        read_scenario(path).on("raid").plan()


GEN5 = "equipment.pcie.gen5=gen6"


def test_overrides_hold_on_the_platform_of_the_target(scenario: LoadedScenario) -> None:
    (moved,) = on_targets(scenario, ["dgx-h100:pfs"], overrides=[GEN5]).values()
    assert moved.machine.platform == "dgx-h100"
    assert moved.document.data["equipment"] == {"pcie": {"gen5": "gen6"}}
    assert "gen6" in [use.id for use in moved.machine.profiles]


def test_a_target_that_has_no_place_for_an_override_says_so(scenario: LoadedScenario) -> None:
    with_them, without = on_targets(scenario, ["dgx-h100:pfs", ":raid"], overrides=[GEN5]).values()
    assert with_them.remarks == ()
    assert "equipment" not in without.document.data
    (remark,) = without.remarks
    assert remark.startswith(f"{GEN5} is left out on dgx-a100: no slot of this platform has that")


@pytest.mark.parametrize(
    ("override", "messages"),
    [
        (
            "equipment.pcie.gen9=gen6",
            ["on dgx-h100: no slot of this platform has", "on dgx-a100: no slot of this platform has"],
        ),
        ("equipment.pcie.gen5=gen66", ['on dgx-h100: there is no pcie "gen66"', "on dgx-a100: no slot"]),
        (
            "profiles.h100-sxm.hbm_bandwidth=fast",
            ['on dgx-h100: "fast" is not a rate', "on dgx-a100: this platform uses no profile of that name"],
        ),
    ],
)
def test_what_no_target_has_a_place_for_is_an_error(
    scenario: LoadedScenario, override: str, messages: list[str]
) -> None:
    with pytest.raises(InputError) as error:
        on_targets(scenario, ["dgx-h100:pfs", ":raid"], overrides=[override])
    found = error.value.problems
    assert [one.path for one in found] == ["--set"] * len(messages)
    assert all(one.message.startswith(text) for one, text in zip(found, messages, strict=True))


def test_a_purchase_of_another_platform_keeps_what_has_a_slot_there() -> None:
    """As ``advise --platforms`` tries it: the slots of the scenario's own platform are not there."""
    own = read_scenario("ddn/bloom-7b1", overrides=["equipment.pcie.gen4=gen5"])
    other = own.edited(Edit.at("platform", "dgx-h100"), Edit.at("strategy.weights", "dram"))
    assert (other.machine.platform, other.document.data["equipment"]) == ("dgx-h100", {"pcie": {}})


# -- what moves -----------------------------------------------------------------------------------


def tiers(found: dict[str, LoadedScenario], part: str) -> dict[str, str]:
    return {label: one.parts[part].tier for label, one in found.items()}


def test_blocks_of_a_connector_move_where_the_weights_stay() -> None:
    store = read_scenario("mooncake/qwen3-8b")
    named = on_targets(store, ["connector=dram", "raid"])
    assert tiers(named, "connector") == {"connector=dram": "dram", "connector=raid": "raid"}
    assert tiers(on_targets(store, ["dram", "peer"]), "connector") == {"dram": "dram", "peer": "peer"}
    assert {one.places[0] for one in named.values()} == {"hbm"}
    assert store.on("gpu").document.data == store.document.data, "its weights are there"
    connector = named["connector=raid"].document.data["strategy"]["kv_cache"]["connector"]
    assert connector["direct"] is False, "only the present tier is known to be reached directly"
    every = on_targets(store, ["connector=all"])
    assert list(every) == ["connector=dram", "connector=raid", "connector=peer"]


def test_rows_are_called_what_was_typed() -> None:
    found = compare("mooncake/qwen3-8b", ["dram", "raid"])
    assert [one.label for one in found.results.values()] == ["dram", "raid"]
    assert found.ranking[0] == "dram"


def test_weights_that_are_offloaded_move_unless_something_else_is_named() -> None:
    training = read_scenario("checkpoint/llama-3.1-8b-training")
    moved = on_targets(training, ["checkpoint=nfs", "dataset=nfs", "weights=dram+dram"])
    assert tiers(moved, "checkpoint") == {
        "checkpoint=nfs": "nfs",
        "dataset=nfs": training.parts["checkpoint"].tier,
        "weights=dram+dram": training.parts["checkpoint"].tier,
    }
    assert tiers(moved, "dataset")["dataset=nfs"] == "nfs"
    assert moved["weights=dram+dram"].places == ("dram", "dram")
    assert training.on("dram").places[0] == "dram"
    cached = read_scenario("zero-inference-2023/opt-30b-kv").on("cache=hbm")
    assert (cached.places[0], cached.parts["cache"].tier) == ("dram", "hbm")
    saved = read_scenario("checkpoint/mlperf-8b")
    assert saved.on("checkpoint=pfs").places == saved.on("pfs").places


def test_what_a_scenario_does_not_have_is_refused_with_what_it_has() -> None:
    store = read_scenario("mooncake/qwen3-8b")
    with pytest.raises(InputError, match=r'"cache" is nothing .* \(it has: weights, connector\)'):
        store.on("cache=dram")
    with pytest.raises(InputError, match='did you mean "connector"'):
        store.on("conector=dram")
    with pytest.raises(InputError, match=r'no tier "tape" on platform "hgx-h800" \(has: '):
        store.on("connector=tape")
    with pytest.raises(InputError) as refused:
        store.on("weights=raid")
    assert "what can be elsewhere: connector=TIER" in str(refused.value)
    assert "zero_inference" not in str(refused.value)
