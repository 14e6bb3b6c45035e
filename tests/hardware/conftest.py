"""A small library of round numbers in a user's folder, to reckon with by hand."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest

from simoffload.hardware import Machine, load_platform
from simoffload.hardware import Path as Route

ORIGIN = 'origin: spec, source: "made up", date: 2026-11-20'


def crossed(machine: Machine, path: Route) -> dict[str, Fraction]:
    """Bytes per byte of payload by the name of the resource."""
    return {machine.resources[index].name: share for index, share in path.hops}


def number(value: object) -> str:
    return f"{{value: {value}, {ORIGIN}}}"


def curve(*points: str) -> str:
    return f"{{points: [{', '.join(points)}], {ORIGIN}}}"


FILES = {
    "pcie/wire.yaml": f"""
kind: pcie
id: wire
name: A cable of 1 GB/s per lane
lane_rate: {number("8 Gb/s")}
encoding: {number(1)}
packet_efficiency: {number(0.5)}
copy_lanes: 16
host_to_device: {curve("[1 MB, 4 GB/s]", "[100 MB, 12 GB/s]")}
device_to_host: {curve("[1 MB, 8 GB/s]")}
both_ways: {number(0.75)}
latency: {number("10 us")}
""",
    "accelerator/chip.yaml": f"""
kind: accelerator
id: chip
name: A chip
hbm_capacity: {number("10 GB")}
hbm_bandwidth: {number("1000 GB/s")}
hbm_efficiency: {number(0.5)}
reserved: {number("1 GB")}
compute:
  float32: {number("10 TFLOPS")}
  float16: {number("100 TFLOPS")}
matmul_efficiency: {curve("[1 GFLOP, 0.25]", "[100 GFLOP, 0.75]")}
kernel_latency: {number("3 us")}
pcie: {{profile: wire, lanes: {number(16)}}}
""",
    "accelerator/linked.yaml": f"""
kind: accelerator
id: linked
name: A chip with links
hbm_capacity: {number("10 GB")}
hbm_bandwidth: {number("1000 GB/s")}
hbm_efficiency: {number(0.5)}
reserved: {number("1 GB")}
compute:
  float32: {number("10 TFLOPS")}
matmul_efficiency: {curve("[1 GFLOP, 0.5]")}
kernel_latency: {number("3 us")}
pcie: {{profile: wire, lanes: {number(16)}}}
interconnect:
  name: Links
  per_direction: {number("100 GB/s")}
  efficiency: {number(0.5)}
  latency: {number("20 us")}
""",
    "host/box.yaml": f"""
kind: host
id: box
name: A box
cpu: A CPU
memory_capacity: {number("100 GB")}
memory_bandwidth: {number("60 GB/s")}
stream_fraction: {number(0.5)}
memcpy_rate: {number("5 GB/s")}
pageable: {curve("[1 MB, 6 GB/s]")}
reserved: {number("10 GB")}
deepspeed:
  ranks: {number(4)}
  module_call: {number("100 us")}
  operation: {number("100 us")}
  linear_call: {number("100 us")}
  hook: {number("100 us")}
  hook_input: {number("100 us")}
  fetch_call: {number("100 us")}
  prefetch_call: {number("100 us")}
  gathered_parameter: {number("100 us")}
  copy_call: {number("100 us")}
  blocking_copy_call: {number("100 us")}
  collective_call: {number("100 us")}
  coalesced_call: {number("100 us")}
  collective_parameter: {number("100 us")}
  fetch_wait: {number("100 us")}
  released_parameter: {number("100 us")}
  cold_share: {number(0.5)}
  cold_limit: {number("100 us")}
  pass_overhead: {number("100 us")}
cpu_optimizer:
  cores: {number("32")}
  numa_nodes: {number("1")}
  thread: {number("20 GB/s")}
  limit: {number("100 GB/s")}
training:
  graph: {number("0.5")}
  checkpoint: {number("10 us")}
  backward_call: {number("10 us")}
  gradient: {number("10 us")}
  reduce_call: {number("10 us")}
  boundary_gradient: {number("10 us")}
  step_call: {number("10 us")}
  sub_group_call: {number("10 us")}
  updated_parameter: {number("10 us")}
""",
    "nic/port.yaml": f"""
kind: nic
id: port
name: A port
link_rate: {number("40 Gb/s")}
achieved: {number("4 GB/s")}
latency: {number("5 us")}
pcie: {{profile: wire, lanes: {number(16)}}}
""",
    "drive/disk.yaml": f"""
kind: drive
id: disk
name: A drive
capacity: {number("1 TB")}
read: {number("2 GB/s")}
write: {number("1 GB/s")}
read_latency: {number("100 us")}
write_latency: {number("50 us")}
pcie: {{profile: wire, lanes: {number(4)}}}
""",
    "raid/pair.yaml": f"""
kind: raid
id: pair
name: Two drives
level: 0
drive: disk
count: 2
chunk: {number("512 KiB")}
read_efficiency: {number(0.75)}
write_efficiency: {number(0.5)}
""",
    "nfs/share.yaml": f"""
kind: nfs
id: share
name: A server
link: port
mounts: {number(1)}
nconnect: {number(2)}
per_connection: {number("1 GB/s")}
read: {number("3 GB/s")}
write: {number("5 GB/s")}
latency: {number("1 ms")}
capacity: {number("50 TB")}
""",
    "pfs/stripes.yaml": f"""
kind: pfs
id: stripes
name: A filesystem
osts: {number(4)}
stripe_count: {number(2)}
rpc_size: {number("1 MB")}
rpcs_in_flight: {number(2)}
read: {number("20 GB/s")}
write: {number("4 GB/s")}
latency: {number("1 ms")}
capacity: {number("100 TB")}
""",
    "nvmeof/far.yaml": f"""
kind: nvmeof
id: far
name: Two drives of another machine
protocol: rdma
target: pair
link: port
links: 1
transport_latency: {number("20 us")}
efficiency: {number(0.5)}
""",
    "small.yaml": """
kind: platform
id: small
name: Four GPUs behind two switches
wiring: [{about: everything, origin: estimate, source: made up, date: 2026-11-20}]
host: box
switches:
  left: {to: cpu, pcie: wire, lanes: 16}
  right: {to: cpu, pcie: wire, lanes: 16}
accelerator: chip
gpus: [left, left, right, right]
gpu_links: none
nics:
  net0: {profile: port, at: left}
  net1: {profile: port, at: right}
network: [net0, net1]
tiers:
  disk: {profile: disk, at: [cpu]}
  raid: {profile: pair, at: [left, right]}
  nfs: {profile: share, through: [net0]}
  pfs: {profile: stripes, through: [net0, net1]}
  far: {profile: far, through: [net1]}
""",
}


LANES = "left: {to: cpu, pcie: wire, lanes: 16}"
"""The first switch of the small machine, and below the same switch with rates instead of lanes."""
RATES = (
    f"left: {{to: cpu, pcie: wire, host_to_device: {number('9 GB/s')}, device_to_host: {number('6 GB/s')}}}"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The library on disk."""
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text.lstrip())
    return tmp_path


@pytest.fixture
def small(folder: Path) -> Machine:
    """Its machine."""
    return load_platform(folder / "small.yaml").machine()
