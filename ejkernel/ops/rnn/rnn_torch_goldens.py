#!/usr/bin/env python3
"""Writes rnn_torch_goldens.h: what torch.nn.LSTM, GRU and RNN give in float64 for numbers that rnn_torch_test.cpp makes
by the same formula, and their gradients.

  .deps/peers/bin/python ejkernel/ops/rnn/rnn_torch_goldens.py
"""

import math
import pathlib

import torch

BATCH, SEQ_LEN, INPUTS, HIDDEN, LAYERS = 3, 4, 3, 2, 2
LENGTHS = [4, 2, 3]
CELLS = [("lstm", torch.nn.LSTM, {}), ("gru", torch.nn.GRU, {}), ("rnn", torch.nn.RNN, {}),
         ("rnn_relu", torch.nn.RNN, {"nonlinearity": "relu"})]


def numbers(start, *shape):
    """sin(start + 0.7 n) / 2 of the flat index n."""
    count = math.prod(shape)
    values = [math.sin(start + 0.7 * n) / 2 for n in range(count)]
    return torch.tensor(values, dtype=torch.float64).reshape(shape)


def goldens(name, module, options):
    network = module(INPUTS, HIDDEN, LAYERS, batch_first=True, bidirectional=True, **options).double()
    states, rows = 2 * LAYERS, network.weight_hh_l0.shape[0]
    stacked = {
        "weight_ih": numbers(1, 2, rows, INPUTS),
        "weight_ih_upper": numbers(2, 2, rows, 2 * HIDDEN),
        "weight_hh": numbers(3, states, rows, HIDDEN),
        "bias_ih": numbers(4, states, rows),
        "bias_hh": numbers(5, states, rows),
    }
    places = ["_l0", "_l0_reverse", "_l1", "_l1_reverse"]
    with torch.no_grad():
        for state, place in enumerate(places):
            weight_ih = stacked["weight_ih"] if state < 2 else stacked["weight_ih_upper"]
            getattr(network, "weight_ih" + place).copy_(weight_ih[state % 2])
            for part in ("weight_hh", "bias_ih", "bias_hh"):
                getattr(network, part + place).copy_(stacked[part][state])
    x = numbers(0, BATCH, SEQ_LEN, INPUTS).requires_grad_()
    hidden = numbers(6, states, BATCH, HIDDEN).requires_grad_()
    cell = numbers(7, states, BATCH, HIDDEN).requires_grad_()
    packed = torch.nn.utils.rnn.pack_padded_sequence(x, torch.tensor(LENGTHS), batch_first=True, enforce_sorted=False)
    out, finals = network(packed, (hidden, cell) if name == "lstm" else hidden)
    out, _ = torch.nn.utils.rnn.pad_packed_sequence(out, batch_first=True, total_length=SEQ_LEN)
    finals = finals if name == "lstm" else (finals,)
    results = {"out": out, "final_hidden": finals[0]} | ({"final_cell": finals[1]} if name == "lstm" else {})
    loss = sum((numbers(8 + n, *result.shape) * result).sum() for n, result in enumerate(results.values()))
    loss.backward()

    def gradient(part):
        return torch.stack([getattr(network, part + place).grad for place in places])

    gradients = {"d_input": x.grad, "d_hidden": hidden.grad} | ({"d_cell": cell.grad} if name == "lstm" else {})
    gradients["d_weight_ih"] = torch.stack([network.weight_ih_l0.grad, network.weight_ih_l0_reverse.grad])
    gradients["d_weight_ih_upper"] = torch.stack([network.weight_ih_l1.grad, network.weight_ih_l1_reverse.grad])
    gradients |= {"d_" + part: gradient(part) for part in ("weight_hh", "bias_ih", "bias_hh")}
    # Sums that tell every element apart stand for the long ones.
    sums = {key: (numbers(9, g.numel()) * g.flatten()).sum().reshape(1) for key, g in gradients.items()}
    return {**{key: x.detach().flatten() for key, x in results.items()}, **sums}


def main():
    lines = [
        "// Written by rnn_torch_goldens.py with torch " + torch.__version__.split("+")[0] + ".",
        "#pragma once",
        "",
        "#include <map>",
        "#include <string>",
        "#include <vector>",
        "",
        "namespace ejk::testing {",
        "",
        "/// Of each network its outputs, row-major, and of each gradient its sum with the weights sin(9 + 0.7 n) / 2.",
        "inline const std::map<std::string, std::map<std::string, std::vector<double>>>& rnn_torch_goldens() {",
        "  static const std::map<std::string, std::map<std::string, std::vector<double>>> goldens = {",
    ]
    for name, module, options in CELLS:
        lines.append(f'      {{"{name}",')
        lines.append("       {")
        for key, values in goldens(name, module, options).items():
            lines.append(f'           {{"{key}", {{' + ", ".join(f"{v:.12g}" for v in values.tolist()) + "}},")
        lines.append("       }},")
    lines += ["  };", "  return goldens;", "}", "", "}  // namespace ejk::testing", ""]
    pathlib.Path(__file__).with_name("rnn_torch_goldens.h").write_text("\n".join(lines))


if __name__ == "__main__":
    main()
