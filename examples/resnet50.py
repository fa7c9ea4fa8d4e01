"""ResNet-50 v1.5: one script, any accelerator, one process or many.

    python examples/resnet50.py --data digits                     # real handwritten digits, no download
    accel launch --nproc 2 examples/resnet50.py --data digits --steps 20
    accel launch --nproc 2 examples/resnet50.py --data digits --save out    # later: --resume out
    accel launch --nproc 8 examples/resnet50.py --data folder:/data/imagenet --precision bf16 --workers 12

ACCEL_BACKEND=cuda|npu|xla|cpu chooses the hardware; unset, it is the one accelerator that is present. The recipe is
NVIDIA's (https://github.com/NVIDIA/DeepLearningExamples, ConvNets/resnet50v1.5), with the linear scaling and warm-up of
Goyal et al. (https://arxiv.org/abs/1706.02677).
"""

from __future__ import annotations

import argparse
import math
import sys

import torch
from rich.progress import Progress
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import accel
from accel import data, models

# kind of data: images per device in a micro-batch, passes over the data
DEFAULTS = {"digits": (32, 8), "folder": (128, 90), "synthetic": (128, 1)}
WARM_UP = 0.1  # of the schedule
LOG_EVERY = 20  # micro-batches between two looks at the loss


def at_least(lowest, kind=int):
    def number(text):
        if not lowest <= kind(text) < math.inf:
            raise argparse.ArgumentTypeError(f"{text} is out of range; expected {kind.__name__} from {lowest}")
        return kind(text)

    return number


parser = argparse.ArgumentParser(usage=argparse.SUPPRESS)  # without usage, an error is one line
parser.add_argument("--data", default="digits", help="digits, folder:PATH or synthetic")
parser.add_argument("--model", default="resnet50", choices=["resnet18", "resnet50"])
parser.add_argument("--epochs", type=at_least(1), help="length of the schedule")
parser.add_argument("--steps", type=at_least(1), help="stop after this many micro-batches, resumed ones included")
parser.add_argument("--batch", type=at_least(1), help="images per device in a micro-batch")
parser.add_argument("--accumulate", type=at_least(1), default=1, help="micro-batches of one optimizer step")
parser.add_argument("--size", type=at_least(1), help="pixels; default 32 for digits, 224 otherwise")
parser.add_argument("--lr", type=at_least(0.0, float), help="peak; default 0.256 for 256 images an optimizer step")
parser.add_argument("--precision", default="fp32", help="fp32, tf32, bf16 or fp16")
parser.add_argument("--workers", type=at_least(0), default=0, help="data loading processes per device")
parser.add_argument("--seed", type=at_least(0), default=0)
parser.add_argument("--save", metavar="DIR", help="checkpoint, written after every epoch and at the end")
parser.add_argument("--resume", metavar="DIR", help="checkpoint to go on from")


def main():
    args = parser.parse_args()
    train, test = data.parse(args.data, args.size)
    batch, epochs = args.batch or DEFAULTS[train.name][0], args.epochs or DEFAULTS[train.name][1]
    with accel.init(precision=args.precision, accumulate=args.accumulate, seed=args.seed) as s:
        if args.save:
            s.check_save(args.save)  # now, not after an hour
        load = {"batch_size": batch, "num_workers": args.workers}
        train_loader = DataLoader(train, sampler=s.sampler(train), drop_last=True, **load)
        test_loader = DataLoader(test, sampler=s.sampler(test, shuffle=False), **load)
        windows = math.ceil(len(train) // s.world_size // batch / args.accumulate)  # optimizer steps in an epoch
        if windows == 0:
            raise accel.errors.DataError(
                f"{len(train)} images do not fill a batch of {batch} on {s.world_size} rank(s)"
            )

        model = getattr(models, args.model)(train.num_classes, zero_init_residual=True)
        weights = [p for p in model.parameters() if p.ndim > 1]
        others = [p for p in model.parameters() if p.ndim == 1]  # BatchNorm and biases: no decay
        groups = [{"params": weights, "weight_decay": 1 / 32768}, {"params": others, "weight_decay": 0.0}]
        peak = 0.256 / 256 * batch * args.accumulate * s.world_size if args.lr is None else args.lr
        opt = torch.optim.SGD(groups, lr=peak, momentum=0.875)
        sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda i: share_of_peak(i, total=epochs * windows))
        model, opt = s.prepare(model, opt)
        objects = {"model": model, "optimizer": opt, "scheduler": sched}
        at = s.load(args.resume, **objects) if args.resume else {"epoch": 0, "step": 0}

        step, stop = at["step"], args.steps or math.inf
        for epoch in range(at["epoch"], epochs):
            if step >= stop:
                break
            lap, loss = train_epoch(s, model, opt, sched, train_loader, epoch, args.steps and args.steps - step)
            if lap.steps == 0:
                continue  # the checkpoint was made at the very end of this epoch
            step += lap.steps
            accuracy, rate = evaluate(s, model, test_loader), lap.steps * batch * s.world_size / lap.seconds
            s.print(f"epoch {epoch}  loss {loss:.4f}  accuracy {accuracy:.4f}  images/s {rate:.1f}")
            if args.save:  # an epoch that --steps cut short is resumed inside
                s.save(args.save, **objects, epoch=epoch + (step < stop), step=step)


def share_of_peak(i, total):
    warm = math.ceil(WARM_UP * total)
    return (i + 1) / warm if i < warm else 0.5 + 0.5 * math.cos(math.pi * (i - warm) / max(1, total - warm))


def train_epoch(s, model, opt, sched, loader, epoch, steps):
    model.train()
    meter = s.meter()
    s.lap()
    with Progress(transient=True, disable=not (s.is_main and sys.stdout.isatty())) as progress:
        bar = progress.add_task(f"epoch {epoch}", total=len(loader))
        for i, (x, y) in enumerate(s.batches(loader, epoch=epoch, steps=steps), 1):
            with s.autocast():
                logits = model(x)
            loss = cross_entropy(logits.float(), y, label_smoothing=0.1)
            s.backward(loss)
            s.step(opt, scheduler=sched)
            meter.add(loss=loss.detach())
            if i % LOG_EVERY == 0:
                progress.update(bar, completed=i, description=f"epoch {epoch}  loss {meter.read()['loss']:.3f}")
    return s.lap(), meter.read().get("loss", math.nan)


def evaluate(s, model, loader):
    """The share of images that are classified right; each counts once, on any number of ranks."""
    model.eval()
    meter = s.meter()
    with torch.no_grad():
        for x, y in s.batches(loader, train=False):
            with s.autocast():
                logits = model(x)
            meter.add(weight=len(y), accuracy=(logits.argmax(1) == y).float().mean())
    return meter.read()["accuracy"]


if __name__ == "__main__":
    try:
        main()
    except accel.AccelError as error:
        print(f"error: {error.line}", file=sys.stderr)
        sys.exit(error.exit_code)
