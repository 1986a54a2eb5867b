#!/usr/bin/env python3
"""Decode attention on the host: caches of pages and contiguous ones, bf16 and int8, beside torch's
scaled_dot_product_attention of one query row; and a prefill over pages beside flash_attention. One process, one thread
count, interleaved.

  ./dev peers cpu_decode                  everything
  ./dev peers cpu_decode --cell llama     only this one

"Of read" is of the bandwidth that `ejk bench --peaks` measures before the first and after the last cell: the bytes of
keys and values in use, once. Pages hold 16 tokens and lie in random order.
"""

import argparse
import os
import sys
import time

THREADS = len(os.sched_getaffinity(0))
# Before torch starts its threads: they shall sleep while ours run.
SETTINGS = {"OMP_WAIT_POLICY": "passive", "KMP_BLOCKTIME": "0", "OMP_NUM_THREADS": str(THREADS)}
os.environ.update(SETTINGS, EJKERNEL_NUM_THREADS=str(THREADS))

import torch

import measure
from cpu_attention import commit, peaks
from ejkernel_c import Library, Plan

PAGE = 16

# name, sequences, tokens of each, query heads, kv heads, head_dim
CELLS = [
    ("llama", 4, 16384, 32, 8, 128),
    ("one kv head per query head", 2, 8192, 32, 32, 128),
    ("long", 1, 65536, 32, 8, 128),
    ("many short", 64, 1024, 32, 8, 128),
]
PREFILL = dict(rows=2048, q_heads=16, kv_heads=8, dim=128)


def codes(x):
    """int8 codes and their one scale."""
    scale = x.float().abs().max() / 127
    return (x.float() / scale).round().to(torch.int8), scale.reshape(())


def paged(x):
    """[sequences, tokens, heads, dim] as pages in random order, and their table."""
    sequences, tokens = x.shape[:2]
    pages = x.reshape(-1, PAGE, *x.shape[2:])
    order = torch.randperm(len(pages))
    table = torch.empty(len(pages), dtype=torch.int32)
    table[order] = torch.arange(len(pages), dtype=torch.int32)
    return pages[order].contiguous(), table.reshape(sequences, tokens // PAGE)


class Decode:
    """One cell's tensors, and everybody's call."""

    def __init__(self, library, cell):
        _, sequences, tokens, q_heads, kv_heads, dim = cell
        torch.manual_seed(0)
        self.query = torch.randn(sequences, q_heads, dim).bfloat16()
        self.key = torch.randn(sequences, tokens, kv_heads, dim).bfloat16()
        self.value = torch.randn(sequences, tokens, kv_heads, dim).bfloat16()
        self.bytes = {"bf16": 2 * 2 * self.key.numel(), "int8": 2 * self.key.numel()}
        lengths = torch.full((sequences,), tokens, dtype=torch.int32)
        self.peers, self.outs = [], {}
        ragged = dict(sequence_start=torch.zeros_like(lengths), sequence_end=lengths)
        self.add(library, "contiguous bf16", "ragged_decode_attention", dict(key=self.key, value=self.value, **ragged))
        (key_codes, k_scale), (value_codes, v_scale) = codes(self.key), codes(self.value)
        scales = dict(k_scale=k_scale, v_scale=v_scale)
        for name, key, value, more in (("pages bf16", self.key, self.value, {}),
                                       ("pages int8", key_codes, value_codes, scales)):
            torch.manual_seed(1)
            key_cache, table = paged(key)
            torch.manual_seed(1)
            value_cache, _ = paged(value)
            self.add(library, name, "page_attention",
                     dict(key_cache=key_cache, value_cache=value_cache, context_lens=lengths, block_tables=table, **more))
        rows = self.query.unsqueeze(2)
        keys, values = self.key.transpose(1, 2), self.value.transpose(1, 2)
        self.peers.append(measure.Peer("torch", lambda: torch.nn.functional.scaled_dot_product_attention(
            rows, keys, values, enable_gqa=q_heads != kv_heads)))

    def add(self, library, name, operation, inputs):
        out = self.outs[name] = torch.empty_like(self.query)
        plan = Plan(library, operation, dict(query=self.query, **inputs), {"out": out}, {})
        self.peers.append(measure.Peer(name, plan.run))

    def check(self, cell):
        theirs = self.peers[-1].result.squeeze(2).float()
        for name, out in self.outs.items():
            error = ((out.float() - theirs).norm() / theirs.norm()).item()
            if not error < (0.1 if "int8" in name else 0.02):
                sys.exit(f"cpu_decode.py: {cell[0]}: {name} differs from torch by {error:.1e} (relative L2)")


def measure_decode(library, cell, seconds, peak):
    data = Decode(library, cell)
    times = measure.compare(data.peers, seconds)
    data.check(cell)
    at = {name: t["seconds"] for name, t in times.items()}
    row = dict(cell=cell[0], shape=cell[1:], bytes=data.bytes, times=times,
               of_read={name: data.bytes["int8" if "int8" in name else "bf16"] / at[name] / peak["peak_read_bytes"]
                        for name in at},
               pages_over_contiguous=at["pages bf16"] / at["contiguous bf16"],
               bf16_over_int8=at["pages bf16"] / at["pages int8"], torch_over_pages=at["torch"] / at["pages bf16"])
    print(f"{cell[0]:28s} " + "   ".join(f"{name} {1e3 * t:.2f} ms ({100 * row['of_read'][name]:.0f} % of read)" for name, t in at.items()))
    print(f"{'':28s} pages take {row['pages_over_contiguous']:.3f} of contiguous, bf16 {row['bf16_over_int8']:.2f} of int8, "
          f"torch {row['torch_over_pages']:.2f} of pages", flush=True)
    return row


def measure_prefill(library, seconds):
    rows, q_heads, kv_heads, dim = (PREFILL[name] for name in ("rows", "q_heads", "kv_heads", "dim"))
    torch.manual_seed(0)
    query = torch.randn(rows, q_heads, dim).bfloat16()
    key, value = (torch.randn(1, rows, kv_heads, dim).bfloat16() for _ in range(2))
    interleaved = torch.stack((key, value), 3).reshape(1, rows, 2 * kv_heads, dim)
    pages, table = paged(interleaved)
    lengths = torch.tensor([rows], dtype=torch.int32)
    out, flash_out = torch.empty_like(query), torch.empty_like(query).unsqueeze(0)
    plan = Plan(library, "ragged_page_attention",
                dict(queries=query, kv_pages=pages, context_lens=lengths, block_tables=table,
                     query_start_loc=torch.tensor([0, rows], dtype=torch.int32), num_seqs=torch.tensor([1], dtype=torch.int32)),
                {"out": out}, {})
    flash = Plan(library, "flash_attention", dict(query=query.unsqueeze(0), key=key, value=value), {"out": flash_out},
                 {"causal": True})
    times = measure.compare([measure.Peer("pages", plan.run), measure.Peer("flash_attention", flash.run)], seconds)
    error = ((out.float() - flash_out[0].float()).norm() / flash_out.float().norm()).item()
    if not error < 0.02:
        sys.exit(f"cpu_decode.py: prefill over pages differs from flash_attention by {error:.1e} (relative L2)")
    ratio = times["pages"]["seconds"] / times["flash_attention"]["seconds"]
    print(f"prefill of {rows} rows: over pages it takes {ratio:.3f} of flash_attention's time", flush=True)
    return dict(cell="prefill", **PREFILL, times=times, pages_over_flash=ratio)


def main():
    parser = argparse.ArgumentParser(prog="./dev peers cpu_decode", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--library", required=True, help="libejkernel.so (./dev peers gives it)")
    add("--cell", nargs="+", choices=[c[0] for c in CELLS], default=[c[0] for c in CELLS])
    add("--seconds", type=float, default=6, help="for one cell's interleaved rounds, three at least (default: %(default)s)")
    add("--json", metavar="FILE", help="write a record")
    args = parser.parse_args()
    torch.set_num_threads(THREADS)
    library, peak = Library(args.library), peaks(args.library)
    print(f"{peak['device']['product']}, {THREADS} threads, {peak['peak_read_bytes'] / 1e9:.1f} GB/s read; torch "
          f"{torch.__version__}, ejkernel {library.version()}\n")
    rows = [measure_decode(library, cell, args.seconds, peak) for cell in CELLS if cell[0] in args.cell]
    rows.append(measure_prefill(library, args.seconds))
    again = peaks(args.library)["peak_read_bytes"]
    print(f"read bandwidth after the last cell: {again / 1e9:.1f} GB/s")
    if args.json:
        measure.write(args.json, dict(date=time.strftime("%Y-%m-%d"), commit=commit(), version=library.version(),
                                      torch=torch.__version__, num_threads=THREADS, settings=SETTINGS, peaks=peak,
                                      read_after=again, rows=rows))


if __name__ == "__main__":
    main()
