#!/usr/bin/env python3
"""recurrent_attention on the host beside the same chunked formula composed of torch's products: one process, one thread
count, interleaved. Prefill (forward, and forward with its gradients), the step form on the same problem, and decode.

  ./dev peers cpu_recurrent_attention                            everything
  ./dev peers cpu_recurrent_attention --cell "scalar D64"        only this one
  ./dev peers cpu_recurrent_attention --cell decode

torch takes part with the fastest of its chunk lengths for each cell. Within a chunk it divides by decays, as compositions
do: gates here are weak enough for that. "Of peak" is of the float32 multiply-adds in registers, "of read" of the bandwidth,
that `ejk bench --peaks` measures before the first and after the last cell. Useful FLOP = 4 T H K V, what the step form
takes; done = with the products inside chunks of 16. A decode step counts the state read once and written once. "Token by
token" is a call for every token, as decoding makes them.
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

TOKENS, HEADS, CHUNK = 4096, 8, 16
# name, head_dim, which gate
PREFILLS = [("scalar D64", 64, "g"), ("scalar D128", 128, "g"), ("keys D64", 64, "gk"), ("keys D128", 128, "gk")]
# name, sequences, heads, head_dim, dtype of the state
DECODES = [("decode f32 D128", 64, 16, 128, torch.float32), ("decode f32 D64", 128, 32, 64, torch.float32),
           ("decode bf16 D128", 128, 16, 128, torch.bfloat16)]
CELLS = [c[0] for c in PREFILLS + DECODES]


# ---- torch's ----


def chunked(query, key, value, gate, chunk):
    """[batch, seq, heads, dim] and log decays [batch, seq, heads, key_dim or 1], by the chunked formula."""
    def split(x):  # [batch, heads, chunks, chunk, dim]
        return x.transpose(1, 2).unflatten(2, (-1, chunk))

    q, k, v, log_decay = (split(x) for x in (query * query.shape[-1] ** -0.5, key, value, gate))
    from_start = log_decay.cumsum(3)
    whole = from_start[:, :, :, -1:]
    q_start, k_end = q * from_start.exp(), k * (whole - from_start).exp()
    if gate.shape[-1] == 1:
        scores = (q @ k.mT) * (from_start - from_start.mT).tril().exp()
    else:
        scores = q_start @ (k * (-from_start).exp()).mT
    inside = scores.tril() @ v
    updates, decay = k_end.mT @ v, whole.exp().mT
    state, outs = torch.zeros_like(updates[:, :, 0]), []
    for n in range(q.shape[2]):
        outs.append(inside[:, :, n] + q_start[:, :, n] @ state)
        state = decay[:, :, n] * state + updates[:, :, n]
    return torch.stack(outs, 2).flatten(2, 3).transpose(1, 2)


class Prefill:
    """One cell's tensors, and everybody's call."""

    def __init__(self, library, dim, gate, tokens=TOKENS):
        torch.manual_seed(0)
        self.library, self.dim, self.gate_name = library, dim, gate
        self.query, self.key, self.value, self.d_out = (torch.randn(1, tokens, HEADS, dim) for _ in range(4))
        self.gate = -0.05 * torch.rand(1, tokens, HEADS, 1 if gate == "g" else dim)
        self.inputs = dict(query=self.query, key=self.key, value=self.value)
        self.inputs[gate] = self.gate.squeeze(-1) if gate == "g" else self.gate
        self.out = torch.empty_like(self.value)
        self.gradients = {name: torch.empty_like(t) for name, t in self.inputs.items()}

    def forward(self, chunk=CHUNK):
        config = {"chunk": chunk, "block_v": self.dim}
        return Plan(self.library, "recurrent_attention", self.inputs, {"out": self.out}, {}, config)

    def backward(self):
        return Plan(self.library, "recurrent_attention_backward", dict(self.inputs, d_out=self.d_out), self.gradients, {})

    def token_by_token(self):
        """One call of the step form, as decoding makes TOKENS of them, each with the state of the one before."""
        inputs = {name: t[:, :1].contiguous() for name, t in self.inputs.items()}
        states = [torch.zeros(1, HEADS, self.dim, self.dim) for _ in range(2)]
        out = torch.empty_like(inputs["value"])
        plans = [Plan(self.library, "recurrent_attention", dict(inputs, initial_state=states[i]),
                      {"out": out, "final_state": states[1 - i]}, {}) for i in range(2)]

        def run():
            for n in range(64):
                plans[n % 2].run()

        return run

    def torch_forward(self, chunk):
        def run():
            with torch.inference_mode():
                return chunked(self.query, self.key, self.value, self.gate, chunk)

        return run

    def torch_both(self, chunk):
        leaves = [t.detach().requires_grad_() for t in (self.query, self.key, self.value, self.gate)]

        def run():
            return torch.autograd.grad(chunked(*leaves, chunk), leaves, self.d_out)

        return run


def check(name, ours, theirs):
    for a, b in zip(ours, theirs):
        error = ((a.reshape(b.shape) - b).norm() / b.norm()).item()
        if not error < 1e-3:
            sys.exit(f"cpu_recurrent_attention.py: {name}: ours differs from torch's by {error:.1e} (relative L2)")


def best_chunk(call):
    return min((16, 32, 64, 128, 256), key=lambda chunk: measure.Peer("torch", call(chunk)).estimate)


def measure_prefill(library, cell, seconds, peak):
    name, dim, gate = cell
    data = Prefill(library, dim, gate)
    forward, step, backward = data.forward(), data.forward(chunk=1), data.backward()

    def both():
        forward.run()
        backward.run()

    chunks = best_chunk(data.torch_forward), best_chunk(data.torch_both)
    peers = [measure.Peer("forward", forward.run), measure.Peer("both", both), measure.Peer("step form", step.run),
             measure.Peer("64 tokens one by one", data.token_by_token()),
             measure.Peer("torch forward", data.torch_forward(chunks[0])), measure.Peer("torch both", data.torch_both(chunks[1]))]
    times = measure.compare(peers, seconds)
    forward.run()
    check(name, [data.out, *data.gradients.values()], [peers[4].result, *peers[5].result])
    at = {peer: t["seconds"] for peer, t in times.items()}
    useful = 4 * TOKENS * HEADS * dim * dim
    done = useful + 2 * TOKENS * HEADS * CHUNK * 2 * dim
    one_by_one = at["64 tokens one by one"] * TOKENS / 64
    row = dict(cell=name, tokens=TOKENS, heads=HEADS, dim=dim, gate=gate, torch_chunks=chunks, times=times,
               useful_of_peak=useful / at["forward"] / peak["peak_flops"], done_of_peak=done / at["forward"] / peak["peak_flops"],
               step_over_forward=at["step form"] / at["forward"], one_by_one_over_forward=one_by_one / at["forward"],
               torch_over_forward=at["torch forward"] / at["forward"], torch_over_both=at["torch both"] / at["both"])
    print(f"{name:18s} forward {1e3 * at['forward']:.1f} ms: useful {100 * row['useful_of_peak']:.0f} %, done "
          f"{100 * row['done_of_peak']:.0f} % of peak; forward + backward {1e3 * at['both']:.1f} ms")
    print(f"{'':18s} torch forward {row['torch_over_forward']:.2f}x, forward + backward {row['torch_over_both']:.2f}x (chunks "
          f"{chunks[0]}, {chunks[1]}); step form {row['step_over_forward']:.2f}x, token by token "
          f"{row['one_by_one_over_forward']:.2f}x", flush=True)
    return row


def measure_decode(library, cell, seconds, peak):
    name, sequences, heads, dim, dtype = cell
    torch.manual_seed(0)
    query, key, value = (torch.randn(sequences, 1, heads, dim) for _ in range(3))
    inputs = dict(query=query, key=key, value=value, g=-0.05 * torch.rand(sequences, 1, heads))
    states = [torch.randn(sequences, heads, dim, dim).to(dtype) for _ in range(2)]
    out = torch.empty_like(value)
    params = {} if dtype == torch.float32 else {"state_dtype": "bf16"}
    plan = Plan(library, "recurrent_attention", dict(inputs, initial_state=states[0]),
                {"out": out, "final_state": states[1]}, params)
    decay = inputs["g"][:, 0, :, None, None].exp()

    def torch_step():
        with torch.inference_mode():
            state = torch.addcmul(decay * states[0], key[:, 0].unsqueeze(-1), value[:, 0].unsqueeze(-2))
            return (query[:, 0].unsqueeze(-2) * dim**-0.5 @ state.float()).squeeze(-2), state

    times = measure.compare([measure.Peer("step", plan.run), measure.Peer("torch", torch_step)], seconds)
    check(name, [out], [torch_step()[0]] if dtype == torch.float32 else [])
    moved = 2 * states[0].numel() * states[0].element_size()
    at = {peer: t["seconds"] for peer, t in times.items()}
    row = dict(cell=name, sequences=sequences, heads=heads, dim=dim, bytes=moved, times=times,
               of_read=moved / at["step"] / peak["peak_read_bytes"], torch_over_step=at["torch"] / at["step"])
    print(f"{name:18s} {1e3 * at['step']:.2f} ms: {moved / at['step'] / 1e9:.1f} GB/s of state, {100 * row['of_read']:.0f} % of "
          f"read; torch {row['torch_over_step']:.2f}x", flush=True)
    return row


def main():
    parser = argparse.ArgumentParser(prog="./dev peers cpu_recurrent_attention", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--library", required=True, help="libejkernel.so (./dev peers gives it)")
    add("--cell", nargs="+", metavar="CELL", default=CELLS, help=f"some of {CELLS}; the first word is enough")
    add("--seconds", type=float, default=6, help="for one cell's interleaved rounds, three at least (default: %(default)s)")
    add("--json", metavar="FILE", help="write a record")
    args = parser.parse_args()
    torch.set_num_threads(THREADS)
    library, peak = Library(args.library), peaks(args.library)
    print(f"{peak['device']['product']}, {THREADS} threads, {peak['peak_flops'] / 1e9:.0f} GFLOP/s, "
          f"{peak['peak_read_bytes'] / 1e9:.1f} GB/s read; torch {torch.__version__}, ejkernel {library.version()}\n")
    wanted = [c for c in CELLS if any(c.startswith(some) for some in args.cell)]
    rows = [measure_prefill(library, cell, args.seconds, peak) for cell in PREFILLS if cell[0] in wanted]
    rows += [measure_decode(library, cell, args.seconds, peak) for cell in DECODES if cell[0] in wanted]
    again = peaks(args.library)
    print(f"after the last cell: {again['peak_flops'] / 1e9:.0f} GFLOP/s, {again['peak_read_bytes'] / 1e9:.1f} GB/s read")
    if args.json:
        measure.write(args.json, dict(date=time.strftime("%Y-%m-%d"), commit=commit(), version=library.version(),
                                      torch=torch.__version__, num_threads=THREADS, settings=SETTINGS, peaks=peak,
                                      peaks_after=again, rows=rows))


if __name__ == "__main__":
    main()
