"""Ends from outside, and texts too long to repeat."""

import signal

import isobatch.cli.rules
from isobatch.cli import main


class Ended(Exception):
    """As torch raises it while it watches ranks."""

    sigval = signal.SIGTERM


def test_a_signal_is_no_fault_of_ours(monkeypatch, capsys):
    def run(args):
        raise Ended("Process 1 got signal: 15")

    monkeypatch.setattr(isobatch.cli.rules, "run", run)
    assert main(["rules"]) == 128 + 15
    assert "fault" not in capsys.readouterr().err


def test_a_long_text_is_cut(capsys):
    assert main(["plan", "--gpus", "8", "--fixed-micro-batch", "9" * 5000]) == 2
    said = capsys.readouterr().err
    assert "--fixed-micro-batch must be a whole number, got '999" in said and len(said) < 300
