"""A small language model in the manner of GPT-2 (Radford et al., 2019): pre-norm blocks, causal attention, tied head.

Shape legend: N batch, S tokens, D width of a token, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import linear, scaled_dot_product_attention

from accel import recompute
from accel.errors import ArgumentError


class DecoderBlock(nn.Module):
    """Causal attention and MLP, each after a LayerNorm and around a shortcut: (N, S, D) -> (N, S, D)."""

    def __init__(self, heads: int, width: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.dropout_1, self.dropout_2 = nn.Dropout(dropout), nn.Dropout(dropout)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.qkv(self.ln_1(x)).chunk(3, dim=2)
        q, k, v = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in parts)
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.dropout_1(self.proj(mixed))
        return x + self.dropout_2(self.mlp(self.ln_2(x)))  # type: ignore[no-any-return]


class TransformerLM(nn.Module):
    """Next-token logits: (N, S) int64 tokens -> (N, S, V); the head shares the embedding's weight.

    `checkpoint` keeps only the input of each block for backward. Raises `ArgumentError` for a `width` that does not
    divide among the heads, sizes below 1, and sequences longer than `block`.
    """

    def __init__(
        self,
        vocabulary: int,
        block: int,
        depth: int,
        heads: int,
        width: int,
        dropout: float = 0.0,
        checkpoint: bool = False,
    ) -> None:
        super().__init__()
        self.checkpoint = checkpoint
        for name, value in (("vocabulary", vocabulary), ("block", block), ("depth", depth), ("heads", heads)):
            if value < 1:
                raise ArgumentError(f"{name} is {value}; expected at least 1")
        if width < 1 or width % heads:
            raise ArgumentError(f"width is {width}; expected a multiple of heads={heads}")
        self.block = block
        self.token, self.place = nn.Embedding(vocabulary, width), nn.Embedding(block, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(DecoderBlock(heads, width, dropout) for _ in range(depth)))
        self.ln = nn.LayerNorm(width)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        if tokens.shape[1] > self.block:
            raise ArgumentError(f"sequences have {tokens.shape[1]} tokens; this model was made for block={self.block}")
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.token(tokens) + self.place(places))
        for block in self.blocks:
            x = recompute.checkpoint(block, x) if self.checkpoint and torch.is_grad_enabled() else block(x)
        return linear(self.ln(x), self.token.weight)
