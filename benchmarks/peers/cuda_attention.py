#!/usr/bin/env python3
"""flash_attention on a CUDA device against cuDNN, FlashAttention-2 and Mosaic GPU, in one process.

  ./dev peers cuda_attention                             every cell of the forward, in bursts
  ./dev peers cuda_attention --pass backward             of the backward
  ./dev peers cuda_attention --pass backward --deterministic   everyone's in deterministic mode, and ours also without it
  ./dev peers cuda_attention --sustained                 and 0.3 s back to back, with clock and power
  ./dev peers cuda_attention --head-dim 128 --mask causal --seq 1024 4096
  ./dev peers cuda_attention --configs consumers=2,3 block_k=64,128     every config of the product; the best one counts
  ./dev peers cuda_attention --dry-run                   the cells only; no device needed

The grid has 16,384 tokens and a hidden size of 2,048, in bf16 as [batch, seq, heads, dim]; GQA cells have one sequence, 64
query heads and 8 key heads of 128. cuDNN and FlashAttention-2 are called through torch's scaled_dot_product_attention on views
of the same tensors, Mosaic GPU is JAX's attention kernel on torch's tensors (in f16, for which it is written, with queries
scaled beforehand). FLOP = 4 B H S^2 D, half of it when causal, 2.5 times as much backward; a peer's backward is autograd.grad
of a graph that stands already. Each result, ours into an output full of NaN, is compared with
float64 before anything is timed; the exit code is 1 when one of ours is wrong or changes while it is timed. Data are found
cold in L2: copies are used in turn until they pass 256 MB.
"""

import argparse
import concurrent.futures
import functools
import importlib
import itertools
import math
import os
import pathlib
import random
import shlex
import subprocess
import sys
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend

import measure
import measure_cuda
from cuda_attention_cells import GQA_SEQS, SEQS, Cell, grid
from ejkernel_c import Library, Plan

MAX_ERROR = {"forward": 0.003, "backward": 0.01}  # relative L2 of bf16 results
REFERENCE_BYTES = 2**31  # of scores in float64 at once
PEERS = ["cudnn", "flash", "mosaic"]
OURS = "ejkernel"
ANY_ORDER = "any order"  # ours without `deterministic`, beside ours with it


def arguments(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--library", help="libejkernel.so")
    add("--pass", nargs="+", dest="direction", choices=list(MAX_ERROR), default=["forward"])
    add("--rows", nargs="+", choices=["mha", "gqa"], default=["mha", "gqa"])
    add("--head-dim", nargs="+", type=int, choices=[64, 128, 256], default=[64, 128, 256])
    add("--seq", nargs="+", type=int, choices=sorted({*SEQS, *GQA_SEQS}), default=sorted({*SEQS, *GQA_SEQS}))
    add("--mask", nargs="+", choices=["full", "causal"], default=["full", "causal"])
    add("--peers", nargs="*", choices=PEERS, default=PEERS)
    add("--kernel", help="one of ours by name; otherwise the first that supports the call")
    add("--configs", nargs="+", metavar="FIELD=N,N…", help="configs of ours: all products of these; without it the plan's own")
    add("--deterministic", action="store_true", help="backward: equal bits in every run, as torch.use_deterministic_algorithms")
    add("--repeats", type=int, default=7, help="bursts of each (default: %(default)s)")
    add("--sustained", action="store_true", help="also 0.3 s back to back, with SM clock and power")
    add("--seed", type=int, default=1, help="of data and order")
    add("--commit", help="what is measured; by default what git says here")
    add("--json", metavar="FILE", help="write a record")
    add("--dry-run", action="store_true", help="print the cells and stop")
    args = parser.parse_args(argv)
    if not args.library and not args.dry_run:
        parser.error("--library is needed")
    if args.repeats < 1:
        parser.error("--repeats takes a positive number")
    if args.deterministic and args.direction != ["backward"]:
        parser.error("--deterministic goes with --pass backward")
    return args


def configs_of(words):
    """["a=1,2", "b=3"] -> [{"a": 1, "b": 3}, {"a": 2, "b": 3}]. [None] asks for the plan's own config."""
    if words is None:
        return [None]
    choices = {}
    for word in words:
        field, _, values = word.partition("=")
        try:
            choices[field] = [int(value) for value in values.split(",")]
        except ValueError:
            sys.exit(f"cuda_attention.py: --configs takes FIELD=N,N…, not '{word}'")
    return [dict(zip(choices, values)) for values in itertools.product(*choices.values())]


def config_text(config):
    return " ".join(f"{name}={value}" for name, value in config.items())


# ---- data ----


class Data:
    """Normal numbers that the cells' tensors are views of. Copy i of a cell is a part of its own."""

    def __init__(self, cells, seed):
        generator = torch.Generator("cuda").manual_seed(seed)

        def draw(shape_of):
            size = max(measure_cuda.copies_for(cell.bytes()) * math.prod(shape_of(cell)) for cell in cells)
            return torch.randn(size, generator=generator, device="cuda", dtype=torch.bfloat16)

        self.query, self.key, self.value = draw(Cell.q_shape), draw(Cell.kv_shape), draw(Cell.kv_shape)
        self.d_out = draw(Cell.q_shape) if any(cell.is_backward for cell in cells) else self.query

    def copies(self, cell):
        """[(query, key, value, d_out)]"""

        def view(flat, shape, i):
            size = math.prod(shape)
            return flat[i * size : (i + 1) * size].view(shape)

        of_queries, of_keys = cell.q_shape(), cell.kv_shape()
        return [
            (view(self.query, of_queries, i), view(self.key, of_keys, i), view(self.value, of_keys, i),
             view(self.d_out, of_queries, i))
            for i in range(measure_cuda.copies_for(cell.bytes()))
        ]


def reference(cell, query, key, value, d_out):
    """The plain formula in float64, some rows of one head at a time: [out], or the gradients of query, key and value."""
    results = [torch.zeros_like(t, dtype=torch.float64) for t in ((query, key, value) if cell.is_backward else (query,))]
    group, scale = cell.q_heads // cell.kv_heads, cell.dim**-0.5
    rows = max(1, min(cell.seq, REFERENCE_BYTES // (8 * cell.seq)))
    for b, h in itertools.product(range(cell.batch), range(cell.q_heads)):
        for begin in range(0, cell.seq, rows):
            end = min(cell.seq, begin + rows)
            visible = end if cell.causal else cell.seq
            some = (b, slice(begin, end), h)
            seen = (b, slice(0, visible), h // group)
            queries, keys, values = query[some].double(), key[seen].double(), value[seen].double()
            scores = queries @ keys.T * scale
            if cell.causal:
                future = torch.arange(visible, device=scores.device) > torch.arange(begin, end, device=scores.device)[:, None]
                scores.masked_fill_(future, -math.inf)
            weights = scores.softmax(dim=1)
            if not cell.is_backward:
                results[0][some] = weights @ values
                continue
            cotangents = d_out[some].double()
            d_weights = cotangents @ values.T
            d_scores = weights * (d_weights - (d_weights * weights).sum(dim=1, keepdim=True)) * scale
            results[0][some] = d_scores @ keys
            results[1][seen] += d_scores.T @ queries
            results[2][seen] += weights.T @ cotangents
    return results


def error_of(results, expected):
    """The largest relative difference (L2)."""
    return max(((r.double() - e).norm() / e.norm()).item() for r, e in zip(results, expected, strict=True))


# ---- contenders: a turn is one call on each copy; peers return (turn, results of the first copy) ----


def our_plan(library, args, cell, copy, config, results, deterministic):
    query, key, value, d_out = copy
    inputs, params = {"query": query, "key": key, "value": value}, {"causal": cell.causal}
    operation, outputs = "flash_attention", {"out": results[0]}
    if cell.is_backward:
        out, lse = torch.empty_like(query), torch.empty(cell.batch, cell.q_heads, cell.seq, device="cuda")
        Plan(library, operation, inputs, {"out": out, "lse": lse}, params).run()
        operation, outputs = "flash_attention_backward", dict(zip(inputs, results))
        inputs = dict(inputs, out=out, lse=lse, d_out=d_out)
        params["deterministic"] = deterministic
    return Plan(library, operation, inputs, outputs, params, config=config, kernel=args.kernel)


def empty_results(cell, copy):
    return [torch.empty_like(t) for t in (copy[:3] if cell.is_backward else copy[:1])]


def ours(library, args, cell, copies, config, results, deterministic):
    """(turn, plan); a turn fills the results, a list for each copy."""
    plans = [our_plan(library, args, cell, copy, config, result, deterministic) for copy, result in zip(copies, results)]

    def turn():
        for plan in plans:
            plan.run()

    return turn, plans[0]


def attend(cell, query, key, value):
    return F.scaled_dot_product_attention(
        query, key, value, is_causal=cell.causal, enable_gqa=cell.q_heads != cell.kv_heads
    )


def torch_peer(backend, cell, copies):
    """[batch, heads, seq, dim] views of the same tensors, as cuDNN and FlashAttention-2 take them without a copy."""
    views = [[t.transpose(1, 2) for t in copy] for copy in copies]
    results = [None] * len(views)

    def forward():
        with torch.inference_mode(), torch.nn.attention.sdpa_kernel(backend):
            for i, view in enumerate(views):
                results[i] = [attend(cell, *view[:3])]

    turn = forward
    if cell.is_backward:
        leaves = [[t.detach().requires_grad_() for t in view[:3]] for view in views]
        with torch.nn.attention.sdpa_kernel(backend):
            outs = [attend(cell, *leaf) for leaf in leaves]

        def turn():
            for i, (out, leaf, view) in enumerate(zip(outs, leaves, views)):
                results[i] = torch.autograd.grad(out, leaf, view[3], retain_graph=True)

    turn()
    return turn, [t.transpose(1, 2) for t in results[0]]


@functools.cache
def mosaic():
    """JAX's Mosaic GPU attention and its bridge to torch."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    attention = importlib.import_module("jax.experimental.pallas.ops.gpu.attention_mgpu")
    pallas = importlib.import_module("jax.experimental.pallas.mosaic_gpu")
    return attention, pallas.as_torch_kernel


# (block_q of each of two groups, block_kv, steps in flight) that fit; the fastest is taken for each head size and mask.
MOSAIC_CONFIGS = {
    64: [(64, 128, 4), (64, 128, 2), (128, 128, 2)],
    128: [(64, 128, 2), (64, 64, 4)],
    256: [(64, 64, 2)],
}
mosaic_choice = {}


def mosaic_turn(cell, copies, config):
    attention, as_torch_kernel = mosaic()
    block_q, block_kv, steps = config
    tuning = attention.TuningConfig(
        block_q=block_q, block_kv=block_kv, max_concurrent_steps=steps, use_schedule_barrier=True, causal=cell.causal
    )
    kernel = as_torch_kernel(functools.partial(attention.attention, config=tuning))
    inputs = [((q * cell.dim**-0.5).half(), k.half(), v.half()) for q, k, v, _ in copies]
    results = [None] * len(inputs)

    def turn():
        for i, copy in enumerate(inputs):
            results[i] = kernel(*copy)

    turn()
    return turn, results[:1]


def mosaic_peer(cell, copies):
    if cell.is_backward:
        raise RuntimeError("only its forward is compared: its backward takes no causal mask")
    mosaic()  # says what is missing, if anything is
    key = (cell.dim, cell.causal)
    if key not in mosaic_choice:
        seconds, refusals = {}, []
        for config in MOSAIC_CONFIGS[cell.dim]:
            try:
                turn, result = mosaic_turn(cell, copies, config)
                seconds[config] = contender(cell, "mosaic", turn, copies).estimate
            except Exception as refusal:  # whatever it cannot compile or launch
                refusals.append(f"{config}: {first_line(refusal)}")
        if not seconds:
            raise RuntimeError("; ".join(refusals))
        mosaic_choice[key] = min(seconds, key=seconds.get)
    return mosaic_turn(cell, copies, mosaic_choice[key])


def contender(cell, name, turn, copies):
    # autograd works on a stream and a thread of its own and Mosaic GPU on a stream of its own: a graph of this thread's stream
    # would see neither
    may_capture = not cell.is_backward and name != "mosaic"
    return measure_cuda.Contender(name, turn, len(copies), may_capture=may_capture)


def peer(name, cell, copies):
    if name == "mosaic":
        return mosaic_peer(cell, copies)
    backend = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}[name]
    return torch_peer(backend, cell, copies)


def first_line(error):
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


# ---- cells ----


class Wrong(Exception):
    pass


def compile_all(library, args, cells, configs):
    """Plans everything once, on all threads: kernels are compiled beside each other, and later plans find them."""

    def plan(cell, config):
        query, key = (torch.zeros(shape, dtype=torch.bfloat16, device="cuda") for shape in (cell.q_shape(), cell.kv_shape()))
        copy = (query, key, key, query)
        try:
            our_plan(library, args, cell, copy, config, empty_results(cell, copy), args.deterministic)
        except RuntimeError:
            pass  # `prepare` says which and why

    began = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda pair: plan(*pair), itertools.product(cells, configs)))
    return time.perf_counter() - began


class Ours:
    """One config of ours in a cell. Its results go into buffers that all configs of the cell share."""

    def __init__(self, cell, name, turn, plan, results):
        self.turn, self.plan, self.results = turn, plan, results
        self.first = self.result()
        self.contender = contender(cell, name, turn, results)

    def result(self):
        for t in itertools.chain(*self.results):
            t.fill_(math.nan)
        self.turn()
        return [t.clone() for t in self.results[0]]


class Entry:
    """A cell with everything that is timed in it."""

    def __init__(self, cell):
        self.cell, self.ours, self.peers, self.errors, self.skipped = cell, [], {}, {}, {}

    def contenders(self):
        return [one.contender for one in self.ours] + list(self.peers.values())

    def best(self):
        return min(self.ours, key=lambda one: one.contender.times()["seconds"])


def prepare(library, args, cell, configs, data):
    """Runs and checks every contender once. Ours must be right; a peer that cannot or is not is left out, and said so."""
    copies, entry = data.copies(cell), Entry(cell)
    expected = reference(cell, *copies[0])
    results = [empty_results(cell, copy) for copy in copies]

    def check(name, result):
        entry.errors[name] = error_of(result, expected)
        if not entry.errors[name] < MAX_ERROR[cell.direction]:
            raise Wrong(f"{cell.label()}: {name} is wrong: relative error {entry.errors[name]:.2e}")

    for config in configs:
        name = OURS if config is None else config_text(config)
        try:
            turn, plan = ours(library, args, cell, copies, config, results, args.deterministic)
        except RuntimeError as refusal:
            entry.skipped[name] = first_line(refusal)
            continue
        entry.ours.append(Ours(cell, name, turn, plan, results))
        check(name, entry.ours[-1].first)
    if not entry.ours:
        raise Wrong(f"{cell.label()}: nothing of ours serves it: {entry.skipped}")
    if args.deterministic:
        turn, plan = ours(library, args, cell, copies, None, results, deterministic=False)
        any_order = Ours(cell, ANY_ORDER, turn, plan, results)
        check(ANY_ORDER, any_order.first)
        entry.peers[ANY_ORDER] = any_order.contender
    for name in args.peers:
        try:
            turn, result = peer(name, cell, copies)
            check(name, result)
            entry.peers[name] = contender(cell, name, turn, copies)
        except Exception as refusal:  # a peer may fail in ways of its own
            entry.skipped[name] = first_line(refusal)
    print(f"{cell.label():30s} errors: " + ", ".join(f"{name} {e:.2e}" for name, e in entry.errors.items()), flush=True)
    return entry


def require_unchanged(entry, deterministic):
    """Bit for bit; a backward may add in any order unless it is deterministic."""
    for one in entry.ours:
        again = one.result()
        equal = all(map(torch.equal, again, one.first))
        if not (equal or entry.cell.is_backward and not deterministic and error_of(again, [t.double() for t in one.first]) < 1e-3):
            raise Wrong(f"{entry.cell.label()}: {one.contender.name}: the result changed while it was timed")


def finish(entry, sustained):
    """The row of a cell: the best of ours beside every peer."""
    cell = entry.cell
    best, plan = entry.best().contender, entry.best().plan
    configs = {one.contender.name: one.contender.times() for one in entry.ours}
    times = {OURS: best.times(), **{name: contender.times() for name, contender in entry.peers.items()}}
    row = dict(vars(cell), label=cell.label(), flops=cell.flops(), times=times, configs=configs, errors=entry.errors,
               skipped=entry.skipped, kernel=plan.info["kernel"], config=plan.info["config"], tier=plan.info["tier"])
    row["ratios"] = ratios(times)
    if sustained:
        row["sustained"] = {OURS if name == best.name else name: s for name, s in sustained.items()}
        row["sustained_ratios"] = ratios(row["sustained"])
    return row


def ratios(times):
    """Each peer's time by ours, and that of the best peer; empty without peers."""
    all_ = {name: t["seconds"] / times[OURS]["seconds"] for name, t in times.items() if name != OURS}
    others = [ratio for name, ratio in all_.items() if name != ANY_ORDER]
    return dict(all_, best=min(others)) if others else all_


def sustain(entry, monitor, order):
    contenders = [entry.best().contender, *entry.peers.values()]
    return {contender.name: contender.sustain(monitor) for contender in order.sample(contenders, len(contenders))}


# ---- what is printed ----


def rate_text(flops, times):
    return f"{flops / times['seconds'] / 1e12:6.1f} ±{100 * measure.spread(times):3.1f}%"


def print_heading(peers):
    print(f"{'TFLOP/s':30s} {OURS:>13s} " + "".join(f"{name:>14s} {'ratio':>6s}" for name in peers) + "  config")


def print_row(row, peers):
    cells = ""
    for name in peers:
        time_ = row["times"].get(name)
        cells += f"{rate_text(row['flops'], time_):>14s} {row['ratios'][name]:6.3f}" if time_ else f"{'-':>14s} {'':6s}"
    graph = " (graph)" if row["times"][OURS]["graph"] else ""
    config = config_text(row["config"]) if isinstance(row["config"], dict) else row["config"]
    print(f"{row['label']:30s} {rate_text(row['flops'], row['times'][OURS]):>13s} {cells}  {row['kernel']} {config}{graph}")
    if len(row["configs"]) > 1:
        for name, times in sorted(row["configs"].items(), key=lambda item: item[1]["seconds"]):
            print(f"    {rate_text(row['flops'], times)}  {name}")
    refused = {name: why for name, why in row["skipped"].items() if name not in peers}
    for name in row["skipped"].keys() - refused.keys():
        print(f"    without {name}: {row['skipped'][name]}")
    if refused:
        print(f"    {len(refused)} configs refused, for example {next(iter(refused.items()))}")


def print_sustained(row):
    texts = []
    for name, s in row["sustained"].items():
        clock = f" {s['sm_mhz']:.0f} MHz {s['watts']:.0f} W" if s["sm_mhz"] else ""
        texts.append(f"{name} {row['flops'] / s['seconds'] / 1e12:.1f}{clock}")
    best = row["sustained_ratios"].get("best")
    print(f"{row['label']:30s} sustained: {', '.join(texts)}" + (f"; ratio {best:.3f}" if best else ""))


def summarise(rows, key="ratios"):
    """Over all cells, the ratios to each peer and to the best one of each cell."""
    summary = {}
    for name in dict.fromkeys(name for row in rows for name in row.get(key, ())):
        judged = [row for row in rows if name in row[key]]
        worst = min(judged, key=lambda row: row[key][name])
        summary[name] = {
            "cells": len(judged),
            "geometric_mean": measure.geometric_mean([row[key][name] for row in judged]),
            "worst": worst[key][name],
            "worst_cell": worst["label"],
        }
        if name == "best":
            summary[name]["below_floor"] = [row["label"] for row in judged if row[key][name] < row["floor"]]
    return summary


def print_summary(title, summary):
    for name, of in summary.items():
        below = f"; below the floor: {', '.join(of['below_floor']) or 'none'}" if "below_floor" in of else ""
        print(f"{title}, {of['cells']} cells against {name}: geometric mean {of['geometric_mean']:.3f}x, "
              f"worst {of['worst']:.3f}x ({of['worst_cell']}){below}")


# ---- the program ----


def commit():
    """What is measured: the commit that is checked out, with "-dirty" when the tree differs."""
    command = ["git", "-C", pathlib.Path(__file__).parent, "describe", "--always", "--dirty", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout.strip() or "unknown"
    except OSError:
        return "unknown"


def protocol(args):
    return {
        "repeats": args.repeats,
        "order": f"random over all cells and contenders, seed {args.seed}",
        "pause_seconds": measure_cuda.PAUSE_SECONDS,
        "burst_seconds": measure_cuda.BURST_SECONDS,
        "graph_below_seconds": measure_cuda.GRAPH_BELOW_SECONDS,
        "l2": f"cold: copies in turn until they pass {measure_cuda.COLD_BYTES} bytes",
        "statistic": "median; low and high are quartiles",
    }


def measure_cells(args, library, cells, configs, monitor):
    """Everything is prepared and checked, then timed in one random order."""
    data = Data(cells, args.seed)
    order = random.Random(args.seed)
    print(f"compiled in {compile_all(library, args, cells, configs):.1f} s\n")
    entries = [prepare(library, args, cell, configs, data) for cell in cells]
    measure_cuda.run_bursts([c for entry in entries for c in entry.contenders()], args.repeats, order)
    sustained = {}
    if args.sustained:
        for entry in order.sample(entries, len(entries)):
            sustained[entry.cell.label()] = sustain(entry, monitor, order)
    for entry in entries:
        require_unchanged(entry, args.deterministic)
    return [dict(finish(entry, sustained.get(entry.cell.label())), floor=entry.cell.floor()) for entry in entries]


def main():
    args = arguments()
    cells, configs = list(grid(args)), configs_of(args.configs)
    if not cells:
        sys.exit("cuda_attention.py: there is no such cell")
    if args.dry_run:
        for cell in cells:
            print(f"{cell.label():30s} {cell.flops() / 1e12:7.3f} TFLOP, {cell.bytes() / 1e6:6.1f} MB")
        return 0
    if not torch.cuda.is_available():
        sys.exit("cuda_attention.py: torch finds no CUDA device here")
    if args.deterministic:
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # it would be timed
    library, monitor = Library(args.library), measure_cuda.Monitor()
    device = torch.cuda.get_device_name()
    versions = {"torch": torch.__version__, "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
    print(f"{device}, driver {monitor.driver}, {versions}, ejkernel {library.version()}")
    if monitor.why_not:
        print(f"no clocks and no power: {monitor.why_not}")
    try:
        rows = measure_cells(args, library, cells, configs, monitor)
    except Wrong as wrong:
        print(f"cuda_attention.py: {wrong}", file=sys.stderr)
        return 1
    shown = [ANY_ORDER] * args.deterministic + args.peers
    print_heading(shown)
    for row in rows:
        print_row(row, shown)
    for row in rows if args.sustained else ():
        print_sustained(row)
    record = {"date": time.strftime("%Y-%m-%d"), "commit": args.commit or commit(), "command": shlex.join(pathlib.Path(a).name if os.sep in a else a for a in sys.argv),
              "device": device, "driver": monitor.driver, "versions": versions, "ejkernel": library.version(),
              "protocol": protocol(args), "rows": rows, "summary": summarise(rows)}
    print()
    print_summary("bursts", record["summary"])
    if args.sustained:
        record["sustained_summary"] = summarise(rows, "sustained_ratios")
        print_summary("sustained", record["sustained_summary"])
    if args.json:
        measure.write(args.json, record)
    return 0


if __name__ == "__main__":
    sys.exit(main())
