"""The problems in which cuda_attention.py compares: their shapes, work and bytes. Needs neither torch nor a device."""

import itertools
import math

TOKENS, HIDDEN = 16384, 2048
SEQS = [512, 1024, 2048, 4096, 8192, 16384]
GQA_SEQS = [2048, 4096, 8192, 16384, 32768]


class Cell:
    def __init__(self, direction, batch, seq, q_heads, kv_heads, dim, causal):
        self.direction, self.batch, self.seq, self.dim, self.causal = direction, batch, seq, dim, causal
        self.q_heads, self.kv_heads = q_heads, kv_heads
        self.is_backward = direction == "backward"

    def label(self):
        heads = f"{self.q_heads}/{self.kv_heads}" if self.q_heads != self.kv_heads else f"{self.q_heads}"
        mask, direction = "causal" if self.causal else "full", " bwd" if self.is_backward else ""
        return f"D{self.dim} {mask} B{self.batch} H{heads} S{self.seq}{direction}"

    def flops(self):
        return (10 if self.is_backward else 4) * self.batch * self.q_heads * self.seq**2 * self.dim / (2 if self.causal else 1)

    def floor(self):
        """The least ratio to the best peer that we accept: of a backward, from S = 1024."""
        if self.is_backward:
            return 0.95 if self.seq >= 1024 else 0.0
        return 1.0 if self.seq >= 1024 else 0.97

    def q_shape(self):
        return (self.batch, self.seq, self.q_heads, self.dim)

    def kv_shape(self):
        return (self.batch, self.seq, self.kv_heads, self.dim)

    def bytes(self):
        """Of a call in bf16: queries and results, keys and values; the backward has a cotangent and gradients as well."""
        of_queries, of_keys = (4, 4) if self.is_backward else (2, 2)
        return 2 * (of_queries * math.prod(self.q_shape()) + of_keys * math.prod(self.kv_shape()))


def grid(args):
    for direction in args.direction:
        for dim, mask, seq in itertools.product(args.head_dim, args.mask, args.seq):
            if "mha" in args.rows and seq in SEQS:
                yield Cell(direction, TOKENS // seq, seq, HIDDEN // dim, HIDDEN // dim, dim, mask == "causal")
        for mask, seq in itertools.product(args.mask, args.seq):
            if "gqa" in args.rows and seq in GQA_SEQS and 128 in args.head_dim:
                yield Cell(direction, 1, seq, 64, 8, 128, mask == "causal")
