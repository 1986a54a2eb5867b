"""rnn and its gradient: jax.lax.scan over the steps of each layer and direction."""

import jax
import jax.numpy as jnp

from ejkernel._xla.sequences import clamp_lengths

_GATES = {"lstm": 4, "gru": 3, "rnn": 1}
_ACTIVATIONS = {
    "tanh": jnp.tanh,
    "relu": jax.nn.relu,  # whose slope at 0 is 0
    "sigmoid": jax.nn.sigmoid,
    "identity": lambda x: x,
}
_NUMBERS = (
    "input",
    "hidden",
    "cell",
    "weight_ih",
    "weight_ih_upper",
    "weight_hh",
    "bias_ih",
    "bias_hh",
)  # what has a gradient


def rnn(inputs: dict, params: dict) -> dict:
    dtype = inputs["input"].dtype
    results = _network(*_split(inputs), params)
    return {name: x if name == "gates" else x.astype(dtype) for name, x in results.items()}


def rnn_backward(inputs: dict, params: dict) -> dict:
    numbers, lengths = _split(inputs)
    params = {**params, "keep_gates": False}  # they are made anew: jax.vjp knows no others
    outputs, pull_back = jax.vjp(lambda numbers: _network(numbers, lengths, params), numbers)
    cotangents = {}
    for name, output in outputs.items():
        given = inputs[f"d_{name}"]
        cotangents[name] = jnp.zeros_like(output) if given is None else given.astype(output.dtype)
    if inputs["d_out"] is not None:
        used = _used(lengths, *inputs["input"].shape[:2])
        cotangents["out"] = jnp.where(used[:, :, None], cotangents["out"], 0)
    (gradients,) = pull_back(cotangents)
    return {name: gradient.astype(inputs[name].dtype) for name, gradient in gradients.items()}


def _split(inputs: dict) -> tuple[dict, jax.Array | None]:
    """The numbers, in the dtype that states have, and the lengths."""
    wide = jnp.float64 if inputs["input"].dtype == jnp.float64 else jnp.float32
    return {name: inputs[name].astype(wide) for name in _NUMBERS if inputs[name] is not None}, inputs["lengths"]


def _used(lengths: jax.Array | None, batch: int, seq_len: int) -> jax.Array:
    """bool [batch, seq_len]: the steps that sequences have."""
    if lengths is None:
        return jnp.ones((batch, seq_len), bool)
    return jnp.arange(seq_len) < clamp_lengths(lengths, seq_len)[:, None]


def _backwards(x: jax.Array, used: jax.Array) -> jax.Array:
    """Each sequence's own steps in reverse; where others are, anything."""
    seq_len = x.shape[1]
    if seq_len == 0:
        return x
    step = jnp.arange(seq_len)
    lengths = used.sum(axis=1, dtype=jnp.int32)
    places = jnp.where(used, lengths[:, None] - 1 - step, step)
    return jnp.take_along_axis(x, places[:, :, None], axis=1)


def _network(numbers: dict, lengths: jax.Array | None, params: dict) -> dict:
    batch, seq_len = numbers["input"].shape[:2]
    num_states, _, hidden_size = numbers["weight_hh"].shape
    directions = 2 if params["bidirectional"] else 1
    used = _used(lengths, batch, seq_len)
    x = jnp.where(used[:, :, None], numbers["input"], 0)
    shape = (num_states, batch, hidden_size)
    initial = {
        name: numbers[name].reshape(shape) if name in numbers else jnp.zeros(shape, x.dtype)
        for name in ("hidden", "cell")
    }
    weights = [*numbers["weight_ih"], *numbers.get("weight_ih_upper", ())]
    finals, kept = [], []
    for layer in range(params["num_layers"]):
        outs = []
        for direction in range(directions):
            state = layer * directions + direction
            steps = _backwards(x, used) if direction == 1 else x
            out, gates, final = _run(numbers, params, state, weights[state], steps, used, initial)
            outs.append(_backwards(out, used) if direction == 1 else out)
            kept.append(_backwards(gates, used) if direction == 1 else gates)
            finals.append(final)
        x = jnp.concatenate(outs, axis=-1)
    results = {"out": x, "final_hidden": jnp.stack([h for h, _ in finals])}
    if params["cell_type"] == "lstm":
        results["final_cell"] = jnp.stack([c for _, c in finals])
    if params["keep_gates"]:
        results["gates"] = jnp.stack(kept)
    return results


def _product(x: jax.Array, weight: jax.Array, bias: jax.Array | None) -> jax.Array:
    out = jnp.matmul(x, weight.T, precision=jax.lax.Precision.HIGHEST)
    return out if bias is None else out + bias


def _run(numbers: dict, params: dict, state: int, weight: jax.Array, x: jax.Array, used: jax.Array, initial: dict):
    """A direction of a layer: its output and gates at every step, 0 at those that are not used, and its last states."""
    bias_ih, bias_hh = (numbers[name][state] if name in numbers else None for name in ("bias_ih", "bias_hh"))
    from_input = _product(x, weight, bias_ih)

    def step(states, given):
        sums, is_used = given
        *after, gates = _cell(params, sums, _product(states[0], numbers["weight_hh"][state], bias_hh), *states)
        states = tuple(jnp.where(is_used[:, None], new, old) for new, old in zip(after, states, strict=True))
        results = (states[0], jnp.concatenate(gates, axis=-1))
        return states, tuple(jnp.where(is_used[:, None], result, 0) for result in results)

    states = (initial["hidden"][state], initial["cell"][state])
    states, (out, gates) = jax.lax.scan(step, states, (from_input.swapaxes(0, 1), used.T))
    return out.swapaxes(0, 1), gates.swapaxes(0, 1), states


def _cell(params: dict, x: jax.Array, s: jax.Array, h: jax.Array, c: jax.Array) -> tuple:
    """h and c after a step, of the sums over the input and over h; and what is kept of the gates."""
    kind = params["cell_type"]
    x, s = (jnp.split(sums, _GATES[kind], axis=-1) for sums in (x, s))
    if kind == "rnn":
        h = _ACTIVATIONS[params["activation"]](x[0] + s[0])
        return h, c, (h,)
    if kind == "gru":
        r, z = jax.nn.sigmoid(x[0] + s[0]), jax.nn.sigmoid(x[1] + s[1])
        n = jnp.tanh(x[2] + r * s[2])
        return (1 - z) * n + z * h, c, (r, z, n, s[2])
    i, f, o = (jax.nn.sigmoid(x[gate] + s[gate]) for gate in (0, 1, 3))
    g = jnp.tanh(x[2] + s[2])
    c = f * c + i * g
    return o * jnp.tanh(c), c, (i, f, g, o)
