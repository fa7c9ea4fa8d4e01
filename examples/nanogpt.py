"""A small GPT in the manner of nanoGPT (https://github.com/karpathy/nanoGPT) on any accelerator.

    python examples/nanogpt.py --iterations 200
    accel launch --nproc 4 examples/nanogpt.py --accumulate 10 --precision bf16
    python examples/nanogpt.py --iterations 200 --save out
    python examples/nanogpt.py --iterations 400 --resume out

What it shows: a stream of tokens without an end, many micro-batches to a step, a learning rate set by hand on the
optimizer's groups, an evaluation in the middle of training. The text is Python's own language reference, which comes
with the interpreter (`pydoc_data.topics`), or any file (`--text`); a token is a character.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from pydoc_data.topics import topics

import torch
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.utils.data import DataLoader, IterableDataset

import accel


def natural(text):
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1")
    return int(text)


parser = argparse.ArgumentParser(usage=argparse.SUPPRESS)  # without usage, an error is one line
parser.add_argument("--text", type=Path, help="a text file; default: Python's language reference")
parser.add_argument("--iterations", type=natural, default=200, help="optimizer steps, resumed ones included")
parser.add_argument("--schedule", type=natural, default=400, help="iterations over which the rate falls")
parser.add_argument("--accumulate", type=natural, default=40, help="micro-batches of one optimizer step, per device")
parser.add_argument("--batch", type=natural, default=8, help="sequences of a micro-batch")
parser.add_argument("--block", type=natural, default=64, help="characters of a sequence")
parser.add_argument("--layers", type=natural, default=4)
parser.add_argument("--heads", type=natural, default=4)
parser.add_argument("--width", type=natural, default=128)
parser.add_argument("--lr", type=float, default=1e-3)
parser.add_argument("--eval-every", type=natural, default=20, help="iterations")
parser.add_argument("--eval-batches", type=natural, default=8)
parser.add_argument("--precision", default="fp32")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--save", metavar="DIR", help="checkpoint, written at each evaluation and at the end")
parser.add_argument("--resume", metavar="DIR", help="checkpoint to go on from")


class Stream(IterableDataset):
    """Random pieces of the text without an end, other ones for each seed: (block,) inputs, (block,) next characters."""

    def __init__(self, tokens, block, seed):
        self.tokens, self.block, self.seed = tokens, block, seed

    def __iter__(self):
        random = torch.Generator().manual_seed(self.seed)
        while True:
            start = torch.randint(len(self.tokens) - self.block, (), generator=random)
            piece = self.tokens[start : start + self.block + 1]
            yield piece[:-1], piece[1:]


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):  # (batch, length, width)
        q, k, v = (t.unflatten(2, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, dim=2))
        x = x + self.mix(scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, vocabulary, block, layers, heads, width):
        super().__init__()
        self.token, self.place = nn.Embedding(vocabulary, width), nn.Embedding(block, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)
        self.head.weight = self.token.weight  # tied

    def forward(self, tokens):  # (batch, length) -> logits (batch, length, vocabulary)
        x = self.token(tokens) + self.place(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.norm(self.blocks(x)))


def main():
    args = parser.parse_args()
    if args.width % args.heads:
        raise accel.errors.ArgumentError(f"--width {args.width} does not divide among {args.heads} heads")
    tokens, vocabulary = read(args.text)
    cut = len(tokens) * 9 // 10
    if len(tokens) - cut <= args.block:
        raise accel.errors.DataError(
            f"the text has {len(tokens)} characters; --block {args.block} needs over ten times as many"
        )
    with accel.init(precision=args.precision, accumulate=args.accumulate, clip_norm=1.0, seed=args.seed) as s:
        seed = args.seed * s.world_size + s.rank
        train_loader = DataLoader(Stream(tokens[:cut], args.block, seed), args.batch)
        val_loader = DataLoader(Stream(tokens[cut:], args.block, seed), args.batch)
        model = GPT(vocabulary, args.block, args.layers, args.heads, args.width)
        opt = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.1)
        model, opt = s.prepare(model, opt)
        iteration = s.load(args.resume, model=model, optimizer=opt)["iteration"] if args.resume else 0
        if iteration >= args.iterations:
            raise accel.errors.ArgumentError(f"--iterations {args.iterations}: {args.resume} has {iteration} already")

        if args.save:
            s.check_save(args.save)
        model.train()
        meter = s.meter()
        left = (args.iterations - iteration) * args.accumulate
        for x, y in s.batches(train_loader, steps=left):
            for group in opt.param_groups:
                group["lr"] = args.lr * rate(iteration, args.schedule)
            loss = next_character_loss(s, model, x, y)
            s.backward(loss)
            meter.add(train=loss.detach())
            if not s.step(opt).boundary:
                continue
            iteration += 1
            if iteration % args.eval_every == 0 or iteration == args.iterations:
                train, lap = meter.read(reset=True)["train"], s.lap()
                val = evaluate(s, model, val_loader, args.eval_batches)
                speed = lap.steps * s.world_size * args.batch * args.block / lap.seconds
                s.print(f"iteration {iteration}  train {train:.4f}  val {val:.4f}  characters/s {speed:.0f}")
                if args.save:
                    s.save(args.save, model=model, optimizer=opt, iteration=iteration)
                s.lap()


def next_character_loss(s, model, x, y):
    with s.autocast():
        logits = model(x)
    return cross_entropy(logits.float().flatten(0, 1), y.flatten())


def evaluate(s, model, loader, batches):
    model.eval()
    meter = s.meter()
    with torch.no_grad():
        for x, y in s.batches(loader, train=False, steps=batches):
            meter.add(val=next_character_loss(s, model, x, y))
    model.train()
    return meter.read()["val"]


def rate(iteration, schedule, warm_up=10, least=0.1):
    """The share of the peak rate: a linear warm-up, then a cosine down to `least`."""
    if iteration < warm_up:
        return (iteration + 1) / warm_up
    done = min(1.0, (iteration - warm_up) / max(1, schedule - warm_up))
    return least + (1 - least) * 0.5 * (1 + math.cos(math.pi * done))


def read(path):
    """The text as (characters,) int64, and the size of its alphabet."""
    try:
        text = path.read_text(encoding="utf-8") if path else "\n".join(topics[name] for name in sorted(topics))
    except (OSError, UnicodeDecodeError) as error:
        raise accel.errors.DataError(f"--text {path} cannot be read as UTF-8 text: {error}") from error
    alphabet = {character: i for i, character in enumerate(sorted(set(text)))}
    return torch.tensor([alphabet[character] for character in text]), len(alphabet)


if __name__ == "__main__":
    try:
        main()
    except accel.AccelError as error:
        print(f"error: {error.line}", file=sys.stderr)
        sys.exit(error.exit_code)
