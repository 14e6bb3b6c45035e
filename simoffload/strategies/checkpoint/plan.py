"""Plan of a checkpoint from the ranks of a machine to one of its tiers: schedules, memory and warnings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from simoffload.errors import InputError
from simoffload.hardware import Machine
from simoffload.models import ModelShape
from simoffload.results import Outlook, outlook, run_mtbf
from simoffload.strategies.base import Basis, Phase, Plan
from simoffload.strategies.checkpoint.bytes import (
    DIRTY_LIMIT,
    CheckpointPart,
    checkpoint_bytes,
    checkpoint_parts,
    written_bytes,
)
from simoffload.strategies.checkpoint.schedule import RankGroup, restore_phases, save_phases
from simoffload.strategies.held import Held
from simoffload.strategies.memory import pinned_rounding, system_memory
from simoffload.units import format_seconds, plural
from simoffload.workload import Checkpointing

_COMMIT_TIMEOUT = 300.0
"""[s] after which DeepSpeed raises an error while it waits for a decoupled checkpoint
(DEFAULT_CHECKPOINT_TIMEOUT_SECONDS)."""
_BUFFER = "lower writer.io_buffer_size"
_HOSTS = "use hosts with more"


@dataclass(frozen=True)
class CheckpointPlan(Plan):
    """A CheckpointPlan describes the checkpoints of one run; build it with :func:`plan_checkpoint`."""

    model: ModelShape
    workload: Checkpointing
    machine: Machine
    ranks: int
    tier: str
    """Tier to which checkpoints are written."""
    swap: str = ""
    """Tier of the optimizer's swap files with ``offload_optimizer: nvme``."""

    @property
    def basis(self) -> Basis:
        """Also rates of new pages, of checksums, and of the page cache, through which most writers write."""
        host = self.machine.host
        costs = host.fresh_memory.from_gpu, host.checksum_rate, host.cached_files.write
        return super().basis._replace(cpu_costs=costs)

    @property
    def saved(self) -> CheckpointPlan:  # type: ignore[override]  # of other plans it is a field
        """Checkpoint plan of the run: this plan."""
        return self

    @property
    def phases(self) -> tuple[Phase, ...]:
        """Phases of saving, then those of restoring."""
        return (*self.save(), *self.restore())

    def after(self, *, step_time: float, update_time: float) -> CheckpointPlan:
        """Return the plan for a run with steps of ``step_time`` [s], with ``update_time`` [s] at the end."""
        known = {"step_time": step_time, "update_time": update_time}
        return replace(self, workload=self.workload.model_copy(update=known))

    @property
    def nodes(self) -> int:
        """Number of hosts that take part in saving."""
        return self.machine.nodes_of(self.ranks)

    @property
    def group(self) -> RankGroup:
        """Group of all ranks, with the tier that receives their bytes."""
        return RankGroup(self.machine, tuple(range(self.ranks)), self.tier, self.swap, self.workload.jobs)

    @cached_property
    def parts(self) -> tuple[CheckpointPart, ...]:
        """Parts of the checkpoint in the order of writing."""
        return checkpoint_parts(self.model, self.workload, ranks=self.ranks, nodes=self.nodes)

    @property
    def size(self) -> int:
        """Size of one checkpoint on storage [B]."""
        return checkpoint_bytes(self.parts)

    @property
    def written(self) -> int:
        """Bytes that all ranks write for one checkpoint [B]."""
        return written_bytes(self.parts)

    @property
    def written_by_host(self) -> tuple[int, ...]:
        """Bytes that the ranks of each host write for one checkpoint [B]."""
        by_host = [0] * self.nodes
        for part in self.parts:
            for rank in part.writers:
                by_host[rank // self.machine.gpus_per_node] += part.size
        return tuple(by_host)

    def save(self) -> tuple[Phase, ...]:
        """Phases of saving one checkpoint, in sequence."""
        return save_phases(self.parts, self.model, self.workload, self.group)

    def restore(self) -> tuple[Phase, ...]:
        """Phases of restoring a checkpoint, in sequence; the other runs are assumed to continue training."""
        return restore_phases(self.parts, self.workload, self.group._replace(jobs=1))

    def outlook(self, *, blocking_s: float, background_s: float, restore_s: float) -> Outlook:
        """Return the effect of simulated times [s] on the run: of saving while training waits, of saving in
        the background, and of restoring."""
        workload = self.workload
        mtbf = workload.node_mtbf
        return outlook(
            blocking_s=blocking_s,
            background_s=background_s,
            restore_s=restore_s,
            overlap_s=workload.overlap_s,
            interval_s=workload.interval_s,
            mtbf_s=None if mtbf is None else run_mtbf(node_mtbf_s=mtbf, nodes=self.nodes),
            restart_s=workload.restart_time,
        )

    # -- memory ---------------------------------------------------------------------------------

    @property
    def stored(self) -> Held:
        """Files of all checkpoints that are kept."""
        keep = self.workload.keep
        return Held(
            self.tier,
            "saved checkpoints" if keep > 1 else "saved checkpoint",
            self.size * keep,
            remedy=f"lower keep: {keep}" if keep > 1 else "",
            kind="checkpoints",
        )

    @property
    def held(self) -> tuple[Held, ...]:
        """What tiers hold while a checkpoint is saved, in addition to training, and the kept checkpoints."""
        terms = [self.stored, system_memory(self.machine, remedy=_HOSTS)]
        if self.swap:  # files of the run
            terms.append(Held(self.swap, "swap files", 0, kind="optimizer"))
        if self.workload.mode == "snapshot":
            terms.append(self._snapshot())
        terms += self._in_writers()
        if self.workload.contents == "consolidated" and self.workload.stage == 3:
            size = self.model.weight_bytes
            terms.append(Held("dram", "weights gathered on rank 0", size, remedy="contents: zero"))
        return tuple(terms)

    def _snapshot(self) -> Held:
        per_rank = sum(part.size for part in self.parts)
        return Held(
            "dram",
            "snapshot",
            per_rank * self.group.per_node,
            pinned=self.workload.pin_memory,
            remedy="mode: blocking",
        )

    def _in_writers(self) -> list[Held]:
        """Return the buffers of the writers, for the part with the most writers on a host."""
        writer, terms = self.workload.writer, []
        crowded = max(self.group._replace(ranks=part.writers).per_node for part in self.parts)
        if writer.type == "fast":
            buffer = writer.io_buffer_size
            if writer.use_gds:
                return [Held("hbm", "I/O buffer", buffer, remedy=_BUFFER)]
            rounding = pinned_rounding([buffer])
            terms.append(
                Held("dram", "I/O buffers", (buffer + rounding) * crowded, pinned=True, remedy=_BUFFER)
            )
        if not writer.is_direct and self.workload.mode != "snapshot":
            size = self._one_tensor() * crowded
            terms.append(Held("dram", "tensors on their way from the GPU", size, remedy=_HOSTS))
        if writer.type != "fast":
            terms.append(self._dirty())
        return terms

    def _one_tensor(self) -> int:
        """Return the host memory that a thread needs for one tensor [B]: a copy from the GPU, and a NumPy
        array."""
        largest = max((part.largest for part in self.parts if part.device == "hbm"), default=0)
        return largest * (2 if self.workload.writer.type == "fast" else 1)

    def _dirty(self) -> Held:
        """Return the page cache that is not yet written to storage; other pages can be reclaimed when
        needed."""
        host = self.machine.tiers["dram"].capacity - self.machine.host.reserved_bytes
        most = max(part.size * self.group._replace(ranks=part.writers).per_node for part in self.parts)
        size = min(most, int(DIRTY_LIMIT * host))
        return Held("dram", "page cache not yet written", size, remedy=_HOSTS)

    # -- what to know before --------------------------------------------------------------------

    @property
    def warnings(self) -> tuple[str, ...]:  # type: ignore[override]  # of other plans it is a field
        """Warnings about ineffective options, checkpoints that cannot be restored, and missing inputs."""
        if self.workload.mode == "decoupled" and self.workload.step_time is None:
            text = "mode: decoupled hides what fits before the next optimizer step; give step_time"
            return (*self.notes, text)
        return self.notes

    @property
    def notes(self) -> tuple[str, ...]:
        """Warnings about the checkpoint itself, independent of the run."""
        return (*self._about_writer(), *self._about_contents())

    def _about_writer(self) -> list[str]:
        writer, stage = self.workload.writer, self.workload.stage
        notes = [*(self.machine.gpudirect_warnings("workload.writer.use_gds") if writer.use_gds else ())]
        written = any(part.device != "nvme" for part in self.parts)  # swap files are copied
        if writer.type == "fast" and not writer.is_direct and written:
            missing = []
            if not writer.patched_torch:
                missing.append("patched_torch: true (torch/serialization.py of DeepSpeedExamples)")
            if writer.checkpoint_serialization:
                missing.append("checkpoint_serialization: false")
            notes.append(
                f"the fast writer gets its bytes from PyTorch through Python, slower than torch.save; it "
                f"needs {' and '.join(missing)}"
            )
        if writer.type == "fast" and self.workload.contents == "zero" and stage < 3:
            notes.append(
                "below stage 3 the fast writer adds its number to file names (…pt-0.1), under which "
                "load_checkpoint does not look for them"
            )
        if writer.type != "torch_save" and stage in {1, 2} and self.ranks > 1:
            notes.append(
                f"with a writer section at stage {stage} every rank writes all weights to the same file, "
                f"{self.ranks} times as much as needed"
            )
        if writer.data_parallel != "none" and stage == 3:
            notes.append("writer.data_parallel has no effect at stage 3: every rank writes its own part")
        if writer.is_direct and self.workload.fsync:
            notes.append("fsync has no effect on the fast writer, which always flushes")
        return notes

    def _about_contents(self) -> list[str]:
        notes = []
        workload = self.workload
        insures = workload.interval is not None or workload.interval_steps or workload.node_mtbf is not None
        if workload.contents in {"consolidated", "model_only"} and insures:
            notes.append(
                f"contents: {self.workload.contents} has no optimizer states; training cannot resume from it"
            )
        if self.machine.tiers[self.tier].kind == "nvme" and self.nodes > 1:
            notes.append(
                f"{self.tier} is in each node: a node that is lost takes its part of the checkpoint with it"
            )
        if self.machine.tiers[self.tier].kind == "nvme" and self.workload.jobs > 1:
            notes.append(f"jobs has no effect on {self.tier}, which other jobs cannot reach")
        return notes

    def commit_warning(self, outlook: Outlook) -> str:
        """Return a warning if DeepSpeed would stop waiting for a decoupled checkpoint; otherwise ""."""
        if self.workload.mode != "decoupled" or outlook.stall_s <= _COMMIT_TIMEOUT:
            return ""
        wait = format_seconds(outlook.stall_s)
        return f"DeepSpeed would stop here: the commit waits {wait}, and gives up after 300 s"


def plan_checkpoint(
    model: ModelShape,
    workload: Checkpointing,
    machine: Machine,
    *,
    ranks: int,
    tier: str,
    swap: str | None = None,
) -> CheckpointPlan:
    """Check that the machine has what the checkpoint needs, and plan it.

    ``swap`` is the tier of the optimizer's swap files, by default the first tier with local drives. Raises
    InputError for ranks or tiers that the machine does not have, and for writers that DeepSpeed cannot
    assign.
    """
    if not 1 <= ranks <= machine.gpus:
        raise InputError.at(
            "strategy.ranks", f"{ranks} ranks, but the platform has {plural(machine.gpus, 'GPU')}"
        )
    tier = _storage(machine, tier, "strategy.tier")
    if workload.offload_optimizer == "nvme":
        local = [name for name, one in machine.tiers.items() if one.kind == "nvme"]
        if swap is None and not local:
            raise InputError.at(
                "workload.offload_optimizer", "nvme, but the platform has no tier of local drives"
            )
        swap = _storage(machine, swap or local[0], "strategy.swap")
    plan = CheckpointPlan(model, workload, machine, ranks, tier, swap or "")
    _ = plan.warnings  # a GPU that lacks what the writer needs
    _ = plan.parts  # writers that cannot be
    return plan


def _storage(machine: Machine, tier: str, key: str) -> str:
    storage = [name for name, one in machine.tiers.items() if one.is_storage]
    if tier not in storage:
        has = ", ".join(storage) or "none"
        raise InputError.at(key, f'no storage tier "{tier}" on platform "{machine.platform}" (has: {has})')
    return tier
