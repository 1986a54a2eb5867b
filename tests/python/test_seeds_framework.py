"""The code of the documents that the project began with, as test_seeds.py has it: the framework's."""

from dataclasses import asdict, dataclass

import jax
import jax.numpy as jnp
import numpy as np
from seeds import ON_GPU, MyConfig, a, b, k, normal, q, v
from seeds import home_folder as home_folder  # every test has it

# ---- 4_ops_framework.md ----


def make_kernel():
    """Basic kernel implementation, with `config_space` of 'defining config space'."""
    from ejkernel.ops import Invocation, Kernel

    class MyKernel(Kernel[MyConfig, jnp.ndarray]):
        def __init__(self):
            super().__init__(name="my_kernel")

        def run(self, a, b, *, cfg: MyConfig, **kwargs) -> jnp.ndarray:
            """Default implementation."""
            return jnp.dot(a, b)

        def heuristic_cfg(self, inv: "Invocation") -> MyConfig:
            """Generate config based on input shapes."""
            a = inv.args[0]
            block = 128 if a.shape[0] >= 128 else 64
            return MyConfig(block_size=block)

        def config_space(self, inv: Invocation) -> list[MyConfig]:
            """Return configs to try during autotuning."""
            return [
                MyConfig(block_size=64, num_warps=2),
                MyConfig(block_size=128, num_warps=4),
                MyConfig(block_size=256, num_warps=8),
            ]

    return MyKernel()


my_config = MyConfig(block_size=256)


def test_executor():
    """Executor: running kernels."""
    from ejkernel.ops import ConfigCache, ConfigSelectorChain, Executor

    my_kernel = make_kernel()
    # Create the execution stack
    cache = ConfigCache()
    selector = ConfigSelectorChain(cache=cache)
    executor = Executor(selector)

    # Run a kernel
    result = executor(my_kernel, a, b)
    np.testing.assert_allclose(result, a @ b, rtol=1e-4, atol=1e-4)

    # Run with explicit config
    result = executor(my_kernel, a, b, cfg=my_config)
    np.testing.assert_allclose(result, a @ b, rtol=1e-4, atol=1e-4)


def test_platform_specific_implementations():
    """Platform-specific implementations: a CUDA device has run_triton, a CPU run_xla."""
    from ejkernel.ops import Kernel

    called = []

    def implementation(name):
        return lambda q, k, v, **params: called.append(name) or q

    triton_flash_attention, pallas_attention = implementation("triton"), implementation("pallas")
    xla_attention = implementation("xla")

    @dataclass(frozen=True)
    class AttentionConfig:
        @property
        def triton_params(self):
            return {}

        pallas_params = triton_params

    class AttentionKernel(Kernel[AttentionConfig, jnp.ndarray]):
        def run_triton(self, q, k, v, *, cfg, **kwargs):
            """Triton GPU implementation."""
            return triton_flash_attention(q, k, v, **cfg.triton_params)

        def run_pallas(self, q, k, v, *, cfg, **kwargs):
            """Pallas TPU implementation."""
            return pallas_attention(q, k, v, **cfg.pallas_params)

        def run_xla(self, q, k, v, *, cfg, **kwargs):
            """XLA fallback implementation."""
            return xla_attention(q, k, v)

        def run(self, q, k, v, *, cfg, **kwargs):
            """Default fallback."""
            return self.run_xla(q, k, v, cfg=cfg, **kwargs)

    AttentionKernel()(q, k, v, cfg=AttentionConfig())
    assert called == ["triton" if ON_GPU else "xla"]


def test_custom_gradients():
    """Custom gradients (VJP)."""
    from ejkernel.ops import Executor, Kernel

    def custom_forward(a, b, cfg):
        return a * b

    def custom_grad_a(a, b, ct, cfg):
        return 10 * ct * b

    def custom_grad_b(a, b, ct, cfg):
        return 100 * ct * a

    class MyKernel(Kernel[MyConfig, jnp.ndarray]):
        def run(self, a, b, *, cfg, **kwargs):
            return custom_forward(a, b, cfg)

        def custom_vjp(self, primals, cfg, kwargs, cotangents):
            """Custom backward pass."""
            a, b = primals
            ct = cotangents[0]
            grad_a = custom_grad_a(a, b, ct, cfg)
            grad_b = custom_grad_b(a, b, ct, cfg)
            return (grad_a, grad_b)

    def loss(a, b):
        return Executor()(MyKernel(), a, b, cfg=MyConfig()).sum()

    grad_a, grad_b = jax.grad(loss, (0, 1))(a, b)
    np.testing.assert_array_equal(grad_a, 10 * b)
    np.testing.assert_array_equal(grad_b, 100 * a)


def test_invocation():
    """Invocation: capturing call context."""
    from ejkernel.ops import Invocation

    my_kernel = make_kernel()
    # Created automatically by the executor
    inv = Invocation(
        kernel=my_kernel,
        args=(a, b),  # Positional arguments
        kwargs={"scale": 1.0},  # Keyword arguments
        metadata={"note": "anything"},
    )

    # Access abstracted shapes (for config lookup)
    assert inv.abstract_args == (jax.ShapeDtypeStruct((64, 64), jnp.float32),) * 2
    assert inv.device_fingerprint.startswith("gpu" if ON_GPU else "cpu")


def test_config_cache():
    """ConfigCache (in-memory)."""
    from ejkernel.ops import ConfigCache

    key, config = "a key", MyConfig(block_size=32)
    cache = ConfigCache()
    assert cache.get(key) is None  # Returns None if not found

    # Store a config
    cache.put(key, config)

    # Retrieve
    assert cache.get(key) == config

    # Check existence
    assert key in cache


def test_persistent_cache(home):
    """PersistentCache (disk-based)."""
    from ejkernel.ops import PersistentCache

    key, config = "a key", MyConfig(block_size=32)
    # Stored in ~/.cache/ejkernel/ by default
    assert home / ".cache" / "ejkernel" in PersistentCache().path.parents
    persistent = PersistentCache(path="~/.cache/ejkernel/configs")

    # Same interface as ConfigCache
    persistent.put(key, config)
    assert persistent.get(key) == config
    assert key in persistent and len(list((home / ".cache/ejkernel/configs").iterdir())) == 1


def test_config_selector_chain():
    """ConfigSelectorChain. Measuring goes before heuristics: three of the four documents that give an order say so."""
    from ejkernel.ops import ConfigCache, ConfigSelectorChain, Executor, PersistentCache

    selector = ConfigSelectorChain(
        cache=ConfigCache(),  # Level 1: In-memory
        persistent=PersistentCache(),  # Level 2: Disk
        autotune=True,  # Level 3: Benchmark if not found
    )
    Executor(selector)(make_kernel(), a, b)
    assert len(selector.cache) == 1 and len(list(selector.persistent.path.iterdir())) == 1


def test_temporary_overrides():
    """Temporary overrides."""
    from ejkernel.ops import ConfigCache, ConfigSelectorChain, Executor, Invocation, overlay_cache, policy_override

    kernel = make_kernel()
    executor = Executor(ConfigSelectorChain(autotune=True))
    my_custom_cache = ConfigCache()
    my_custom_cache.put(Invocation(kernel=kernel, args=(a, b)).key, my_config)

    # Temporarily use different cache
    with overlay_cache(my_custom_cache):
        executor(kernel, a, b)
        assert executor.choose_config(kernel, a, b) == my_config

    # Temporarily change autotuning policy
    with policy_override(autotune=False):
        executor(kernel, a, b)  # No autotuning
        assert len(executor.selector.cache) == 0


def test_manual_autotuning():
    """Manual autotuning."""
    from ejkernel.ops import Invocation, autotune, benchmark

    kernel = make_kernel()
    inv = Invocation(kernel=kernel, args=(a, b))
    # Autotune a specific kernel call
    best_config = autotune(kernel, a, b, configs=kernel.config_space(inv), num_warmup=3, num_iters=10)
    assert best_config in [*kernel.config_space(inv), kernel.heuristic_cfg(inv)]

    # Simple function benchmarking
    time_ms = benchmark(lambda: kernel(a, b), num_iters=100)
    assert 0 < time_ms < 1000


def test_batch_autotuning():
    """Batch autotuning."""
    from ejkernel.ops import (
        Invocation,
        autotune_recorded,
        clear_invocations,
        get_invocations,
        record_invocation,
    )

    clear_invocations()
    kernel = make_kernel()
    inv = Invocation(kernel=kernel, args=(a, b))
    # Enable recording
    record_invocation(kernel, inv)

    # Get all recorded invocations
    invocations = get_invocations()
    assert len(invocations) == 1

    # Autotune all at once
    results = autotune_recorded(invocations)
    assert list(results) == [inv.key] and isinstance(results[inv.key], MyConfig)


def test_vmap_with_config():
    """vmap_with_config."""
    from ejkernel.ops import vmap_with_config

    kernel = make_kernel()
    batched_a = batched_b = normal(3, 8, 8)
    # Standard vmap would select config per element
    # vmap_with_config selects once and broadcasts
    batched_result = vmap_with_config(
        kernel,
        in_axes=(0, 0),  # Batch over first axis
    )(batched_a, batched_b)
    np.testing.assert_allclose(batched_result, batched_a @ batched_b, rtol=1e-4, atol=1e-4)


def test_pmap_with_config():
    """pmap_with_config."""
    from ejkernel.ops import pmap_with_config

    kernel = make_kernel()
    sharded_a = sharded_b = normal(jax.local_device_count(), 8, 8)
    # Run kernel across multiple devices
    parallel_result = pmap_with_config(kernel, axis_name="devices")(sharded_a, sharded_b)
    np.testing.assert_allclose(parallel_result, sharded_a @ sharded_b, rtol=1e-4, atol=1e-4)


def test_fwd_params_and_bwd_params():
    """FwdParams and BwdParams."""
    from ejkernel.ops import BwdParams, FwdParams

    fwd = FwdParams(
        q_blocksize=128,  # Query block size
        kv_blocksize=256,  # Key-value block size
        num_warps=4,  # GPU warps
        num_stages=2,  # Pipeline stages
    )

    bwd = BwdParams(
        q_blocksize=64,
        kv_blocksize=128,
    )
    assert (
        asdict(fwd)["kv_blocksize"] == 256
        and fwd != bwd
        and hash(bwd) == hash(BwdParams(q_blocksize=64, kv_blocksize=128))
    )


def test_device_detection():
    """Device detection: the platform is this library's, cuda or cpu, not triton or xla."""
    from ejkernel.ops import device_fingerprint, device_kind, get_device_platform

    assert device_kind() == ("gpu" if ON_GPU else "cpu")
    assert get_device_platform() == ("cuda" if ON_GPU else "cpu")
    assert device_fingerprint() == device_fingerprint()


def test_sharding_utilities():
    """Sharding utilities."""
    from ejkernel.ops import default_key_builder_with_sharding, sharding_fingerprint

    kernel, args, kwargs = make_kernel(), (a, b), {"scale": 1.0}
    # Get fingerprint of array sharding
    mesh = jax.make_mesh((1,), ("x",))
    sharded = jax.device_put(a, jax.NamedSharding(mesh, jax.P("x")))
    assert sharding_fingerprint(sharded) != sharding_fingerprint(a)

    # Build cache key including sharding info
    key = default_key_builder_with_sharding(kernel, args, kwargs)
    assert key != default_key_builder_with_sharding(kernel, (sharded, b), kwargs)


def test_serialization():
    """Serialization."""
    from ejkernel.ops import from_json, stable_json, to_json

    config = MyConfig(block_size=64)
    # Serialize config to JSON
    json_str = to_json(config)

    # Deserialize
    assert from_json(json_str, MyConfig) == config

    # Stable JSON (deterministic ordering for cache keys)
    assert stable_json(config) == stable_json(MyConfig(block_size=64)) != stable_json(MyConfig())


def test_labeling_operations():
    """Labeling operations."""
    from ejkernel.ops import label

    attention_impl = jnp.dot

    # Add label for HLO analysis
    @label("my_attention")
    def my_attention(q, k, v):
        return attention_impl(q, k) @ v

    lowered = jax.jit(my_attention).lower(a, a, a)
    assert "my_attention/" in lowered.as_text(debug_info=True)


def test_use_the_module_api():
    """Best practices, 1."""
    from ejkernel.modules import flash_attention

    output = flash_attention(q, k, v, causal=True)
    assert output.shape == q.shape


def test_good_heuristics():
    """Best practices, 3."""
    from ejkernel.ops import ConfigSelectorChain, Executor, Kernel

    class MyKernel(Kernel[MyConfig, jnp.ndarray]):
        def run(self, q, *, cfg):
            return q

        def heuristic_cfg(self, inv):
            # Consider input shapes
            q = inv.args[0]
            batch, seq_len, heads, dim = q.shape

            # Larger sequences benefit from larger blocks
            if seq_len >= 2048:
                block = 256
            elif seq_len >= 512:
                block = 128
            else:
                block = 64

            return MyConfig(block_size=block)

    executor = Executor(ConfigSelectorChain())
    shape = jax.ShapeDtypeStruct((1, 4096, 2, 64), jnp.float32)
    assert executor.choose_config(MyKernel(), shape) == MyConfig(block_size=256)
    assert executor.choose_config(MyKernel(), q) == MyConfig(block_size=64)


def test_module_structure():
    """Module structure."""
    from ejkernel.ops.config.cache import ConfigCache, overlay_cache  # noqa: F401
    from ejkernel.ops.config.persistent import PersistentCache  # noqa: F401
    from ejkernel.ops.config.selection import AutotunePolicy, ConfigSelectorChain  # noqa: F401
    from ejkernel.ops.core.kernel import Invocation, Kernel  # noqa: F401
    from ejkernel.ops.core.types import Cfg, Out  # noqa: F401
    from ejkernel.ops.execution.batch import pmap_with_config, vmap_with_config  # noqa: F401
    from ejkernel.ops.execution.executor import ConfigChooser, Executor  # noqa: F401
    from ejkernel.ops.execution.tuning import autotune, benchmark  # noqa: F401
    from ejkernel.ops.registry import get_invocations, record_invocation  # noqa: F401


# ---- 4, HLO analysis ----


def test_hlo_analysis() -> None:
    def fn(q: jax.Array) -> jax.Array:
        from ejkernel.modules import flash_attention

        return flash_attention(q, q, q)

    args = jnp.ones((1, 8, 2, 16))
    from ejkernel.ops import extract_labels_from_hlo_text, find_labels_in_lowered, labels_to_configs

    lowered = jax.jit(fn).lower(args)
    labels = find_labels_in_lowered(lowered)
    hlo_text = lowered.as_text()
    assert labels == extract_labels_from_hlo_text(hlo_text)
    configs = labels_to_configs(labels)
    assert list(configs) == labels and all("block_q" in config for config in configs.values())
