"""An emulated CANN: the released torch_npu, unmodified, on a machine without an Ascend NPU.

`build` compiles the C++ under `src/` and the operators of `ops/` into a user cache; `environment` says what a command
needs to run on it; `symbols` compares it with what a torch_npu wheel asks for; `command` is `accel emulate npu`.
Nothing here imports torch.
"""
