"""The part of an exported vLLM command that is about a connector: its options, and what they cannot express.

Sources: wheels of vLLM 0.33.0 (``distributed/kv_transfer/kv_connector/v1``, ``v1/kv_offload``, ``envs.py``,
``distributed/mooncake_store.py``) and of LMCache 0.5.6 (``v1/config.py``,
``integration/vllm/vllm_v1_adapter.py``, ``v1/storage_backend``).

Blocks of 16 tokens in host memory or in files are those of vLLM's own OffloadingConnector; larger ones,
transfers layer by layer and GPUDirect Storage are LMCache's; the memory of other hosts is a store of
Mooncake.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from shlex import quote
from textwrap import fill
from typing import Any, ClassVar

from simoffload.strategies.cache.blocks import BLOCK_TERMS, BlockMoves
from simoffload.strategies.cache.connector import THREADS
from simoffload.strategies.cache.kv_cache import VLLM_BLOCK
from simoffload.strategies.held import Held
from simoffload.units import plural

_GIB, _MIB = 1 << 30, 1 << 20


@dataclass(frozen=True)
class ConnectorCommand(ABC):
    """A ConnectorCommand writes what one of vLLM's connectors needs, and what it does otherwise than the
    simulation."""

    moves: BlockMoves
    terms: tuple[Held, ...]
    """Memory of the plan, in which the blocks of one generation are."""
    compiled: bool
    """Whether kernels are replayed from CUDA graphs."""
    program: ClassVar[str]
    """Name of the connector in vLLM."""
    environment: ClassVar[Mapping[str, str]] = {}
    """Environment variables that it needs, by name."""

    @property
    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Settings of the connector, ``kv_connector_extra_config`` of vLLM."""

    @abstractmethod
    def differences(self) -> Iterator[str]:
        """Yield sentences about what the connector does otherwise than the simulation."""

    @property
    def role(self) -> str:
        """Whether it loads and stores, ``kv_role`` of vLLM: both."""
        return "kv_both"

    @property
    def option(self) -> str:
        """The option of ``vllm serve`` that names and configures the connector."""
        names = {"kv_connector": self.program, "kv_role": self.role}
        config = json.dumps({**names, "kv_connector_extra_config": self.settings})
        return f"--kv-transfer-config {quote(config)}"

    @property
    def before(self) -> str:
        """What is before ``vllm serve``: comments on what to prepare and on the differences, and assignments
        of environment variables. In the layout BLHNC a block is contiguous over all layers."""
        tier, found = self.moves.connector.tier, list[str]()
        if tokens := self.moves.connector.loaded:
            found.append(
                f"The simulation loads {plural(tokens, 'token')} of each prompt: earlier requests must have "
                "stored them, and HBM must not hold them any more."
            )
        if self._in_files:
            found.append(f"Replace {self._directory} by a directory on {tier}.")
        comments = (
            fill(one, 100, initial_indent="# ", subsequent_indent="#   ")
            for one in (*found, *self.differences())
        )
        layout = {"VLLM_KV_CACHE_LAYOUT": "BLHNC"} if self._across_layers else {}
        variables = (f"{name}={value} \\" for name, value in {**layout, **self.environment}.items())
        return "".join(f"{line}\n" for line in (*comments, *variables))

    def _gib(self, parts: int) -> int:
        """Return one of equal ``parts`` of all blocks of a generation, prefixes and new ones, in whole
        GiB."""
        moves = self.moves
        in_memory = moves.machine.tiers[moves.connector.tier].kind == "dram"
        hosts = moves.machine.nodes_of(moves.degrees.ranks) if in_memory else 1
        held = hosts * sum(one.size for one in self.terms if one.name in BLOCK_TERMS)
        return max(1, -(-held // (parts * _GIB)))

    @property
    def _in_files(self) -> bool:
        return self.moves.machine.tiers[self.moves.connector.tier].is_storage

    @property
    def _directory(self) -> str:
        return f"/mnt/{self.moves.connector.tier}"

    @property
    def _across_layers(self) -> bool:
        return self.moves.connector.across_layers(self.moves.stages[0])


class _Offloading(ConnectorCommand):
    """Blocks of 16 tokens in host memory, and in files behind it."""

    program = "OffloadingConnector"

    @property
    def settings(self) -> dict[str, Any]:
        size = self._gib(self.moves.degrees.data) * _GIB
        found: dict[str, Any] = {"cpu_bytes_to_use": size, "offload_prompt_only": False}
        if self._in_files:
            threads = {"n_read_threads": THREADS, "n_write_threads": THREADS}
            files = {"type": "fs", "root_dir": self._directory, **threads}
            found |= {"spec_name": "TieringOffloadingSpec", "secondary_tiers": [files]}
        return found

    def differences(self) -> Iterator[str]:
        if self._in_files:
            yield (
                "vLLM keeps blocks in host memory on their way (cpu_bytes_to_use), and reads files only of "
                "those that are not there any more; the simulation has pinned buffers."
            )
        if not self.moves.connector.store:
            yield "vLLM has no option that turns stores off; the simulation stores nothing."
        if not self._across_layers and self.moves.stages[0].latent_width is None:
            yield "vLLM copies keys and values of a layer together; the simulation copies each on its own."


class _LMCache(ConnectorCommand):
    """Chunks of any size, layer by layer or not, in host memory, in files, or by GPUDirect Storage."""

    program = "LMCacheConnectorV1"
    environment: ClassVar = {"PYTHONHASHSEED": "0"}  # keys of chunks are then equal in all processes
    _across_layers = False

    @property
    def settings(self) -> dict[str, Any]:
        one, each = self.moves.connector, self._gib(self.moves.degrees.ranks)
        found: dict[str, Any] = {
            "chunk_size": one.block_tokens,
            "use_layerwise": one.layerwise,
            "save_decode_cache": one.store and not one.layerwise,
            "local_cpu": not self._in_files,
            "max_local_cpu_size": each,
        }
        if one.direct:
            found |= {"gds_path": self._directory, "gds_buffer_size": each * _GIB // _MIB}
            found["extra_config"] = {"disk_io_threads": THREADS}
        elif self._in_files:
            found |= {"local_disk": self._directory, "max_local_disk_size": each}
            found["extra_config"] = {"disk_io_threads": THREADS, "use_odirect": True}
        piecewise = {"use_layerwise": True} if one.layerwise else {}  # which vLLM itself reads
        return piecewise | {f"lmcache.{name}": value for name, value in found.items()}

    def differences(self) -> Iterator[str]:
        one, each = self.moves.connector, f"{self._gib(self.moves.degrees.ranks)} GiB"
        yield "LMCache copies with kernels of its own; the simulation copies parts of blocks by DMA."
        if one.direct:
            yield (
                f"LMCache's buffer takes {each} of each GPU (gds_buffer_size), which the simulation does not "
                "count."
            )
        elif self._in_files:
            yield (
                f"LMCache's buffers take {each} of host memory for each GPU (max_local_cpu_size), more than "
                "those of the simulation."
            )
        if one.layerwise and self.compiled:
            yield "With use_layerwise vLLM has several CUDA graphs for a pass; the simulation has one."
        if not one.store:
            yield (
                "LMCache stores new blocks, too, except of requests with lmcache.skip_save in "
                "kv_transfer_params; the simulation stores nothing."
            )
        elif not one.layerwise and self.moves.workload.decode_steps:
            yield (
                "LMCache stores blocks as soon as they are full, and passes wait for that; the simulation "
                "stores equal parts during all decode steps."
            )
        if any(stage.num_sliding_layers for stage in self.moves.stages):
            yield "LMCache loads all blocks of sliding layers; the simulation those of the window."


class _Mooncake(ConnectorCommand):
    """Blocks in the memory of other hosts."""

    program = "MooncakeStoreConnector"
    environment: ClassVar = {"MOONCAKE_CONFIG_PATH": "mooncake.json"}

    @property
    def role(self) -> str:
        """The role of a consumer, which stores nothing, for a connector without stores."""
        return super().role if self.moves.connector.store else "kv_consumer"

    @property
    def settings(self) -> dict[str, Any]:
        return {"save_decode_cache": True} if self.moves.connector.store else {}

    def differences(self) -> Iterator[str]:
        one = self.moves.connector
        yield (
            "Write mooncake.json with metadata_server, master_server_address, protocol and device_name of "
            "your Mooncake store."
        )
        if not one.direct:
            yield "Mooncake transfers to and from GPU memory; the simulation by way of host memory."
        if one.layerwise:
            yield "Mooncake transfers all layers of a block at once; the simulation layer by layer."
        if one.block_tokens != VLLM_BLOCK:
            yield f"vLLM has blocks of {VLLM_BLOCK} tokens; the simulation of {one.block_tokens}."


def connector_command(moves: BlockMoves, terms: tuple[Held, ...], *, compiled: bool) -> ConnectorCommand:
    """Return the command of the connector of vLLM that does most of what is simulated."""
    one = moves.connector
    kind: type[ConnectorCommand] = _LMCache
    if moves.machine.tiers[one.tier].kind == "remote":
        kind = _Mooncake
    elif one.block_tokens == VLLM_BLOCK and not (one.layerwise or one.direct):
        kind = _Offloading
    return kind(moves, terms, compiled)
