"""A training step recorded and compiled for TPUs that are not there, by the real libtpu.

The compiler is in another environment: `ACCEL_AOT_PYTHON` names its Python, which the lane sets.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from accel import aot, records
from accel.bench import aot as bench
from accel.bench._options import Options
from accel.errors import ArgumentError, BackendError, CompileError, ExportError, UnsupportedError
from accel.testing.models import assert_close, data, mlp, sgd, values

WIDE = 4096


@pytest.fixture(scope="module")
def compiler() -> Iterator[aot.Compiler]:
    with aot.Compiler(timeout=240.0) as opened:
        yield opened


def building(inside=lambda loss, output: loss, batch=16, width=32, cut=True):
    """`build` for a step of a small model; `inside(loss, output)` stands between its forward and its backward."""

    def build(session):
        model = nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 3))
        model, optimizer = session.prepare(model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9))

        def step(x, y):
            with session.autocast():
                output = model(x)
            loss = inside(nn.functional.cross_entropy(output.float(), y), output)
            session.backward(loss)
            if cut:
                session.step(optimizer)
            else:
                optimizer.step()
                optimizer.zero_grad()

        return step, (torch.empty(batch, 6, device="meta"), torch.empty(batch, dtype=torch.int64, device="meta"))

    return build


# -- recording ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("replicas", [1, 4])
def test_a_program_holds_one_step_and_at_most_one_all_reduce(replicas):
    program = aot.export(building(), precision="bf16", replicas=replicas)
    assert program.text.count("stablehlo.all_reduce") == (replicas > 1)
    assert program.text.count("stablehlo.dot_general") >= 5  # two layers forward, three products backward
    # Four parameters, and as many momentum buffers as there are from the second step on, are updated in place.
    assert len(re.findall(r"%arg\d+: [^,)]* \{jax.buffer_donor = true\}", program.text)) >= 8
    assert "tensor<16x6xf32> {jax.buffer_donor" not in program.text
    assert program.policy == "bf16"
    assert program.in_force["mat_mul_precision"] == "highest"
    assert program.versions.keys() >= {"accel", "torch", "torch_xla"}


def test_the_precision_in_force_is_in_the_program():
    assert "precision = [HIGHEST, HIGHEST]" in aot.export(building(), precision="fp32").text
    assert "HIGHEST" not in aot.export(building(width=33), precision="tf32").text
    with pytest.raises(UnsupportedError, match="fp16"):
        aot.export(building(), precision="fp16")


def test_a_step_without_a_cut_of_its_own_is_recorded_too():
    assert "stablehlo.dot_general" in aot.export(building(cut=False)).text


def reads_item(loss, output):
    loss.item()
    return loss


def branches(loss, output):
    return loss if loss > 0 else -loss


def copies(loss, output):
    return loss + output.detach().cpu().sum().item()


def selects(loss, output):
    return loss + output[output > 0].sum()


def on_host(loss, output):
    return loss + torch.histc(output.detach().float().reshape(-1), bins=4).sum()


@pytest.mark.parametrize(
    ("fault", "line", "why"),
    [
        (reads_item, 1, "reads a value on the host"),
        (branches, 1, "reads a value on the host"),
        (copies, 1, "copies a tensor to the host"),
        (selects, 1, "aten::nonzero runs on the host|shape that depends on values"),
        (on_host, 1, "aten::histc runs on the host"),
    ],
)
def test_a_step_that_waits_for_the_device_is_refused_with_its_line(fault, line, why):
    number = inspect.getsourcelines(fault)[1] + line
    with pytest.raises(ExportError, match=rf"test_aot.py:{number}: .*({why})"):
        aot.export(building(fault))


def test_a_step_that_records_nothing_is_refused():
    with pytest.raises(ArgumentError, match=r"build\(session\) returned NoneType; expected \(step, batch\)"):
        aot.export(lambda session: None)

    def idle(session):
        model = mlp()
        session.prepare(model, sgd(model))
        return lambda: None, ()

    with pytest.raises(ExportError, match="the step recorded nothing on the device"):
        aot.export(idle)
    with pytest.raises(ExportError, match="prepared no optimizer"):
        aot.export(lambda session: (lambda: None, ()))


def test_a_step_that_cuts_twice_is_refused():
    def build(session):
        model, (x, y) = mlp(), data(8)
        called, optimizer = session.prepare(model, sgd(model))

        def step(x, y):
            for _ in range(2):
                session.backward(nn.functional.mse_loss(called(x), y))
                session.step(optimizer)

        return step, (x, y)

    with pytest.raises(ExportError, match="cuts its graph 2 times"):
        aot.export(build)


def test_a_client_that_is_no_cpu_is_refused(monkeypatch):
    monkeypatch.setenv("PJRT_DEVICE", "TPU")
    with pytest.raises(BackendError, match="PJRT_DEVICE='TPU': a step is recorded on XLA's CPU client"):
        aot.export(building())


def test_training_goes_on_after_an_export(start):
    aot.export(building(), replicas=2)
    expected = mlp()
    plain = sgd(expected)
    session = start()
    called, optimizer = session.prepare(model := mlp(), sgd(model))
    for x, y in session.batches([data(8)] * 2):
        session.backward(nn.functional.mse_loss(called(x), y))
        session.step(optimizer)
    for x, y in [data(8)] * 2:
        nn.functional.mse_loss(expected(x), y).backward()
        plain.step()
        plain.zero_grad()
    assert_close(values(session.unwrap(called)), values(expected), 1e-5)


# -- compiling ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "devices", "chips"), [("v5e:2x2", 4, 4), ("v4:2x2x1", 4, 4), ("tpu7x:1x1x1", 2, 1)])
def test_a_topology_has_its_devices_and_chips(compiler, name, devices, chips):
    assert compiler.topology(name)[2:] == (devices, chips)


def test_a_shape_that_libtpu_refuses_is_named_with_the_nearest_one(compiler):
    with pytest.raises(ArgumentError, match=r"'v5e:3x3' does not exist: libtpu .* did you mean 'v5e:2x4'\?"):
        compiler.topology("v5e:3x3")


def test_a_step_is_compiled_for_four_chips(compiler):
    program = aot.export(building(batch=64, width=1024), precision="bf16", replicas=4)
    compiled = compiler.compile(program, "v5e:2x2")
    assert compiled.fits
    assert compiled.topology.kind == "TPU v5 lite"
    parameters = 4 * (6 * 1024 + 1024 + 1024 * 3 + 3)  # bytes; as many of momentum
    assert 2 * parameters < compiled.arguments < 4 * parameters
    assert compiled.aliased >= 2 * parameters * 0.9  # updated in place
    assert compiled.peak > 0
    assert compiled.temporary > 0
    products = 2 * 64 * 1024 * (6 * 2 + 3 * 3)  # multiply and add, of forward and backward
    assert products <= compiled.flops < 4 * products
    assert compiled.bytes_accessed > 2 * parameters
    assert compiled.versions.keys() == {"jax", "jaxlib", "libtpu"}
    with pytest.raises(ArgumentError, match="4 replica.*'v5e:1x1' has 1 device"):
        compiler.compile(program, "v5e:1x1")


def test_the_largest_batch_that_fits_and_how_much_is_missing_beyond(compiler):
    def attempt(batch):
        return compiler.compile(aot.export(building(batch=batch, width=WIDE), precision="bf16"), "v5e:1x1")

    found = aot.largest_batch(attempt, 2**20, most=2**22)
    assert found.batch is not None
    over = found.tried[found.too_large].shortage
    assert over.available == pytest.approx(15.75 * 2**30, rel=0.01)
    assert 0 < over.missing < over.needed
    assert found.too_large - found.batch <= found.granularity
    assert found.compiles <= 6
    assert found.tried[found.batch].temporary < over.available


def test_a_program_that_is_none_is_the_compilers_error(compiler):
    with pytest.raises(CompileError, match=r"libtpu [\d.]+ cannot compile the program for v5e:1x1"):
        compiler.compile(aot.Program("module { nonsense }", 1, "fp32"), "v5e:1x1")
    assert compiler.topology("v5e:1x1").devices == 1  # and it answers on


def test_the_benchmarks_step_makes_a_record(tmp_path):
    options = Options(model="resnet18", data="synthetic", size=32, batch=8, precision="bf16")
    path, record = bench.run(options, "v5e:1x1", tmp_path, "accel bench resnet50 --aot v5e:1x1")
    assert records.read(path) == record
    assert record.origin == "predicted"
    assert record.hardware.chip.value == "TPU v5 lite"
    assert record.workload.batch_per_device.value == 8
    assert record.workload.parameters.value == 11_689_512
    assert record.results.throughput.value is None
    images = 8 * 3 * 2 * 37e6  # multiply-adds of a forward at 32 px; backward takes twice as many
    # The compiler does not count products with padding, which at 1 x 1 and 2 x 2 px are most of a convolution's.
    assert 0.5 * images < record.prediction.flops.value < 1.2 * images
    assert record.prediction.arguments.value > 2 * 4 * 11_689_512
