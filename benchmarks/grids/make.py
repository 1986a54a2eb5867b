#!/usr/bin/env python3
"""Writes the problems that peers are compared in as calls, for `ejk tune --recorded benchmarks/grids/NAME.jsonl`:
cuda_attention.jsonl has those of peers/cuda_attention.py, cpu_attention.jsonl those of peers/cpu_attention.py up to 2,048 tokens."""

import argparse
import itertools
import json
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "peers"))
import cuda_attention_cells as cuda  # noqa: E402


def call(device, dtype, q, kv, causal, is_backward):
    batch, seq, heads, _ = q
    tensors = [("query", dtype, q), ("key", dtype, kv), ("value", dtype, kv)]
    if is_backward:
        tensors += [("out", dtype, q), ("lse", "f32", (batch, heads, seq)), ("d_out", dtype, q)]
    return {
        "operation": "flash_attention_backward" if is_backward else "flash_attention",
        "device": device,
        "inputs": [{"name": name, "dtype": dtype, "shape": shape} for name, dtype, shape in tensors],
        "params": {"causal": causal},
    }


def cuda_calls():
    everything = argparse.Namespace(
        direction=["forward", "backward"], head_dim=[64, 128, 256], mask=["full", "causal"],
        seq=sorted(set(cuda.SEQS + cuda.GQA_SEQS)), rows=["mha", "gqa"])
    for cell in cuda.grid(everything):
        yield call("cuda:0", "bf16", cell.q_shape(), cell.kv_shape(), cell.causal, cell.is_backward)


def cpu_calls():
    for dtype, dim, seq, (heads, kv_heads), causal, is_backward in itertools.product(
            ["f32", "bf16"], [64, 128], [512, 2048], [(16, 16), (32, 8)], [False, True], [False, True]):
        yield call("cpu", dtype, (1, seq, heads, dim), (1, seq, kv_heads, dim), causal, is_backward)


for name, calls in {"cuda_attention": cuda_calls(), "cpu_attention": cpu_calls()}.items():
    (HERE / f"{name}.jsonl").write_text("".join(json.dumps(c) + "\n" for c in calls))
