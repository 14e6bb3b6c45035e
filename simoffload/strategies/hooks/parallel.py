"""Hooks of a model that several GPUs hold together: CUDA graphs, collectives among GPUs, sends to a stage."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from simoffload.hardware import Path
from simoffload.results import cause_text
from simoffload.schedule import Cause, CauseKind, OpKind
from simoffload.strategies.passes.pass_writer import (
    HOST,
    Awaited,
    Call,
    ForwardPass,
    Hook,
    PassWriter,
    StagePass,
)
from simoffload.strategies.passes.timing import FusedTiming, Graphs, picoseconds

if TYPE_CHECKING:
    from simoffload.strategies.plan import InferencePlan


class CompiledCode(Hook):
    """The host thread prepares the input of a step of compiled code, and takes care of each of its sequences,
    and launches its kernels: one by one, or as CUDA graphs.

    The input of a decode step was prepared beside the one before, and its kernels are one graph. If the next
    step is launched before the tokens of this one are taken, it is prepared at the end of a prefill, too.
    """

    def __init__(self, plan: InferencePlan, forward: ForwardPass) -> None:
        self._plan, self._followed, self._proposes = plan, forward.followed, forward.proposes
        self._graphs: dict[int, Graphs] = {}
        self.carry: Graphs = "none"

    state = Hook.of_modules

    def begin(self, stage: StagePass, out: PassWriter) -> None:
        """Prepare a step, or launch its graph."""
        assert isinstance(stage.timing, FusedTiming)
        self.carry = self._graphs[stage.stage] = stage.timing.graphs
        captured = self.carry == "whole"
        out.builder.segment("step")
        if captured:
            out.launch("graph", out.machine.host.compiled_costs.kernel.value)
        else:
            prompts = sum(one.number * one.new_tokens for one in out.now.batch if one.new_tokens > one.scored)
            known = out.machine.host.compiled_costs.prompt_token.value * prompts
            out.launch("step", self._step_s(out) + known)

    def _step_s(self, out: PassWriter) -> float:
        """Return the time of the host for a step and its sequences [s]; none for passes of a draft, which
        the GPU prepares (``AutoRegressiveSpeculator.propose``, v1/worker/gpu/spec_decode of vLLM 0.33)."""
        if self._proposes:
            return 0.0
        costs = out.machine.host.compiled_costs
        return costs.step.value + costs.sequence.value * sum(one.number for one in out.now.batch)

    def launch(self, call: Call, out: PassWriter) -> bool:
        """Launch what is in no graph."""
        self.launch_s(call.module.name, out.now.timing.launch_s(call.module), out)
        return True

    def launch_s(self, label: str, seconds: float, out: PassWriter) -> None:
        """Let the host thread work for ``seconds`` [s], unless the graph of the whole pass was launched."""
        if seconds and self.carry != "whole":
            out.launch(label, seconds)

    def finish(self, out: PassWriter) -> bool:
        """Prepare the next step, beside the kernels of a graph, or before the tokens are taken; nothing else
        is at the end of a pass."""
        if self._graphs[out.stage_number] == "whole" or self._followed:
            out.label = "next step"
            out.spend(self._step_s(out))
            out.flush()
        return True


class _Exchange(Hook):
    """An _Exchange is the transfer of results between GPUs."""

    def __init__(self, plan: InferencePlan, code: CompiledCode | None) -> None:
        self._plan, self._code = plan, code

    state = Hook.of_modules

    def _launch(self, cause: Cause, out: PassWriter, *, within_graphs: bool) -> None:
        """Launch an exchange: in transformers' code with its wrappers, in an engine's as a kernel, unless it
        is one within a graph."""
        host, code, label = out.machine.host, self._code, cause_text(cause)
        if not self._plan.fused:
            out.launch(label, host.eager_costs.all_reduce.value)
        elif code is None:
            out.launch(label, host.compiled_costs.kernel.value)
        elif not within_graphs or code.carry == "none":
            code.launch_s(label, host.compiled_costs.kernel.value, out)

    def _transfer(
        self, kind: OpKind, cause: Cause, stream: int, elements: float, path: partial[Path], out: PassWriter
    ) -> None:
        """Let every GPU send or receive so many ``elements``, when it has computed them."""
        size = max(1, round(elements * self._plan.model.dtype_bytes))
        first, hops = out.way((cause,), path)
        route = out.builder.route(cause=cause, hops=hops, cap=first.curve.rate(size))
        waits, out.waits = out.waits, []
        after = (*out.so_far(HOST), *out.on_gpu(), *(out.builder.after(*one) for one in waits))
        fixed, collective = picoseconds(first.latency), kind != "send"
        out.flush()
        out.add(
            kind,
            stream,
            fixed=fixed,
            size=size,
            route=route,
            label=cause_text(cause),
            after=after,
            collective=collective,
        )


class Collectives(_Exchange):
    """Results that the GPUs of a stage have in parts are combined over a ring, behind the modules of which
    they are."""

    streams = ("all-reduce",)
    in_order = streams

    def after(self, call: Call, out: PassWriter) -> None:
        """Sum the results of a module, or gather their parts."""
        module, tensor, divided = call.module, self._plan.degrees.tensor, self._plan.divided
        ring = (tensor - 1) / tensor
        if module.name in divided.reduced:
            width = module.width if module.kind == "embedding" else self._plan.model.hidden_size
            self._over_ring("all-reduce", "all-reduce", out.now.tokens * width * 2 * ring, out)
        elif module.name in divided.gathered:
            sequences = sum(one.number for one in out.now.batch)
            self._over_ring("gather", "all-gather", sequences * module.out_features * tensor * ring, out)

    def _over_ring(self, kind: OpKind, cause: CauseKind, elements: float, out: PassWriter) -> None:
        """Let every GPU receive ``elements`` from its predecessor in the ring of its stage."""
        self._launch(Cause(cause), out, within_graphs=True)
        path = partial(_ring, out, self._plan)
        self._transfer(kind, Cause(cause), self.stream("all-reduce"), elements, path, out)


def _ring(out: PassWriter, plan: InferencePlan, gpu: int) -> Path:
    tensor = plan.degrees.tensor
    return out.machine.gather(gpu, tensor, first=gpu - gpu % tensor, compiled=plan.compiled)


class Pipeline(_Exchange):
    """Each stage of a pipeline waits for the hidden states of the one before, and sends its own to the
    next."""

    streams = ("send",)

    def begin(self, stage: StagePass, out: PassWriter) -> None:
        """Let the first kernels wait for the hidden states."""
        if stage.stage:
            stream = self.stream("send") + out.first - out.width
            out.waits = [Awaited(stream, out.builder.written[stream] - 1, out.stage_before)]

    def end(self, stage: StagePass, out: PassWriter) -> None:
        """Send the hidden states to the next stage."""
        if stage.stage < self._plan.degrees.pipeline - 1:
            out.builder.segment("send")
            self._launch(Cause("stage-to-stage"), out, within_graphs=False)
            path = partial(_next_stage, out, self._plan.degrees.tensor)
            elements = stage.tokens * self._plan.divided.stages[stage.stage].hidden_size
            self._transfer("send", Cause("stage-to-stage"), self.stream("send"), elements, path, out)


def _next_stage(out: PassWriter, tensor: int, gpu: int) -> Path:
    return out.machine.send(gpu, gpu + tensor)
