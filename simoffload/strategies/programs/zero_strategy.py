"""Common base of the strategies of DeepSpeed's ZeRO: it maps ds_config to the tiers of a machine.

ds_config names ``device: none``, ``cpu`` or ``nvme`` and a path; a machine has tiers. If the scenario names a
tier, it has priority over ds_config.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import chain, product, starmap
from pathlib import PurePosixPath
from typing import Any, ClassVar

from pydantic import field_validator

from simoffload.documents import Edit, either
from simoffload.errors import InputError, Problem
from simoffload.hardware import TIER_KINDS, Machine, Tier, in_hbm
from simoffload.models import ModelShape
from simoffload.results import Change
from simoffload.strategies.base import (
    AnyTier,
    Description,
    Placement,
    Placements,
    Plan,
    ProgramTraits,
    SizeEdits,
    Strategy,
    Tunable,
    optimizer_target,
    target,
)
from simoffload.strategies.ds_config import (
    LATEST,
    PRECISIONS,
    DeepSpeedConfig,
    OffloadDevice,
    OffloadOptimizerSection,
    OffloadParamSection,
    OffloadSettings,
    Use,
    allowing,
    faster_settings,
    fetch_settings,
    larger_buffers,
    parse_version,
    released,
    use_of,
)

Written = OffloadParamSection | OffloadOptimizerSection | None

_SECTIONS = {"weights": "offload_param", "optimizer": "offload_optimizer"}
"""Sections of ``zero_optimization`` by the scenario's key for the same data."""
_ZERO = ("strategy", "ds_config", "zero_optimization")


class ZeroStrategy(Strategy):
    """Strategy of DeepSpeed's ZeRO: states partitioned over the ranks, in HBM, host memory or on storage."""

    traits: ClassVar = ProgramTraits(
        title="DeepSpeed ZeRO",
        evidence="zero",
        method="ZeRO",
        gathers="ZeRO-3",
        files={"ds_config": DeepSpeedConfig},
    )

    states: ClassVar[tuple[str, ...]] = ("weights",)
    """States that are offloaded: keys that name their tiers."""

    weights: AnyTier | None = None
    """Tier of the platform that holds the weights; by default the one that ``ds_config`` names."""
    ds_config: DeepSpeedConfig = DeepSpeedConfig()
    """DeepSpeed's configuration, inline or the path of a ds_config.json."""
    deepspeed_version: str = LATEST
    """DeepSpeed version as text; it determines names, defaults and mechanisms."""

    @field_validator("deepspeed_version", mode="before")
    @classmethod
    def _is_version(cls, value: Any) -> Any:
        if isinstance(value, int | float) and not isinstance(value, bool):
            raise ValueError(f'must be text; write "{value}" in quotes')
        if isinstance(value, str):
            parse_version(value)
        return value

    @property
    def description(self) -> Description:
        """DeepSpeed with the version of the scenario."""
        return super().description._replace(program=f"DeepSpeed {self.deepspeed_version}")

    def written(self, key: str) -> Written:
        """Return the offload section of ds_config for the data that the scenario places with ``key``."""
        section: Written = getattr(self.ds_config.zero_optimization, _SECTIONS[key])
        return section

    def tier(self, key: str, machine: Machine) -> tuple[str, tuple[str, ...]]:
        """Return the tier of the data that the scenario places with ``key``, and warnings.

        Raises InputError if the machine has no such tier.
        """
        return _tier(key, getattr(self, key), self.written(key), machine)

    def swap_path(self, key: str, tier: str, machine: Machine) -> str | None:
        """Return the ``nvme_path`` of a tier: the path in ds_config if it is for this tier, else /mnt/<tier>.

        None for a tier that is not storage. Profiles do not state where storage is mounted; ``tier``
        recognises the tier from either path.
        """
        if device_of(tier, machine) != "nvme":
            return None
        written = self.written(key)
        if written is not None and written.nvme_path:
            found, warnings = _tier(key, None, written.model_copy(update={"device": "nvme"}), machine)
            if found == tier and not warnings:
                return written.nvme_path
        return f"/mnt/{tier}"

    def _placements(self, machine: Machine) -> Placements:
        """Return the tiers of weights and optimizer, all of whose combinations are possible."""

        tiers = [name for name, one in machine.tiers.items() if one.row.device]

        def edits(placement: Placement) -> tuple[Edit, ...]:
            named = zip(self.states, placement, strict=False)
            found = (self._tier_edits(key, tier, machine) for key, tier in named if tier)
            return tuple(chain.from_iterable(found))

        return Placements(
            now=lambda: Placement(*(self.tier(key, machine)[0] for key in self.states)),
            possible=tuple(starmap(Placement, product(tiers, repeat=len(self.states)))),
            edits=edits,
            refusal=f"DeepSpeed has no device for it; use {either(tiers)}",
            allowing=lambda model, tier, ranks: self._allowing(model, device_of(tier, machine), ranks),
            storage=True,
        )

    def _tier_edits(self, key: str, tier: str, machine: Machine) -> tuple[Edit, ...]:
        """Return edits that name a tier in ``strategy.key`` and make ds_config agree with it."""
        edits = [Edit(("strategy", key), tier)]
        section = (*_ZERO, _SECTIONS[key])
        written, path = self.written(key), self.swap_path(key, tier, machine)
        if written is not None and "device" in written.model_fields_set:
            edits.append(Edit((*section, "device"), device_of(tier, machine)))
        if written is not None and written.nvme_path and path:
            edits.append(Edit((*section, "nvme_path"), path))
        return tuple(edits)

    def precision_warnings(self, model: ModelShape) -> tuple[str, ...]:
        """Return a warning if ds_config enables another data type than that of the model, to which DeepSpeed
        would cast it."""
        enabled = self.ds_config.precision
        if enabled in (None, PRECISIONS.get(model.dtype)):
            return ()
        text = f"ds_config enables {enabled}, to which DeepSpeed casts the model; simulated and exported is"
        return (f"{text} {model.dtype}, as model.dtype states",)

    def use(self, model: ModelShape, placement: Mapping[str, str], machine: Machine) -> Use:
        """Return the run for which ds_config is exported, without its batch; ``placement`` names the tier of
        each state."""
        config, trains = self.ds_config, "optimizer" in self.states
        found = use_of(config, version=self.deepspeed_version, hidden_size=model.hidden_size, training=trains)
        places = {
            _SECTIONS[key]: (device_of(tier, machine), self.swap_path(key, tier, machine))
            for key, tier in placement.items()
        }
        return found._replace(ranks=self.ranks, dtype=model.dtype, places=places)

    def direct_warnings(self, settings: OffloadSettings, machine: Machine) -> tuple[str, ...]:
        """Return warnings if the GPU reads weights directly from storage; InputError for a GPU that
        cannot."""
        if not (settings.use_gds and settings.device == "nvme"):
            return ()
        return machine.gpudirect_warnings("strategy.ds_config.aio.use_gds")

    def sizes(self, _batch_size: int = 1) -> SizeEdits:
        """Return the edits to other sizes, which remove the keys of ds_config that repeat the batch."""
        return SizeEdits.of(self, partial(released, self.ds_config))

    def _allowing(self, model: ModelShape, device: OffloadDevice, ranks: int) -> Iterator[tuple[Edit, ...]]:
        """Yield edits that allow a device: stage 3, large enough swap buffers, and no mode that requires
        another tier."""
        settings, _ = fetch_settings(
            self.ds_config, version=self.deepspeed_version, hidden_size=model.hidden_size
        )
        return allowing(self.ds_config, model, device, ranks=ranks, buffer_size=settings.buffer_size)

    def faster(self, plan: Plan) -> Tunable:
        """Return DeepSpeed's settings, and in training its stages."""
        version, trains = self.deepspeed_version, "optimizer" in self.states
        return Tunable("setting", faster_settings(self.ds_config, version, plan, trains=trains))

    def filled(self, _model: ModelShape) -> tuple[Edit, ...]:
        """Return edits to stage 3, with weights in host memory unless a tier is given."""
        section, stage = self.written("weights"), self.ds_config.zero_optimization.stage
        message = self.weights is not None or (section is not None and section.device is not None)
        return () if message or stage < 3 else (Edit.at("strategy.weights", "dram"),)


def device_of(tier: str, machine: Machine) -> OffloadDevice:
    """Return DeepSpeed's name for the device of a tier. Raises InputError if it has none."""
    device = machine.tiers[tier].row.device
    if device is None:
        has = either([name for name, one in machine.tiers.items() if one.row.device])
        raise InputError.at("strategy", f"DeepSpeed has no device for the tier {tier}; use {has}")
    return device


def within_config(problems: Iterable[Problem]) -> InputError:
    """Convert the keys of an error from DeepSpeed's to the scenario's."""
    return InputError(one._replace(key=f"strategy.ds_config.{one.key}") for one in problems)


def _tier(key: str, named: str | None, written: Written, machine: Machine) -> tuple[str, tuple[str, ...]]:
    """Return a tier of the machine, and warnings.

    ``named`` is the tier in ``strategy.key`` of the scenario, ``written`` the section of ds_config. If there
    are several storage tiers, a folder in ``nvme_path`` with the name of a tier selects it.
    """
    section = _SECTIONS[key]
    configured = written.device if written else None
    path = written.nvme_path if written and configured == "nvme" else None
    tier_of_path = _tier_of_path(path, machine) if path else None
    if named is not None:
        if configured is not None and device_of(named, machine) != configured:
            message = f'ds_config {section}.device: "{configured}" contradicts {key}: {named}'
            return named, (f"{message}; {named} is used",)
        if tier_of_path not in (None, named):
            message = f'ds_config {section}.nvme_path: "{path}" contradicts {key}: {named}'
            return named, (f"{message}; {named} is used",)
        return named, ()
    if tier_of_path is not None:
        return tier_of_path, ()
    rows = [row for row in TIER_KINDS.values() if row.device == (configured or "none")]
    found = [name for row in rows for name, tier in machine.tiers.items() if tier.row == row]
    if not found:
        text = f"the platform has no tier for offload device {configured!r}"
        raise InputError.at(f"strategy.{key}", text)
    if path and len(found) > 1:
        message = f'ds_config {section}.nvme_path: "{path}" names no tier of {machine.platform}'
        which = f"{found[0]} is used; say which with strategy.{key}, or end the path with the tier's name"
        return found[0], (f"{message} ({', '.join(found)}); {which}",)
    return found[0], ()


def _tier_of_path(path: str, machine: Machine) -> str | None:
    """Return the storage tier that the innermost possible folder of a path names, if any."""
    folders = reversed(PurePosixPath(path).parts)
    return next((one for one in folders if one in machine.tiers and machine.row(one).device == "nvme"), None)


def gathered(tier: str, ranks: int) -> str:
    """Return a note for weights in HBM in inference: they are gathered for every token, not resident."""
    return "" if not in_hbm(tier) or ranks == 1 else " (ZeRO-3, gathered for every token)"


def inference_moves(
    plan: Plan, *, ranks: int, buffer_size: int | None = None, before: tuple[Edit, ...] = ()
) -> Iterator[Tunable]:
    """Yield changes that move the weights to each tier, smaller ones first; ``before`` are edits made
    first."""
    for tier in _smaller_first(plan.machine):
        description = f"weights on {tier.name}{gathered(tier.name, ranks)}"
        weights = _weights(tier, plan.model, ranks=ranks, buffer_size=buffer_size)
        yield Tunable("tier", [Change("tier", description, (*before, *weights))])


def training_moves(
    plan: Plan, stages: tuple[Change, ...], ranks: int, buffer_size: int | None = None, *before: Edit
) -> Iterator[Tunable]:
    """Yield changes that move the optimizer, the weights, or both to each tier, also in the other
    ``stages``."""
    machine, now = plan.machine, Placement(target(plan), optimizer_target(plan))
    dram = machine.tiers["dram"]

    def weights_on(tier: Tier) -> tuple[Edit, ...]:
        return _weights(tier, plan.model, ranks=ranks, buffer_size=buffer_size)

    for tier in _smaller_first(machine):
        name = tier.name
        optimizer, weights = Edit(("strategy", "optimizer"), name), weights_on(tier)
        places: dict[tuple[str, str | None], tuple[str, tuple[Edit, ...]]] = {}
        places[now.weights, name] = f"optimizer on {name}", (optimizer,)
        places.setdefault((name, now.optimizer), (f"weights on {name}", weights))
        places.setdefault((name, name), (f"weights and optimizer on {name}", (*weights, optimizer)))
        if tier.row.is_storage and name != now.optimizer:
            both = (*weights_on(dram), optimizer)
            places.setdefault((dram.name, name), (f"weights on {dram.name}, optimizer on {name}", both))
        if not tier.row.is_gpu:
            both = (*weights_on(machine.tiers["hbm"]), optimizer)
            places.setdefault(("hbm", name), (f"weights on hbm, optimizer on {name}", both))
        places.pop((now.weights, now.optimizer), None)
        moves = [Change("tier", description, (*before, *edits)) for description, edits in places.values()]
        plain = [Change("tier", description, edits) for description, edits in places.values()]
        yield Tunable("tier", (*moves, *(stage.with_(move) for move in plain for stage in stages)))


def _smaller_first(machine: Machine) -> list[Tier]:
    return sorted((one for one in machine.tiers.values() if one.row.device), key=lambda one: one.capacity)


def _weights(tier: Tier, model: ModelShape, *, ranks: int, buffer_size: int | None) -> tuple[Edit, ...]:
    """Return edits to put weights on a tier; on storage with swap buffers for the largest parameter."""
    buffers = larger_buffers(model, ranks, buffer_size) if tier.row.is_storage else ()
    return (Edit(("strategy", "weights"), tier.name), *buffers)
