"""Every function of torch_npu that the backend calls exists with that signature in the installed one; `make prove`
reads other versions' wheels.
"""

from __future__ import annotations

import ast
from pathlib import Path

import torch_npu

from tests.npu import vendor_calls

INSTALLED = vendor_calls.in_folder(Path(torch_npu.__file__).parent)


def test_every_vendor_call_exists_with_its_signature():
    assert vendor_calls.wrong(INSTALLED) == []
    used = {use.path for use in vendor_calls.uses()}
    assert {"set_device", "mem_get_info", "conv.allow_hf32", "utils.is_support_inf_nan", "memory._snapshot"} <= used


def test_the_check_sees_what_is_absent_and_what_does_not_fit(monkeypatch):
    def call(text):
        return vendor_calls.Use(text.partition("(")[0], ast.parse(text, mode="eval").body, "here:1")

    for text, why in [
        ("no_such_call()", "not defined"),
        ("set_device()", "needs device"),
        ("set_device(0, 1)", "positional"),
        ("mem_get_info(index=0)", "takes no index"),
    ]:
        monkeypatch.setattr(vendor_calls, "uses", lambda text=text: iter([call(text)]))
        (line,) = vendor_calls.wrong(INSTALLED)
        assert why in line
    attribute = vendor_calls.Use("conv.no_such_switch", None, "here:1")
    monkeypatch.setattr(vendor_calls, "uses", lambda: iter([attribute]))
    assert len(vendor_calls.wrong(INSTALLED)) == 1
