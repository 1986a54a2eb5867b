#!/usr/bin/env python3
"""Decode attention on the host: caches of pages and contiguous ones, bf16 and codes, beside torch's
scaled_dot_product_attention of one query row; and a prefill over pages beside flash_attention. One process, one thread
count, interleaved.

  ./dev peers cpu_decode                  everything
  ./dev peers cpu_decode --cell llama     only this one

"Of read" is of the larger bandwidth of those that `ejk bench --peaks` measures before the first and after the last cell:
the bytes of keys and values in use and of their scales, once. Pages hold 16 tokens and lie in random order.
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


# Caches of codes: the dtype, its largest number, and how many elements share a scale; None: all of the tensor.
CODES = {
    "int8": (torch.int8, 127, None),
    "int8 per slot and head": (torch.int8, 127, 128),
    "int8 groups of 32": (torch.int8, 127, 32),
    "e4m3": (torch.float8_e4m3fn, 448, None),
    "int4 groups of 32": ("int4", 7, 32),
}
# Relative L2 errors that these caches may have beside bf16, of normal numbers.
MOST_ERROR = {"int8": 0.1, "e4m3": 0.1, "int4": 0.3}


def codes(x, dtype, largest, group):
    """Codes of [..., dim] and their scales. Two codes of int4 lie in a byte, the even one in its low half."""
    grouped = x.float().reshape(1, -1) if group is None else x.float().unflatten(-1, (-1, group))
    scale = grouped.abs().amax(-1, keepdim=True) / largest
    numbers = (grouped / scale).reshape(x.shape)
    scale = scale.reshape(()) if group is None else scale.squeeze(-1)
    if dtype == torch.float8_e4m3fn:
        return numbers.to(dtype), scale
    whole = numbers.round().to(torch.int8)
    if dtype != "int4":
        return whole, scale
    return (whole[..., ::2] & 15) | (whole[..., 1::2] << 4), scale


def paged(x):
    """[sequences, tokens, heads, dim] as pages in random order, and their table."""
    sequences, tokens = x.shape[:2]
    pages = x.reshape(-1, PAGE, *x.shape[2:])
    order = torch.randperm(len(pages))
    table = torch.empty(len(pages), dtype=torch.int32)
    table[order] = torch.arange(len(pages), dtype=torch.int32)
    in_order = pages.contiguous().view(torch.uint8)[order].view(x.dtype)  # as bytes: torch does not index every dtype
    return in_order, table.reshape(sequences, tokens // PAGE)


class Decode:
    """One cell's tensors, and everybody's call."""

    def __init__(self, library, cell):
        _, sequences, tokens, q_heads, kv_heads, dim = cell
        torch.manual_seed(0)
        self.query = torch.randn(sequences, q_heads, dim).bfloat16()
        self.key = torch.randn(sequences, tokens, kv_heads, dim).bfloat16()
        self.value = torch.randn(sequences, tokens, kv_heads, dim).bfloat16()
        self.bytes = {}
        lengths = torch.full((sequences,), tokens, dtype=torch.int32)
        self.peers, self.outs = [], {}
        ragged = dict(sequence_start=torch.zeros_like(lengths), sequence_end=lengths)
        self.add(library, "contiguous bf16", "ragged_decode_attention", dict(key=self.key, value=self.value, **ragged))
        used = dict(context_lens=lengths)
        self.add_pages(library, "pages bf16", dict(key_cache=self.key, value_cache=self.value), used)
        for name, (dtype, largest, group) in CODES.items():
            (key_codes, k_scale), (value_codes, v_scale) = (codes(x, dtype, largest, group) for x in (self.key, self.value))
            scales = dict(k_scale=k_scale, v_scale=v_scale)
            packed = ("key_cache", "value_cache") if dtype == "int4" else ()
            self.add_pages(library, f"pages {name}", dict(key_cache=key_codes, value_cache=value_codes) | (scales if group else {}),
                           used if group else used | scales, packed)
        rows = self.query.unsqueeze(2)
        keys, values = self.key.transpose(1, 2), self.value.transpose(1, 2)
        self.peers.append(measure.Peer("torch", lambda: torch.nn.functional.scaled_dot_product_attention(
            rows, keys, values, enable_gqa=q_heads != kv_heads)))

    def add_pages(self, library, name, by_token, others, packed=()):
        """Tensors [sequences, tokens, ...] in pages, all in one order."""
        pages = {}
        for argument, x in by_token.items():
            torch.manual_seed(1)
            pages[argument], table = paged(x)
        self.add(library, name, "page_attention", dict(**pages, block_tables=table, **others), packed)

    def add(self, library, name, operation, inputs, packed=()):
        out = self.outs[name] = torch.empty_like(self.query)
        plan = Plan(library, operation, dict(query=self.query, **inputs), {"out": out}, {}, int4=packed)
        self.peers.append(measure.Peer(name, plan.run))
        self.bytes[name] = sum(x.nbytes for argument, x in inputs.items() if argument.startswith(("key", "value", "k_", "v_")))

    def check(self, cell):
        theirs = self.peers[-1].result.squeeze(2).float()
        for name, out in self.outs.items():
            error = ((out.float() - theirs).norm() / theirs.norm()).item()
            if not error < next((most for code, most in MOST_ERROR.items() if code in name), 0.02):
                sys.exit(f"cpu_decode.py: {cell[0]}: {name} differs from torch by {error:.1e} (relative L2)")


def measure_decode(library, cell, seconds):
    data = Decode(library, cell)
    times = measure.compare(data.peers, seconds)
    data.check(cell)
    at = {name: t["seconds"] for name, t in times.items()}
    data.bytes["torch"] = data.bytes["contiguous bf16"]
    row = dict(cell=cell[0], shape=cell[1:], bytes=data.bytes, times=times,
               pages_over_contiguous=at["pages bf16"] / at["contiguous bf16"],
               bf16_over_codes={name: at["pages bf16"] / at[f"pages {name}"] for name in CODES},
               torch_over_pages=at["torch"] / at["pages bf16"])
    print(f"{cell[0]:28s} " + "   ".join(f"{name} {1e3 * t:.2f} ms" for name, t in at.items()))
    print(f"{'':28s} pages take {row['pages_over_contiguous']:.3f} of contiguous, torch {row['torch_over_pages']:.2f} of pages; "
          "bf16 takes " + ", ".join(f"{ratio:.2f} of {name}" for name, ratio in row["bf16_over_codes"].items()), flush=True)
    return row


def add_shares(rows, read):
    """Of rows of decode: which part of the read bandwidth each call reaches."""
    for row in rows:
        row["of_read"] = {name: row["bytes"][name] / t["seconds"] / read for name, t in row["times"].items()}
        print(f"{row['cell']:28s} of read: " + "   ".join(f"{name} {100 * x:.0f} %" for name, x in row["of_read"].items()))


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
    rows = [measure_decode(library, cell, args.seconds) for cell in CELLS if cell[0] in args.cell]
    prefill = measure_prefill(library, args.seconds)
    again = peaks(args.library)["peak_read_bytes"]
    print(f"read bandwidth after the last cell: {again / 1e9:.1f} GB/s")
    add_shares(rows, max(peak["peak_read_bytes"], again))  # a disturbed one is too low
    rows.append(prefill)
    if args.json:
        measure.write(args.json, dict(date=time.strftime("%Y-%m-%d"), commit=commit(), version=library.version(),
                                      torch=torch.__version__, num_threads=THREADS, settings=SETTINGS, peaks=peak,
                                      read_after=again, rows=rows))


if __name__ == "__main__":
    main()
