"""ejkernel.modules: the linear recurrences under their old names."""

import inspect
import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ejkernel
from ejkernel import _notices, modules
from ejkernel.kernels import kernel_registry
from ejkernel.modules import (
    GLAttentionConfig,
    LightningAttentionConfig,
    RecurrentAttentionConfig,
    create_default_executor,
)

NUM_TOKENS = 6


def normal(seed: int, *shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def gates(seed: int, *shape: int) -> jax.Array:
    return -jnp.abs(normal(seed, *shape))


QUERY, KEY, VALUE = normal(0, 1, NUM_TOKENS, 4, 8), normal(1, 1, NUM_TOKENS, 2, 8), normal(2, 1, NUM_TOKENS, 2, 5)
QKV = (QUERY, KEY, VALUE)
G, GK, GV = (gates(n, 1, NUM_TOKENS, 4, *dim) for n, dim in ((3, ()), (4, (8,)), (5, (5,))))
G_GAMMA, STATE = gates(6, 4), normal(7, 1, 4, 8, 5)
CU_SEQLENS, STATES = jnp.array([0, 4, 4, 6], jnp.int32), normal(8, 3, 4, 8, 5)


def assert_same(got, want):
    jax.tree.map(np.testing.assert_array_equal, got, want)


def test_recurrent_attention():
    want = ejkernel.recurrent_attention(*QKV, G, G_GAMMA, GK, GV, STATE, softmax_scale=0.5, reverse=True)
    given = (*QKV, G, G_GAMMA, GK, GV, STATE)
    assert_same(modules.recurrent_attention(*given, softmax_scale=0.5, reverse=True), want.out)
    pair = modules.recurrent_attention(*given, softmax_scale=0.5, reverse=True, return_state=True)
    assert_same(pair, tuple(want))
    out, state, status = modules.recurrent_attention(*QKV, return_state=True, return_status=True)
    assert state.shape == STATE.shape and not status.any()
    out_alone, status = modules.recurrent_attention(*QKV, return_status=True)
    assert_same(out_alone, out)
    assert modules.recurrent_attention(*QKV, return_state=True, state_dtype=jnp.bfloat16)[1].dtype == jnp.bfloat16


def test_a_gate_with_the_querys_axes_is_one_of_key_dimensions():
    want = ejkernel.recurrent_attention(*QKV, gk=GK).out
    assert_same(modules.recurrent_attention(*QKV, GK), want)
    assert_same(modules.recurrent_attention(*QKV, GK, gk=GK), ejkernel.recurrent_attention(*QKV, gk=2 * GK).out)
    assert_same(modules.gla_attention(*QKV, GK), want)
    assert_same(modules.gla_attention(*QKV, gk=GK), want)
    scalar = ejkernel.gla_attention(*QKV, g=jnp.broadcast_to(G[..., None], QUERY.shape)).out
    assert_same(modules.gla_attention(*QKV, G), scalar)


def test_gla_attention():
    want = ejkernel.gla_attention(*QKV, gk=GK, g_gamma=G_GAMMA, initial_state=STATE, reverse=True)
    assert_same(modules.gla_attention(*QKV, GK, G_GAMMA, STATE, reverse=True, return_state=True), tuple(want))


def test_lightning_attention():
    slopes = -(8 / 4) * (1 - 3 / 5) * jnp.arange(4)
    want = ejkernel.recurrent_attention(*QKV, g_gamma=slopes, initial_state=STATE)
    got = modules.lightning_attention(*QKV, STATE, layer_idx=3, num_layers=5, return_state=True)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), got, tuple(want))
    with pytest.raises(TypeError, match="num_layers"):
        modules.lightning_attention(*QKV, layer_idx=3)
    with pytest.raises(ejkernel.InvalidArgument, match="layer_idx must be given"):
        ejkernel.lightning_attention(*QKV, num_layers=5)


@pytest.mark.parametrize(
    "name, gate",
    [
        ("recurrent_attention", {}),
        ("gla_attention", {"g": GK}),
        ("gla_attention", {"gk": GK}),
        ("lightning_attention", {}),
    ],
)
def test_packed_sequences_may_have_a_batch_axis_of_one(name, gate):
    layer = {"layer_idx": 1, "num_layers": 2} if name == "lightning_attention" else {}
    more = {**layer, "initial_state": STATES, "cu_seqlens": CU_SEQLENS, "return_state": True}
    function = getattr(modules, name)
    out, states = function(*QKV, **gate, **more)
    packed = function(*(x[0] for x in QKV), **{n: x[0] for n, x in gate.items()}, **more)
    assert_same((out[0], states), packed)
    assert states.shape == STATES.shape


def test_orders_are_the_documents():
    def names(function):
        parameters = inspect.signature(function).parameters.values()
        return [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]

    first, last = ["query", "key", "value"], ["initial_state", "cu_seqlens"]
    assert names(modules.recurrent_attention) == [*first, "g", "g_gamma", "gk", "gv", *last]
    assert names(modules.gla_attention) == [*first, "g", "g_gamma", *last]
    assert names(modules.lightning_attention) == [*first, *last]


def test_configs_are_wishes(caplog):
    _notices.say_once.cache_clear()
    caplog.set_level(logging.WARNING, logger="ejkernel")
    plain = modules.gla_attention(*QKV, GK)
    assert_same(modules.gla_attention(*QKV, GK, cfg=GLAttentionConfig(block_d=64)), plain)
    assert not caplog.records
    assert_same(modules.gla_attention(*QKV, GK, cfg=GLAttentionConfig(block_q=64, num_warps=4)), plain)
    for name in ("block_q", "num_warps"):
        assert f"GLAttentionConfig.{name}" in caplog.text
    for config in (RecurrentAttentionConfig(block_d=32), LightningAttentionConfig(num_stages=1)):
        assert type(config).from_dict(config.to_dict()) == config


def test_kernels_for_an_executor_and_names_of_the_registry():
    executor = create_default_executor()
    out, state = executor(modules.GLAttention(), *QKV, GK, return_state=True)
    assert_same((out, state), modules.gla_attention(*QKV, GK, return_state=True))
    kernels = (modules.RecurrentAttention, modules.GLAttention, modules.LightningAttention)
    functions = ("recurrent_attention", "gla_attention", "lightning_attention")
    for kernel, name in zip(kernels, functions, strict=True):
        specs = kernel_registry.list_implementations(kernel.op_id)
        assert {spec.algorithm for spec in specs} == {name} and specs[-1].name == "reference"
    assert_same(kernel_registry.get("gla")(*QKV, g=GK), (out, state))
