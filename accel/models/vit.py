"""Vision Transformer (Dosovitskiy et al., https://arxiv.org/abs/2010.11929) with torchvision's parameter names and
initialisation.

Shape legend: N batch, S tokens (the patches and one for the class), D width of a token, K classes.
"""

from __future__ import annotations

import math
from collections import OrderedDict

import torch
from torch import nn

from accel import recompute
from accel.errors import ArgumentError


class EncoderBlock(nn.Module):
    """Attention and MLP, each after a LayerNorm and around a shortcut: (N, S, D) -> (N, S, D)."""

    def __init__(self, heads: int, width: int, hidden: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width, eps=1e-6)
        self.self_attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.ln_2 = nn.LayerNorm(width, eps=1e-6)
        # torchvision numbers the layers of its MLP with the dropouts between them.
        self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Identity(), nn.Linear(hidden, width))
        for layer in self.mlp:
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
                nn.init.normal_(layer.bias, std=1e-6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.ln_1(x)
        x = x + self.self_attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.ln_2(x))  # type: ignore[no-any-return]


class Encoder(nn.Module):
    """Adds positions and runs the blocks: (N, S, D) -> (N, S, D)."""

    def __init__(self, tokens: int, depth: int, heads: int, width: int, hidden: int, checkpoint: bool) -> None:
        super().__init__()
        self.checkpoint = checkpoint
        self.pos_embedding = nn.Parameter(torch.empty(1, tokens, width).normal_(std=0.02))
        blocks = {f"encoder_layer_{index}": EncoderBlock(heads, width, hidden) for index in range(depth)}
        self.layers = nn.Sequential(OrderedDict(blocks))
        self.ln = nn.LayerNorm(width, eps=1e-6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.pos_embedding
        for block in self.layers:
            x = recompute.checkpoint(block, x) if self.checkpoint and torch.is_grad_enabled() else block(x)
        return self.ln(x)  # type: ignore[no-any-return]


class VisionTransformer(nn.Module):
    """A ViT on images of `size` px in patches of `patch` px: (N, 3, size, size) -> logits (N, K).

    `checkpoint` keeps only the input of each block for backward. Raises `ArgumentError` for `num_classes` below 1, a
    `size` that patches do not fill, and images of another size.
    """

    def __init__(
        self,
        size: int,
        patch: int,
        depth: int,
        heads: int,
        width: int,
        hidden: int,
        num_classes: int = 1000,
        checkpoint: bool = False,
    ) -> None:
        super().__init__()
        if num_classes < 1:
            raise ArgumentError(f"num_classes is {num_classes}; a classifier needs at least 1 class")
        if size < patch or size % patch:
            raise ArgumentError(f"size is {size} px; expected a multiple of the patch, {patch} px")
        self.size = size
        self.conv_proj = nn.Conv2d(3, width, kernel_size=patch, stride=patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.encoder = Encoder((size // patch) ** 2 + 1, depth, heads, width, hidden, checkpoint)
        head = nn.Linear(width, num_classes)
        self.heads = nn.Sequential(OrderedDict(head=head))
        nn.init.trunc_normal_(self.conv_proj.weight, std=math.sqrt(1 / (3 * patch * patch)))
        if self.conv_proj.bias is not None:
            nn.init.zeros_(self.conv_proj.bias)
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if tuple(x.shape[-2:]) != (self.size, self.size):
            raise ArgumentError(f"images are {tuple(x.shape[-2:])} px; this model was made for size={self.size}")
        patches = self.conv_proj(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.class_token.expand(len(x), -1, -1), patches], dim=1)
        return self.heads(self.encoder(tokens)[:, 0])  # type: ignore[no-any-return]


def vit_b_16(num_classes: int = 1000, size: int = 224, checkpoint: bool = False) -> VisionTransformer:
    """ViT-B/16: 86,567,656 parameters at 1000 classes and 224 px, 35.1 GFLOP forward an image."""
    return VisionTransformer(size, 16, 12, 12, width=768, hidden=3072, num_classes=num_classes, checkpoint=checkpoint)
