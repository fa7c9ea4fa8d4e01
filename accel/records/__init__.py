"""Benchmark records: one JSON file a run, validated against the published schema when written and when read.

`schema.json` beside this file is the schema (JSON Schema 2020-12, named in every record). Nothing here imports torch,
so that a laptop without an accelerator can read and compare records from anywhere.
"""

from __future__ import annotations

from accel.records._file import check, destination, read, schema, write, write_text
from accel.records._record import (
    CALIBRATION,
    ORIGINS,
    SCHEMA,
    BackendPart,
    Curve,
    Disturbance,
    Efficiency,
    Figure,
    Goal,
    Hardware,
    InputAdvice,
    InputTrial,
    Label,
    MemoryPlan,
    Numerics,
    PlannedStep,
    Prediction,
    Protocol,
    Record,
    Results,
    Series,
    Workload,
)
from accel.records._unrun import new_id, predicted

__all__ = [
    "CALIBRATION",
    "ORIGINS",
    "SCHEMA",
    "BackendPart",
    "Curve",
    "Disturbance",
    "Efficiency",
    "Figure",
    "Goal",
    "Hardware",
    "InputAdvice",
    "InputTrial",
    "Label",
    "MemoryPlan",
    "Numerics",
    "PlannedStep",
    "Prediction",
    "Protocol",
    "Record",
    "Results",
    "Series",
    "Workload",
    "check",
    "destination",
    "new_id",
    "predicted",
    "read",
    "schema",
    "write",
    "write_text",
]
