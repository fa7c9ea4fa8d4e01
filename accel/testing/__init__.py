"""The conformance suite: what every backend must do, as tests.

Run it against any registered backend, built-in or a third party's:

    pytest --pyargs accel.testing --backend NAME

A difference between vendors is a line in the backend's capability table, never an `if` in a test: a test asks the
table whether a feature is native, emulated or unsupported, and holds the backend to that answer.
"""
