"""torch tensors call operations directly, on torch's streams, and ejkernel.torch differentiates them."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ejkernel
from ejkernel import _primitive

torch = pytest.importorskip("torch", reason="torch is not installed")
import ejkernel.torch  # noqa: E402

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")
SHAPE = (2, 7, 4, 16)


def random(*shape, seed=0, **options):
    numbers = np.random.default_rng(seed).standard_normal(shape or SHAPE).astype(np.float32)
    return torch.from_numpy(numbers).to(**options) if options else torch.from_numpy(numbers)


def leaves(*shape, count=3):
    return [random(*shape, seed=seed, dtype=torch.float64).requires_grad_() for seed in range(count)]


def attention_formula(query, key, value):
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2)


@pytest.fixture
def without_jax(monkeypatch):
    def refuse(*_):
        raise AssertionError("went through JAX")

    monkeypatch.setattr(_primitive, "bind", refuse)


def test_only_ejkernel_torch_imports_torch():
    subprocess.run([sys.executable, "-c", "import ejkernel, sys; assert 'torch' not in sys.modules"], check=True)


def test_a_scale_that_requires_a_gradient_is_refused():
    codes, scale = torch.ones(SHAPE, dtype=torch.int8), torch.ones(()).requires_grad_()
    scales = {"q_scale": torch.ones(()), "v_scale": torch.ones(())}
    with pytest.raises(
        ejkernel.Unsupported, match="no derivative for k_scale, which requires one; pass k_scale.detach"
    ):
        ejkernel.torch.flash_attention(codes, codes, codes, k_scale=scale, **scales)
    with torch.no_grad():
        ejkernel.torch.flash_attention(codes, codes, codes, k_scale=scale, **scales)
    ejkernel.torch.flash_attention(codes, codes, codes, k_scale=scale.detach(), **scales)


def test_numbers_are_those_of_numpy_and_jax():
    tensors = [random(seed=seed) for seed in range(3)]
    for function in (ejkernel.flash_attention, ejkernel.attention, ejkernel.scaled_dot_product_attention):
        ours = function(*tensors, causal=True)
        numpys = function(*(x.numpy() for x in tensors), causal=True)
        jaxs = function(*(jnp.asarray(x.numpy()) for x in tensors), causal=True)
        for x, from_numpy, from_jax in zip(ours, numpys, jaxs, strict=True):
            assert type(x) is torch.Tensor and x.dtype is torch.float32
            np.testing.assert_array_equal(x, from_numpy, strict=True)
            np.testing.assert_array_equal(x, from_jax)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-13), ("float16", 1e-3), ("bfloat16", 1e-2)])
def test_every_float_is_the_formula(without_jax, dtype, tolerance):
    tensors = [random(seed=seed, dtype=getattr(torch, dtype)) for seed in range(3)]
    out = ejkernel.flash_attention(*tensors).out
    assert out.dtype is tensors[0].dtype
    expected = attention_formula(*(x.double() for x in tensors))
    torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=tolerance)


def test_views_dtype_parameters_and_lists(without_jax):
    query, key = random(2, 4, 7, 16).transpose(1, 2), random(2, 7, 4, 48)[..., 16:32]
    out = ejkernel.flash_attention(query, key, key, out_dtype=torch.float64).out
    assert out.dtype is torch.float64
    torch.testing.assert_close(out.float(), attention_formula(query, key, key), rtol=1e-5, atol=1e-6)
    tokens = random(9, 16)
    pooled = ejkernel.mean_pooling(tokens, cu_seqlens=[0, 4, 9]).out
    torch.testing.assert_close(pooled, torch.stack([tokens[:4].mean(0), tokens[4:].mean(0)]))


def test_what_cannot_be_called_is_refused_with_a_sentence(without_jax):
    x = random()
    for other, kind in ((x.numpy(), "numpy.ndarray"), (jax.numpy.asarray(x.numpy()), ".*ArrayImpl")):
        with pytest.raises(
            ejkernel.InvalidArgument, match=f"key must be a torch tensor like the other inputs, got {kind};"
        ):
            ejkernel.flash_attention(x, other, x)
        with pytest.raises(ejkernel.InvalidArgument, match="inputs of ejkernel.torch must be torch tensors, got none"):
            ejkernel.torch.flash_attention(other, other, other)
    with pytest.raises(ejkernel.InvalidArgument, match="key must be on cpu like query, got meta; move it"):
        ejkernel.flash_attention(x, x.to("meta"), x)
    with pytest.raises(ejkernel.InvalidArgument, match="tensors must be on cpu or cuda, got meta"):
        ejkernel.flash_attention(*[x.to("meta")] * 3)
    with pytest.raises(ejkernel.InvalidArgument, match="query must not require a gradient, which is lost here"):
        ejkernel.flash_attention(x.clone().requires_grad_(), x, x)
    with pytest.raises(ejkernel.InvalidArgument, match="x must have one of the dtypes f64, .*, got torch.complex64"):
        ejkernel.mean_pooling(torch.zeros(1, 5, 8, dtype=torch.complex64))
    with pytest.raises(ejkernel.InvalidArgument, match="key head_dim must equal query head_dim 16, got 8"):
        ejkernel.torch.flash_attention(x, x[..., :8], x)


def test_lazily_negated_views_are_read_as_what_they_are(without_jax):
    x = random(1, 5, 8)
    lazily = torch._neg_view(-x)
    assert lazily.is_neg()
    np.testing.assert_array_equal(ejkernel.mean_pooling(lazily).out, ejkernel.mean_pooling(x).out)


# ---- autograd ----


def test_gradients_of_attention_are_finite_differences(without_jax):
    arrays = leaves(1, 3, 2, 4)
    bias = random(1, 2, 3, 3, seed=3, dtype=torch.float64).requires_grad_()
    mask = torch.ones(1, 1, 3, 3, dtype=torch.bool).tril()

    def flash_attention(*arrays):
        return tuple(ejkernel.torch.flash_attention(*arrays, attention_mask=mask, logits_soft_cap=5.0))

    assert torch.autograd.gradcheck(flash_attention, (*arrays, bias))
    assert torch.autograd.gradcheck(lambda *x: tuple(ejkernel.torch.attention(*x, causal=True)), arrays)
    assert torch.autograd.gradcheck(lambda *x: tuple(ejkernel.torch.scaled_dot_product_attention(*x)), arrays)


def test_gradients_of_pooling_are_finite_differences(without_jax):
    (x,) = leaves(2, 5, 3, count=1)
    assert torch.autograd.gradcheck(lambda x: ejkernel.torch.mean_pooling(x).out, x)
    (packed,) = leaves(9, 2, 3, count=1)
    result = ejkernel.torch.mean_pooling(packed, cu_seqlens=[0, 4, 9], chunk_size=2)
    assert result.out.requires_grad and not result.chunk_offsets.requires_grad
    assert torch.autograd.gradcheck(
        lambda x: ejkernel.torch.mean_pooling(x, cu_seqlens=[0, 4, 9], chunk_size=2).out, packed
    )


def test_gradients_are_those_of_jax():
    tensors = [random(seed=seed).requires_grad_() for seed in range(3)]
    out, lse = ejkernel.torch.flash_attention(*tensors, causal=True)
    (out.square().sum() + lse.sum()).backward()

    def loss(*arrays):
        out, lse = ejkernel.flash_attention(*arrays, causal=True)
        return jnp.square(out).sum() + lse.sum()

    expected = jax.grad(loss, (0, 1, 2))(*(jnp.asarray(x.detach().numpy()) for x in tensors))
    for x, gradient in zip(tensors, expected, strict=True):
        np.testing.assert_array_equal(x.grad, gradient)


def test_what_is_not_asked_for_is_not_computed(without_jax, monkeypatch):
    calls = []
    run = ejkernel._interop.run_direct
    monkeypatch.setattr(ejkernel._interop, "run_direct", lambda call, x: (calls.append(call), run(call, x))[1])
    query, key, value = leaves()
    out = ejkernel.torch.flash_attention(query.detach(), key, value.detach()).out
    out.sum().backward()
    assert calls[-1].operation == "flash_attention_backward"
    assert calls[-1].wanted == ("key",) and "d_lse" not in calls[-1].given
    assert query.grad is None and key.grad.shape == SHAPE
    with torch.no_grad():
        assert not ejkernel.torch.flash_attention(query, key, value).out.requires_grad
        assert not ejkernel.flash_attention(query, key, value).out.requires_grad
    assert [call.operation for call in calls] == ["flash_attention", "flash_attention_backward"] + [
        "flash_attention"
    ] * 2


def test_lse_alone_is_differentiable(without_jax):
    query, key, value = leaves()
    ejkernel.torch.flash_attention(query, key, value).lse.sum().backward()
    mine, query.grad = query.grad, None
    scores = torch.einsum("bqhd,bkhd->bhqk", query, key) / 4
    scores.logsumexp(-1).sum().backward()
    torch.testing.assert_close(mine, query.grad)
    assert (value.grad == 0).all()


def test_a_second_derivative_is_an_error(without_jax):
    query, key, value = leaves()
    out = ejkernel.torch.flash_attention(query, key, value).out
    (gradient,) = torch.autograd.grad(out.square().sum(), query, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_training_in_bfloat16(without_jax):
    tensors = [random(seed=seed, dtype=torch.bfloat16).requires_grad_() for seed in range(3)]
    ejkernel.torch.flash_attention(*tensors).out.float().square().sum().backward()
    exact = [x.detach().double().requires_grad_() for x in tensors]
    attention_formula(*exact).square().sum().backward()
    for mine, expected in zip(tensors, exact, strict=True):
        assert mine.grad.dtype is torch.bfloat16
        torch.testing.assert_close(mine.grad.double(), expected.grad, rtol=0.03, atol=0.03)


# ---- on a GPU ----


@needs_gpu
def test_a_gpus_numbers_are_the_formula(without_jax):
    tensors = [random(2, 64, 4, 64, seed=seed, device="cuda", dtype=torch.bfloat16) for seed in range(3)]
    out = ejkernel.flash_attention(*tensors).out
    assert out.device == tensors[0].device
    expected = attention_formula(*(x.double() for x in tensors))
    torch.testing.assert_close(out.double(), expected, rtol=1e-2, atol=1e-2)


@needs_gpu
def test_work_is_queued_on_the_current_stream(without_jax):
    """Which a graph shows: capturing takes no waiting, and nothing on any other stream."""
    tensors = [random(2, 64, 4, 64, seed=seed, device="cuda", dtype=torch.bfloat16) for seed in range(3)]
    expected = ejkernel.flash_attention(*tensors, causal=True)
    stream = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        captured = ejkernel.flash_attention(*tensors, causal=True)
    for x in captured:
        x.zero_()
    graph.replay()
    torch.cuda.synchronize()
    for mine, theirs in zip(captured, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0)


@needs_gpu
def test_a_side_stream_sees_its_own_order(without_jax):
    base = random(4, 512, 8, 64, device="cuda", dtype=torch.bfloat16)
    expected = ejkernel.flash_attention(base, base, base).out
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(20):  # outputs and workspaces are given back while work on them is still queued
            torch.cuda._sleep(1_000_000)
            copy = base.clone()
            out = ejkernel.flash_attention(copy, copy, copy).out
            del copy
    stream.synchronize()
    torch.testing.assert_close(out, expected, rtol=0, atol=0)


@needs_gpu
def test_a_gpus_gradients_are_the_formulas(without_jax):
    tensors = [random(2, 64, 4, 64, seed=s, device="cuda", dtype=torch.bfloat16).requires_grad_() for s in range(3)]
    ejkernel.torch.flash_attention(*tensors).out.float().square().sum().backward()
    exact = [x.detach().double().requires_grad_() for x in tensors]
    attention_formula(*exact).square().sum().backward()
    for mine, expected in zip(tensors, exact, strict=True):
        torch.testing.assert_close(mine.grad.double(), expected.grad, rtol=0.05, atol=0.05)


@needs_gpu
def test_devices_are_not_mixed(without_jax):
    x = random()
    with pytest.raises(ejkernel.InvalidArgument, match="key must be on cuda:0 like query, got cpu"):
        ejkernel.flash_attention(x.cuda(), x, x)
