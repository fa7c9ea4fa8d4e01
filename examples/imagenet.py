"""PyTorch's ImageNet example (https://github.com/pytorch/examples/tree/main/imagenet) on any accelerator.

    python examples/imagenet.py /data/imagenet --arch resnet18 --save out
    accel launch --nproc 8 examples/imagenet.py /data/imagenet --workers 12 --save out
    accel launch --nproc 8 examples/imagenet.py /data/imagenet --resume out/last --save out
    python examples/imagenet.py /data/imagenet --resume out/best --evaluate

A port that keeps that script's shape: a learning rate that moves once an epoch, top-1 and top-5, the best checkpoint
kept. `/data/imagenet` holds `train/CLASS/IMAGE` and `val/CLASS/IMAGE`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import accel
from accel import data, models


def natural(text):
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1")
    return int(text)


parser = argparse.ArgumentParser(usage=argparse.SUPPRESS)  # without usage, an error is one line
parser.add_argument("folder", help="train/CLASS/IMAGE and val/CLASS/IMAGE, or CLASS/IMAGE")
parser.add_argument("--arch", default="resnet50", choices=["resnet18", "resnet50"])
parser.add_argument("--epochs", type=natural, default=90)
parser.add_argument("--batch", type=natural, default=256, help="images of all devices together")
parser.add_argument("--size", type=natural, default=224)
parser.add_argument("--lr", type=float, default=0.1)
parser.add_argument("--lr-every", type=natural, default=30, help="epochs after which the rate falls to a tenth")
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--precision", default="fp32")
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--print-every", type=natural, default=10, help="batches")
parser.add_argument("--stop-after", type=natural, metavar="EPOCH", help="end early, as an interrupted job would")
parser.add_argument("--resume", metavar="DIR", help="a checkpoint: out/last or out/best")
parser.add_argument("--save", metavar="DIR", help="folder for the checkpoints last and best")
parser.add_argument("--evaluate", action="store_true", help="only measure")


def main():
    args = parser.parse_args()
    train, val = data.image_folder(args.folder, True, args.size), data.image_folder(args.folder, False, args.size)
    with accel.init(precision=args.precision, seed=args.seed) as s:
        if args.save:
            s.check_save(Path(args.save, "last"))
        if args.batch % s.world_size:
            raise accel.errors.ArgumentError(f"--batch {args.batch} does not divide among {s.world_size} devices")
        options = {"batch_size": args.batch // s.world_size, "num_workers": args.workers}
        train_loader = DataLoader(train, sampler=s.sampler(train), **options)
        val_loader = DataLoader(val, sampler=s.sampler(val, shuffle=False), **options)

        model = getattr(models, args.arch)(num_classes=train.num_classes)
        optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9, weight_decay=1e-4)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=args.lr_every, gamma=0.1)
        model, optimizer = s.prepare(model, optimizer)
        state = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
        progress = {"epoch": 0, "best": 0.0}
        if args.resume:
            progress = s.load(args.resume, **state)
        if args.evaluate:
            validate(s, model, val_loader)
            return

        for epoch in range(progress["epoch"], min(args.epochs, args.stop_after or args.epochs)):
            train_epoch(s, model, optimizer, train_loader, epoch, args.print_every)
            top1 = validate(s, model, val_loader)
            scheduler.step()
            progress = {"epoch": epoch + 1, "best": max(top1, progress["best"])}
            if args.save:
                s.save(Path(args.save, "last"), **state, **progress)
                if top1 == progress["best"]:
                    s.save(Path(args.save, "best"), **state, **progress)


def train_epoch(s, model, optimizer, loader, epoch, print_every):
    model.train()
    meter = s.meter()
    s.lap()
    for i, (images, target) in enumerate(s.batches(loader, epoch=epoch), 1):
        with s.autocast():
            output = model(images)
        loss = cross_entropy(output.float(), target)
        s.backward(loss, weight=len(target))  # the last batch is smaller: its images count as much as any others
        s.step(optimizer)
        top1, top5 = correct(output, target)
        meter.add(weight=len(target), loss=loss.detach(), top1=top1, top5=top5)
        if i % print_every == 0:
            lap, mean = s.lap(), meter.read(reset=True)
            seconds = f"{lap.seconds / lap.steps:.3f} s a batch, {lap.data_seconds / lap.steps:.3f} s of it data"
            figures = f"loss {mean['loss']:.4f}  top1 {mean['top1']:.2%}  top5 {mean['top5']:.2%}"
            s.print(f"epoch {epoch} [{i}/{len(loader)}]  {seconds}  {figures}")


def validate(s, model, loader):
    model.eval()
    meter = s.meter()
    with torch.no_grad():
        for images, target in s.batches(loader, train=False):
            with s.autocast():
                output = model(images)
            top1, top5 = correct(output, target)
            meter.add(weight=len(target), loss=cross_entropy(output.float(), target), top1=top1, top5=top5)
    mean = meter.read()
    s.print(f"validation  loss {mean['loss']:.4f}  top1 {mean['top1']:.2%}  top5 {mean['top5']:.2%}")
    return mean["top1"]


def correct(output, target):
    """Shares of the batch whose class is the first, and among the first five, of the output."""
    ranked = output.topk(min(5, output.shape[1])).indices == target[:, None]
    return ranked[:, 0].float().mean(), ranked.any(1).float().mean()


if __name__ == "__main__":
    try:
        main()
    except accel.AccelError as error:
        print(f"error: {error.line}", file=sys.stderr)
        sys.exit(error.exit_code)
