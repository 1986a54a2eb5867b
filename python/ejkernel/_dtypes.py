"""The library's dtypes and JAX's."""

import jax.numpy as jnp
import numpy as np

# Spelling of the library: JAX's type.
DTYPES = {
    "f64": jnp.float64,
    "f32": jnp.float32,
    "f16": jnp.float16,
    "bf16": jnp.bfloat16,
    "e4m3": jnp.float8_e4m3fn,
    "e5m2": jnp.float8_e5m2,
    "i64": jnp.int64,
    "i32": jnp.int32,
    "u32": jnp.uint32,
    "i8": jnp.int8,
    "u8": jnp.uint8,
    "i4": jnp.int4,
    "bool": jnp.bool_,
}
_NAMES = {np.dtype(dtype): name for name, dtype in DTYPES.items()}


def dtype_of(name: str) -> np.dtype:
    return np.dtype(DTYPES[name])


def name_of(dtype: object) -> str:
    """ "bf16" for jnp.bfloat16, torch.bfloat16, "bfloat16" and "bf16" alike. Other dtypes keep NumPy's name, which the library refuses
    with the names that it takes."""
    if isinstance(dtype, str) and dtype in DTYPES:
        return dtype
    if type(dtype).__module__ == "torch":
        dtype = str(dtype).removeprefix("torch.")
    found = np.dtype(dtype)
    return _NAMES.get(found, found.name)
