"""The report's structure, the causes and the small parts, without any rank."""

import json

import pytest

import isobatch as ib
from isobatch.cli import main
from isobatch.equivalence.laws import Cause
from isobatch.validate import Options, Proof, Report, Verdict, json_schema

FIELDS = dict.fromkeys(["isobatch_version", "started", "plan_digest"], "") | {
    "wall_seconds": 1.0,
    "rehearsal": None,
    "plan": None,
    "options": Options(),
}


def report(verdict, **fields):
    return Report(
        verdict=verdict, proofs=[Proof(name="gradient", verdict=verdict, text="")], **{**FIELDS, **fields}
    )


def test_every_figure_has_its_unit_in_its_key():
    definitions = json_schema()["$defs"]
    assert {"time_us", "bus_bw_gb_s", "bytes"} <= set(definitions["AllReduceRow"]["properties"])
    assert {"peak_memory_bytes", "step_seconds"} <= set(definitions["MicroBatchTimes"]["properties"])


def test_a_report_is_read_back(tmp_path):
    file = tmp_path / "report.json"
    saved = report(Verdict.PASS)
    saved.save(file)
    assert Report.load(file) == saved


@pytest.mark.parametrize("text", ["{", "{}", '{"schema": "isobatch.validation/9"}', "[]"])
def test_bad_reports_are_refused(tmp_path, text):
    file = tmp_path / "report.json"
    file.write_text(text)
    with pytest.raises(ib.InputError, match=r"report\.json"):
        Report.load(file)


@pytest.mark.parametrize(
    ("verdicts", "whole", "code"),
    [
        (["pass", "unchecked"], "pass", 0),
        (["pass", "caution", "unchecked"], "caution", 0),
        (["caution", "inconclusive"], "inconclusive", 1),
        (["inconclusive", "fail", "pass"], "fail", 1),
        ([], "unchecked", 0),
    ],
)
def test_the_worst_verdict_wins(verdicts, whole, code):
    verdict = Verdict.of([Verdict(v) for v in verdicts])
    assert (verdict, report(verdict).exit_code) == (whole, code)


@pytest.mark.parametrize(
    "fields",
    [
        {"extent": "long"},
        {"fail": 0.0},
        {"noise_steps": 1},
        {"caution": 0.5, "fail": 0.1},
        {"hook": "int8"},
    ],
)
def test_an_option_that_is_not_legal_is_named(fields):
    with pytest.raises(ib.InputError, match=next(iter(fields))):
        Options(**fields)


def test_the_command_line_has_the_same_defaults():
    from isobatch.cli import parser_of

    typed = parser_of("validate").parse_args(["plan.json"])
    values = {name: getattr(typed, name) for name in Options.__struct_fields__}
    assert Options(**values) == Options()


@pytest.mark.parametrize(
    ("host", "message"), [("127.0.0.1", "no answer"), ("no.such.host.invalid", "not resolve")]
)
def test_a_rendezvous_that_cannot_be_reached_is_said_at_once(host, message):
    from isobatch.validate.ranks.network import probe

    with pytest.raises(ib.InputError, match=message):
        probe(host, 1, 0.3)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "PLAN is missing: pass a plan's JSON file (isobatch plan -o)"),
        (["plan.json", "-o", "no/such/report.json"], "no/such: there is no such folder"),
        (["plan.json", "-o", "."], ".: cannot be written"),
        (["plan.json"], "plan.json: cannot be read: No such file"),
    ],
)
def test_bad_arguments_stop_before_any_rank_starts(tmp_path, monkeypatch, ran, words, message):
    monkeypatch.chdir(tmp_path)
    assert f"isobatch validate: {message}" in ran(["validate", *words], 2).err


def test_a_plan_takes_the_largest_micro_batch_of_a_report(tmp_path, ran):
    from isobatch.validate.figures import MicroBatchSearch

    file, saved = tmp_path / "report.json", tmp_path / "plan.json"
    search = MicroBatchSearch(largest_micro_batch=12, complete=True, memory_limit_bytes=None, tries=[])
    report(Verdict.PASS, micro_batch_search=search).save(file)
    words = ["plan", "--set", "effective_batch=96", "--set", "lr=0.1", "--gpus", "2", "-o", str(saved)]
    assert main([*words, "--max-micro-batch", str(file)]) == 0
    assert json.loads(saved.read_text())["micro_batch"] == 12
    report(Verdict.PASS).save(file)
    assert "--find-micro-batch" in ran([*words, "--max-micro-batch", str(file)], 2).err


def test_other_versions_are_named_with_their_rank():
    pytest.importorskip("torch", reason="the validator needs torch")
    from isobatch.validate.proofs.machine import same_versions

    def who(rank):
        return f"rank {rank}"

    same, older = {"torch": "2.9", "python": "3.12"}, {"torch": "2.8", "python": "3.12"}
    assert same_versions([same, same], who, {0: [], 1: []}).verdict is Verdict.PASS
    proof = same_versions([same, same, older], who, {})
    assert (proof.verdict, proof.cause) == (Verdict.CAUTION, Cause.OTHER_ENVIRONMENT)
    assert proof.text == "torch 2.9 on rank 0, 2.8 on rank 2"
    proof = same_versions([same, same], who, {1: ["NCCL_ALGO"]})
    assert (proof.verdict, proof.text) == (Verdict.CAUTION, "NCCL_ALGO on rank 1 differs from rank 0")
