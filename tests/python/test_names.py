"""What stands behind the names of ejkernel.modules and ejkernel.ops (test_names_registry.py: of ejkernel.kernels)."""

import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ejkernel
from ejkernel import InvalidArgument, NoConfig, Unsupported, _notices, modules
from ejkernel.kernels import Platform
from ejkernel.modules import FlashAttentionConfig
from ejkernel.ops import (
    BwdParams,
    ConfigCache,
    ConfigSelectorChain,
    Executor,
    FwdParams,
    Invocation,
    Kernel,
    PersistentCache,
    autotune,
    autotune_recorded,
    clear_invocations,
    from_json,
    get_invocations,
    overlay_cache,
    policy_override,
    stable_json,
    to_json,
    vmap_with_config,
)


def normal(*shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(0).standard_normal(shape).astype(np.float32))


q = normal(2, 64, 4, 32)
x = normal(8, 8)


@pytest.fixture
def said(caplog):
    """What is said once, said again in this test."""
    _notices.say_once.cache_clear()
    caplog.set_level(logging.WARNING, logger="ejkernel")
    return caplog


# ---- modules ----


def test_modules_are_the_librarys_functions_with_documented_orders():
    mask = jnp.tril(jnp.ones((2, 1, 64, 64), bool))
    bias = normal(1, 4, 64, 64)
    out = ejkernel.flash_attention(q, q, q, attention_mask=mask, bias=bias, causal=True, softmax_scale=0.5).out
    assert (modules.flash_attention(q, q, q, mask, bias, True, 0.5) == out).all()
    named = modules.flash_attention(
        value=q, key=q, query=q, bias=bias, attention_mask=mask, causal=True, softmax_scale=0.5
    )
    assert (named == out).all()
    weights = modules.attention(q, q, q, None, bias)[1]
    assert (weights == ejkernel.attention(q, q, q, bias=bias).weights).all()
    assert (modules.attention(q, q, q, init_bias=lambda: bias)[1] == weights).all()
    lengths = jnp.array([3, 40], jnp.int32)
    out = ejkernel.scaled_dot_product_attention(q, q, q, key_value_seq_lengths=lengths).out
    assert (modules.scaled_dot_product_attention(q, q, q, cum_seqlens_k=lengths) == out).all()
    for function in (modules.flash_attention, modules.scaled_dot_product_attention):
        assert (function(q, q, q, mask.astype(jnp.int32)) == function(q, q, q, mask)).all()
    with pytest.raises(TypeError, match="mask_info"):
        modules.flash_attention(q, q, q, mask_info=mask)


def test_seeds_of_dropout():
    def of(seed):
        return modules.flash_attention(q, q, q, dropout_prob=0.5, dropout_seed=seed)

    assert (of(7) == of(jnp.array([7, 0], jnp.uint32))).all()
    assert (of(7) != of(8)).any()
    assert (of(jax.random.key(7)) == of(jax.random.PRNGKey(7))).all()
    assert all((of(7) == of(same)).all() for same in ((7, 0), np.array(7), jnp.array(7)))
    assert (of(-7) == jax.jit(of)(-7)).all()
    assert (of(jax.random.key(7, impl="rbg")) == of(jax.random.PRNGKey(7, impl="rbg"))).all()
    out, weights = modules.attention(q, q, q, deterministic=False, dropout_prob=0.5, dropout_rng=jax.random.key(7))
    assert (weights == 0).mean() > 0.4
    assert not (modules.attention(q, q, q, dropout_prob=0.5, dropout_rng=jax.random.key(7))[1] == 0).any()


def config_of(**arguments):
    """What a call asks the library for."""
    jaxpr = jax.make_jaxpr(lambda q: modules.flash_attention(q, q, q, **arguments))(q)
    options = next(e.params["call"].options for e in jax.tree.leaves(all_equations(jaxpr.jaxpr)) if "call" in e.params)
    return options.config or options.overlay


def all_equations(jaxpr):
    inner = [all_equations(p.jaxpr) for e in jaxpr.eqns for p in e.params.values() if hasattr(p, "jaxpr")]
    return [list(jaxpr.eqns), inner]


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="about the CPU kernel's fields")
def test_sizes_become_fields_of_the_kernel(said):
    sizes = FwdParams(q_blocksize=100, kv_blocksize=1000)
    for argument in ("cfg", "_cfg"):
        found = config_of(**{argument: FlashAttentionConfig(fwd_params=sizes)})
        assert dict(found) == {"block_q": 64, "block_k": 256}
    assert config_of(cfg={"block_q": 32}) == (("block_q", 32),)
    assert config_of(cfg=FlashAttentionConfig()) is None
    assert config_of(cfg=FlashAttentionConfig(fwd_params=sizes), platform="xla") is None
    assert not said.records
    more = FlashAttentionConfig(fwd_params={"num_warps": 4, "num_stages": 2}, bwd_params=BwdParams(q_blocksize=64))
    for _ in range(2):
        assert config_of(cfg=more) is None
    names = ("fwd_params.num_warps", "bwd_params", "stages")
    assert len(said.records) == len(names) and all(name in said.text for name in names)
    with pytest.raises(TypeError, match="one argument"):
        config_of(cfg=more, _cfg=more)
    with pytest.raises(InvalidArgument, match="block_q"):
        modules.flash_attention(q, q, q, cfg={"block_q": 33})
    assert FlashAttentionConfig.from_dict(more.to_dict()) == more


def test_a_platform_of_the_old_names_is_cuda_or_an_error(said, monkeypatch):
    if jax.default_backend() == "cpu":
        for platform in ("triton", Platform.PALLAS):
            with pytest.raises(
                Unsupported, match="means cuda, which needs a CUDA device, and JAX's default device is cpu"
            ):
                modules.flash_attention(q, q, q, platform=platform)
        with pytest.raises(ValueError, match="mosaic"):
            modules.flash_attention(q, q, q, platform="mosaic")
    from ejkernel.kernels import _platforms

    monkeypatch.setattr(_platforms.jax, "default_backend", lambda: "gpu")
    assert [_platforms.library_platform("triton") for _ in range(3)] == ["cuda"] * 3
    assert len(said.records) == 1 and "means cuda here" in said.text


# ---- tiers ----


@dataclass(frozen=True)
class Steps:
    steps: int = 1


class Repeat(Kernel[Steps, jax.Array]):
    """The same result in any number of steps."""

    op_id = "repeat"
    candidates = (Steps(1), Steps(20_000), Steps(40_000))

    def run(self, x, *, cfg):
        return jax.lax.fori_loop(0, cfg.steps, lambda i, y: jnp.sin(x) + 0 * y, jnp.sin(x))

    def heuristic_cfg(self, invocation):
        return Steps(40_000)

    def candidate_cfgs(self, invocation):
        return list(self.candidates)


repeat = Repeat()
call = Invocation(kernel=repeat, args=(x,))


def test_the_first_tier_that_answers_wins(tmp_path):
    chain = ConfigSelectorChain(persistent=PersistentCache(tmp_path), autotune=True)

    def tier(**more):
        found = chain.select(Invocation(kernel=repeat, args=(x,), **more))
        return found.tier, found.config.steps

    with policy_override(autotune=False, heuristics=False):
        with pytest.raises(NoConfig, match="repeat: no config: .* autotune is off, heuristics are off"):
            tier()
    with policy_override(autotune=False):
        assert tier() == ("heuristics", 40_000)
    assert not chain.cache and not list(tmp_path.iterdir())  # heuristics are never kept
    assert tier() == ("autotune", 1)
    assert tier() == ("memory", 1)
    chain.cache.clear()
    assert tier() == ("persistent", 1)
    assert tier() == ("memory", 1)
    with overlay_cache({call.key: Steps(3)}):
        assert tier() == ("overlay", 3)
        assert tier(override_cfg=Steps(4)) == ("override", 4)
        with overlay_cache(ConfigCache({call.key: Steps(5)})), policy_override(autotune=False):
            assert tier() == ("overlay", 5)
            seen = []
            thread = threading.Thread(target=lambda: seen.append(tier()))
            thread.start()
            thread.join()
            assert seen == [("memory", 1)]  # scopes are their thread's own
        assert tier() == ("overlay", 3)
    assert tier() == ("memory", 1)


def test_an_override_is_never_kept(tmp_path):
    for policy in (dict(), dict(autotune=False), dict(autotune=False, heuristics=False)):
        executor = Executor(ConfigSelectorChain(persistent=PersistentCache(tmp_path)))
        with policy_override(**policy):
            assert (executor(repeat, x, cfg=Steps(2)) == executor(repeat, x, _cfg=Steps(2))).all()
        assert not executor.selector.cache and not list(tmp_path.iterdir())


def test_scopes_reach_the_librarys_operations():
    with overlay_cache({"flash_attention": {"block_q": 32}}):
        assert config_of() == (("block_q", 32),)
    assert config_of() is None
    with overlay_cache({"flash_attention": {"block_q": 32}}):  # which the reference cannot have
        assert "kernel reference" in ejkernel.explain(ejkernel.flash_attention, q, q, q, platform="reference")
        modules.flash_attention(q, q, q, platform="xla")
        with pytest.raises(InvalidArgument, match="block_k"):
            ejkernel.flash_attention(q, q, q, platform="reference", config={"block_k": 64})
    with pytest.raises(InvalidArgument, match="config field 'block_q' must be an integer, got 64.5"):
        with overlay_cache({"flash_attention": {"block_q": 64.5}}):
            pass
    with pytest.raises(InvalidArgument, match="heuristics"), policy_override(heuristics=False):
        pass


def test_policy_of_the_environment(monkeypatch):
    chain = ConfigSelectorChain()
    for name, measured in (("heuristics", False), ("autotune", True)):
        monkeypatch.setenv("EJKERNEL_AUTOTUNE_POLICY", name)
        assert chain.policy.allow_autotune == measured and chain.policy.allow_heuristics
    monkeypatch.setenv("EJKERNEL_AUTOTUNE_POLICY", "off")
    with pytest.raises(InvalidArgument, match="policy must be one of autotune, heuristics, cached, got 'off'"):
        chain.policy  # noqa: B018


# ---- measuring ----


def test_under_a_trace_something_else_is_measured_and_nothing_of_it_is_traced():
    chain = ConfigSelectorChain(autotune=True)
    executor = Executor(chain)
    jaxpr = jax.make_jaxpr(lambda x: executor(repeat, x))(x)
    assert chain.cache[call.key] == Steps(1)
    assert len(jaxpr.eqns) <= 6
    assert (jax.jit(lambda x: executor(repeat, x))(x) == executor(repeat, x)).all()


class Fussy(Repeat):
    """Candidates that raise or compute something else."""

    op_id = "fussy"

    def run(self, x, *, cfg):
        if cfg.steps < 0:
            raise ValueError("no such number of steps")
        return x + cfg.steps

    def heuristic_cfg(self, invocation):
        return Steps(1)


def test_candidates_that_fail_or_compute_something_else_are_out(said):
    fussy = Fussy()
    assert autotune(fussy, x, configs=[Steps(-1), Steps(5)], num_iters=1) == Steps(1)
    fussy.candidates = (Steps(-1), Steps(-2))
    fussy.heuristic_cfg = lambda invocation: Steps(-3)
    chain = ConfigSelectorChain(autotune=True)
    assert chain.select(Invocation(kernel=fussy, args=(x,))).tier == "heuristics"
    assert "no such number of steps" in said.text and not chain.cache
    with pytest.raises(NoConfig):
        autotune(fussy, x)


def test_recorded_calls_hold_no_arrays(monkeypatch):
    clear_invocations()
    monkeypatch.setenv("EJKERNEL_OPS_RECORD", "1")
    executor = Executor(ConfigSelectorChain(autotune=False))
    for _ in range(2):
        executor(repeat, x, cfg=Steps(1))
    (recorded,) = get_invocations()
    assert recorded.args == (jax.ShapeDtypeStruct(x.shape, x.dtype),) and recorded.override_cfg is None
    found = autotune_recorded(executor=executor)
    assert dict(found) == dict(executor.selector.cache) == {call.key: Steps(1)}
    with overlay_cache(found):
        assert Executor().choose_config(repeat, x) == Steps(1)
    clear_invocations()


def test_one_config_for_all_slices():
    chosen = []

    class Counting(Repeat):
        def heuristic_cfg(self, invocation):
            chosen.append(invocation.args[0].shape)
            return Steps(1)

    executor = Executor(ConfigSelectorChain(autotune=False))
    batch = normal(3, 5, 8)
    out = vmap_with_config(executor, Counting(), in_axes=1, out_axes=1)(batch)
    np.testing.assert_allclose(out, jnp.sin(batch), rtol=1e-6)
    assert chosen == [(3, 8)]
    for mapped in (vmap_with_config(executor, Counting(), 1), vmap_with_config(Counting(), 1, executor=executor)):
        np.testing.assert_allclose(mapped(batch), jnp.sin(batch).swapaxes(0, 1), rtol=1e-6)
    given = vmap_with_config(Counting())(batch, cfg=Steps(2))
    np.testing.assert_allclose(given, jnp.sin(batch), rtol=1e-6)
    assert chosen == [(3, 8)] * 3
    with pytest.raises(TypeError, match="in_axes is the last argument by position"):
        vmap_with_config(Counting(), 0, 0)
    with pytest.raises(TypeError, match="an executor is followed by the kernel"):
        vmap_with_config(executor)


def test_where_there_is_one_candidate():
    class One(Repeat):
        def heuristic_cfg(self, invocation):
            return self.own

        def candidate_cfgs(self, invocation):
            return [Steps(1)]

    one = One()
    executor = Executor(ConfigSelectorChain(autotune=True))
    one.own = None
    assert executor.choose_config(one, x) == Steps(1) == autotune(one, x)
    one.own = Steps(1)
    assert executor.select(Invocation(kernel=one, args=(x,), kwargs={})).tier == "heuristics"
    one.own = Steps(40)  # slower, so that it shows whether both were measured
    assert executor.select(Invocation(kernel=one, args=(x,), kwargs={})).tier == "autotune"


def test_autotune_prepares_as_an_executor_does():
    class Prepared(Repeat):
        def prepare(self, pair):
            return (pair["x"],), {}

    assert autotune(Prepared(), {"x": x}, configs=[Steps(1)]) == Steps(1)


# ---- the persistent cache ----

PROGRAM = """
import sys
sys.path.insert(0, sys.argv[2])
from test_names import ConfigSelectorChain, PersistentCache, call
print(ConfigSelectorChain(persistent=PersistentCache(sys.argv[1]), autotune=False).select(call))
"""


def test_records_outlive_the_process(tmp_path):
    PersistentCache(tmp_path).put(call.key, Steps(7))
    arguments = [sys.executable, "-c", PROGRAM, str(tmp_path), __file__.rsplit("/", 1)[0]]
    # The class is the same one by name only where its module is: test_names in both.
    result = subprocess.run(arguments, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "Selection(config=Steps(steps=7), tier='persistent')"


def test_a_damaged_record_is_a_miss(tmp_path):
    cache = PersistentCache(tmp_path)
    cache.put("key", Steps(7))
    (file,) = tmp_path.iterdir()
    good = file.read_text()
    assert cache.get("key") == Steps(7)
    for damaged in ("", good[:-30], good.replace("7", "8"), "[]", "null", good.replace('"schema": 1', '"schema": 2')):
        assert damaged != good
        file.write_text(damaged)
        assert cache.get("key") is None
    file.write_bytes(b"\xff\xfe")
    assert cache.get("key") is None
    cache.put("key", Steps(9))
    assert cache.get("key") == Steps(9)


def test_a_record_that_its_type_cannot_take_is_a_miss(tmp_path):
    @dataclass(frozen=True)
    class Local:
        mode: "NotDefined"  # noqa: F821

    cache = PersistentCache(tmp_path, Local)
    cache.put("key", Local(1))
    assert cache.get("key") is None


def test_what_a_killed_process_left_is_swept(tmp_path):
    left, being_written = tmp_path / ".left.tmp", tmp_path / ".new.tmp"
    left.touch()
    being_written.touch()
    os.utime(left, (0, 0))
    PersistentCache(tmp_path).put("key", Steps(1))
    assert not left.exists() and being_written.exists()


def test_a_record_of_another_class_or_key_is_a_miss(tmp_path):
    cache = PersistentCache(tmp_path)
    cache.put("key", Steps(7))
    (file,) = tmp_path.iterdir()
    file.rename(cache._file("other"))
    assert cache.get("other") is None  # the key in the record is compared
    cache.put("key", FwdParams(q_blocksize=4))
    assert cache.get("key") == FwdParams(q_blocksize=4) and cache.get("key", Steps) is None


def test_what_cannot_be_written_leaves_nothing(tmp_path, monkeypatch, said):
    cache = PersistentCache(tmp_path)
    with pytest.raises(TypeError):
        cache.put("key", object())
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        cache.put("key", Steps(1))
    assert not list(tmp_path.iterdir())
    chain = ConfigSelectorChain(persistent=cache, autotune=True)
    assert chain.select(call).tier == "autotune" and "disk full" in said.text  # the call goes on
    assert chain.select(call).tier == "memory"


# ---- gradients ----


def grad_of(kernel, *args, wrt=0):
    """The gradient of a call's sum."""
    executor = Executor(ConfigSelectorChain(autotune=False))
    return jax.grad(lambda *args: executor(kernel, *args, cfg=Steps()).sum(), wrt)(*args)


class Product(Kernel[Steps, jax.Array]):
    def __init__(self):
        super().__init__("product")
        self.calls = []

    def run(self, pair, n, y, mode="plain", *, cfg):
        self.calls.append("run")
        return pair["a"] * pair["b"] * y

    def custom_vjp(self, primals, cfg, kwargs, cotangents):
        self.calls.append("custom_vjp")
        pair, n, y, *_ = primals
        ct = cotangents[0]
        return ({"a": ct * pair["b"] * y, "b": None}, None, 5 * ct)


def test_custom_vjp_is_called_once_and_aligned():
    kernel = Product()
    pair = {"a": x, "b": 2 * x}
    executor = Executor()

    def loss(pair, y):
        return executor(kernel, pair, 3, y, mode="other", cfg=Steps()).sum()

    grads, grad_y = jax.grad(loss, (0, 1))(pair, x + 1)
    assert kernel.calls == ["run", "custom_vjp"]
    np.testing.assert_allclose(grads["a"], 2 * x * (x + 1), rtol=1e-6)
    assert (grads["b"] == 0).all() and (grad_y == 5).all()
    assert (jax.jit(jax.grad(loss, 1))(pair, x) == 5).all()
    with pytest.raises(TypeError, match="'y' is differentiated; pass it by position"):
        jax.grad(lambda y: executor(kernel, pair, 3, y=y, cfg=Steps()).sum())(x)
    kernel.custom_vjp = lambda *_: {"a": x}
    with pytest.raises(TypeError, match="a tuple of 3 gradients was expected"):
        jax.grad(loss)(pair, x)


class Residual(Kernel[Steps, tuple]):
    """The other pair of hooks, and two outputs."""

    calls: list = []

    def run(self, a, b, *, cfg):
        return a * b, a + b

    def fwd_with_residuals(self, a, b, *, cfg):
        self.calls.append("forward")
        return self.run(a, b, cfg=cfg), {"sine": jnp.sin(a)}

    def vjp(self, residuals, out, cotangents, a, b, *, cfg):
        self.calls.append("vjp")
        return residuals["sine"] * cotangents[0], cotangents[1]


def test_fwd_with_residuals_and_vjp():
    kernel = Residual()
    executor = Executor()

    def loss(a, b):
        product, total = executor(kernel, a, b, cfg=Steps())
        return product.sum()

    grad_a, grad_b = jax.grad(loss, (0, 1))(x, x)
    assert kernel.calls == ["forward", "vjp"]
    np.testing.assert_array_equal(grad_a, jnp.sin(x))
    assert (grad_b == 0).all()  # the cotangent of an output that was not used


def test_without_hooks_jax_differentiates():
    np.testing.assert_allclose(
        grad_of(type("Cube", (Repeat,), {"run": lambda self, x, cfg: x**3})(), x), 3 * x**2, rtol=1e-6
    )


# ---- keys and JSON ----


class Kind(Enum):
    PLAIN = "plain"


@dataclass(frozen=True)
class Nested:
    params: FwdParams | None = None
    window: tuple[int, int] = (1, 2)
    sizes: tuple[int, ...] = ()
    kind: Kind = Kind.PLAIN
    scale: float = 1.0
    more: dict[str, FwdParams] = field(default_factory=dict)


def test_abstract_collections_survive_json():
    @dataclass(frozen=True)
    class Tiles:
        sizes: Sequence[int]
        names: Mapping[str, int]

    tiles = Tiles((1, 2), {"a": 3})
    assert from_json(to_json(tiles), Tiles) == tiles


def test_configs_survive_json():
    config = Nested(FwdParams(q_blocksize=64), (3, 4), (1, 2, 3), Kind.PLAIN, 2.0, {"a": FwdParams()})
    assert from_json(to_json(config), Nested) == config
    assert from_json(to_json(Nested()), Nested) == Nested()
    assert list(json.loads(to_json(config))) == sorted(json.loads(to_json(config)))
    for text in ('{"windows": [1, 2]}', '{"scale": "1"}', '{"window": 3}', '{"kind": "other"}', "[]"):
        with pytest.raises((TypeError, ValueError)):
            from_json(text, Nested)


def test_stable_json_tells_apart_what_differs():
    different = [
        1,
        1.0,
        True,
        "1",
        None,
        jnp.float32,
        jnp.bfloat16,
        np.float32(1),
        np.int32(1),
        x,
        x[:4],
        x.astype(jnp.bfloat16),
    ]
    different += [
        Steps(),
        FwdParams(),
        BwdParams(),
        {"steps": 1},
        {1: 2},
        {"1": 2},
        {1},
        Kind.PLAIN,
        "plain",
        int,
        float,
        normal,
    ]
    different += [partial(normal, 1), partial(normal, 2), [1], [[1]]]
    texts = [stable_json(value) for value in different]
    assert len(set(texts)) == len(texts)
    assert stable_json({"b": 1, "a": (2,)}) == stable_json({"a": [2], "b": 1}) == '{"a":[2],"b":1}'
    assert stable_json(jnp.float32) == stable_json(np.dtype("float32")) and stable_json(x) == stable_json(np.asarray(x))
    for unstable in (lambda: 0, object()):
        with pytest.raises(TypeError, match="another process"):
            stable_json(unstable)


def test_keys_hold_what_a_choice_may_depend_on():
    def key(*args, **kwargs):
        return Invocation(kernel=repeat, args=args, kwargs=kwargs).key

    assert key(x, scale=1.0) == key(2 * x, scale=3.0) != key(x)  # values of arrays and of floats do not matter
    assert len({key(x), key(x[:4]), key(x, n=1), key(x, n=2), key(x, causal=True), key(x.astype(jnp.bfloat16))}) == 6
    assert key(x) == key(jax.ShapeDtypeStruct(x.shape, x.dtype))
    newer = type("Newer", (Repeat,), {"op_id": "repeat", "version": "1"})()
    assert Invocation(kernel=newer, args=(x,)).key != key(x)
    newer.key_builder = lambda invocation: "all the same"
    assert Invocation(kernel=newer, args=(x,)).key == Invocation(kernel=newer, args=(x[:4],)).key


def test_without_a_key_there_are_heuristics(said):
    chain = ConfigSelectorChain(autotune=True)
    kernel = type("Any", (Repeat,), {"heuristic_cfg": lambda self, invocation: Steps(1)})()
    assert chain.select(Invocation(kernel=kernel, args=(x,), kwargs={"f": lambda: 0})).tier == "heuristics"
    assert "key_builder" in said.text
