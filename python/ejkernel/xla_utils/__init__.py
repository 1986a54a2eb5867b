"""Helpers for packed sequences, padding masks and segments, in plain jax.numpy."""

from ejkernel.xla_utils.masks import mask_to_segment_ids, segment_ids_to_mask
from ejkernel.xla_utils.sequences import (
    cdiv,
    chunk_global_cumsum,
    chunk_local_cumsum,
    prepare_chunk_indices,
    prepare_chunk_offsets,
    prepare_cu_seqlens,
    prepare_cu_seqlens_from_mask,
    prepare_lens,
    prepare_lens_from_mask,
    prepare_mask,
    prepare_position_ids,
    prepare_sequence_ids,
    prepare_token_indices,
)

__all__ = [
    "cdiv",
    "chunk_global_cumsum",
    "chunk_local_cumsum",
    "mask_to_segment_ids",
    "prepare_chunk_indices",
    "prepare_chunk_offsets",
    "prepare_cu_seqlens",
    "prepare_cu_seqlens_from_mask",
    "prepare_lens",
    "prepare_lens_from_mask",
    "prepare_mask",
    "prepare_position_ids",
    "prepare_sequence_ids",
    "prepare_token_indices",
    "segment_ids_to_mask",
]
