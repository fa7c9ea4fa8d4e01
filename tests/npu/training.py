"""Two training steps of a ResNet, a ViT and a language model under each optimizer and precision; run as a program.

A line a case: its name and "ok" when the loss is a number and the parameters are near those of the CPU (fp32).
"""

import copy
import warnings

import torch
import torch_npu  # noqa: F401 - where torch does not load it by itself
from torch import nn
from torch.nn import functional

from accel.models import resnet18

warnings.simplefilter("ignore")


class Block(nn.Module):
    def __init__(self, causal: bool, width: int = 16, drop: float = 0.0) -> None:
        super().__init__()
        self.causal = causal
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 32), nn.GELU(), nn.Linear(32, width), nn.Dropout(drop))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        q, k, v = self.qkv(self.norms[0](x)).view(b, t, 3, 2, c // 2).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.norms[1](x))


class Language(nn.Module):
    def __init__(self, drop: float) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(20, 16), nn.Embedding(8, 16)
        self.blocks = nn.Sequential(Block(True, drop=drop), Block(True, drop=drop))
        self.head = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 20, bias=False))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        return self.head(self.blocks(x)).flatten(0, 1)


class Vision(nn.Module):
    def __init__(self, drop: float) -> None:
        super().__init__()
        self.patch, self.first = nn.Conv2d(3, 16, 8, 8), nn.Parameter(torch.zeros(1, 1, 16))
        self.places = nn.Parameter(torch.randn(1, 5, 16) * 0.02)
        self.drop, self.blocks = nn.Dropout(drop), Block(False, drop=drop)
        self.head = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = self.drop(torch.cat([self.first.expand(x.shape[0], -1, -1), x], 1) + self.places)
        return self.head(self.blocks(x)[:, 0])


def train(model, x, y, device, optimizer, precision):
    model = copy.deepcopy(model).to(device)
    optimizer = OPTIMIZERS[optimizer](model.parameters())
    scaler = torch.amp.GradScaler(device, enabled=precision == torch.float16, init_scale=64.0)
    for _ in range(2):
        optimizer.zero_grad()
        with torch.autocast(device, dtype=precision, enabled=precision != torch.float32):
            loss = functional.cross_entropy(model(x.to(device)), y.to(device).flatten())
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    return loss.item(), [p.detach().cpu() for p in model.parameters()]


OPTIMIZERS = {
    "adamw": lambda p: torch.optim.AdamW(p, 1e-3, foreach=False),
    "adamw foreach": lambda p: torch.optim.AdamW(p, 1e-3, foreach=True),
    "adamw fused": lambda p: torch.optim.AdamW(p, 1e-3, fused=True),
    "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=1e-4, foreach=False),
    "sgd foreach": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=1e-4, foreach=True),
    "sgd fused": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=1e-4, fused=True),
}
torch.manual_seed(0)
IDS, IMAGES = torch.randint(0, 20, (2, 8)), torch.randn(4, 3, 16, 16)
CASES = {
    "language": (Language, IDS, torch.randint(0, 20, (2, 8))),
    "vision": (Vision, IMAGES, torch.randint(0, 10, (4,))),
    "resnet": (lambda drop: resnet18(num_classes=10), IMAGES, torch.randint(0, 10, (4,))),
}

for name, (make, x, y) in CASES.items():
    for optimizer in OPTIMIZERS:
        torch.manual_seed(1)
        model = make(0.0)
        loss, found = train(model, x, y, "npu", optimizer, torch.float32)
        _, expected = train(model, x, y, "cpu", optimizer, torch.float32)
        worst = max((a - b).abs().max().item() for a, b in zip(found, expected, strict=True))
        print(name, optimizer, f"differs by {worst}" if not worst < 1e-3 else "ok")
    for precision in (torch.bfloat16, torch.float16):
        torch.manual_seed(1)
        loss, _ = train(make(0.1), x, y, "npu", "sgd foreach", precision)
        print(name, precision, "ok" if loss == loss else "loss is nan")
