"""The published learning rates beside the planned ones: the table that the command prints is the bench's."""

import importlib.util
from pathlib import Path

import pytest

from isobatch.planning.published import PUBLISHED_RATES

BENCH = Path(__file__).parents[2] / "bench" / "published_rates.py"


@pytest.fixture(scope="module")
def bench():
    spec = importlib.util.spec_from_file_location("published_rates", BENCH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_printed_table_is_planned_from_the_facts(bench):
    rows = {name: bench.pairs(points) for name, points in bench.read_facts().items()}
    assert sorted(bench.by_family(rows)) == sorted(PUBLISHED_RATES)


def test_a_pair_is_the_rule_over_the_used_rate(bench):
    """Llama 3.1 405B went linearly from 1152 to 4608 samples, where √k is planned: 2/4."""
    pairs = bench.pairs(bench.read_facts()["llama31_405b"])
    assert [pair.k for pair in pairs] == [2.0, 4.0]
    assert [pair.planned["auto"] for pair in pairs] == pytest.approx([2**0.5 / 2, 2 / 4])


def test_a_noise_scale_needs_lengths_on_a_line(bench):
    def points(*lengths):
        return [bench.Point("bert", "5.1.0", batch, 1e-3, length) for batch, length in lengths]

    assert bench.noise_scale(points((100, 11), (200, 12), (400, 14))) == pytest.approx(1000)
    assert bench.noise_scale(points((100, 11), (200, 12))) is None
    assert bench.noise_scale(points((100, 11), (110, 12), (120, 14))) is None
    assert bench.noise_scale(points((100, 11), (200, 30), (400, 12))) is None


def test_the_command_prints_the_families(ran):
    shown = ran(["explain", "--rules"]).out
    for row in PUBLISHED_RATES:
        assert row.family in shown and f"{row.lowest:.2f} to {row.highest:.2f}" in shown
