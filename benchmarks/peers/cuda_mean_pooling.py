#!/usr/bin/env python3
"""mean_pooling and its gradient on a CUDA device, against the copy bandwidth that the same run measures.

  ./dev peers cuda_mean_pooling                 a gigabyte of rows in each form
  ./dev peers cuda_mean_pooling --json FILE     and write a record

Bytes are those of inputs and outputs, once each. Times are the device's own (events around single runs, median of 30); before each,
256 MB of other data are read, so that none of the inputs is in L2.
"""

import argparse
import json
import statistics
import time

import torch

from ejkernel_c import Library, Plan

GIB = 1 << 30
# What is pooled: shape of x, chunk size or None, dtype.
CASES = [
    ("sequences", (128, 4096, 1024), None, torch.bfloat16),
    ("chunks of 64", (4, 16384, 64, 128), 64, torch.bfloat16),
    ("two long sequences", (2, 131072, 1024), None, torch.float32),
]


def seconds(run, others, repeats=30):
    """Median time of one run whose inputs are not in L2."""
    run()
    times = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        others.sum()
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return statistics.median(times)


def bytes_of(*tensors):
    return sum(t.numel() * t.element_size() for t in tensors)


def pooled_shape(shape, chunk):
    return (shape[0], shape[-1]) if chunk is None else (shape[0], shape[1] // chunk, *shape[2:])


def reference(x, chunk):
    return x.float().mean(1) if chunk is None else x.float().unflatten(1, (-1, chunk)).mean(2)


def measure(library, others, copied, name, shape, chunk, dtype):
    """Figures of one case, forward and backward; raises when the result is wrong."""
    params = {} if chunk is None else {"chunk_size": chunk}
    x = torch.randn(shape, device="cuda", dtype=dtype)
    out = torch.full(pooled_shape(shape, chunk), torch.nan, device="cuda", dtype=dtype)
    forward = Plan(library, "mean_pooling", {"x": x}, {"out": out}, params)
    forward.run()
    torch.testing.assert_close(out.float(), reference(x, chunk), rtol=1e-2, atol=1e-3)
    rows = []
    for operation, plan in (
        ("mean_pooling", forward),
        ("mean_pooling_backward", Plan(library, "mean_pooling_backward", {"d_out": out}, {"x": x}, {**params, "num_tokens": shape[1]})),
    ):
        took = seconds(plan.run, others)
        rate = bytes_of(x, out) / took
        rows.append({"operation": operation, "case": name, "shape": shape, "dtype": str(dtype)[6:], "seconds": took,
                     "bytes_per_second": rate, "of_copy": rate / copied, "config": plan.info.get("config")})
        print(f"{operation:22} {name:20} {str(dtype)[6:]:9} {took * 1e6:7.0f} us {rate / 1e9:6.0f} GB/s  {rate / copied:.3f} of copy")
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True, help="libejkernel.so")
    parser.add_argument("--commit", default="unknown", help="what is measured")
    parser.add_argument("--json", metavar="FILE", help="write a record")
    args = parser.parse_args()
    library = Library(args.library)
    others = torch.ones(64 << 20, device="cuda")
    source = torch.randn(GIB // 4, device="cuda")
    copied = 2 * bytes_of(source) / seconds(lambda target=torch.empty_like(source): target.copy_(source), others)
    del source
    print(f"{torch.cuda.get_device_name()}: copies {copied / 1e9:.0f} GB/s, read and written")
    rows = [row for case in CASES for row in measure(library, others, copied, *case)]
    if args.json:
        record = {"date": time.strftime("%Y-%m-%d"), "commit": args.commit, "command": "./dev peers cuda_mean_pooling --json FILE",
                  "device": torch.cuda.get_device_name(), "torch": torch.__version__, "copy_bytes_per_second": copied, "rows": rows}
        with open(args.json, "w") as file:
            json.dump(record, file, indent=1)


if __name__ == "__main__":
    main()
