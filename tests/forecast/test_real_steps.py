"""The stored steps of bench/calibration.py, which were measured on ranks over limited links: fitted, and others predicted."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

BENCH = Path(__file__).parents[2] / "bench"
STORED = sorted((BENCH / "results" / "calibration").glob("*.json"))


@pytest.fixture
def calibration(monkeypatch):
    pytest.importorskip("scipy", reason="a calibration needs it")
    monkeypatch.setattr(sys, "path", [str(BENCH), *sys.path])
    return pytest.importorskip("calibration")


def test_steps_that_were_not_fitted_are_predicted(calibration):
    inside, outside = [], []
    assert len(STORED) >= 3
    for file in STORED:
        stored = json.loads(file.read_text())
        measured, seen = calibration.fitted(stored, wires=True)
        profile = calibration.calibrate(measured)
        most = {name: max(values) for name, values in calibration.PLANS[stored["kind"]]["fit"].items()}
        for (gpus, micro, accumulation), samples in calibration.points(stored).items():
            shape = {"gpus": gpus, "micro_batch": micro, "accumulation": accumulation, "gpus_per_node": 1}
            error = abs(profile.forecast(**shape)["step_seconds"][0] / np.median(samples) - 1)
            if (gpus, micro, accumulation) not in seen:
                within = gpus <= most["gpus"] and micro <= most["micro_batch"]
                (inside if within else outside).append(error)
    for errors in (inside, outside):
        assert len(errors) >= 40
        assert np.median(errors) <= 0.05
        assert np.quantile(errors, 0.95) <= 0.15
