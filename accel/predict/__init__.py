"""Step time of a model on a chip that is not at hand: a roofline per operation, calibrated on published runs.

Every prediction comes with the error that its calibration makes on chips left out of it. A prediction is not a
measurement: records of it have the origin `predicted`.
"""

from __future__ import annotations

from accel.predict._calibrate import Calibration, Miss, calibrate, misses, sets
from accel.predict._model import Parameters, Prediction
from accel.predict._predict import Forecast, predict
from accel.predict._record import record
from accel.predict._tables import error_tables

__all__ = [
    "Calibration",
    "Forecast",
    "Miss",
    "Parameters",
    "Prediction",
    "calibrate",
    "error_tables",
    "misses",
    "predict",
    "record",
    "sets",
]
