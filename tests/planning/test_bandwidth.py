"""Throughput over the rate of storage, and how fast storage has to be."""

from __future__ import annotations

import pytest

from simoffload.planning.bandwidth import StorageCurve, storage_curve
from simoffload.scenario import LoadedScenario, read_scenario, resolve
from simoffload.simulation import simulate

GB = 10**9


def curve_of(scenario: LoadedScenario) -> StorageCurve:
    found = storage_curve(scenario)
    assert found is not None
    return found


def with_profiles(scenario: LoadedScenario, profiles: dict) -> LoadedScenario:
    """The scenario as a user would write it with that section."""
    document = scenario.document
    return resolve(type(document)(document.path, {**document.data, "profiles": profiles}, document.root))


@pytest.fixture(scope="module")
def bloom() -> LoadedScenario:
    return read_scenario("ddn/bloom-176b", overrides=["workload.output_length=2"])


@pytest.fixture(scope="module")
def appliance(bloom: LoadedScenario) -> StorageCurve:
    return curve_of(bloom)


def test_the_platform_is_on_the_curve(bloom: LoadedScenario, appliance: StorageCurve) -> None:
    assert appliance.own in appliance.points
    assert appliance.own.rate == 90 * GB
    assert appliance.own.throughput == simulate(bloom).tokens_per_s


def beyond_its_port() -> LoadedScenario:
    """A server that is said to read twice what its port carries."""
    text = "{zero_optimization: {offload_param: {buffer_size: 1.1e9}}}"
    given = [
        "platform=dgx-h100",
        "equipment.nics={e0: {profile: 100gbe, at: cpu}, e1: {profile: 100gbe, at: cpu}}",
        "equipment.tiers.far={profile: nfs-100gbe, through: [e0, e1]}",
        "profiles.nfs-100gbe={mounts: 2, read: 24 GB/s}",
        "workload={batch_size: 1, prompt_length: 16, output_length: 2}",
        f"strategy={{kind: deepspeed, ranks: 8, weights: far, ds_config: {text}}}",
    ]
    return read_scenario("deepnvme/llama-3-70b", overrides=given)


@pytest.mark.parametrize("storage", ["filesystem", "drives in slots", "server", "server beyond its port"])
def test_faster_storage_is_never_slower_and_no_point_is_above_its_bound(
    storage: str, bloom: LoadedScenario, appliance: StorageCurve
) -> None:
    curves = {
        "filesystem": lambda: appliance,
        "drives in slots": lambda: curve_of(bloom.on("raid")),
        "server": lambda: curve_of(bloom.on("nfs")),
        "server beyond its port": lambda: curve_of(beyond_its_port()),
    }
    points = curves[storage]().points
    rates = [point.rate for point in points]
    assert rates == sorted(set(rates))
    throughputs = [point.throughput for point in points]
    assert throughputs == sorted(throughputs)
    assert all(point.throughput <= point.bound for point in points)


def test_a_slow_server_keeps_its_port() -> None:
    """With a fraction of its rate it has none that it did not have before: 11.8 GB/s are its one port's."""
    found = curve_of(beyond_its_port())
    assert found.own.rate == 11_800_000_000
    assert [point.rate for point in found.points if point.rate > found.own.rate] == [23_600_000_000]


def test_the_bound_is_a_slope_and_flat(appliance: StorageCurve) -> None:
    # Where storage is slow the bound is its bytes over its rate; where it is fast something else.
    slow, next_slow, *_, fast, fastest = (point.bound / point.rate for point in appliance.points)
    assert slow == pytest.approx(next_slow)
    assert fastest < fast


def test_what_is_needed_is_a_scenario_that_does_it(bloom: LoadedScenario, appliance: StorageCurve) -> None:
    needed = appliance.hidden
    assert needed is not None
    result = simulate(with_profiles(bloom, needed.profiles))
    assert result.tokens_per_s == needed.throughput
    assert result.bottleneck == "host to GPU"
    slower = {"ddn-ai400x2": {"read": f"{needed.rate * 0.985 / GB} GB/s"}}
    assert simulate(with_profiles(bloom, slower)).bottleneck == "ai400x2 read"


def test_fast_enough_is_within_two_per_cent_of_endlessly_fast(
    bloom: LoadedScenario, appliance: StorageCurve
) -> None:
    assert appliance.capped, "the network adapters of the host limit the last point"
    enough = appliance.enough
    assert enough.throughput * 1.02 >= appliance.fastest
    assert simulate(with_profiles(bloom, enough.profiles)).tokens_per_s == enough.throughput
    read = f"{enough.rate * 0.98 / GB} GB/s"
    slower = simulate(with_profiles(bloom, {"ddn-ai400x2": {"read": read}})).tokens_per_s
    assert slower is not None
    assert slower * 1.02 < appliance.fastest


def test_cables_and_adapters_stay(bloom: LoadedScenario) -> None:
    """Four drives on four lanes of PCIe 4 each: 7.4 GB/s a drive, however fast it is."""
    found = curve_of(bloom.on("raid"))
    assert found.hidden is None
    assert not found.capped, "the rate is that of the drives, whatever their slots allow"
    assert found.held_back == "raid.0 -> plx0"
    assert found.enough.rate < 4 * 7.5 * GB
    assert found.sentences[1].endswith("storage takes the most time: the link raid.0 -> plx0 limits it")
    assert found.enough.profiles.keys() == {"drive/samsung-pm1733-3.84tb"}
    assert found.sentences[2].endswith("at most in the slots of its 4 drives; more drives have more slots)")


def test_no_drive_of_the_catalogue_gains_more_than_the_fastest(bloom: LoadedScenario) -> None:
    """Two drives of PCIe 5 in slots of PCIe 4: their latency is shorter, too."""
    found = curve_of(bloom.on("raid"))
    for drive in ("raid0-4x-ps1010-7.68tb", "raid0-4x-9550-7.68tb"):
        tier = f"equipment.tiers.raid={{profile: {drive}, at: [plx0, plx1, plx2, plx3]}}"
        other = simulate(resolve(bloom.on("raid").document, overrides=[tier])).tokens_per_s
        assert found.own.throughput < (other or 0) <= found.fastest


def test_a_slot_may_have_more_than_its_drive() -> None:
    """A drive of PCIe 4 in a slot of PCIe 5: one of PCIe 5 would read twice as fast, and not more."""
    text = "{zero_optimization: {offload_param: {buffer_size: 1.1e9}}}"
    given = ["platform=l40s-workstation", "strategy.ranks=1", "workload.output_length=2"]
    scenario = read_scenario(
        "ddn/bloom-7b1", overrides=[*given, f"strategy={{weights: gen4, ds_config: {text}}}"]
    )
    found = curve_of(scenario)
    assert found.own.throughput * 1.2 < (simulate(scenario.on("gen5")).tokens_per_s or 0) <= found.fastest
    assert found.enough.profiles["drive/micron-9400-pro-7.68tb"]["pcie"] == {"lanes": 8}
    again = simulate(with_profiles(scenario, found.enough.profiles)).tokens_per_s
    assert again == found.enough.throughput


def test_connections_of_a_client_are_part_of_what_is_bought(bloom: LoadedScenario) -> None:
    found = curve_of(bloom.on("nfs"))
    assert found.own.rate == 1_250_000_000
    assert found.held_back == "eth0 in"
    assert found.enough.profiles["nfs/intelliflash-h6202"].keys() == {"per_connection", "read", "write"}
    assert found.points[-1].rate == 11_800_000_000  # of the adapter


def test_in_memory_there_is_no_storage(bloom: LoadedScenario) -> None:
    assert storage_curve(bloom.on("dram")) is None


def test_checkpoints_are_written() -> None:
    found = curve_of(read_scenario("checkpoint/phi-3-mini"))
    assert (found.tier, found.verb, found.unit) == ("raid8", "writes", "checkpoint")
    assert found.hidden is not None
    assert found.hidden.rate > found.own.rate


def test_of_training_it_is_the_tier_of_the_optimizer() -> None:
    scenario = read_scenario("xinnor/llama-1b", overrides=["strategy.optimizer=nvme"])
    found = curve_of(scenario)
    assert found.tier == "nvme"
    assert found.own.throughput == pytest.approx(simulate(scenario).tokens_per_s)
    assert found.fastest > found.own.throughput


@pytest.mark.parametrize(
    ("write", "verb", "rate"), [("1 GB/s", "writes into its write cache", 1), ("5 GB/s", "reads", 2)]
)
def test_of_reads_and_writes_the_slower_decides(write: str, verb: str, rate: int) -> None:
    """An optimizer step reads and writes as many bytes: those of the lower rate take longer."""
    scenario = read_scenario("xinnor/llama-1b", overrides=["strategy.optimizer=nvme"])
    drive = scenario.machine.targets["nvme"].drive
    assert drive is not None
    found = curve_of(with_profiles(scenario, {f"drive/{drive.id}": {"read": "2 GB/s", "write": write}}))
    assert (found.verb, found.own.rate) == (verb, rate * GB)
    assert found.sentences[0] == f"the storage (nvme) {verb} {rate} GB/s"
    assert found.held_back == ("nvme.0 -> chipset" if verb == "reads" else "chipset -> nvme.0")
