"""Platform xla against the reference kernels, and both against jax.lax.scan and PyTorch: rnn and its gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import xla_problems as problems
from test_xla import check_each, float64, no_float64  # noqa: F401
from xla_reference import DTYPES

import ejkernel
from ejkernel import modules

GATES = {"lstm": 4, "gru": 3, "rnn": 1}
ACTIVATIONS = ("tanh", "relu", "sigmoid", "identity")
BATCH, SEQ_LEN, INPUTS, HIDDEN = 4, 5, 3, 6


def rnn_call(rng, cell_type: str, dtype=np.float64, seq_len: int = SEQ_LEN, **params) -> tuple[dict, dict]:
    params = {
        "cell_type": cell_type,
        "num_layers": int(rng.integers(1, 3)),
        "bidirectional": bool(rng.random() < 0.5),
        "keep_gates": bool(rng.random() < 0.5),
        "activation": str(rng.choice(ACTIVATIONS)) if cell_type == "rnn" else "tanh",
        **params,
    }
    directions = 2 if params["bidirectional"] else 1
    states, rows = params["num_layers"] * directions, GATES[cell_type] * HIDDEN

    def numbers(*shape):
        return problems.normal(rng, shape, dtype)

    def weights(*shape):
        return (problems.normal(rng, shape) / np.sqrt(HIDDEN)).astype(dtype)

    inputs = {
        "input": numbers(BATCH, seq_len, INPUTS),
        "hidden": problems.maybe(rng, lambda: numbers(states, BATCH, HIDDEN), 0.7),
        "weight_ih": weights(directions, rows, INPUTS),
        "weight_hh": weights(states, rows, HIDDEN),
        "bias_ih": problems.maybe(rng, lambda: weights(states, rows), 0.7),
        "bias_hh": problems.maybe(rng, lambda: weights(states, rows), 0.7),
        "lengths": problems.maybe(rng, lambda: rng.integers(-1, seq_len + 2, BATCH).astype(np.int32), 0.7),
    }
    if states > directions:
        inputs["weight_ih_upper"] = weights(states - directions, rows, directions * HIDDEN)
    if cell_type == "lstm":
        inputs["cell"] = problems.maybe(rng, lambda: numbers(states, BATCH, HIDDEN), 0.7)
    poison(inputs["input"], inputs["lengths"])
    return problems.full_call("rnn", inputs, params)


def poison(x: np.ndarray, lengths: np.ndarray | None):
    """NaN past the lengths."""
    for row, length in zip(x, () if lengths is None else lengths):
        row[max(length, 0) :] = np.nan


def backward_call(rng, inputs: dict, params: dict, results: dict) -> tuple[dict, dict]:
    cotangents = {f"d_{name}": problems.normal(rng, x.shape, x.dtype) for name, x in results.items() if name != "gates"}
    poison(cotangents["d_out"], inputs["lengths"])
    left_out = rng.choice(list(cotangents))
    return problems.full_call(
        "rnn_backward", {**inputs, "gates": results.get("gates"), **cotangents, left_out: None}, params
    )


def check_both_ways(rng, inputs: dict, params: dict, tolerance: float = 1e-12):
    (results,) = check_each("rnn", [inputs], params, tolerance)
    gradient, params = backward_call(rng, inputs, params, results)
    (gradients,) = check_each("rnn_backward", [gradient], params, tolerance)
    for name, x in (results | gradients).items():
        assert np.isfinite(x.astype(np.float64)).all(), name


@pytest.mark.parametrize(
    "cell_type, num_layers, bidirectional",
    [("lstm", 2, True), ("lstm", 1, False), ("gru", 2, False), ("gru", 1, True), ("rnn", 2, False), ("rnn", 1, True)],
)
def test_it_equals_the_reference(cell_type, num_layers, bidirectional):
    rng = np.random.default_rng(num_layers)
    check_both_ways(rng, *rnn_call(rng, cell_type, num_layers=num_layers, bidirectional=bidirectional))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_vanilla_cells(activation):
    rng = np.random.default_rng(10)
    check_both_ways(rng, *rnn_call(rng, "rnn", activation=activation, num_layers=1, bidirectional=False))


@pytest.mark.parametrize("dtype, tolerance", [("f32", 1e-5), ("bf16", 2e-2)])
def test_smaller_floats(dtype, tolerance, no_float64):  # noqa: F811
    rng = np.random.default_rng(20)
    check_both_ways(rng, *rnn_call(rng, "lstm", DTYPES[dtype], num_layers=2, bidirectional=False), tolerance)


def test_no_steps():
    rng = np.random.default_rng(21)
    check_both_ways(rng, *rnn_call(rng, "gru", seq_len=0, num_layers=2, bidirectional=True))


def test_it_equals_a_scan(no_float64):  # noqa: F811
    """An LSTM as anybody writes it in JAX, and what jax.grad makes of it."""
    rng = np.random.default_rng(30)
    x, weight_ih, weight_hh, bias = (
        jnp.asarray(problems.normal(rng, shape, np.float32) / 2)
        for shape in ((BATCH, SEQ_LEN, INPUTS), (4 * HIDDEN, INPUTS), (4 * HIDDEN, HIDDEN), (4 * HIDDEN,))
    )

    def scan(x, weight_ih, weight_hh, bias):
        def step(states, x_t):
            h, c = states
            i, f, g, o = jnp.split(x_t @ weight_ih.T + h @ weight_hh.T + bias, 4, axis=-1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zeros = jnp.zeros((BATCH, HIDDEN))
        return jax.lax.scan(step, (zeros, zeros), x.swapaxes(0, 1))[1].swapaxes(0, 1)

    def ours(x, weight_ih, weight_hh, bias):
        return ejkernel.rnn(x, weight_ih=weight_ih[None], weight_hh=weight_hh[None], bias_ih=bias[None]).out

    def loss(function):
        return lambda *arrays: jnp.sum(jnp.sin(function(*arrays)))

    arrays = (x, weight_ih, weight_hh, bias)
    np.testing.assert_allclose(ours(*arrays), scan(*arrays), rtol=0, atol=1e-6)
    gradients = [jax.jit(jax.grad(loss(function), argnums=(0, 1, 2, 3)))(*arrays) for function in (ours, scan)]
    for got, want in zip(*gradients, strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * float(jnp.abs(want).max()))


# ---- the documents' signature, and PyTorch ----


def torch_names(num_layers: int, bidirectional: bool) -> list[str]:
    suffixes = ("", "_reverse") if bidirectional else ("",)
    return [f"_l{layer}{suffix}" for layer in range(num_layers) for suffix in suffixes]


def named_weights(rng, cell_type: str, num_layers: int, bidirectional: bool) -> dict:
    rows, directions = GATES[cell_type] * HIDDEN, 1 + bidirectional
    weights = {}
    for place in torch_names(num_layers, bidirectional):
        inputs = INPUTS if place.startswith("_l0") else directions * HIDDEN
        shapes = {"weight_ih": (rows, inputs), "weight_hh": (rows, HIDDEN), "bias_ih": (rows,), "bias_hh": (rows,)}
        weights |= {name + place: problems.normal(rng, shape, np.float32) / 3 for name, shape in shapes.items()}
    return weights


def test_a_dictionary_of_weights_says_what_there_is(no_float64):  # noqa: F811
    rng = np.random.default_rng(40)
    x = problems.normal(rng, (BATCH, SEQ_LEN, INPUTS), np.float32)
    out, h, c = modules.rnn(x, None, named_weights(rng, "lstm", 2, True))
    assert (out.shape, h.shape, c.shape) == ((BATCH, SEQ_LEN, 2 * HIDDEN), (4, BATCH, HIDDEN), (4, BATCH, HIDDEN))
    weights = named_weights(rng, "gru", 1, False)
    hidden = problems.normal(rng, (BATCH, HIDDEN), np.float32)
    out, h = modules.rnn(x, hidden, weights, cell_type="gru", lengths=np.asarray([5, 0, 2, 5], np.int32))
    assert not np.asarray(out[1]).any() and not np.asarray(out[2, 2:]).any()
    np.testing.assert_array_equal(h[0, 1], hidden[1])
    np.testing.assert_allclose(h[0, 2], out[2, 1])


def test_dictionaries_that_do_not_fit_are_refused(no_float64):  # noqa: F811
    rng = np.random.default_rng(41)
    x = problems.normal(rng, (BATCH, SEQ_LEN, INPUTS), np.float32)
    weights = named_weights(rng, "lstm", 2, True)
    without = {name: w for name, w in weights.items() if name != "bias_hh_l1_reverse"}
    for given, words in (
        (without, "bias_hh_l1_reverse"),
        (weights | {"weight_hr_l0": weights["weight_hh_l0"]}, "weight_hr_l0"),
        ({}, "weight_ih_l0"),
    ):
        with pytest.raises(ejkernel.InvalidArgument, match=words):
            modules.rnn(x, None, given)
    with pytest.raises(ejkernel.InvalidArgument, match="bidirectional"):
        modules.rnn(x, None, weights, bidirectional=False)


@pytest.mark.parametrize("cell_type", GATES)
def test_it_equals_torch(cell_type, no_float64):  # noqa: F811
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(50)
    weights = named_weights(rng, cell_type, 2, True)
    module = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU, "rnn": torch.nn.RNN}[cell_type](
        INPUTS, HIDDEN, 2, batch_first=True, bidirectional=True
    )
    module.load_state_dict({name: torch.from_numpy(w.astype(np.float32)) for name, w in weights.items()})
    x = problems.normal(rng, (BATCH, SEQ_LEN, INPUTS), np.float32)
    lengths = np.asarray([5, 3, 1, 4], np.int32)
    packed = torch.nn.utils.rnn.pack_padded_sequence(
        torch.from_numpy(x), torch.from_numpy(lengths).long(), batch_first=True, enforce_sorted=False
    )
    theirs, states = module(packed)
    theirs, _ = torch.nn.utils.rnn.pad_packed_sequence(theirs, batch_first=True, total_length=SEQ_LEN)
    out, *finals = modules.rnn(x, None, weights, cell_type=cell_type, lengths=lengths)
    np.testing.assert_allclose(out, theirs.detach().numpy(), rtol=0, atol=2e-6)
    for ours, want in zip(finals, states if cell_type == "lstm" else (states,), strict=True):
        np.testing.assert_allclose(ours, want.detach().numpy(), rtol=0, atol=2e-6)
