"""Platform xla: every operation in plain jax.numpy, for any device that XLA compiles for. It runs where nothing else
does, and in float64 it is what other platforms are compared with.

An implementation is a function of two dictionaries by declared name, absent inputs and parameters None:

    implementation("mean_pooling")({"x": x, "mask": None, "cu_seqlens": None}, {"chunk_size": None})["out"]
"""

from ejkernel._xla import attention, grouped, paged, pooling, recurrence, rnn
from ejkernel._xla.faults import status as status

_IMPLEMENTATIONS = {
    "flash_attention": attention.flash_attention,
    "flash_attention_backward": attention.flash_attention_backward,
    "attention": attention.attention,
    "attention_backward": attention.attention_backward,
    "scaled_dot_product_attention": attention.scaled_dot_product_attention,
    "scaled_dot_product_attention_backward": attention.scaled_dot_product_attention_backward,
    "mean_pooling": pooling.mean_pooling,
    "mean_pooling_backward": pooling.mean_pooling_backward,
    "recurrent_attention": recurrence.recurrent_attention,
    "recurrent_attention_backward": recurrence.recurrent_attention_backward,
    "gla_attention": recurrence.gla_attention,
    "gla_attention_backward": recurrence.gla_attention_backward,
    "lightning_attention": recurrence.lightning_attention,
    "lightning_attention_backward": recurrence.lightning_attention_backward,
    "page_attention": paged.page_attention,
    "page_append": paged.page_append,
    "ragged_decode_attention": paged.ragged_decode_attention,
    "ragged_page_attention": paged.ragged_page_attention,
    "ragged_page_attention_v3": paged.ragged_page_attention_v3,
    "grouped_matmul": grouped.grouped_matmul,
    "transposed_grouped_matmul": grouped.transposed_grouped_matmul,
    "grouped_matmul_backward": grouped.grouped_matmul_backward,
    "rnn": rnn.rnn,
    "rnn_backward": rnn.rnn_backward,
}


def implementation(operation: str):
    """The jax.numpy implementation of an operation, or None where there is none."""
    return _IMPLEMENTATIONS.get(operation)
