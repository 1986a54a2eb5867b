"""The operations with the argument order and the keywords of the Python library that came before. Every keyword that
ejkernel's own function of the name takes (causal_align, q_segment_ids, seqused_k, config, ...) is taken as well.

A function here is a signature, its documentation, and what its arguments mean to the library where that is not what
they are called: `_ported` does the rest."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ejkernel._declarations import OPERATIONS
from ejkernel._interop import as_jax
from ejkernel._library import InvalidArgument
from ejkernel._settings import integer
from ejkernel.modules._call import call
from ejkernel.modules.configs import GroupedMatmulConfig, PageAttentionConfig

Array = Any


def _ported(translate: Callable[..., dict[str, Any]]) -> Callable[..., Any]:
    """A function of this signature, and platform, cfg, _cfg and any other keyword. Arguments that the library's function
    has under the same name are passed on, with what `translate` returns over them; the others are what `translate`
    makes of them, or change nothing, as its documentation says. A `cfg` among what it returns stands for sizes that were
    arguments, and is used where there is no other; `result` is applied to what is returned."""
    operation = translate.__name__
    op = OPERATIONS[operation]
    known = {*op.input_names, *op.param_names, *op.spellings}
    own = inspect.signature(translate)

    @functools.wraps(translate)
    def function(*args: Any, platform: Any = None, cfg: Any = None, _cfg: Any = None, **kwargs: Any) -> Any:
        mine = {name: value for name, value in kwargs.items() if name in own.parameters}
        more = {name: value for name, value in kwargs.items() if name not in mine}
        bound = own.bind(*args, **mine)
        bound.apply_defaults()
        changes = translate(**bound.arguments)
        result = changes.pop("result", lambda returned: returned)
        if (sizes := changes.pop("cfg", None)) is not None and cfg is None and _cfg is None:
            cfg = sizes
        given = {name: value for name, value in bound.arguments.items() if name in known}
        if twice := sorted(name for name in changes.keys() & more.keys() if changes[name] is not None):
            raise TypeError(f"{operation}: {twice[0]} is given twice, once by its old name")
        return result(call(operation, given | changes | more, platform, cfg, _cfg))

    p = inspect.Parameter
    added = [p(name, p.KEYWORD_ONLY, default=None) for name in ("platform", "cfg", "_cfg")]
    function.__signature__ = own.replace(parameters=[*own.parameters.values(), *added, p("more", p.VAR_KEYWORD)])
    return function


def _seed(seed: Any) -> Any:
    """An integer (of 64 bits), or two of them, or a key of jax.random, as the uint32[2] that dropout takes."""
    if seed is None:
        return None
    if isinstance(seed, (int, np.integer)):
        seed = int(seed)
        return jnp.array([seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF], jnp.uint32)
    words = as_jax(seed)
    if not jnp.issubdtype(words.dtype, jnp.integer):
        return words  # which is refused by name
    if words.ndim == 0:
        high = words >> 32 if words.dtype.itemsize == 8 else jnp.where(words < 0, -1, 0)
        words = jnp.stack([words.astype(jnp.uint32), high.astype(jnp.uint32)])
    return words[-2:].astype(jnp.uint32)


def _mask(mask: Any) -> dict[str, Any]:
    """Of integers one is true where it is not 0, as the library before had it."""
    is_integer = getattr(getattr(mask, "dtype", None), "kind", None) in ("i", "u")
    return {"attention_mask": mask != 0} if is_integer else {}


def _dropout(prob: float, seed: Any) -> dict[str, Any]:
    given = bool(prob)
    return {"dropout_prob": prob if given else None, "dropout_seed": _seed(seed) if given else None}


@_ported
def flash_attention(
    query: Array,
    key: Array,
    value: Array,
    attention_mask: Array | None = None,
    bias: Array | None = None,
    causal: bool = False,
    softmax_scale: float | None = None,
    dropout_prob: float = 0.0,
    dropout_seed: Any = None,
    *,
    sliding_window: int | tuple[int, int] | None = None,
    logits_soft_cap: float | None = None,
    cum_seqlens_q: Array | None = None,
    cum_seqlens_k: Array | None = None,
    softmax_aux: Array | None = None,
    normalize_output: bool = True,
    precision: Any = None,
    logits_dtype: Any = None,
) -> Any:
    """softmax(softmax_scale * query key^T) value, [batch, q_len, num_q_heads, value_dim]. See
    ejkernel.flash_attention, which returns the log-sum-exp as well. `precision` and `logits_dtype` change nothing:
    logits are float32."""
    return _dropout(dropout_prob, dropout_seed) | _mask(attention_mask)


@_ported
def attention(
    query: Array,
    key: Array,
    value: Array,
    attention_mask: Array | None = None,
    bias: Array | None = None,
    init_bias: Callable[[], Array] | None = None,
    deterministic: bool = True,
    dropout_rng: Any = None,
    softmax_aux: Array | None = None,
    softmax_scale: float | None = None,
    logits_soft_cap: float | None = None,
    dtype: Any = None,
    softmax_dtype: Any = None,
    dropout_prob: float = 0.0,
    causal: bool = False,
    sliding_window: int | tuple[int, int] | None = None,
) -> Any:
    """Attention and its weights, [batch, num_heads, q_len, kv_len]. `deterministic` means without dropout, as does a
    missing `dropout_rng`; `dtype` is what query, key and value are cast to. `softmax_dtype` changes nothing: the softmax
    is float32."""
    drops = not deterministic and dropout_rng is not None
    changes = {"deterministic": None, **_dropout(dropout_prob if drops else 0.0, dropout_rng), **_mask(attention_mask)}
    if dtype is not None:
        changes |= {n: jnp.asarray(x).astype(dtype) for n, x in (("query", query), ("key", key), ("value", value))}
    return changes | _initial(bias, init_bias)


def _initial(bias: Any, init_bias: Callable[[], Array] | None) -> dict[str, Any]:
    return {"bias": init_bias() if bias is None and init_bias is not None else bias}


@_ported
def scaled_dot_product_attention(
    query: Array,
    key: Array,
    value: Array,
    attention_mask: Array | None = None,
    bias: Array | None = None,
    init_bias: Callable[[], Array] | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    sliding_window: int | tuple[int, int] | None = None,
    cum_seqlens_q: Array | None = None,
    cum_seqlens_k: Array | None = None,
) -> Any:
    """Attention as jax.nn.dot_product_attention has it. `cum_seqlens_q` and `cum_seqlens_k` are lengths per batch
    entry, whatever they are called; query_seq_lengths and key_value_seq_lengths are the same."""
    return _initial(bias, init_bias) | _mask(attention_mask)


@_ported
def mean_pooling(
    x: Array, mask: Array | None = None, cu_seqlens: Array | None = None, *, chunk_size: int | None = None
) -> Any:
    """Means over tokens, of a batch, of packed sequences, or of chunks; see ejkernel.mean_pooling, which returns the
    offsets of packed chunks as well."""
    return {}


@_ported
def page_attention(
    query: Array,
    key_cache: Array,
    value_cache: Array,
    context_lens: Array,
    block_tables: Array,
    attn_scale: float | None = None,
    max_context_len: int | None = None,
    num_splits: int = 0,
    mask_value: float | None = None,
    attn_logits_soft_cap: float | None = None,
    pages_per_compute_block: int | None = None,
    megacore_mode: str | None = None,
    inline_seq_dim: bool = True,
    *,
    block_size: int | None = None,
    cache_layout: str = "head_major",
) -> Any:
    """The newest token of each sequence over a cache of pages that lie heads first, [num_pages, num_kv_heads,
    page_size, head_dim]; cache_layout="page_major" takes the other ones. See ejkernel.page_attention, which returns the
    log-sum-exp as well. `num_splits` is a wish, as in PageAttentionConfig; `block_size` must be the page size if it is
    given. `max_context_len`, `mask_value`, `pages_per_compute_block`, `megacore_mode` and `inline_seq_dim` change
    nothing: lengths are read where they are, and masked logits are left out."""
    page_size = key_cache.shape[1 if cache_layout == "page_major" else 2]
    if block_size not in (None, page_size):
        raise InvalidArgument(
            f"page_attention: block_size must be the page size {page_size}, got {block_size}; leave it out"
        )
    changes: dict[str, Any] = {}
    if attn_scale is not None:
        changes["softmax_scale"] = attn_scale
    if attn_logits_soft_cap is not None:
        changes["logits_soft_cap"] = attn_logits_soft_cap
    return changes | ({"cfg": PageAttentionConfig(num_splits=num_splits)} if num_splits else {})


def _sinks_of_query_heads(softmax_aux: Any, num_q_heads: int, num_kv_heads: int) -> Any:
    """[num_kv_heads, sinks] as [num_q_heads, sinks]: those of a head are its queries'. Of others the library says what is
    wrong."""
    if softmax_aux is None or softmax_aux.ndim != 2 or softmax_aux.shape[0] != num_kv_heads or num_kv_heads == 0:
        return softmax_aux
    return jnp.repeat(jnp.asarray(softmax_aux), num_q_heads // num_kv_heads, axis=0)


def _plain(number: Any) -> Any:
    """A plain number as the list that stands for an array of one."""
    return [number] if isinstance(number, int) else number


def _window_with_itself(operation: str, sliding_window: Any) -> Any:
    """A number of tokens, the query's own among them, as (tokens before it, tokens after it)."""
    if sliding_window is None or isinstance(sliding_window, (list, tuple)) or getattr(sliding_window, "ndim", 0):
        return sliding_window
    sliding_window = integer(operation, "sliding_window", sliding_window)
    if sliding_window < 1:
        raise InvalidArgument(
            f"{operation}: sliding_window must be at least 1, the query's own token, got {sliding_window}; "
            "leave it out for none"
        )
    return (sliding_window - 1, 0)


@_ported
def ragged_decode_attention(
    query: Array,
    key: Array,
    value: Array,
    sequence_start: Array,
    sequence_end: Array,
    softmax_aux: Array | None = None,
    softmax_scale: float | None = None,
    sliding_window: int | tuple[int, int] | None = None,
    logits_soft_cap: float | None = None,
) -> Any:
    """One query for each batch entry over the tokens sequence_start ... sequence_end - 1 of its cache. See
    ejkernel.ragged_decode_attention, which returns the log-sum-exp as well. `softmax_aux` may have a row for each kv
    head."""
    return {"softmax_aux": _sinks_of_query_heads(softmax_aux, query.shape[-2], key.shape[-2])}


@_ported
def ragged_page_attention(
    queries: Array,
    kv_pages: Array,
    context_lens: Array,
    block_tables: Array,
    query_start_loc: Array,
    num_seqs: Array | int,
    softmax_aux: Array | None = None,
    softmax_scale: float | None = None,
    logits_soft_cap: float | None = None,
    compute_dtype: Any = None,
    optimized: bool = False,
    sliding_window: int | tuple[int, int] | None = None,
    mask_value: float | None = None,
    vmem_limit_bytes: int | None = None,
) -> Any:
    """Packed queries, prefill and decode mixed, over pages of interleaved keys and values. See
    ejkernel.ragged_page_attention, which returns the log-sum-exp as well. An integer `sliding_window` counts the
    query's own token. `compute_dtype`, `optimized`, `mask_value` and `vmem_limit_bytes` change nothing: logits and sums
    are float32."""
    return {
        "num_seqs": num_seqs.reshape(1) if getattr(num_seqs, "shape", None) == () else _plain(num_seqs),
        "softmax_aux": _sinks_of_query_heads(softmax_aux, queries.shape[1], kv_pages.shape[2] // 2),
        "sliding_window": _window_with_itself("ragged_page_attention", sliding_window),
    }


@_ported
def ragged_page_attention_v3(
    queries: Array,
    keys: Array,
    values: Array,
    kv_cache: Array,
    kv_lens: Array,
    block_tables: Array,
    query_start_loc: Array,
    distribution: Array,
    softmax_scale: float | None = 1.0,
    sliding_window: int | tuple[int, int] | None = None,
    logits_soft_cap: float | None = None,
    q_scale: Array | float | None = None,
    k_scale: Array | float | None = None,
    v_scale: Array | float | None = None,
    vmem_limit_bytes: int | None = None,
) -> Any:
    """Stores the new keys and values in the cache, then attends: (out, the updated cache). See
    ejkernel.ragged_page_attention_v3, which returns the log-sum-exp as well. `softmax_scale` is 1, and
    1/sqrt(head_dim) when it is None. The cache may have the five axes that the Python library gave it, and is returned
    as it came. An integer `sliding_window` counts the query's own token. `vmem_limit_bytes` changes nothing."""
    changes = {"sliding_window": _window_with_itself("ragged_page_attention_v3", sliding_window)}
    return changes | (_of_packed_cache(kv_cache, keys) if kv_cache.ndim == 5 else {})


def _of_packed_cache(cache: Any, keys: Any) -> dict[str, Any]:
    """[pages, page size, heads / pack, pack, head_dim filled up to 128] as the library's [pages, page size, 2 * kv heads,
    head_dim], and back in the result: in place where nothing was filled up."""
    heads, dim = 2 * keys.shape[1], keys.shape[2]
    flat = cache.reshape(*cache.shape[:2], -1, cache.shape[4])
    exact = flat.shape[2:] == (heads, dim)

    def result(returned: tuple[Any, ...]) -> tuple[Any, ...]:
        out, updated, *status = returned
        if not exact:
            updated = jnp.asarray(flat).at[:, :, :heads, :dim].set(updated)
        return (out, updated.reshape(cache.shape), *status)

    return {"kv_cache": flat if exact else flat[:, :, :heads, :dim], "result": result}


_OF_TOKENS = ("query", "key", "value", "g", "gk", "gv")


def _recurrence(arrays: dict[str, Any], cu_seqlens: Any, return_state: bool) -> dict[str, Any]:
    """The arrays, of packed sequences without their batch axis of 1, and the result as the Python library had it."""
    batch_of_one = cu_seqlens is not None and arrays["query"].ndim == 4 and arrays["query"].shape[0] == 1
    if batch_of_one:
        arrays = {name: x[0] if name in _OF_TOKENS and x is not None else x for name, x in arrays.items()}

    def result(returned: tuple[Any, ...]) -> Any:
        out, state, *status = returned
        out = out[None] if batch_of_one else out
        wanted = (out, *([state] if return_state else []), *status)
        return wanted if len(wanted) > 1 else out

    return arrays | {"result": result}


@_ported
def recurrent_attention(
    query: Array,
    key: Array,
    value: Array,
    g: Array | None = None,
    g_gamma: Array | None = None,
    gk: Array | None = None,
    gv: Array | None = None,
    initial_state: Array | None = None,
    cu_seqlens: Array | None = None,
    *,
    softmax_scale: float | None = None,
    reverse: bool = False,
    return_state: bool = False,
) -> Any:
    """Linear attention with a decaying state: out, and with `return_state` the pair (out, final_state). See
    ejkernel.recurrent_attention. A `g` with the query's axes is a gate for each key dimension, as `gk` is; their sum
    counts. Packed sequences may have a batch axis of 1."""
    if g is not None and g.ndim == query.ndim:
        g, gk = None, g if gk is None else g + gk
    arrays = {"query": query, "key": key, "value": value, "g": g, "gk": gk, "gv": gv}
    return _recurrence(arrays, cu_seqlens, return_state)


@_ported
def gla_attention(
    query: Array,
    key: Array,
    value: Array,
    g: Array | None = None,
    g_gamma: Array | None = None,
    initial_state: Array | None = None,
    cu_seqlens: Array | None = None,
    *,
    gk: Array | None = None,
    softmax_scale: float | None = None,
    reverse: bool = False,
    return_state: bool = False,
) -> Any:
    """Gated linear attention: out, and with `return_state` the pair (out, final_state). See ejkernel.gla_attention. A `g`
    with one axis less than the query is the same gate for all key dimensions. Packed sequences may have a batch axis
    of 1."""
    if g is not None and g.ndim == query.ndim - 1:
        g = jnp.broadcast_to(jnp.asarray(g)[..., None], query.shape)
    return _recurrence({"query": query, "key": key, "value": value, "g": g, "gk": gk}, cu_seqlens, return_state)


@_ported
def lightning_attention(
    query: Array,
    key: Array,
    value: Array,
    initial_state: Array | None = None,
    cu_seqlens: Array | None = None,
    *,
    layer_idx: int,
    num_layers: int,
    softmax_scale: float | None = None,
    reverse: bool = False,
    return_state: bool = False,
) -> Any:
    """Linear attention whose heads decay at rates that follow from the layer: out, and with `return_state` the pair
    (out, final_state). See ejkernel.lightning_attention. Packed sequences may have a batch axis of 1."""
    return _recurrence({"query": query, "key": key, "value": value}, cu_seqlens, return_state)


@_ported
def grouped_matmul(
    lhs: Array,
    rhs: Array,
    group_sizes: Array | None = None,
    group_offset: Array | int | None = None,
    existing_out: Array | None = None,
    preferred_element_type: Any = None,
    transpose_rhs: bool = False,
    interpret: bool = False,
    do_padding: bool = True,
    precision: Any = None,
    use_v2: bool = False,
    tiling: Any = None,
) -> Any:
    """Rows of each group times the group's matrix; without group_sizes the product of each pair of matrices,
    [batch, groups, m, k] and [batch, groups, k, n]. See ejkernel.grouped_matmul. `group_offset` must be known while
    tracing. `tiling`, (m, k, n) or a function of them, is a wish, as in GroupedMatmulConfig. `interpret`, `do_padding`,
    `precision` and `use_v2` change nothing: nothing is padded, and sums are float32."""
    changes: dict[str, Any] = {"out_dtype": preferred_element_type}
    if isinstance(group_offset, jax.core.Tracer):
        raise InvalidArgument(
            "grouped_matmul: group_offset must be known while tracing, got a tracer; pass an integer, and let each "
            "device trace its own"
        )
    if group_offset is not None:
        changes["group_offset"] = int(np.asarray(group_offset).reshape(()))
    if lhs.dtype != rhs.dtype and all(
        jnp.issubdtype(x.dtype, jnp.floating) and x.dtype.itemsize > 1 for x in (lhs, rhs)
    ):
        wide = jnp.promote_types(lhs.dtype, rhs.dtype)
        changes |= {"lhs": lhs.astype(wide), "rhs": rhs.astype(wide)}
    if callable(tiling):
        tiling = tiling(lhs.shape[-2], lhs.shape[-1], rhs.shape[-2 if transpose_rhs else -1])
    if tiling is not None:
        changes["cfg"] = GroupedMatmulConfig(**dict(zip(("block_m", "block_k", "block_n"), tiling, strict=True)))
    return changes


_WEIGHT = re.compile(r"(weight_ih|weight_hh|bias_ih|bias_hh)_l([0-9]+)(_reverse)?")


def _stacked(weights: Mapping[str, Array]) -> tuple[dict[str, Array], int, bool]:
    """A dictionary under PyTorch's names as the library's arrays, the number of layers, and whether each also runs
    backwards."""
    parts: dict[str, dict[tuple[int, bool], Array]] = {}
    for name, array in weights.items():
        match = _WEIGHT.fullmatch(name)
        if match is None:
            raise InvalidArgument(
                f"rnn: weights must be named as PyTorch names them, got {name!r}; "
                "pass weight_ih_l0, weight_hh_l0, bias_ih_l0, bias_hh_l0, of others _l1, _l0_reverse, ..."
            )
        parts.setdefault(match[1], {})[int(match[2]), match[3] is not None] = jnp.asarray(array)
    places = parts.get("weight_hh", {})
    num_layers = 1 + max((layer for layer, _ in places), default=0)
    bidirectional = any(reverse for _, reverse in places)
    order = [(layer, reverse) for layer in range(num_layers) for reverse in (False, True)[: 1 + bidirectional]]
    for name in ("weight_ih", "weight_hh", *(bias for bias in ("bias_ih", "bias_hh") if bias in parts)):
        missing = [place for place in order if place not in parts.get(name, {})]
        if missing or len(parts[name]) > len(order):
            layer, reverse = missing[0] if missing else max(parts[name])
            raise InvalidArgument(
                f"rnn: weights must have {name} of every layer and direction, and of no other, got "
                f"{', '.join(sorted(weights)) or 'none'}; look at {name}_l{layer}{'_reverse' if reverse else ''}"
            )
    of_first = len(order) // num_layers
    arrays = {
        name: jnp.stack([given[place] for place in order]) for name, given in parts.items() if name != "weight_ih"
    }
    arrays["weight_ih"] = jnp.stack([parts["weight_ih"][place] for place in order[:of_first]])
    if num_layers > 1:
        arrays["weight_ih_upper"] = jnp.stack([parts["weight_ih"][place] for place in order[of_first:]])
    return arrays, num_layers, bidirectional


@_ported
def rnn(
    inputs: Array,
    hidden: Any = None,
    weights: Mapping[str, Array] | None = None,
    cell_type: str = "lstm",
    bidirectional: bool | None = None,
    activation: str = "tanh",
) -> Any:
    """A recurrent network over [batch, seq, dim]: (out, h), or of an LSTM (out, h, c), with the states after each
    sequence. See ejkernel.rnn. `weights` is a dictionary under PyTorch's names (weight_ih_l0, weight_hh_l0, bias_ih_l0,
    bias_hh_l0, others _l1, _l0_reverse, ...), which also says how many layers and directions there are; without one, the
    arrays are ejkernel.rnn's own keywords. `hidden` is the state before the first step, of an LSTM also the pair (h, c)."""
    changes: dict[str, Any] = {"input": inputs}
    if isinstance(hidden, tuple):
        changes["hidden"], changes["cell"] = hidden
    if bidirectional is not None:
        changes["bidirectional"] = bidirectional
    if weights is not None:
        arrays, num_layers, both = _stacked(weights)
        if bidirectional is not None and bool(bidirectional) != both:
            raise InvalidArgument(
                f"rnn: bidirectional must agree with weights, got {bidirectional} with weights of "
                f"{'both directions' if both else 'one direction'}; leave it out"
            )
        changes |= arrays | {"num_layers": num_layers, "bidirectional": both}
    # A layer with one state gives no second one.
    changes["result"] = lambda returned: tuple(x for x in returned if x is not None)
    return changes
