"""What is refused, and with which sentence: an old jaxlib when the package is imported, a wrong call when it is traced."""

from __future__ import annotations

import re

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from cases import CASES, Case

import ejkernel
from ejkernel import _check_jax, _settings


@pytest.mark.parametrize("version", ["0.8.3", "0.9.0"])
def test_a_jaxlib_that_is_too_old_is_named_with_what_is_needed(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxlib.version.__version__", version)
    with pytest.raises(ImportError, match=f"needs jaxlib 0.9.1 or newer, found {version}; pip install -U 'jax>=0.9.1'"):
        _check_jax.check_jax()


@pytest.mark.parametrize("version", ["0.9.1", "0.10.2", "0.12.0.1", "1.0.0"])
def test_newer_ones_are_taken(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxlib.version.__version__", version)
    _check_jax.check_jax()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_operation_refuses_a_dtype_while_it_is_traced(case: Case) -> None:
    first = case.floats[0]
    wrong = case.arrays | {first: case.arrays[first].astype(jnp.complex64)}
    with pytest.raises(ejkernel.InvalidArgument, match=f"^{case.operation}: .*complex64"):
        jax.eval_shape(case.run, wrong)


@pytest.mark.parametrize("case", [c for c in CASES if "key" in c.arrays], ids=lambda case: case.name)
def test_shapes_that_do_not_fit_are_told_with_both_of_them(case: Case) -> None:
    wrong = case.arrays | {"key": case.arrays["key"][..., :4]}
    dim = case.arrays["query"].shape[-1]
    with pytest.raises(
        ejkernel.InvalidArgument, match=rf"^{case.operation}: key (\w+_dim) must equal query \1 {dim}, got 4"
    ):
        jax.jit(case.run).lower(wrong)


def test_arguments_that_it_does_not_have_are_named() -> None:
    x = jnp.ones((2, 4, 8))
    with pytest.raises(
        TypeError, match="mean_pooling: 'chunks' is no argument of it; they are x, mask, cu_seqlens, chunk_size"
    ):
        ejkernel.mean_pooling(x, chunks=2)
    with pytest.raises(TypeError, match="mean_pooling: x is given twice"):
        ejkernel.mean_pooling(x, x=x)
    with pytest.raises(ejkernel.InvalidArgument, match="chunk_size must be an integer, got 2.5"):
        ejkernel.mean_pooling(x, chunk_size=2.5)


def test_values_that_only_look_right_are_refused() -> None:
    x = jnp.ones((1, 8, 2, 16))
    with pytest.raises(ejkernel.InvalidArgument, match="causal must be True or False, got 'False'"):
        ejkernel.flash_attention(x, x, x, causal="False")
    with pytest.raises(ejkernel.InvalidArgument, match="config field 'block_q' must be an integer, got 64.5"):
        ejkernel.flash_attention(x, x, x, config={"block_q": 64.5})
    for window in (2**64, "12", (2.7, 1)):
        with pytest.raises(ejkernel.InvalidArgument, match="sliding_window must be an integer"):
            ejkernel.flash_attention(x, x, x, sliding_window=window)
    with pytest.raises(ejkernel.InvalidArgument, match="plain integers must fit int32, got .4294967299."):
        ejkernel.flash_attention(x, x, x, seqused_k=[2**32 + 3])
    one, other = (ejkernel.flash_attention(x, x, x, sliding_window=n).out for n in (2, np.int64(2)))
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    "options, sentence",
    [
        ({"kernel": "cpu"}, "kernel must be 'xla' on the platform xla, got 'cpu'; leave it out"),
        ({"backend": "gpu"}, "backend must be 'cpu' on the platform xla, got 'gpu'; leave it out"),
        ({"config": {"block_q": 64}}, "config must be left out on the platform xla, got {'block_q': 64}; leave it out"),
        ({"policy": "fast"}, "policy must be 'autotune' or 'heuristics' or 'cached' on the platform xla, got 'fast'"),
        ({"platform": "cuda", "kernel": "xla"}, "platform must be 'xla' on the platform xla, got 'cuda'"),
    ],
)
def test_what_the_platform_xla_does_not_have_is_refused(options: dict, sentence: str) -> None:
    x = jnp.ones((1, 8, 2, 16))
    with pytest.raises(ejkernel.InvalidArgument, match=re.escape(f"flash_attention: {sentence}")):
        ejkernel.flash_attention(x, x, x, **({"platform": "xla"} | options))


def test_the_platform_xla_takes_no_config_from_a_scope() -> None:
    x = jnp.ones((1, 8, 2, 16))
    with _settings.overlay("flash_attention", {"block_q": 64}):
        ejkernel.flash_attention(x, x, x, platform="xla", backend="cpu", policy="heuristics")


def test_what_has_no_derivative_is_refused_and_not_zero() -> None:
    codes = jnp.ones((1, 8, 2, 16), jnp.int8)

    def of_scale(scale: jax.Array) -> jax.Array:
        return ejkernel.flash_attention(codes, codes, codes, q_scale=1.0, k_scale=scale, v_scale=1.0).out.sum()

    with pytest.raises(ejkernel.Unsupported, match="flash_attention: there is no derivative for k_scale"):
        jax.grad(of_scale)(jnp.float32(0.1))
    assert jax.grad(lambda s: of_scale(jax.lax.stop_gradient(s)))(jnp.float32(0.1)) == 0

    weights = {"weight_ih": jnp.ones((1, 16, 3)), "weight_hh": jnp.ones((1, 16, 4))}

    def of_gates(x: jax.Array, kept: bool) -> jax.Array:
        result = ejkernel.rnn(x, **weights, keep_gates=True)
        gates = result.gates if kept else jax.lax.stop_gradient(result.gates)
        return result.out.sum() + gates.sum()

    x = jnp.ones((2, 5, 3))
    with pytest.raises(ejkernel.Unsupported, match="rnn: its output gates has no derivative"):
        jax.grad(of_gates)(x, True)
    wanted = jax.grad(lambda x: ejkernel.rnn(x, **weights).out.sum())(x)
    np.testing.assert_array_equal(jax.jit(jax.grad(of_gates), static_argnums=1)(x, False), wanted)


def test_a_config_that_no_kernel_has_is_refused_when_it_is_chosen() -> None:
    x = jnp.ones((1, 8, 2, 16))
    with pytest.raises(ejkernel.InvalidArgument, match="block_q"):
        ejkernel.flash_attention(x, x, x, config={"block_q": 17})


@pytest.mark.parametrize(
    ("argument", "value", "words"),
    [
        ("attention_sink_size", float("inf"), "attention_sink_size must be an integer, got inf"),
        ("attention_sink_size", [1], "attention_sink_size must be an integer, got [1]"),
        ("sliding_window", 3.5, "sliding_window must be an integer, got 3.5"),
        ("softmax_scale", "a", "softmax_scale must be a number, got 'a'"),
        ("out_dtype", "zz", "out_dtype must be a dtype, got 'zz'"),
        ("platform", 3, "platform must be a name, got 3"),
        ("kernel", 3, "kernel must be a name, got 3"),
        ("config", 3, "a config must be a mapping of fields to integers, got 3"),
    ],
)
def test_an_argument_of_a_wrong_type_is_named(argument, value, words):
    x = np.ones((1, 4, 2, 8), np.float32)
    with pytest.raises(ejkernel.InvalidArgument, match=re.escape(f"flash_attention: {words}")):
        ejkernel.flash_attention(x, x, x, **{argument: value})


@pytest.mark.parametrize("value", ["q", {"a": 1}, jax.ShapeDtypeStruct((1, 4, 2, 8), np.float32)], ids=repr)
def test_what_is_no_array_is_named(value):
    x = jnp.ones((1, 4, 2, 8))
    with pytest.raises(ejkernel.InvalidArgument, match="flash_attention: query must be an array, got "):
        ejkernel.flash_attention(value, x, x)


def test_explain_tells_a_scopes_overlay_from_a_calls_config():
    x = jnp.ones((1, 4, 2, 8))
    with _settings.overlay("flash_attention", {"block_q": 64}):
        assert ", from overlay\n" in ejkernel.explain(ejkernel.flash_attention, x, x, x)
    told = ejkernel.explain(lambda x: ejkernel.flash_attention(x, x, x, config={"block_q": 64}), x)
    assert ", from override\n" in told


def test_integers_of_jax_serve_as_parameters():
    x = np.ones((1, 4, 2, 8), np.float32)
    expected = ejkernel.flash_attention(x, x, x, sliding_window=(2, 0), attention_sink_size=1).out
    window, sink = (jnp.int32(2), jnp.int32(0)), jnp.int32(1)
    got = ejkernel.flash_attention(jnp.array(x), x, x, sliding_window=window, attention_sink_size=sink).out
    np.testing.assert_allclose(got, expected, rtol=1e-6)
    np.testing.assert_array_equal(
        ejkernel.flash_attention(x, x, x, causal=True, sliding_window=jnp.int32(2)).out,
        ejkernel.flash_attention(x, x, x, causal=True, sliding_window=2).out,
    )


def test_a_second_derivative_is_refused_as_that():
    x = jnp.ones((1, 4, 2, 8))
    with pytest.raises(ejkernel.Unsupported, match="flash_attention.*there is no second one"):
        jax.hessian(lambda q: ejkernel.flash_attention(q, x, x).out.sum())(x)


def test_a_shape_that_is_not_known_while_a_program_is_traced_is_refused():
    (batch,) = jax.export.symbolic_shape("b")
    query = jax.ShapeDtypeStruct((batch, 8, 2, 8), jnp.float32)
    with pytest.raises(ejkernel.InvalidArgument, match=r"shapes must be numbers.*got \[b, 8, 2, 8\]"):
        jax.export.export(jax.jit(lambda q: ejkernel.flash_attention(q, q, q).out))(query)


def test_plain_integers_are_floats_where_an_input_takes_no_integers():
    query = jnp.ones((1, 2, 8))
    pages = jnp.ones((1, 4, 2, 8), jnp.int8)
    rows = (query, pages, pages, jnp.array([4], jnp.int32), jnp.array([[0]], jnp.int32))
    wanted = ejkernel.page_attention(*rows, k_scale=1.0, v_scale=[2.0, 3.0]).out
    np.testing.assert_array_equal(ejkernel.page_attention(*rows, k_scale=1, v_scale=[2, 3]).out, wanted)
    host = [np.asarray(x) for x in rows]
    np.testing.assert_allclose(ejkernel.page_attention(*host, k_scale=1, v_scale=[2, 3]).out, wanted, rtol=1e-6)


def test_a_key_of_jax_random_is_a_dropout_seed():
    query = jnp.ones((1, 8, 2, 8))

    def dropped(seed):
        return ejkernel.flash_attention(query, query, query, dropout_prob=0.5, dropout_seed=seed).out

    words = dropped(jnp.array([0, 7], jnp.uint32))
    np.testing.assert_array_equal(dropped(jax.random.key(7)), words)
    np.testing.assert_array_equal(jax.jit(dropped)(jax.random.key(7)), words)
    assert not np.array_equal(dropped(jax.random.key(8)), words)
    long = jax.random.PRNGKey(7, impl="rbg")[-2:]  # of four words
    np.testing.assert_array_equal(dropped(jax.random.key(7, impl="rbg")), dropped(long))
