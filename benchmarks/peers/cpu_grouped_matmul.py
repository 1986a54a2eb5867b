#!/usr/bin/env python3
"""grouped_matmul on the host against torch (oneDNN) and, where it is installed, numpy (OpenBLAS): one process, one thread
count, interleaved.

  ./dev peers cpu_grouped_matmul                  everything
  ./dev peers cpu_grouped_matmul --dtype bf16     only these

A peer computes a group after the other, with its ordinary product. "Of peak" is of the multiply-adds in registers that
`ejk bench --peaks` measures before the first and after the last cell. Zipf: the sizes of groups fall as 1 / rank.
OpenBLAS is told the core type by OPENBLAS_CORETYPE=SKYLAKEX or SAPPHIRERAPIDS in the environment.
"""

import argparse
import os
import sys
import time

THREADS = len(os.sched_getaffinity(0))
# Before torch and OpenBLAS start their threads: they shall sleep while ours run. OpenBLAS's spin for 2^26 cycles after a
# product unless told otherwise, a processor less for whoever is measured next; 2^18 still last from one product of a loop to
# the next.
SETTINGS = {"OMP_WAIT_POLICY": "passive", "KMP_BLOCKTIME": "0", "OMP_NUM_THREADS": str(THREADS),
            "OPENBLAS_NUM_THREADS": str(THREADS), "OPENBLAS_THREAD_TIMEOUT": "18"}
os.environ.update(SETTINGS, EJKERNEL_NUM_THREADS=str(THREADS))

import torch

import measure
from cpu_attention import commit, peak_of, peaks
from ejkernel_c import Library, Plan

try:
    import numpy
except ImportError:
    numpy = None

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
TOLERANCE = {"f32": 1e-5, "bf16": 1e-2}  # relative L2; both sides round


def zipf(rows, groups):
    weights = [1 / (rank + 1) for rank in range(groups)]
    sizes = [int(rows * w / sum(weights)) for w in weights]
    sizes[0] += rows - sum(sizes)
    return sizes


# name, rows of each group, k, n, transposed
CELLS = [
    ("square", [2048], 2048, 2048, False),
    ("square transposed", [2048], 2048, 2048, True),
    ("even", [512] * 8, 2048, 2048, False),
    ("zipf", zipf(4096, 8), 2048, 2048, False),
    ("tiny", [4] * 128, 512, 512, False),
    ("tiny 256", [4] * 128, 256, 256, False),
    ("narrow", [4] * 128, 512, 16, False),
    ("decode", [1] * 8, 4096, 4096, False),
]


class Data:
    def __init__(self, cell, dtype):
        _, self.sizes, k, n, self.transposed = cell
        torch.manual_seed(0)
        self.lhs = torch.randn(sum(self.sizes), k).to(DTYPES[dtype])
        self.rhs = torch.randn(len(self.sizes), *((n, k) if self.transposed else (k, n))).to(DTYPES[dtype])
        self.group_sizes = torch.tensor(self.sizes, dtype=torch.int32)
        self.bounds = [0]
        for size in self.sizes:
            self.bounds.append(self.bounds[-1] + size)
        self.flops = 2 * sum(self.sizes) * k * n
        self.out = torch.empty(sum(self.sizes), n, dtype=DTYPES[dtype])


def our_call(library, data):
    inputs = {"lhs": data.lhs, "rhs": data.rhs, "group_sizes": data.group_sizes}
    plan = Plan(library, "grouped_matmul", inputs, {"out": data.out}, {"transpose_rhs": data.transposed})
    return plan.run, plan


def loop(data, multiply, lhs, rhs, out):
    """A group after the other."""
    matrices = [rhs[g].T if data.transposed else rhs[g] for g in range(len(data.sizes))]
    pieces = [(lhs[b:e], m, out[b:e]) for b, e, m in zip(data.bounds, data.bounds[1:], matrices)]

    def call():
        for a, b, c in pieces:
            multiply(a, b, out=c)
        return out

    return call


def peer_calls(data, dtype):
    """{name: call}: numpy has no bf16."""
    calls = {"torch": loop(data, torch.mm, data.lhs, data.rhs, torch.empty_like(data.out))}
    if numpy is not None and dtype == "f32":
        calls["numpy"] = loop(data, numpy.dot, data.lhs.numpy(), data.rhs.numpy(), numpy.empty(data.out.shape, numpy.float32))
    return calls


def measure_cell(library, cell, dtype, seconds):
    data = Data(cell, dtype)
    call, plan = our_call(library, data)
    peers = [measure.Peer("ejkernel", call)]
    peers += [measure.Peer(name, peer) for name, peer in peer_calls(data, dtype).items()]
    for peer in peers[1:]:
        theirs = torch.as_tensor(peer.result).float()
        error = ((data.out.float() - theirs).norm() / theirs.norm()).item()
        if not error < TOLERANCE[dtype]:
            sys.exit(f"cpu_grouped_matmul.py: {cell[0]} {dtype}: ours differs from {peer.name}'s by {error:.1e} (relative L2)")
    times = measure.compare(peers, seconds)
    ours = times["ejkernel"]["seconds"]
    ratios = {name: t["seconds"] / ours for name, t in times.items() if name != "ejkernel"}
    return dict(cell=cell[0], dtype=dtype, sizes=data.sizes, k=cell[2], n=cell[3], flops=data.flops, times=times, ratios=ratios,
                bytes=sum(t.numel() * t.element_size() for t in (data.lhs, data.rhs, data.out)),
                kernel=plan.info["kernel"], config=plan.info["config"], tier=plan.info["tier"])


def print_row(row, peak):
    ours = row["times"]["ejkernel"]
    rate, read = row["flops"] / ours["seconds"], row["bytes"] / ours["seconds"]
    ratios = "   ".join(f"{name} {ratio:5.2f}x" for name, ratio in row["ratios"].items())
    print(f"{row['cell']:18s} {row['dtype']:5s} {ours['seconds'] * 1e3:9.2f} ms ±{100 * measure.spread(ours):4.1f} % "
          f"{rate / 1e9:6.0f} GFLOP/s {100 * rate / peak_of(peak, row['dtype']):5.1f} % of peak {read / 1e9:6.1f} GB/s   {ratios}",
          flush=True)


def main():
    parser = argparse.ArgumentParser(prog="./dev peers cpu_grouped_matmul", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--library", required=True, help="libejkernel.so (./dev peers gives it)")
    add("--dtype", nargs="+", choices=list(DTYPES), default=list(DTYPES))
    add("--cell", nargs="+", choices=[c[0] for c in CELLS], default=[c[0] for c in CELLS])
    add("--seconds", type=float, default=4, help="for one cell's interleaved rounds, three at least (default: %(default)s)")
    add("--json", metavar="FILE", help="write a record")
    args = parser.parse_args()
    torch.set_num_threads(THREADS)
    library, peak = Library(args.library), peaks(args.library)
    print(f"{peak['device']['product']}, {THREADS} threads; torch {torch.__version__}, "
          f"numpy {numpy.__version__ if numpy else 'not installed'}, ejkernel {library.version()}\n")
    rows = []
    for dtype in args.dtype:
        for cell in CELLS:
            if cell[0] in args.cell:
                rows.append(measure_cell(library, cell, dtype, args.seconds))
                print_row(rows[-1], peak)
    again = peaks(args.library)
    for name in ("peak_flops", "peak_bf16_flops"):  # a disturbed one is too low
        peak[name] = max(peak[name], again[name])
    for dtype in args.dtype:
        seconds = {r["cell"]: r["times"]["ejkernel"]["seconds"] for r in rows if r["dtype"] == dtype}
        if "even" in seconds and "zipf" in seconds:
            print(f"{dtype}: Zipf-skewed groups take {seconds['zipf'] / seconds['even']:.3f} of even ones' time")
    if args.json:
        measure.write(args.json, dict(date=time.strftime("%Y-%m-%d"), commit=commit(), version=library.version(),
                                      torch=torch.__version__, numpy=numpy.__version__ if numpy else None,
                                      num_threads=THREADS, settings=SETTINGS, peaks=peak, rows=rows))


if __name__ == "__main__":
    main()
