#!/usr/bin/env python3
"""Recurrent networks on the host beside torch's nn.LSTM, nn.GRU and nn.RNN: a forward without gradients, and a forward
with its backward. One process, one thread count, interleaved; float32.

  ./dev peers cpu_rnn                     everything
  ./dev peers cpu_rnn --cell lstm_512     only this one

Torch's sequences lie step by step, as it likes them best; ours are read in that place. "Of peak" counts the multiply-adds
of all products against the float32 peak that `ejk bench --peaks` measures before the first and after the last cell; the
backward counts as twice the forward. Ours keeps the gates for it, as torch does where gradients are wanted.
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

# name, cell, batch, steps, input size, hidden size, layers, both directions
CELLS = [
    ("lstm_512", "lstm", 32, 256, 512, 512, 1, False),
    ("lstm_512_two_ways", "lstm", 32, 128, 512, 512, 2, True),
    ("gru_512", "gru", 32, 256, 512, 512, 1, False),
    ("rnn_512", "rnn", 32, 256, 512, 512, 1, False),
    ("lstm_128_one_row", "lstm", 1, 1024, 128, 128, 1, False),
    ("lstm_1024", "lstm", 64, 64, 1024, 1024, 1, False),
]
GATES = {"lstm": 4, "gru": 3, "rnn": 1}
MODULES = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU, "rnn": torch.nn.RNN}
WEIGHTS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


class Network:
    """One cell's tensors, and both libraries' calls."""

    def __init__(self, library, cell):
        _, self.kind, batch, steps, inputs, hidden, layers, two_ways = cell
        directions = 2 if two_ways else 1
        torch.manual_seed(0)
        self.module = MODULES[self.kind](inputs, hidden, layers, bidirectional=two_ways)
        self.input = torch.randn(steps, batch, inputs, requires_grad=True)
        self.d_out = torch.randn(steps, batch, directions * hidden)
        self.flops = sum(2 * batch * steps * directions * GATES[self.kind] * hidden
                         * ((inputs if layer == 0 else directions * hidden) + hidden) for layer in range(layers))

        of = {name: [getattr(self.module, f"{name}_l{layer}{suffix}").detach() for layer in range(layers)
                     for suffix in ("", "_reverse")[:directions]] for name in WEIGHTS}
        given = {"input": self.input.detach().transpose(0, 1), "weight_ih": torch.stack(of["weight_ih"][:directions])}
        if layers > 1:
            given["weight_ih_upper"] = torch.stack(of["weight_ih"][directions:])
        given |= {name: torch.stack(of[name]) for name in WEIGHTS[1:]}
        params = {"cell_type": self.kind, "bidirectional": two_ways, "num_layers": layers}
        self.out = torch.empty(batch, steps, directions * hidden)
        finals = {name: torch.empty(layers * directions, batch, hidden)
                  for name in ("final_hidden", "final_cell")[:2 if self.kind == "lstm" else 1]}
        results = {"out": self.out, **finals}
        self.forward = Plan(library, "rnn", given, results, params)
        params = {**params, "keep_gates": True}
        slots = 1 if self.kind == "rnn" else 4
        gates = torch.empty(layers * directions, batch, steps, slots * hidden)
        self.forward_of_training = Plan(library, "rnn", given, {**results, "gates": gates}, params)
        self.gradients = {name: torch.empty(x.shape) for name, x in given.items()}
        self.backward = Plan(library, "rnn_backward", {**given, "gates": gates, "d_out": self.d_out.transpose(0, 1)}, self.gradients,
                             params)

    def torch_forward(self):
        with torch.no_grad():
            return self.module(self.input)[0]

    def torch_training(self):
        self.module.zero_grad(set_to_none=True)
        self.input.grad = None
        self.module(self.input)[0].backward(self.d_out)

    def training(self):
        self.forward_of_training.run()
        self.backward.run()

    def check(self, name):
        theirs = self.torch_forward().transpose(0, 1)
        self.torch_training()
        for what, ours, expected in (("out", self.out, theirs),
                                     ("gradient of input", self.gradients["input"], self.input.grad.transpose(0, 1)),
                                     ("gradient of weight_hh", self.gradients["weight_hh"][0], self.module.weight_hh_l0.grad),
                                     ("gradient of weight_ih", self.gradients["weight_ih"][0], self.module.weight_ih_l0.grad)):
            error = ((ours - expected).norm() / expected.norm()).item()
            if not error < 1e-4:
                sys.exit(f"cpu_rnn.py: {name}: {what} differs from torch by {error:.1e} (relative L2)")


def measure_cell(library, cell, seconds, peak):
    network = Network(library, cell)
    peers = [measure.Peer("ours", network.forward.run), measure.Peer("torch", network.torch_forward)]
    forward = measure.compare(peers, seconds)
    training = measure.compare([measure.Peer("ours", network.training), measure.Peer("torch", network.torch_training)],
                               seconds)
    network.check(cell[0])
    row = dict(cell=cell[0], shape=cell[1:], flops=network.flops)
    for name, times, flops in (("forward", forward, network.flops), ("training", training, 3 * network.flops)):
        ours, theirs = times["ours"]["seconds"], times["torch"]["seconds"]
        row[name] = dict(times=times, torch_over_ours=theirs / ours, of_peak=flops / ours / peak)
        print(f"{cell[0]:20s} {name:9s} {1e3 * ours:8.2f} ms ({100 * flops / ours / peak:3.0f} % of peak), torch "
              f"{1e3 * theirs:8.2f} ms: {theirs / ours:.2f}", flush=True)
    return row


def main():
    parser = argparse.ArgumentParser(prog="./dev peers cpu_rnn", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--library", required=True, help="libejkernel.so (./dev peers gives it)")
    add("--cell", nargs="+", choices=[c[0] for c in CELLS], default=[c[0] for c in CELLS])
    add("--seconds", type=float, default=6, help="for one comparison's interleaved rounds, three at least (default: %(default)s)")
    add("--json", metavar="FILE", help="write a record")
    args = parser.parse_args()
    torch.set_num_threads(THREADS)
    library, peak = Library(args.library), peaks(args.library)
    print(f"{peak['device']['product']}, {THREADS} threads, {peak['peak_flops'] / 1e9:.0f} GFLOP/s float32; torch "
          f"{torch.__version__}, ejkernel {library.version()}\n")
    rows = [measure_cell(library, cell, args.seconds, peak["peak_flops"]) for cell in CELLS if cell[0] in args.cell]
    again = peaks(args.library)["peak_flops"]
    print(f"peak after the last cell: {again / 1e9:.0f} GFLOP/s")
    if args.json:
        measure.write(args.json, dict(date=time.strftime("%Y-%m-%d"), commit=commit(), version=library.version(),
                                      torch=torch.__version__, num_threads=THREADS, settings=SETTINGS, peaks=peak,
                                      peak_after=again, rows=rows))


if __name__ == "__main__":
    main()
