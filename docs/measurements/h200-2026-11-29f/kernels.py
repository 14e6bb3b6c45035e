# ruff: noqa: B023, F821, N803
"""Time kernels of hybrid and sparse models, and gathers of rows: kernels.py PARTS FILE SECONDS [warm]

Parts, with commas: ``rows`` (a Triton kernel gathers rows from pinned host memory, beside plain copies),
``spans`` (rows not read before, of a span of host memory), ``delta`` and ``delta_prompts`` (gated delta
rule), ``mamba`` (Mamba-2), ``channels`` (Kimi's delta rule with a gate per channel), ``sparse`` (an indexer's
scores, its choice of rows, attention over the chosen ones). All but the first two are vLLM's own kernels.
``warm`` only compiles. Inputs of a microbenchmark: no row is held out. Times are of a call [us], replayed
from a CUDA graph over inputs in rotation where ``graph`` is true, median of repetitions.
"""

import json
import statistics
import sys
import time
import traceback
from pathlib import Path

import torch
import triton
import triton.language as tl

PARTS, FILE, SECONDS = sys.argv[1].split(","), Path(sys.argv[2]), float(sys.argv[3])
WARM = sys.argv[4:] == ["warm"]
CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
BEGUN = time.time()
UNTIL = BEGUN + SECONDS
RECORD = {"what": __doc__.partition("\n")[0], "results": [], "probes": []}
BF16 = torch.bfloat16


def save():
    if WARM:
        return
    RECORD["seconds"] = round(time.time() - BEGUN, 1)
    temporary = FILE.with_suffix(".tmp")
    temporary.write_text(json.dumps(RECORD, separators=(",", ":")))
    temporary.replace(FILE)


def timed(calls, repetitions=7, graph=True):
    """Time calls with different inputs; return [us] of one, whether in a graph, and the spread."""
    calls[0]()
    torch.cuda.synchronize()
    if WARM:
        return 0.0, False, 0.0
    for call in calls:
        call()
    torch.cuda.synchronize()
    run = None
    if graph:
        try:
            captured = torch.cuda.CUDAGraph()
            with torch.cuda.graph(captured):
                for call in calls:
                    call()
            run = captured.replay
        except Exception as error:
            RECORD.setdefault("without_graph", []).append(repr(error)[:200])
            torch.cuda.synchronize()
    captured_one = run is not None
    if run is None:

        def run():
            for call in calls:
                call()

    run()
    times = []
    for _ in range(repetitions):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(1e3 * begin.elapsed_time(end) / len(calls))
    times.sort()
    return round(statistics.median(times), 3), captured_one, round(times[-1] / times[0], 3)


def keep(kind, calls, graph=True, repetitions=7, **facts):
    """Time ``calls`` and keep the row; errors are kept, too."""
    if time.time() > UNTIL:
        RECORD.setdefault("left_out", []).append([kind, facts])
        return None
    try:
        took, captured, spread = timed(calls, repetitions, graph)
    except Exception as error:
        RECORD.setdefault("errors", []).append([kind, facts, repr(error)[:300]])
        traceback.print_exc()
        save()
        return None
    RECORD["results"].append({"kind": kind, **facts, "us": took, "graph": captured, "spread": spread})
    return took


def probe():
    if WARM:
        return
    size = 1 << 28
    pinned = torch.ones(size, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(size, dtype=torch.uint8, device=DEVICE)
    big = torch.ones(1 << 30, dtype=torch.uint8, device=DEVICE)
    other = torch.empty_like(big)
    a, b = (torch.randn(8192, 8192, device=DEVICE).to(BF16) for _ in range(2))
    out = torch.empty_like(a)

    def rate(work, amount):
        return round(amount / (timed([work] * 3, 5, graph=False)[0] * 1e-6), 0)

    begin = time.perf_counter()
    small = torch.ones(64, device=DEVICE)
    for _ in range(10000):
        small.mul_(1.0)
    launch = (time.perf_counter() - begin) / 1e4
    RECORD["probes"].append(
        {
            "at": round(time.time() - BEGUN, 1),
            "to_gpu_Bps": rate(lambda: target.copy_(pinned, non_blocking=True), size),
            "from_gpu_Bps": rate(lambda: pinned.copy_(target, non_blocking=True), size),
            "copy_read_and_written_Bps": rate(lambda: other.copy_(big), 2 << 30),
            "product_FLOPps": rate(lambda: torch.matmul(a, b, out=out), 2 * 8192**3),
            "launch_us": round(1e6 * launch, 3),
        }
    )
    print(RECORD["probes"][-1], flush=True)
    save()


@triton.jit
def gather_rows(source, index, target, number, W: tl.constexpr, B: tl.constexpr, R: tl.constexpr):
    rows = tl.program_id(0) * R + tl.arange(0, R)
    inside = rows < number
    which = tl.load(index + rows, mask=inside, other=0).to(tl.int64)
    columns = tl.arange(0, B)
    mask = inside[:, None] & (columns < W)[None, :]
    found = tl.load(source + which[:, None] * W + columns[None, :], mask=mask)
    tl.store(target + rows.to(tl.int64)[:, None] * W + columns[None, :], found, mask=mask)


@triton.jit
def scatter_rows(source, index, target, number, W: tl.constexpr, B: tl.constexpr, R: tl.constexpr):
    rows = tl.program_id(0) * R + tl.arange(0, R)
    inside = rows < number
    which = tl.load(index + rows, mask=inside, other=0).to(tl.int64)
    columns = tl.arange(0, B)
    mask = inside[:, None] & (columns < W)[None, :]
    found = tl.load(source + rows.to(tl.int64)[:, None] * W + columns[None, :], mask=mask)
    tl.store(target + which[:, None] * W + columns[None, :], found, mask=mask)


@triton.jit
def gather_rows_few(source, index, target, number, W: tl.constexpr, B: tl.constexpr, R: tl.constexpr):
    """The same with a fixed number of programs, each of which loops over rows."""
    for first in range(tl.program_id(0) * R, number, tl.num_programs(0) * R):
        rows = first + tl.arange(0, R)
        inside = rows < number
        which = tl.load(index + rows, mask=inside, other=0).to(tl.int64)
        columns = tl.arange(0, B)
        mask = inside[:, None] & (columns < W)[None, :]
        found = tl.load(source + which[:, None] * W + columns[None, :], mask=mask)
        tl.store(target + rows.to(tl.int64)[:, None] * W + columns[None, :], found, mask=mask)


def indices(number, total, run, sets):
    """Return sets of row numbers: runs of ``run`` rows, whose first ones are drawn at random."""
    made = []
    for _ in range(sets):
        count = max(1, number // run)
        first = torch.randint(0, total // run, (count,), device=DEVICE) * run
        made.append((first[:, None] + torch.arange(run, device=DEVICE)).reshape(-1)[:number].contiguous())
    return made


def rows():
    gib = 1 if WARM else 8
    begin = time.time()
    pinned = torch.empty(gib << 27, dtype=torch.int64, pin_memory=True)
    pinned.fill_(1)
    RECORD["pinned"] = {"bytes": gib << 30, "seconds": round(time.time() - begin, 2)}
    most = 262144
    target = torch.empty(most * 512, dtype=torch.int64, device=DEVICE)
    local = torch.ones(1 << 29, dtype=torch.int64, device=DEVICE)
    wide = {128: 16, 576: 128, 656: 128, 1152: 256, 4096: 512}
    for size in (1152, 656, 576, 4096, 128):
        width, block = size // 8, wide[size]
        total = (gib << 30) // size
        for number in (64, 256, 1024, 2048, 8192, 32768, most):
            sets = indices(number, total, 1, 6 if number < 30000 else 3)
            shapes = ((1, 1), (4, 4))
            for held, warps in shapes:
                grid = (triton.cdiv(number, held),)
                facts = {"bytes": size, "rows": number, "run": 1, "held": held, "warps": warps}
                keep(
                    "gather from host",
                    [
                        lambda one=one, grid=grid, held=held, warps=warps: gather_rows[grid](
                            pinned, one, target, number, W=width, B=block, R=held, num_warps=warps
                        )
                        for one in sets
                    ],
                    **facts,
                )
                if WARM:
                    break
            if number in (2048, 32768, most):
                for run in (16, 64):
                    others = indices(number, total, run, 3)
                    keep(
                        "gather from host",
                        [
                            lambda one=one: gather_rows[(triton.cdiv(number, 4),)](
                                pinned, one, target, number, W=width, B=block, R=4, num_warps=4
                            )
                            for one in others
                        ],
                        bytes=size,
                        rows=number,
                        run=run,
                        held=4,
                        warps=4,
                    )
                keep(
                    "scatter to host",
                    [
                        lambda one=one: scatter_rows[(triton.cdiv(number, 4),)](
                            target, one, pinned, number, W=width, B=block, R=4, num_warps=4
                        )
                        for one in sets
                    ],
                    bytes=size,
                    rows=number,
                    run=1,
                    held=4,
                    warps=4,
                )
                inside = indices(number, (4 << 30) // size, 1, 3)
                keep(
                    "gather from GPU memory",
                    [
                        lambda one=one: gather_rows[(triton.cdiv(number, 4),)](
                            local, one, target, number, W=width, B=block, R=4, num_warps=4
                        )
                        for one in inside
                    ],
                    bytes=size,
                    rows=number,
                    run=1,
                    held=4,
                    warps=4,
                )
            words = width * number
            starts = [k * words % (len(pinned) - words) for k in range(3)]
            keep(
                "copy to GPU",
                [
                    lambda at=at: target[:words].copy_(pinned[at : at + words], non_blocking=True)
                    for at in starts
                ],
                graph=False,
                bytes=size,
                rows=number,
            )
            keep(
                "copy from GPU",
                [
                    lambda at=at: pinned[at : at + words].copy_(target[:words], non_blocking=True)
                    for at in starts
                ],
                graph=False,
                bytes=size,
                rows=number,
            )
            save()
        if size in (576, 1152):
            sets = indices(32768, total, 1, 3)
            for programs in (1, 2, 4, 8, 16, 32, 64, 132, 264):
                keep(
                    "gather from host, few programs",
                    [
                        lambda one=one, programs=programs: gather_rows_few[(programs,)](
                            pinned, one, target, 32768, W=width, B=block, R=32, num_warps=8
                        )
                        for one in sets
                    ],
                    bytes=size,
                    rows=32768,
                    run=1,
                    held=32,
                    warps=8,
                    programs=programs,
                )
            save()
        print("rows of", size, round(time.time() - BEGUN, 1), flush=True)
    if not WARM:
        both(pinned, target)


def both(pinned, target):
    """A gather from host memory beside a copy in GPU memory: what each loses."""
    big = torch.ones(1 << 29, dtype=torch.uint8, device=DEVICE)
    other = torch.empty_like(big)
    one = indices(32768, (8 << 30) // 1152, 1, 1)[0]
    side = torch.cuda.Stream()

    def work(gather, copy):
        torch.cuda.synchronize()
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(4)]
        marks[0].record()
        if gather:
            for _ in range(3):
                gather_rows[(8192,)](pinned, one, target, 32768, W=144, B=256, R=4, num_warps=4)
        marks[1].record()
        with torch.cuda.stream(side):
            marks[2].record(side)
            if copy:
                for _ in range(8):
                    other.copy_(big)
            marks[3].record(side)
        torch.cuda.synchronize()
        return round(1e3 * marks[0].elapsed_time(marks[1]), 1), round(
            1e3 * marks[2].elapsed_time(marks[3]), 1
        )

    for case in ((True, False), (False, True), (True, True)):
        found = sorted(work(*case) for _ in range(5))[2]
        RECORD["results"].append({"kind": "gather beside a copy in GPU memory", "which": case, "us": found})
    save()


def spans():
    """Gathers whose rows were not read before, of a span of host memory; with pages of 4 KiB and of 2 MiB."""
    import mmap

    size = (1 << 30) if WARM else (8 << 30)
    target = torch.empty(1 << 24, dtype=torch.int64, device=DEVICE)
    for pages in ("4 KiB", "2 MiB"):
        if pages == "4 KiB":
            pinned = torch.empty(size // 8, dtype=torch.int64, pin_memory=True)
            pinned.fill_(1)
        else:
            area = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            area.madvise(mmap.MADV_HUGEPAGE)
            pinned = torch.frombuffer(area, dtype=torch.int64)
            pinned.fill_(1)
            begin = time.time()
            failed = torch.cuda.cudart().cudaHostRegister(pinned.data_ptr(), size, 0)
            huge = [
                one.split()[1]
                for one in Path("/proc/self/smaps_rollup").read_text().splitlines()
                if "AnonHuge" in one
            ]
            RECORD["huge_pages"] = {
                "kB": huge,
                "failed": str(failed),
                "seconds": round(time.time() - begin, 2),
            }
        for row, block in ((576, 128), (1152, 256), (656, 128)):
            for span in (1 << 26, 1 << 29, 1 << 31, 1 << 33):
                for number in (256, 2048, 8192) if span == 1 << 33 or row == 1152 else (2048,):
                    if span > size:
                        continue
                    sets = indices(number, span // row, 1, 64 if number < 3000 else 16)
                    keep(
                        "gather of new rows from host",
                        [
                            lambda one=one: gather_rows[(triton.cdiv(number, 4),)](
                                pinned, one, target, number, W=row // 8, B=block, R=4, num_warps=4
                            )
                            for one in sets
                        ],
                        bytes=row,
                        rows=number,
                        span=span,
                        pages=pages,
                        sets=len(sets),
                    )
            save()


def random(*shape, dtype=BF16, scale=1.0):
    return (torch.randn(*shape, device=DEVICE) * scale).to(dtype)


def slots(number, batch, sets):
    return [torch.randperm(number - 1, device=DEVICE)[:batch].to(torch.int32) + 1 for _ in range(sets)]


def delta():
    from vllm.model_executor.layers.fla.ops.fused_recurrent import (
        fused_recurrent_gated_delta_rule_packed_decode as packed,
    )
    from vllm.model_executor.layers.fla.ops.fused_sigmoid_gating import (
        fused_sigmoid_gating_delta_rule_update as several,
    )
    from vllm.model_executor.layers.mamba.ops.causal_conv1d import causal_conv1d_fn, causal_conv1d_update

    keys, width = 16, 128
    for values, kind in ((32, torch.float32), (64, torch.float32), (32, BF16)):
        facts = {"key_heads": keys, "value_heads": values, "head": width, "state": str(kind)[6:]}
        most = 512 if values == 32 else 320
        state = torch.randn(most, values, width, width, device=DEVICE).to(kind) * 0.01
        channels = (2 * keys + values) * width
        log, bias = random(values, dtype=torch.float32), random(values, dtype=torch.float32)
        for batch in (1, 2, 4, 8, 16, 32, 64, 128, 256) if not WARM else (4,):
            which = slots(most, batch, 8)
            mixed, a, b = random(batch, channels), random(batch, values), random(batch, values)
            out = torch.empty(batch, 1, values, width, device=DEVICE, dtype=BF16)
            keep(
                "delta decode",
                [
                    lambda one=one: packed(
                        mixed, a, b, log, bias, width**-0.5, state, out, one, use_qk_l2norm_in_kernel=True
                    )
                    for one in which
                ],
                batch=batch,
                **facts,
            )
        if kind == torch.float32 and values == 32:
            for tokens in (2, 4) if not WARM else (2,):
                for batch in (1, 8, 32, 64) if not WARM else (4,):
                    which = [one.reshape(batch, tokens) for one in slots(most, batch * tokens, 4)]
                    starts = torch.arange(batch + 1, device=DEVICE, dtype=torch.int32) * tokens
                    q, k = (random(1, batch * tokens, keys, width) for _ in range(2))
                    v = random(1, batch * tokens, values, width)
                    a, b = random(batch * tokens, values), random(batch * tokens, values)
                    accepted = torch.ones(batch, dtype=torch.int32, device=DEVICE)
                    keep(
                        "delta verify",
                        [
                            lambda one=one: several(
                                A_log=log,
                                a=a,
                                b=b,
                                dt_bias=bias,
                                q=q,
                                k=k,
                                v=v,
                                initial_state=state,
                                inplace_final_state=True,
                                cu_seqlens=starts,
                                ssm_state_indices=one,
                                num_accepted_tokens=accepted,
                                use_qk_l2norm_in_kernel=True,
                            )
                            for one in which
                        ],
                        batch=batch,
                        tokens=tokens,
                        **facts,
                    )
        del state
        save()
        print("delta", facts, round(time.time() - BEGUN, 1), flush=True)
    convolution(8192, causal_conv1d_fn, causal_conv1d_update)
    save()


def delta_prompts():
    from vllm.model_executor.layers.fla.ops import chunk_gated_delta_rule
    from vllm.model_executor.layers.fla.ops.fused_gdn_prefill_post_conv import fused_post_conv_prep
    from vllm.model_executor.layers.fla.ops.index import prepare_chunk_indices, prepare_chunk_offsets

    keys, width = 16, 128
    for values in (32, 64):
        facts = {"key_heads": keys, "value_heads": values, "head": width, "state": "float32"}
        channels = (2 * keys + values) * width
        log, bias = random(values, dtype=torch.float32), random(values, dtype=torch.float32)
        prompts = [(512, 1), (2048, 1), (4096, 1), (8192, 1), (16384, 1), (2048, 4), (512, 16)]
        for tokens, batch in prompts if not WARM else [(512, 1)]:
            all_tokens = tokens * batch
            starts = torch.arange(batch + 1, dtype=torch.int32) * tokens
            chunks = prepare_chunk_indices(starts, 64).to(DEVICE)
            offsets = prepare_chunk_offsets(starts, 64).to(DEVICE)
            starts = starts.to(DEVICE)
            q, k = (
                torch.nn.functional.normalize(random(1, all_tokens, keys, width), dim=-1) for _ in range(2)
            )
            v = random(1, all_tokens, values, width)
            g = -torch.rand(1, all_tokens, values, device=DEVICE)
            beta = torch.rand(1, all_tokens, values, device=DEVICE)
            begin = torch.randn(batch, values, width, width, device=DEVICE) * 0.01

            def chunked(
                q=q, k=k, v=v, g=g, beta=beta, begin=begin, starts=starts, chunks=chunks, offsets=offsets
            ):
                return chunk_gated_delta_rule(
                    q=q,
                    k=k,
                    v=v,
                    g=g,
                    beta=beta,
                    initial_state=begin,
                    output_final_state=True,
                    cu_seqlens=starts,
                    chunk_indices=chunks,
                    chunk_offsets=offsets,
                    use_qk_l2norm_in_kernel=False,
                )

            with torch.inference_mode():
                keep("delta prompt", [chunked] * 2, tokens=tokens, batch=batch, **facts)
            mixed, a, b = random(all_tokens, channels), random(all_tokens, values), random(all_tokens, values)
            keep(
                "delta prompt, preparation",
                [
                    lambda mixed=mixed, a=a, b=b: fused_post_conv_prep(
                        conv_output=mixed,
                        a=a,
                        b=b,
                        A_log=log,
                        dt_bias=bias,
                        num_k_heads=keys,
                        head_k_dim=width,
                        head_v_dim=width,
                        apply_l2norm=True,
                        output_g_exp=False,
                    )
                ]
                * 2,
                tokens=tokens,
                batch=batch,
                **facts,
            )
            save()


def convolution(channels, prompt, update, taps=4):
    weight, bias = random(channels, taps), None
    states = random(300, taps - 1, channels).transpose(-1, -2)
    for batch in (1, 8, 64, 256) if not WARM else (4,):
        which = slots(300, batch, 8)
        mixed = random(batch, channels)
        keep(
            "convolution decode",
            [
                lambda one=one: update(mixed, states, weight, bias, "silu", conv_state_indices=one)
                for one in which
            ],
            batch=batch,
            channels=channels,
        )
    for tokens in (512, 2048, 8192) if not WARM else (512,):
        mixed = random(tokens, channels).transpose(0, 1)
        starts = torch.tensor([0, tokens], dtype=torch.int32, device=DEVICE)
        where = torch.tensor([1], dtype=torch.int32, device=DEVICE)
        having = torch.tensor([False], device=DEVICE)
        keep(
            "convolution prompt",
            [lambda: prompt(mixed, weight, bias, states, starts, where, having, "silu")] * 3,
            graph=False,
            tokens=tokens,
            channels=channels,
        )


def mamba():
    from vllm.model_executor.layers.mamba.ops.mamba_ssm import selective_state_update
    from vllm.model_executor.layers.mamba.ops.ssd_combined import mamba_chunk_scan_combined_varlen
    from vllm.v1.attention.backends.mamba2_attn import compute_varlen_chunk_metadata

    # Nemotron-3-Nano: 64 heads; Super: 128
    for heads, groups in ((64, 8), (128, 8)):
        head, width, chunk = 64, 128, 128
        facts = {"heads": heads, "head": head, "width": width, "groups": groups, "chunk": chunk}
        a = -torch.rand(heads, device=DEVICE)
        d, bias = random(heads), random(heads)
        for kind in (torch.float32, BF16):
            most = 512 if heads == 64 else 300
            state = torch.randn(most, heads, head, width, device=DEVICE).to(kind)
            for batch in (1, 2, 4, 8, 16, 32, 64, 128, 256) if not WARM else (4,):
                which = slots(most, batch, 8)
                x, out = (
                    random(batch, heads, head),
                    torch.empty(batch, heads, head, device=DEVICE, dtype=BF16),
                )
                dt = random(batch, heads)[:, :, None].expand(-1, -1, head)
                b, c = random(batch, groups, width), random(batch, groups, width)
                wide = a[:, None, None].expand(-1, head, width)
                keep(
                    "mamba decode",
                    [
                        lambda one=one: selective_state_update(
                            state,
                            x,
                            dt,
                            wide,
                            b,
                            c,
                            d[:, None].expand(-1, head),
                            bias[:, None].expand(-1, head),
                            dt_softplus=True,
                            state_batch_indices=one,
                            dst_state_batch_indices=one,
                            out=out,
                        )
                        for one in which
                    ],
                    batch=batch,
                    state=str(kind)[6:],
                    **facts,
                )
            del state
        prompts = [(512, 1), (2048, 1), (4096, 1), (8192, 1), (16384, 1), (2048, 4), (512, 16)]
        for tokens, batch in prompts if not WARM else [(512, 1)]:
            total = tokens * batch
            starts = torch.arange(batch + 1, device=DEVICE, dtype=torch.int32) * tokens
            pieces, last, sequence = compute_varlen_chunk_metadata(starts, chunk)
            x, dt = random(total, heads, head), random(total, heads)
            b, c = random(total, groups, width), random(total, groups, width)
            out = torch.empty_like(x)

            def scan(
                x=x, dt=dt, b=b, c=c, out=out, starts=starts, pieces=pieces, last=last, sequence=sequence
            ):
                mamba_chunk_scan_combined_varlen(
                    x,
                    dt,
                    a,
                    b,
                    c,
                    chunk_size=chunk,
                    D=d,
                    dt_bias=bias,
                    seq_idx=sequence,
                    cu_seqlens=starts,
                    cu_chunk_seqlens=pieces,
                    last_chunk_indices=last,
                    dt_softplus=True,
                    out=out,
                    state_dtype=torch.float32,
                )

            keep("mamba prompt", [scan] * 2, tokens=tokens, batch=batch, **facts)
            save()
        print("mamba", facts, round(time.time() - BEGUN, 1), flush=True)


def channels():
    from vllm.model_executor.layers.fla.ops.kda import chunk_kda, fused_recurrent_kda

    heads, width = 32, 128
    facts = {"heads": heads, "head": width, "state": "float32"}
    state = torch.randn(512, heads, width, width, device=DEVICE) * 0.01
    for batch in (1, 4, 16, 64, 256) if not WARM else (4,):
        which = slots(512, batch, 8)
        starts = torch.arange(batch + 1, device=DEVICE, dtype=torch.int32)
        q, k, v = (random(1, batch, heads, width) for _ in range(3))
        g = -torch.rand(1, batch, heads, width, device=DEVICE)
        beta = torch.rand(1, batch, heads, device=DEVICE)
        keep(
            "channels decode",
            [
                lambda one=one: fused_recurrent_kda(
                    q=q,
                    k=k,
                    v=v,
                    g=g,
                    beta=beta,
                    initial_state=state,
                    use_qk_l2norm_in_kernel=True,
                    cu_seqlens=starts,
                    ssm_state_indices=one,
                )
                for one in which
            ],
            batch=batch,
            **facts,
        )
    save()
    for tokens in (512, 2048, 8192, 16384) if not WARM else (512,):
        q, k, v = (random(1, tokens, heads, width) for _ in range(3))
        g = -torch.rand(1, tokens, heads, width, device=DEVICE)
        beta = torch.rand(1, tokens, heads, device=DEVICE)
        begin = torch.zeros(1, heads, width, width, device=DEVICE)
        with torch.inference_mode():
            keep(
                "channels prompt",
                [
                    lambda: chunk_kda(
                        q=q,
                        k=k,
                        v=v,
                        g=g,
                        beta=beta,
                        initial_state=begin,
                        output_final_state=True,
                        use_qk_l2norm_in_kernel=True,
                    )
                ]
                * 2,
                tokens=tokens,
                batch=1,
                **facts,
            )
        save()


def sparse():
    import vllm._custom_ops as ops  # noqa: F401
    from vllm.utils import deep_gemm

    heads, width, chosen = 64, 128, 2048
    multiprocessors = 132
    fp8 = torch.float8_e4m3fn
    for context in (8192, 32768, 131072) if not WARM else (8192,):
        for batch in (1, 4, 16, 32, 64) if not WARM else (4,):
            blocks = context // 64
            cache = torch.randint(0, 60, (batch * blocks + 1, 64, 1, 132), dtype=torch.uint8, device=DEVICE)
            table = torch.randperm(batch * blocks, device=DEVICE).to(torch.int32).reshape(batch, blocks)
            lengths = torch.full((batch, 1), context, dtype=torch.int32, device=DEVICE)
            facts = {"batch": batch, "context": context, "heads": heads, "width": width}
            q = random(batch, 1, heads, width).to(fp8)
            weights = random(batch, heads, dtype=torch.float32)
            logits = None
            try:
                plan = deep_gemm.get_paged_mqa_logits_metadata(lengths, 64, multiprocessors)

                def scores():
                    return deep_gemm.fp8_fp4_paged_mqa_logits(
                        (q, None), cache, weights, lengths, table, plan, context, False
                    )

                logits = scores()
                keep("scores decode", [scores] * 3, **facts)
            except Exception as error:
                RECORD.setdefault("errors", []).append(["scores decode", facts, repr(error)[:300]])
            if logits is None or logits.shape[-1] < context:
                logits = random(batch, context, dtype=torch.float32)
            found = torch.empty(batch, chosen, dtype=torch.int32, device=DEVICE)
            space = torch.zeros(1 << 20, dtype=torch.uint8, device=DEVICE)
            if batch <= 32:
                keep(
                    "choice decode, cooperative",
                    [lambda: torch.ops._C.cooperative_topk(logits, lengths, found, space, chosen, context)]
                    * 3,
                    chosen=chosen,
                    **facts,
                )
            keep(
                "choice decode, persistent",
                [lambda: torch.ops._C.persistent_topk(logits, lengths, found, space, chosen, logits.shape[1])]
                * 3,
                chosen=chosen,
                **facts,
            )
            save()
            del cache
    print("scores", round(time.time() - BEGUN, 1), flush=True)
    for context in (8192, 32768, 131072) if not WARM else (8192,):
        for tokens in (512, 2048) if not WARM else (512,):
            facts = {"tokens": tokens, "context": context, "heads": heads, "width": width}
            q = random(tokens, heads, width).to(fp8)
            keys, scale = random(context, width).to(fp8), torch.rand(context, device=DEVICE)
            weights = random(tokens, heads, dtype=torch.float32)
            first = torch.zeros(tokens, dtype=torch.int32, device=DEVICE)
            last = torch.arange(context - tokens, context, dtype=torch.int32, device=DEVICE) + 1
            try:

                def scores():
                    return deep_gemm.fp8_fp4_mqa_logits((q, None), (keys, scale), weights, first, last, False)

                logits = scores()
                keep("scores prompt", [scores] * 2, **facts)
                found = torch.empty(tokens, chosen, dtype=torch.int32, device=DEVICE)
                keep(
                    "choice prompt",
                    [
                        lambda: torch.ops._C.top_k_per_row_prefill(
                            logits, first, last, found, tokens, logits.stride(0), logits.stride(1), chosen
                        )
                    ]
                    * 2,
                    chosen=chosen,
                    **facts,
                )
            except Exception as error:
                RECORD.setdefault("errors", []).append(["scores prompt", facts, repr(error)[:300]])
            save()
    attention_of_chosen(chosen)


def attention_of_chosen(chosen):
    from vllm.v1.attention.ops.flashmla import flash_mla_sparse_fwd, flash_mla_with_kvcache, get_mla_metadata

    for heads in (128, 64) if not WARM else (128,):
        for context in (8192, 131072) if not WARM else (8192,):
            for batch in (1, 8, 32, 64) if not WARM else (4,):
                rows_all = batch * context
                cache = torch.randint(0, 60, (rows_all // 64, 64, 1, 656), dtype=torch.uint8, device=DEVICE)
                q = random(batch, 1, heads, 576)
                base = torch.arange(batch, device=DEVICE)[:, None, None] * context
                sets = [
                    (base + torch.randint(0, context, (batch, 1, chosen), device=DEVICE)).to(torch.int32)
                    for _ in range(4)
                ]
                table = torch.zeros(batch, 1, dtype=torch.int32, device=DEVICE)
                lengths = torch.full((batch,), context, dtype=torch.int32, device=DEVICE)
                try:
                    plan, _ = get_mla_metadata()
                    keep(
                        "attention of chosen rows, decode",
                        [
                            lambda one=one: flash_mla_with_kvcache(
                                q=q,
                                k_cache=cache,
                                block_table=table,
                                head_dim_v=512,
                                cache_seqlens=lengths,
                                tile_scheduler_metadata=plan,
                                is_fp8_kvcache=True,
                                indices=one,
                                softmax_scale=0.1,
                            )
                            for one in sets
                        ],
                        heads=heads,
                        context=context,
                        batch=batch,
                        chosen=chosen,
                        row_bytes=656,
                    )
                except Exception as error:
                    RECORD.setdefault("errors", []).append(["attention decode", heads, repr(error)[:300]])
                del cache
                save()
        for context, tokens in ((8192, 512), (8192, 2048), (131072, 2048)) if not WARM else ((8192, 512),):
            keys = random(context, 1, 576)
            q = random(tokens, heads, 576)
            which = torch.randint(0, context, (tokens, 1, chosen), device=DEVICE, dtype=torch.int32)
            keep(
                "attention of chosen rows, prompt",
                [lambda: flash_mla_sparse_fwd(q, keys, which, 0.1)] * 2,
                heads=heads,
                context=context,
                tokens=tokens,
                chosen=chosen,
                row_bytes=1152,
            )
            save()


def main():
    RECORD["device"] = torch.cuda.get_device_name() if CUDA else "cpu"
    RECORD["versions"] = {"torch": torch.__version__, "triton": triton.__version__}
    try:
        import vllm

        RECORD["versions"]["vllm"] = vllm.__version__
    except Exception as error:
        RECORD["versions"]["vllm"] = repr(error)[:100]
    for part in PARTS:
        probe()
        try:
            globals()[part]()
        except Exception:
            traceback.print_exc()
            RECORD.setdefault("errors", []).append([part, traceback.format_exc()[-900:]])
        save()
        torch.cuda.empty_cache()
    probe()
    print("DONE", PARTS, round(time.time() - BEGUN, 1), len(RECORD["results"]), flush=True)


if __name__ == "__main__":
    main()
