#!/usr/bin/env python3
"""flash_attention inside JAX on a CUDA device: what a call costs there beside the C interface, and beside cuDNN in JAX.

  ./dev peers cuda_jax                 needs a JAX with CUDA beside this repository's Python package
  ./dev peers cuda_jax --json FILE     and write a record

A call in JAX is timed as one of 100 in one jitted function, each with the last one's output as its query. The function is called
ten times, each with the last one's result; the wall time from the first call until the last result is there, over 1000, is the
figure (fewer than ten where that takes above 300 ms). The same 100 runs of one plan through the C interface, as a graph that is
launched as often, are timed by the device's events, and launched one by one as well. All take turns, medians of 11. One call of the function that is waited for is shown
too: "alone". Results and gradients are compared with the formula in float32 first.
"""

import argparse
import ctypes
import json
import os
import random
import statistics
import time

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
os.environ.setdefault("EJKERNEL_AUTOTUNE_POLICY", "heuristics")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

import ejkernel  # noqa: E402
from ejkernel._library import Device, Plan, Spec  # noqa: E402

CHAINED = 100
MOST_TIMES = 10  # that the 100 calls are made in one measurement
LONGEST_SECONDS = 0.3  # of a measurement; in fewer functions in a row JAX's dispatch would show
REPEATS = 11
# batch, length, query heads, key heads, head dim, causal
CASES = [
    (1, 128, 8, 8, 64, False),
    (1, 512, 16, 16, 64, True),
    (2, 1024, 16, 16, 128, False),
    (2, 2048, 16, 16, 128, True),
    (2, 2048, 32, 8, 128, True),
    (1, 8192, 16, 16, 64, False),
    (1, 8192, 16, 16, 128, True),
]


class Cuda:
    """The few functions of the driver that timing a stream takes."""

    def __init__(self):
        self.c = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self("cuDeviceGet", ctypes.byref(device), 0)
        self("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self("cuCtxSetCurrent", context)
        self.stream, self.begin, self.end = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
        self("cuStreamCreate", ctypes.byref(self.stream), 1)
        self("cuEventCreate", ctypes.byref(self.begin), 0)
        self("cuEventCreate", ctypes.byref(self.end), 0)

    def __call__(self, name, *arguments):
        code = getattr(self.c, name)(*arguments)
        if code != 0:
            raise RuntimeError(f"{name} returned {code}")

    def seconds(self, launch, times):
        self("cuEventRecord", self.begin, self.stream)
        for _ in range(times):
            launch(self.stream.value)
        self("cuEventRecord", self.end, self.stream)
        self("cuEventSynchronize", self.end)
        milliseconds = ctypes.c_float()
        self("cuEventElapsedTime_v2" if hasattr(self.c, "cuEventElapsedTime_v2") else "cuEventElapsedTime",
             ctypes.byref(milliseconds), self.begin, self.end)
        return milliseconds.value / 1e3 / times


def formula(q, k, v, causal):
    group = q.shape[2] // k.shape[2]
    k, v = (jnp.repeat(x, group, 2).astype(jnp.float32) for x in (k, v))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q.astype(jnp.float32), k, precision="highest") / q.shape[-1] ** 0.5
    if causal:
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -jnp.inf)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v, precision="highest")


def chain(attention, calls):
    @jax.jit
    def run(q, k, v):
        for _ in range(calls):
            q = attention(q, k, v)
        return q

    return run


def wall(run, q, k, v, times):
    begin = time.perf_counter()
    for _ in range(times):
        q = run(q, k, v)
    q.block_until_ready()
    return (time.perf_counter() - begin) / times


def plan_runs(q, k, v, causal):
    """100 runs of one plan, from one buffer to another and back."""
    spec = lambda x: Spec("bf16", tuple(x.shape))  # noqa: E731
    plan = Plan("flash_attention", {"query": spec(q), "key": spec(k), "value": spec(v)}, {"causal": causal},
                device=Device("cuda"))
    buffers = [jnp.array(q), jnp.zeros_like(q)]
    lse = jnp.zeros((q.shape[0], q.shape[2], q.shape[1]), jnp.float32)
    workspace = jnp.zeros(max(plan.info["workspace_bytes"], 1), jnp.uint8)
    jax.block_until_ready((buffers, lse, workspace))
    at = lambda x: x.unsafe_buffer_pointer()  # noqa: E731
    address = workspace.unsafe_buffer_pointer() if plan.info["workspace_bytes"] else None

    def launch(stream):
        for n in range(CHAINED):
            inputs = {"query": at(buffers[n % 2]), "key": at(k), "value": at(v)}
            plan.run(inputs, {"out": at(buffers[1 - n % 2]), "lse": at(lse)}, address, stream)

    return plan, launch


def captured(cuda, launch):
    """The launches as a graph: Python's own time must not count as the device's."""
    graph, program = ctypes.c_void_p(), ctypes.c_void_p()
    cuda("cuStreamBeginCapture_v2", cuda.stream, 0)
    launch(cuda.stream.value)
    cuda("cuStreamEndCapture", cuda.stream, ctypes.byref(graph))
    cuda("cuGraphInstantiateWithFlags", ctypes.byref(program), graph, ctypes.c_ulonglong(0))
    return lambda stream: cuda("cuGraphLaunch", program, ctypes.c_void_p(stream))


def measure(cuda, batch, length, heads, kv_heads, dim, causal):
    random_array = lambda n, h: jax.random.normal(jax.random.key(n), (batch, length, h, dim), jnp.bfloat16)  # noqa: E731
    q, k, v = random_array(0, heads), random_array(1, kv_heads), random_array(2, kv_heads)
    ours = lambda q, k, v: ejkernel.flash_attention(q, k, v, causal=causal).out  # noqa: E731
    cudnn = lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=causal, implementation="cudnn")  # noqa: E731
    if length <= 2048:
        expected = formula(q, k, v, causal)
        for attention in (ours, cudnn):
            np.testing.assert_allclose(np.asarray(jax.jit(attention)(q, k, v), np.float32), expected, atol=0.02, rtol=0.02)
        cotangent = random_array(3, heads)
        gradients = [
            jax.jit(jax.grad(lambda *a: (attention(*a).astype(jnp.float32) * cotangent).sum(), (0, 1, 2)))(q, k, v)
            for attention in (ours, lambda *a: formula(*a, causal))
        ]
        for got, wanted in zip(*gradients, strict=True):
            got, wanted = np.asarray(got, np.float32), np.asarray(wanted, np.float32)
            assert np.abs(got - wanted).max() <= 0.03 * max(1, np.abs(wanted).max()), "gradients differ"

    plan, launch = plan_runs(q, k, v, causal)
    on_device = captured(cuda, launch)
    in_jax, in_cudnn = chain(ours, CHAINED), chain(cudnn, CHAINED)
    once = cuda.seconds(on_device, 2)
    times = max(1, min(MOST_TIMES, round(LONGEST_SECONDS / once)))
    contenders = {
        "jax": lambda: wall(in_jax, q, k, v, times),
        "alone": lambda: wall(in_jax, q, k, v, times=1),
        "cudnn": lambda: wall(in_cudnn, q, k, v, times),
        "device": lambda: cuda.seconds(on_device, times),
        "launched": lambda: cuda.seconds(launch, times),
    }
    samples = {name: [] for name in contenders}
    for run in contenders.values():
        run()
    for _ in range(REPEATS):
        for name in random.sample(list(contenders), len(contenders)):
            samples[name].append(contenders[name]() / CHAINED)
    seconds = {name: statistics.median(values) for name, values in samples.items()}
    overhead = seconds["jax"] - seconds["device"]
    return {
        "batch": batch, "length": length, "heads": heads, "kv_heads": kv_heads, "head_dim": dim, "causal": causal,
        "kernel": plan.info["kernel"], "seconds": seconds, "overhead_seconds": overhead,
        "allowed_seconds": 3e-6 + 0.01 * seconds["device"],
        "speedup_over_cudnn": seconds["cudnn"] / seconds["jax"],
    }  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    device, cuda, cells = jax.devices("cuda")[0], None, []
    jnp.zeros(1).block_until_ready()  # makes the device's context, which the driver's functions then find
    print(f"ejkernel {ejkernel.__version__}, JAX {jax.__version__}, {device.device_kind}")
    print(f"{'shape':34} {'in JAX':>9} {'alone':>9} {'C, device':>9} {'C, launched':>11} {'overhead':>9} {'allowed':>8} {'x cuDNN':>8}")
    for case in CASES:
        cuda = cuda or Cuda()
        cell = measure(cuda, *case)
        cells.append(cell)
        us = {name: 1e6 * s for name, s in cell["seconds"].items()}
        shape = "b{batch} s{length} h{heads}/{kv_heads} d{head_dim}".format(**cell) + (" causal" if cell["causal"] else "")
        print(
            f"{shape:34} {us['jax']:8.2f}u {us['alone']:8.2f}u {us['device']:8.2f}u {us['launched']:10.2f}u {1e6 * cell['overhead_seconds']:8.2f}u"
            f" {1e6 * cell['allowed_seconds']:7.2f}u {cell['speedup_over_cudnn']:8.3f}",
            flush=True,
        )
        mean = statistics.geometric_mean(cell["speedup_over_cudnn"] for cell in cells)
        if options.json:
            record = {"version": ejkernel.__version__, "jax": jax.__version__, "device": device.device_kind,
                      "speedup_over_cudnn": mean, "cells": cells}  # fmt: skip
            with open(options.json, "w") as file:
                json.dump(record, file, indent=1)
    print(f"beside cuDNN in JAX, geometric mean: {mean:.3f}")


if __name__ == "__main__":
    main()
