"""What is proposed can be bought: at the narrow end, in slots that are there, for cards that have it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from simoffload.documents import parse_yaml
from simoffload.errors import InputError
from simoffload.hardware import list_profiles, load_profile
from simoffload.hardware.profiles import Accelerator, Pcie
from simoffload.planning.advise import Advice, advise
from simoffload.planning.advise import options as hardware
from simoffload.planning.advise.options import options_of
from simoffload.planning.bandwidth import storage_curve
from simoffload.planning.costs import load_costs
from simoffload.planning.evaluator import Evaluator
from simoffload.results.capacity import Change
from simoffload.scenario import LoadedScenario, resolve
from simoffload.simulation import fit, simulate
from tests.planning.advise.conftest import loaded

GB = 10**9
NFS = """\
kind: nfs
id: nfs-2x100
name: A server with 24 GB/s
link: 100gbe
links: 1
mounts: {value: 1, origin: estimate, source: made up, date: 2026-11-22}
nconnect: {value: 16, origin: estimate, source: made up, date: 2026-11-22}
per_connection: {value: 3 GB/s, origin: estimate, source: made up, date: 2026-11-22}
read: {value: 24 GB/s, origin: estimate, source: made up, date: 2026-11-22}
write: {value: 12 GB/s, origin: estimate, source: made up, date: 2026-11-22}
latency: {value: 500 us, origin: estimate, source: made up, date: 2026-11-22}
capacity: {value: 200 TB, origin: estimate, source: made up, date: 2026-11-22}
"""
REMOTE = """\
name: remote
model: bloom-7b1
platform: dgx-h100
equipment:
  nics: {eth1: {profile: 100gbe, at: cpu}}
  tiers: {far: {profile: nfs-2x100.yaml, through: [eth0, eth1]}}
workload: {batch_size: 1, prompt_length: 8, output_length: 2}
strategy:
  ranks: 1
  weights: far
  deepspeed_version: 0.19.0
  ds_config:
    zero_optimization: {offload_param: {buffer_size: 1.1e9}}
    aio: {block_size: 1048576, queue_depth: 32, intra_op_parallelism: 8}
"""
DESKTOP = """\
name: desktop
model: bloom-7b1
platform: rtx-4090-desktop
workload: {batch_size: 1, prompt_length: 8, output_length: 2}
strategy: {ranks: 1, weights: nvme, ds_config: {zero_optimization: {offload_param: {buffer_size: 1.1e9}}}}
"""
OLD = DESKTOP.replace(
    "rtx-4090-desktop", "dgx-a100\nequipment: {tiers: {nvme: {profile: samsung-pm1733-3.84tb, at: [cpu]}}}"
)
DIRECT = "strategy.ds_config.aio.use_gds=true"


def scenario(folder: Path, text: str, *overrides: str) -> LoadedScenario:
    (folder / "nfs-2x100.yaml").write_text(NFS)
    return resolve(parse_yaml(text, name="s.yaml", root=folder), overrides=overrides)


def options(loaded: LoadedScenario) -> dict[str, Change]:
    found = options_of(Evaluator(loaded), fit(loaded), load_costs())
    return {one.key: one for one in found}


def reads(loaded: LoadedScenario, option: Change | None = None) -> float:
    """[B/s] that one host reads from the server, with an option or as it is."""
    if option is not None:
        loaded = loaded.edited(*option.edits)
    machine = loaded.machine
    return min(
        float(machine.resources[at].capacity / share) for at, share in machine.storage_read("far", 0).hops
    )


def gain(loaded: LoadedScenario, option: Change) -> float:
    changed = loaded.edited(*option.edits)
    before, after = (simulate(one).step_time_s for one in (loaded, changed))
    assert before
    assert after
    return before / after


# ---- ends of a way to a server ----


def test_two_ports_of_a_server_halve_the_time_of_its_reads(tmp_path: Path) -> None:
    """The host has 2 x 11.8 GB/s and the server one port of the two that it could have."""
    one = scenario(tmp_path, REMOTE)
    found = options(one)
    doubled, faster = found["far-server-2-ports"], found["far-server-200gbe"]
    assert doubled.description == "2 ports of the server of far instead of 1"
    assert faster.description == "Ethernet 200 Gb/s of the server of far instead of Ethernet 100 Gb/s"
    assert (doubled.priced, faster.priced) == (False, False)
    assert [key for key in found if re.search("port|gbe", key)] == [doubled.key, faster.key]
    assert [reads(one, option) / GB for option in (None, doubled, faster)] == [11.8, 23.6, 23.6]
    assert 1.3 < gain(one, doubled) < 2


def test_ends_that_carry_as_much_change_together(tmp_path: Path) -> None:
    both = scenario(tmp_path, REMOTE, "profiles.nfs-2x100={links: 2, mounts: 2, read: 90 GB/s}")
    found = options(both)
    assert found["far-4-ports"].description == (
        "4 ports of the host to far instead of 2, and 4 ports of the server of far instead of 2"
    )
    rates = [reads(both, one) / GB for one in (None, found["far-4-ports"], found["far-200gbe"])]
    assert rates == [23.6, 47.2, 47.2]


def test_narrow_adapters_of_the_host_change_alone(tmp_path: Path) -> None:
    wide = scenario(tmp_path, REMOTE, "profiles.nfs-2x100={links: 4, mounts: 4, read: 90 GB/s}")
    found = options(wide)
    assert found["far-4-ports"].description == "4 ports of the host to far instead of 2"
    assert "far-server-8-ports" not in found
    assert [reads(wide, one) / GB for one in (None, found["far-4-ports"])] == [23.6, 47.2]


def test_ports_of_nvmeof_targets_too(tmp_path: Path) -> None:
    tier = "equipment.tiers.far={profile: nvmeof-rdma-4x-ps1010, through: [storage0, storage1]}"
    found = options(scenario(tmp_path, REMOTE, tier))
    assert found["far-server-4-ports"].edits[0].path[-1] == "links"
    assert found["far-server-ndr400"].description.startswith(
        "InfiniBand NDR, one port of 400 Gb/s of the server of"
    )


def test_no_ports_gain_what_faster_storage_is_said_not_to(tmp_path: Path) -> None:
    one = scenario(tmp_path, REMOTE)
    curve = storage_curve(one)
    assert curve is not None
    assert curve.held_back == "eth0 in"
    assert gain(one, options(one)["far-server-2-ports"]) <= curve.fastest / curve.own.throughput * 1.001


# ---- generations ----


@pytest.fixture(scope="module")
def desktop(tmp_path_factory: pytest.TempPathFactory) -> Advice:
    return advise(scenario(tmp_path_factory.mktemp("desktop"), DESKTOP))


def test_nothing_for_an_rtx_4090_that_it_does_not_have(desktop: Advice) -> None:
    keys = {one.change.key for one in (*desktop.tried, *desktop.impossible)}
    assert not [key for key in keys if "pcie" in key or "gds" in key]


def test_no_storage_gains_more_than_faster_storage_is_said_to(tmp_path: Path) -> None:
    old = advise(scenario(tmp_path, OLD))
    curve = storage_curve(old.scenario)
    assert curve is not None
    most = curve.fastest / curve.own.throughput
    assert f"{most:.3g} times the throughput at most in the slot of its drive; more" in curve.sentences[-1]
    storage = {
        one.change.description: one.gain
        for one in old.tried
        if "nvme-" in one.change.key and "-drives" not in one.change.key
    }
    assert storage
    assert max(one or 0 for one in storage.values()) <= most * 1.001
    assert all(
        "TB (slot: 7.52 GB/s) in" in description for description in storage
    )  # PCIe 5 drives in a slot of PCIe 4


@pytest.mark.parametrize("gpu", [one.id for one in list_profiles("accelerator")])
def test_a_generation_above_the_cards_own_is_never_proposed(tmp_path: Path, gpu: str) -> None:
    """In slots of PCIe 4, and in those that the proposal leads to."""
    card = load_profile("accelerator", gpu)
    assert isinstance(card, Accelerator)
    own = load_profile("pcie", card.pcie.profile)
    assert isinstance(own, Pcie)
    equipment = [f"equipment.accelerator={gpu}"]
    for _ in range(3):
        one = scenario(tmp_path, DESKTOP, *equipment)
        found = list(hardware.cables(one))
        if not found:
            break
        (option,) = found
        (changed,) = option.edits
        proposed = load_profile("pcie", changed.value)
        assert isinstance(proposed, Pcie)
        assert not own.is_slower(proposed)
        equipment.append(f"equipment.pcie.gen4={proposed.id}")
    reached = one.machine.topology.gpu_pcie_link.pcie.id
    assert reached == card.pcie.profile
    assert (found, len(equipment) - 1) == ([], {"gen5": 1, "gen6": 2}.get(reached, 0))


# ---- GPUDirect Storage ----


@pytest.mark.parametrize("gpu", ["rtx-4090", "mi300x"])
@pytest.mark.parametrize("work", ["inference", "training", "checkpoint"])
def test_gpudirect_storage_is_refused_on_a_card_without_it(tmp_path: Path, gpu: str, work: str) -> None:
    key, more = "strategy.ds_config.aio.use_gds", [DIRECT]
    if work == "training":
        more += ["workload={kind: training, batch_size: 1, sequence_length: 64}"]
        more += ["strategy.kind=deepspeed", "strategy.optimizer=nvme"]
    if work == "checkpoint":
        key = "workload.writer.use_gds"
        fast = "{type: fast, patched_torch: true, checkpoint_serialization: false, use_gds: true}"
        more = [f"workload={{kind: checkpoint, writer: {fast}}}", "strategy={kind: checkpoint, tier: nvme}"]
    with pytest.raises(InputError) as caught:
        scenario(tmp_path, DESKTOP, f"equipment.accelerator={gpu}", *more).plan()
    (problem,) = caught.value.problems
    assert problem.key == key
    assert problem.message.startswith(f"{gpu} has no GPUDirect Storage (")
    assert problem.message.endswith("set it to false")


def test_gpudirect_storage_that_reads_nothing_is_no_fault_of_the_card(tmp_path: Path) -> None:
    plan = scenario(tmp_path, DESKTOP, DIRECT, "strategy.weights=dram").plan()
    assert "ds_config aio.use_gds has no effect with weights: dram" in plan.warnings


@pytest.mark.parametrize(
    ("gpu", "tier", "proposed"),
    [
        ("l40s", "nvme", True),
        ("rtx-a6000", "nvme", True),
        ("rtx-4090", "nvme", False),
        ("mi300x", "nvme", False),
        ("l40s", "nfs", False),  # over TCP
        ("l40s", "dram", False),
    ],
)
def test_gpudirect_storage_is_proposed_where_card_and_storage_have_it(
    tmp_path: Path, gpu: str, tier: str, proposed: bool
) -> None:
    one = scenario(tmp_path, DESKTOP, f"equipment.accelerator={gpu}", f"strategy.weights={tier}")
    assert ("use_gds" in options(one)) is proposed


def test_a_card_that_does_not_say_is_warned_of_and_gets_no_advice(tmp_path: Path) -> None:
    text = (Path(__file__).parents[3] / "hardware_profiles/accelerator/l40s.yaml").read_text()
    own = re.sub(r"gpudirect_storage: .*\n", "", text).replace("id: l40s", "id: mine")
    (tmp_path / "mine.yaml").write_text(own)
    mine = scenario(tmp_path, DESKTOP, "equipment.accelerator=mine.yaml", DIRECT)
    text = "the profile of mine does not say whether it has GPUDirect Storage (gpudirect_storage)"
    key = "strategy.ds_config.aio.use_gds"
    assert f"{key}: {text}; it is taken to have it" in mine.plan().warnings
    assert "use_gds" not in options(scenario(tmp_path, DESKTOP, "equipment.accelerator=mine.yaml"))


@pytest.mark.parametrize(
    ("platform", "tier", "free"),
    [("rtx-4090-desktop", "nvme", True), ("h100-storage-choices", "raid10", False)],
)
def test_drives_of_the_machine_cost_nothing(platform: str, tier: str, free: bool) -> None:
    """Unless they are more than its host has slots for: these are alternatives to each other."""
    one = next(
        one
        for one in advise(loaded(DESKTOP, "strategy.weights=dram", f"platform={platform}")).tried
        if one.change.key == f"on-{tier}"
    )
    assert one.extra is not None
    assert (one.extra == 0) == free
