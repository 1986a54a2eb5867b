"""Prints the problems of cuda_attention.py's comparison as calls that `ejk tune --recorded FILE` reads."""

import argparse
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "peers"))
import cuda_attention_cells as cells  # noqa: E402


def call(cell):
    q, kv = cell.q_shape(), cell.kv_shape()
    tensors = [("query", "bf16", q), ("key", "bf16", kv), ("value", "bf16", kv)]
    if cell.is_backward:
        tensors += [("out", "bf16", q), ("lse", "f32", (cell.batch, cell.q_heads, cell.seq)), ("d_out", "bf16", q)]
    return {
        "operation": "flash_attention_backward" if cell.is_backward else "flash_attention",
        "device": "cuda:0",
        "inputs": [{"name": name, "dtype": dtype, "shape": shape} for name, dtype, shape in tensors],
        "params": {"causal": cell.causal},
    }


everything = argparse.Namespace(
    direction=["forward", "backward"], head_dim=[64, 128, 256], mask=["full", "causal"],
    seq=sorted(set(cells.SEQS + cells.GQA_SEQS)), rows=["mha", "gqa"])
for cell in cells.grid(everything):
    print(json.dumps(call(cell)))
