"""Platform xla against the reference kernels: grouped_matmul, its gradient and transposed_grouped_matmul."""

import numpy as np
import paged_problems as problems
import pytest
from test_xla import check, check_each, float64, no_float64  # noqa: F401
from xla_reference import DTYPES


def check_all(rng, calls: list[dict], params: dict, tolerance: float = 1e-12):
    """The product, its gradient, and the gradient of the matrices by itself, of calls that differ in contents alone."""
    results = check_each("grouped_matmul", calls, params, tolerance)
    given = [
        {**inputs, "d_out": problems.normal(rng, result["out"].shape, result["out"].dtype)}
        for inputs, result in zip(calls, results, strict=True)
    ]
    gradients = _check_gradient("grouped_matmul_backward", given, params, tolerance)
    if calls[0]["group_sizes"] is None:
        return
    params = {**params, "num_groups": calls[0]["rhs"].shape[0], "out_dtype": None}
    by_itself = _check_gradient("transposed_grouped_matmul", given, params, tolerance)
    for gradient, alone in zip(gradients, by_itself, strict=True):
        assert np.isfinite(gradient["rhs"]).all() and np.isfinite(alone["out"]).all()


def _check_gradient(operation: str, given: list[dict], params: dict, tolerance: float) -> list[dict]:
    calls = [problems.full_call(operation, inputs, params) for inputs in given]
    return check_each(operation, [inputs for inputs, _ in calls], calls[0][1], tolerance)


SEEDS = {"ragged": (2, 221, 261, 292, 297), "batched": (123, 157)}


@pytest.mark.parametrize("form", SEEDS)
def test_the_seeds_have_every_option(form):
    def options(seeds):
        calls = [problems.grouped_call(np.random.default_rng(seed), form) for seed in seeds]
        return set().union(*(problems.options(*call) for call in calls))

    assert options(SEEDS[form]) >= options(range(100))


@pytest.mark.parametrize("form, seed", [(form, seed) for form, seeds in SEEDS.items() for seed in seeds])
def test_it_equals_the_reference(form, seed):
    rng = np.random.default_rng(seed)
    inputs, params = problems.grouped_call(rng, form)
    more = [problems.other_groups(rng, inputs, params) for _ in range(4)] if form == "ragged" else []
    check_all(rng, [inputs, *more], params)


@pytest.mark.parametrize("dtype, tolerance", [("f32", 1e-5), ("f16", 2e-3), ("bf16", 1e-2)])
@pytest.mark.parametrize("form", ["ragged", "batched"])
def test_smaller_floats(form, dtype, tolerance, no_float64):  # noqa: F811
    rng = np.random.default_rng(200)
    inputs, params = problems.grouped_call(rng, form, DTYPES[dtype])
    check_all(rng, [inputs], params, tolerance)


@pytest.mark.parametrize("out_dtype", ["f32", "bf16"])
def test_out_takes_the_dtype_that_is_asked_for(out_dtype, no_float64):  # noqa: F811
    rng = np.random.default_rng(201)
    inputs, params = problems.grouped_call(rng, "ragged", np.float32)
    inputs["existing_out"] = problems.normal(rng, (13, 5), DTYPES[out_dtype])
    check_all(rng, [inputs], {**params, "out_dtype": out_dtype}, 1e-2 if out_dtype == "bf16" else 1e-5)


@pytest.mark.parametrize("lhs_dtype, rhs_dtype", [("i8", "i8"), ("e4m3", "e4m3"), ("e5m2", "i8"), ("f32", "i8")])
def test_8_bit_codes(lhs_dtype, rhs_dtype, no_float64):  # noqa: F811
    rng = np.random.default_rng(202)
    m, k, n, groups = 20, 150, 140, 3
    scales = [(None, ()), ((), (groups, n)), ((m,), (groups, 2, 2)), ((m, 2), None)]
    for lhs_scale, rhs_scale in scales if lhs_dtype == "i8" else scales[1:3]:
        transposed = bool(rng.random() < 0.5)
        codes = [
            (rng.integers(-127, 128, shape) if dtype == "i8" else rng.standard_normal(shape)).astype(DTYPES[dtype])
            for dtype, shape in ((lhs_dtype, (m, k)), (rhs_dtype, (groups, n, k) if transposed else (groups, k, n)))
        ]
        inputs = {"lhs": codes[0], "rhs": codes[1], "group_sizes": np.asarray([7, 0, 9], np.int32)}
        for name, shape in (("lhs_scale", lhs_scale), ("rhs_scale", rhs_scale)):
            if shape is not None and not (name == "lhs_scale" and lhs_dtype == "f32"):
                inputs[name] = np.asarray(rng.uniform(0.5, 1.5, shape), np.float32)
        call = problems.full_call("grouped_matmul", inputs, {"transpose_rhs": transposed, "out_dtype": "f32"})
        check("grouped_matmul", *call, 1e-5, jit=True)


def test_nothing():
    rng = np.random.default_rng(203)
    for m, k, n, groups in ((0, 6, 5, 4), (7, 0, 5, 4), (7, 6, 0, 4), (7, 6, 5, 0)):
        inputs = {
            "lhs": problems.normal(rng, (m, k)),
            "rhs": problems.normal(rng, (groups, k, n)),
            "group_sizes": rng.integers(0, 3, groups).astype(np.int32),
        }
        batched = {"lhs": inputs["lhs"][None, None], "rhs": problems.normal(rng, (1, 1, k, n))}
        masks = {
            "rhs_mask": np.ones((groups, -(-k // 4), -(-n // 4)), bool),
            "out_mask": np.ones((-(-m // 4), -(-n // 4)), bool),
        }
        blocks = {f"block_{name}": 4 for name in "mkn"}
        for given, params in ((inputs, {}), (batched, {}), (inputs | masks, blocks)):
            call, params = problems.full_call("grouped_matmul", given, params)
            check_all(rng, [call], params)
