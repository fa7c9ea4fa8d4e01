"""What a session adds to torch's autocast on the CPU."""

from __future__ import annotations

import torch

import accel


def test_what_a_session_adds_to_autocast_ends_with_it():
    def softmax():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return torch.softmax(torch.ones(2, 2, dtype=torch.bfloat16), 1).dtype

    assert softmax() is torch.bfloat16
    with accel.init(backend="cpu", precision="bf16"):
        assert softmax() is torch.float32
        with accel.init(backend="cpu", precision="bf16"):
            assert softmax() is torch.float32
        assert softmax() is torch.float32
    assert softmax() is torch.bfloat16


def test_widened_operators_keep_gradients_and_arguments():
    x = torch.randn(3, 4, requires_grad=True)
    with accel.init(backend="cpu", precision="bf16") as session, session.autocast():
        low = x.bfloat16()
        out = torch.nn.functional.layer_norm(low, (4,), torch.ones(4), torch.zeros(4), eps=0.5)
        assert torch.softmax(low, 1, dtype=torch.float64).dtype is torch.float64
    torch.testing.assert_close(out, torch.nn.functional.layer_norm(low.float(), (4,), eps=0.5))
    out.square().sum().backward()
    assert x.grad is not None
    assert bool(x.grad.abs().sum() > 0)
