#!/usr/bin/env python3
"""flash_attention on the host against torch's scaled_dot_product_attention: one process, one thread count, interleaved.

  ./dev peers cpu_attention                                  everything: about 25 minutes on two cores
  ./dev peers cpu_attention --quick                          its short sequences, with less time for each
  ./dev peers cpu_attention --dtype bf16 --seq 8192 --mask causal --pass backward
  ./dev peers cpu_attention --rows window threads            only these

torch takes part with the fastest of its settings for each cell, found by trying them: flash kernel or (up to 2048 tokens)
plain products, [batch, heads, seq, dim] contiguous or as a view of [batch, seq, heads, dim], grouped heads by enable_gqa or by
expanding keys and values in the call, a window as a boolean or as an added mask. A backward pass is autograd.grad of a graph
that stands already. Ours is called through the C interface with [batch, seq, heads, dim].
"Of peak" is of the multiply-adds in registers that `ejk bench --peaks` measures before the first and after the last cell:
float32 ones for f32 and f16, bfloat16 dot products for bf16. FLOP = 4 B H D per visible pair, 10 for a backward pass.
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

THREADS = len(os.sched_getaffinity(0))
# Before torch starts its threads: they shall sleep while ours run.
SETTINGS = {"OMP_WAIT_POLICY": "passive", "KMP_BLOCKTIME": "0", "OMP_NUM_THREADS": str(THREADS)}
os.environ.update(SETTINGS, EJKERNEL_NUM_THREADS=str(THREADS))

import torch
import torch.nn.functional as F

import measure
from ejkernel_c import Library, Plan

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
TOLERANCE = {"f32": 1e-4, "f16": 5e-3, "bf16": 3e-2}  # relative L2; both sides round
WINDOW = 512
MAX_PLAIN_SEQ = 2048  # plain products hold the scores of all heads at once


class Cell:
    def __init__(self, dim, seq, mask, dtype, heads, direction):
        self.dim, self.seq, self.mask, self.dtype, self.heads, self.direction = dim, seq, mask, dtype, heads, direction
        self.q_heads, self.kv_heads = map(int, heads.split("/"))

    def label(self):
        return f"D{self.dim} S{self.seq} {self.mask} {self.dtype} {self.heads} {self.direction}"

    def flops(self):
        pairs = {"full": self.seq**2, "causal": self.seq**2 / 2}.get(self.mask)
        if pairs is None:
            pairs = sum(min(i, WINDOW) + 1 for i in range(self.seq))
        return (4 if self.direction == "forward" else 10) * self.q_heads * self.dim * pairs

    def params(self):
        return {"full": {}, "causal": {"causal": True}, "window": {"causal": True, "sliding_window": (WINDOW, 0)}}[self.mask]


class Data:
    """The same numbers in both layouts: `ours` [1, seq, heads, dim], `theirs` [1, heads, seq, dim]."""

    def __init__(self, cell):
        def draw(heads):
            return torch.randn(1, cell.seq, heads, cell.dim).to(DTYPES[cell.dtype])

        torch.manual_seed(0)
        self.ours = [draw(cell.q_heads), draw(cell.kv_heads), draw(cell.kv_heads), draw(cell.q_heads)]  # q, k, v, d_out
        self.theirs = [t.transpose(1, 2).contiguous() for t in self.ours]


# ---- ours ----


def our_call(library, cell, data):
    """(call, results in torch's layout, plan)"""
    query, key, value, d_out = data.ours
    inputs = {"query": query, "key": key, "value": value}
    out = torch.empty_like(query)
    if cell.direction == "forward":
        plan = Plan(library, "flash_attention", inputs, {"out": out}, cell.params())
        return plan.run, [out.transpose(1, 2)], plan
    lse = torch.empty(1, cell.q_heads, cell.seq, dtype=torch.float32)
    Plan(library, "flash_attention", inputs, {"out": out, "lse": lse}, cell.params()).run()
    gradients = {name: torch.empty_like(t) for name, t in inputs.items()}
    inputs = dict(inputs, out=out, lse=lse, d_out=d_out)
    plan = Plan(library, "flash_attention_backward", inputs, gradients, cell.params())
    return plan.run, [t.transpose(1, 2) for t in gradients.values()], plan


# ---- torch's ----


def settings_of(cell):
    """Every way to make the call with torch."""
    for layout in ("contiguous", "view"):
        for kernel in ("flash", "plain") if cell.seq <= MAX_PLAIN_SEQ else ("flash",):
            for grouping in ("enable_gqa", "expand") if cell.q_heads != cell.kv_heads else ("",):
                for mask in ("boolean mask", "added mask") if cell.mask == "window" else ("",):
                    yield dict(layout=layout, kernel=kernel, grouping=grouping, mask=mask)


def window_mask(cell, kind):
    distance = torch.arange(cell.seq)[:, None] - torch.arange(cell.seq)[None, :]
    visible = (distance >= 0) & (distance <= WINDOW)
    if kind == "boolean mask":
        return visible
    return torch.zeros(visible.shape, dtype=DTYPES[cell.dtype]).masked_fill_(~visible, float("-inf"))


def attend(cell, setting, query, key, value, mask):
    if setting["grouping"] == "expand":
        shape = (1, cell.kv_heads, cell.q_heads // cell.kv_heads, cell.seq, cell.dim)
        key, value = (t[:, :, None].expand(shape).flatten(1, 2) for t in (key, value))
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=cell.mask == "causal", enable_gqa=setting["grouping"] == "enable_gqa"
    )


def torch_call(cell, setting, data):
    """A call that returns its results, which keeps torch's allocator as busy as a user would."""
    tensors = data.theirs if setting["layout"] == "contiguous" else [t.transpose(1, 2) for t in data.ours]
    mask = window_mask(cell, setting["mask"]) if setting["mask"] else None
    is_flash = setting["kernel"] == "flash"

    def choose_kernel():  # the switches are named after CUDA and hold for the host too
        torch.backends.cuda.enable_flash_sdp(is_flash)
        torch.backends.cuda.enable_math_sdp(not is_flash)

    if cell.direction == "forward":

        def forward():
            choose_kernel()
            with torch.inference_mode():
                return [attend(cell, setting, *tensors[:3], mask)]

        return forward
    choose_kernel()
    leaves = [t.detach().requires_grad_() for t in tensors[:3]]
    out = attend(cell, setting, *leaves, mask)
    return lambda: torch.autograd.grad(out, leaves, tensors[3], retain_graph=True)


def best_setting(cell):
    """The fastest of torch's settings, each tried twice on the cell with at most MAX_PLAIN_SEQ tokens."""
    probe = Cell(cell.dim, min(cell.seq, MAX_PLAIN_SEQ), cell.mask, cell.dtype, cell.heads, cell.direction)
    data, seconds = Data(probe), {}
    for setting in settings_of(cell):
        try:
            peer = measure.Peer("torch", torch_call(probe, setting, data))
        except RuntimeError as refusal:
            if "No available kernel" not in str(refusal):
                raise
            continue
        seconds[tuple(setting.items())] = peer.estimate
    return dict(min(seconds, key=seconds.get))


# ---- rows ----


def check(cell, ours, theirs):
    """The largest relative difference (L2) of the results; a benchmark of wrong results is worth nothing."""
    worst = 0.0
    for a, b in zip(ours, theirs):
        error = ((a.float() - b.float()).norm() / b.float().norm()).item()
        if not error < TOLERANCE[cell.dtype]:
            sys.exit(f"cpu_attention.py: {cell.label()}: ours differs from torch's by {error:.1e} (relative L2)")
        worst = max(worst, error)
    return worst


def measure_cell(library, cell, seconds):
    setting, data = best_setting(cell), Data(cell)
    call, results, plan = our_call(library, cell, data)
    ours, torchs = measure.Peer("ejkernel", call), measure.Peer("torch", torch_call(cell, setting, data))
    error = check(cell, results, torchs.result)
    times = measure.compare([ours, torchs], seconds)
    row = dict(vars(cell), label=cell.label(), flops=cell.flops(), times=times, torch_setting=setting, difference=error)
    row["ratio"] = times["torch"]["seconds"] / times["ejkernel"]["seconds"]
    row.update(kernel=plan.info["kernel"], config=plan.info["config"], tier=plan.info["tier"])
    return row


def measure_threads(library, single, cell, seconds):
    """All threads against one, both of them ours."""
    data = Data(cell)
    peers = [measure.Peer(n, our_call(lib, cell, data)[0]) for n, lib in (("all threads", library), ("one thread", single))]
    times = measure.compare(peers, seconds)
    ratio = times["one thread"]["seconds"] / times["all threads"]["seconds"]
    return dict(vars(cell), label=cell.label(), flops=cell.flops(), times=times, ratio=ratio)


def single_threaded(path):
    """The library once more, from a copy of the file: it reads how many threads to use at its first call, once."""
    with tempfile.TemporaryDirectory() as folder:
        library = Library(shutil.copy(path, folder))
    os.environ["EJKERNEL_NUM_THREADS"] = "1"
    query = torch.zeros(1, 1, 1, 64)
    Plan(library, "flash_attention", {"query": query, "key": query, "value": query}, {"out": torch.empty_like(query)}, {})
    os.environ["EJKERNEL_NUM_THREADS"] = str(THREADS)
    return library


def peaks(library_path):
    ejk = pathlib.Path(library_path).parent.parent / "bin/ejk"  # of the same build
    text = subprocess.run([ejk, "bench", "--peaks", "--json"], check=True, capture_output=True, text=True).stdout
    return json.loads(text)


def commit():
    """What is measured: the commit that is checked out, with "-dirty" when the tree differs."""
    command = ["git", "-C", pathlib.Path(__file__).parent, "describe", "--always", "--dirty", "--exclude=*"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


def peak_of(peak, dtype):
    return dtype == "bf16" and peak["peak_bf16_flops"] or peak["peak_flops"]  # 0: no instruction for them


# ---- what is printed ----


def print_row(row, peak):
    ours, theirs = row["times"]["ejkernel"], row["times"]["torch"]
    rate = row["flops"] / ours["seconds"]
    setting = ", ".join(filter(None, row["torch_setting"].values()))
    print(
        f"{row['label']:38s} {ours['seconds'] * 1e3:9.2f} ms ±{100 * measure.spread(ours):4.1f} % {rate / 1e9:5.0f} GFLOP/s "
        f"{100 * rate / peak_of(peak, row['dtype']):5.1f} % of peak   torch {theirs['seconds'] * 1e3:9.2f} ms "
        f"±{100 * measure.spread(theirs):4.1f} % {row['ratio']:6.2f}x   ({setting})",
        flush=True,
    )


def print_thread_row(row):
    both = row["times"]
    print(
        f"{row['label']:38s} one thread {both['one thread']['seconds'] * 1e3:9.2f} ms   "
        f"{THREADS} threads {both['all threads']['seconds'] * 1e3:9.2f} ms   {row['ratio']:6.2f}x",
        flush=True,
    )


def summarise(rows, peak):
    """Geometric mean, worst cell, and fractions of the peak, over all cells and over each kind."""
    kinds = {"all": rows}
    for row in rows:
        kinds.setdefault(f"{row['dtype']} {row['direction']}", []).append(row)
    result = {}
    for kind, some in kinds.items():
        worst = min(some, key=lambda r: r["ratio"])
        fractions = [r["flops"] / r["times"]["ejkernel"]["seconds"] / peak_of(peak, r["dtype"]) for r in some]
        mean = measure.geometric_mean([r["ratio"] for r in some])
        result[kind] = dict(cells=len(some), geometric_mean=mean, worst=worst["ratio"], worst_cell=worst["label"],
                            least_of_peak=min(fractions), most_of_peak=max(fractions))
        print(f"{kind:14s} {len(some):3d} cells: geometric mean {mean:.2f}x, worst {worst['ratio']:.2f}x ({worst['label']}), "
              f"{100 * min(fractions):.0f} to {100 * max(fractions):.0f} % of peak")
    below = [f"{r['label']} {r['ratio']:.2f}" for r in rows if r["ratio"] < 1]
    print("slower than torch: " + (", ".join(below) or "none"))
    return result


# ---- the program ----


def arguments():
    parser = argparse.ArgumentParser(prog="./dev peers cpu_attention", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--library", required=True, help="libejkernel.so (./dev peers gives it)")
    add("--rows", nargs="+", choices=["grid", "window", "threads"], default=["grid", "window", "threads"])
    add("--dtype", nargs="+", choices=list(DTYPES), default=["f32", "bf16"])
    add("--head-dim", nargs="+", type=int, default=[64, 128])
    add("--seq", nargs="+", type=int, default=[512, 2048, 8192])
    add("--mask", nargs="+", choices=["full", "causal"], default=["full", "causal"])
    add("--heads", nargs="+", default=["16/16", "32/8"], metavar="Q/KV")
    add("--pass", nargs="+", dest="direction", choices=["forward", "backward"], default=["forward", "backward"])
    add("--seconds", type=float, default=4, help="for one cell's interleaved rounds, three at least (default: %(default)s)")
    add("--quick", action="store_true", help="sequences up to 2048 and half a second a cell")
    add("--json", metavar="FILE", help="write a record")
    args = parser.parse_args()
    if args.quick:
        args.seq, args.seconds = [s for s in args.seq if s <= 2048] or [2048], 0.5
    return args


def grid(args):
    for direction in args.direction:
        for dtype in args.dtype:
            for dim in args.head_dim:
                for heads in args.heads:
                    for mask in args.mask:
                        for seq in args.seq:
                            yield Cell(dim, seq, mask, dtype, heads, direction)


def window_cells(args):
    for dtype in args.dtype:
        for dim in args.head_dim:
            yield Cell(dim, max(args.seq), "window", dtype, "16/16", "forward")


def thread_cells(args):
    for direction in args.direction:
        for dtype in args.dtype:
            for dim in args.head_dim:
                for mask in args.mask:
                    yield Cell(dim, min(args.seq, key=lambda s: abs(s - 2048)), mask, dtype, "16/16", direction)


def measure_all(args, library, peak):
    """The rows of each kind, printed as they come."""
    rows = {"grid": [], "window": [], "threads": []}
    for kind, cells in (("grid", grid), ("window", window_cells)):
        for cell in cells(args) if kind in args.rows else ():
            rows[kind].append(measure_cell(library, cell, args.seconds))
            print_row(rows[kind][-1], peak)
    if "threads" in args.rows and THREADS > 1:
        single = single_threaded(args.library)
        for cell in thread_cells(args):
            rows["threads"].append(measure_threads(library, single, cell, args.seconds))
            print_thread_row(rows["threads"][-1])
    return rows


def main():
    args = arguments()
    torch.set_num_threads(THREADS)
    library, peak = Library(args.library), peaks(args.library)
    capability = torch.backends.cpu.get_cpu_capability()
    print(f"{peak['device']['product']}, {THREADS} threads; torch {torch.__version__} ({capability}), ejkernel {library.version()}")
    print(f"peaks: {peak['peak_flops'] / 1e9:.0f} GFLOP/s float32, {peak['peak_bf16_flops'] / 1e9:.0f} GFLOP/s bfloat16\n")
    rows = measure_all(args, library, peak)
    again = peaks(args.library)
    for name in ("peak_flops", "peak_bf16_flops"):  # a disturbed one is too low
        peak[name] = max(peak[name], again[name])
    print()
    record = dict(date=time.strftime("%Y-%m-%d"), commit=commit(), version=library.version(), torch=torch.__version__,
                  torch_capability=capability, num_threads=THREADS, settings=SETTINGS, peaks=peak, **rows)
    if rows["grid"]:
        record["summary"] = summarise(rows["grid"], peak)
    if args.json:
        measure.write(args.json, record)


if __name__ == "__main__":
    main()
