"""Programs and pipes: JSON lines in and out, `-` for stdin and stdout, GPU counts for clusters."""

import io
import json
import subprocess
import sys

import pytest

import isobatch as ib
from isobatch.cli import main

RECIPE = {"effective_batch": 256, "lr": 0.1}
GOOD = {"recipe": RECIPE, "gpus": 8}


class Pipe(io.TextIOWrapper):
    def __init__(self, text):
        super().__init__(io.BytesIO(text.encode() if isinstance(text, str) else text), encoding="utf-8")


def served(monkeypatch, capsysbinary, requests, *words):
    text = "\n".join(item if isinstance(item, str) else json.dumps(item) for item in requests)
    monkeypatch.setattr(sys, "stdin", Pipe(text))
    code = main(["plan", "-", *words])
    shown = capsysbinary.readouterr()
    return code, [json.loads(line) for line in shown.out.splitlines()], shown.err.decode()


def test_a_line_is_answered_by_a_line(monkeypatch, capsysbinary):
    cluster = {"nodes": 2, "gpus_per_node": 8}
    requests = [
        {"id": "a", "recipe": {**RECIPE, "weight_decay": None}, "gpus": 8},
        {"id": 2, "recipe": RECIPE, "cluster": cluster, "max_micro_batch": 4, "explain": True},
        {"recipe": RECIPE, "gpus": 7, "settings": {"split": "ragged"}},
    ]
    code, answers, output = served(monkeypatch, capsysbinary, requests)
    assert ib.Plan.from_json(json.dumps(answers[0]["plan"])).recipe.weight_decay == 0
    assert code == 0 and output == "" and [item["id"] for item in answers] == ["a", 2, None]
    recipe = ib.Recipe(**RECIPE)
    expected = [
        ib.plan(recipe, 8),
        ib.plan(recipe, ib.Cluster(nodes=2, gpus_per_node=8), max_micro_batch=4),
        ib.plan(recipe, 7, split="ragged"),
    ]
    assert [ib.Plan.from_json(json.dumps(item["plan"])) for item in answers] == expected
    assert [item["status"] for item in answers] == [plan.status for plan in expected]
    assert answers[1]["explain"] == expected[1].explain() and "explain" not in answers[0]


@pytest.mark.parametrize(
    ("request_", "message", "fields"),
    [
        ("nonsense", "the line is not JSON", []),
        ("[null]", "the line must be an object with a recipe and a cluster, got [null]", []),
        ({"recipe": RECIPE}, "cluster is missing", ["cluster"]),
        ({"gpus": 8}, "recipe is missing", ["recipe"]),
        ({"recipe": RECIPE, "gpus": 0},
            "gpus must be a whole number from 1 to 2,147,483,648, got 0", ["gpus"]),
        ({"recipe": RECIPE, "gpus": "8"}, "gpus must be a whole number", ["gpus"]),
        ({"recipe": RECIPE, "gpus": True}, ", got true", ["gpus"]),
        ({"recipe": {**RECIPE, "lr": None}, "gpus": 8}, "lr is missing", ["lr"]),
        ({"recipe": {"lr": 1}, "gpus": 0, "rule": "x"}, "3 faults", ["effective_batch", "gpus", "rule"]),
        ({"policy": "keep", "settings": {"policy": "grow"}, **GOOD},
            "policy is in the request and in its settings", ["policy"]),
        ({"recipe": {**RECIPE, "lr": -1}, "gpus": 8}, "lr must be a finite number above 0, got -1", ["lr"]),
        ({"recipe": {**RECIPE, "weight_dcay": 1}, "gpus": 8}, "did you mean 'weight_decay'?", None),
        ({"recipe": RECIPE, "gpu": 8}, "unknown key 'gpu': did you mean 'gpus'?", ["gpu"]),
        ({"recipe": RECIPE, "gpus": 8, "policy": "grw"}, "policy must be keep, grow", ["policy"]),
        ({"recipe": RECIPE, "gpus": 8, "cluster": {}}, "gpus goes without cluster", ["gpus"]),
        ({"recipe": 7, "gpus": 8}, "recipe must be an object, got 7", ["recipe"]),
        ({"recipe": RECIPE, "gpus": 8, "settings": {"recipe": 1}}, "unknown setting 'recipe'", ["recipe"]),
        ({"recipe": RECIPE, "gpus": 8, "settings": {"strict": True}}, "unknown setting 'strict'", ["strict"]),
    ],
)  # fmt: skip
def test_a_bad_line_is_answered_with_its_error_and_the_others_go_on(
    monkeypatch, capsysbinary, request_, message, fields
):
    code, answers, output = served(monkeypatch, capsysbinary, [GOOD, request_, "", GOOD])
    assert code == 2 and "1 of 3 requests could not be answered" in output
    assert [item.get("status") for item in answers] == ["ok", None, "ok"]
    assert message in answers[1]["error"]
    assert fields is None or answers[1]["fields"] == fields


def test_a_name_of_a_million_characters_is_cut(monkeypatch, capsysbinary):
    code, answers, _ = served(monkeypatch, capsysbinary, [{"recipe": RECIPE, "gpus": 8, "x" * 10**6: 1}])
    assert code == 2 and len(answers[0]["error"]) < 1000 and "unknown key" in answers[0]["error"]


def test_the_command_line_gives_what_requests_leave_out(monkeypatch, capsysbinary):
    words = ["--gpus", "16", "--policy", "grow", "--set", "gpus=8", "--set", "micro_batch=32"]
    requests = [{"recipe": RECIPE}, {"recipe": {**RECIPE, "micro_batch": 16}, "gpus": 32, "policy": "keep"}]
    code, answers, _ = served(monkeypatch, capsysbinary, requests, *words)
    assert code == 0
    assert [item["plan"]["world_size"] for item in answers] == [16, 32]
    assert [item["plan"]["effective_batch"] for item in answers] == [512, 256]


def test_a_fault_of_our_own_ends_no_other(monkeypatch, capsysbinary):
    monkeypatch.setattr("isobatch.cli.plan._recipe", lambda *_: 1 / 0)
    code, answers, _ = served(monkeypatch, capsysbinary, [{"id": 1, "recipe": RECIPE, "gpus": 8}] * 2)
    assert (code, len(answers)) == (3, 2)
    assert "a fault of isobatch itself (ZeroDivisionError" in answers[1]["error"]


def test_an_answer_comes_before_the_next_question():
    program = [sys.executable, "-m", "isobatch", "plan", "-"]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as words:
        for gpus in (8, 16):
            words.stdin.write(json.dumps({"id": gpus, "recipe": RECIPE, "gpus": gpus}) + "\n")
            words.stdin.flush()
            assert json.loads(words.stdout.readline())["id"] == gpus
        words.stdin.close()
        assert words.wait(timeout=200) == 0


def test_a_plan_to_stdout(ran):
    words = ["plan", "--set", "effective_batch=256", "--set", "lr=0.1", "--gpus", "8"]
    assert ib.Plan.from_json(ran([*words, "-o", "-"]).out) == ib.plan(ib.Recipe(**RECIPE), 8)
    assert "- reads requests from stdin" in ran(["plan", "-", "-o", "plan.json"], 2).err


def lines(jobs):
    return "".join(json.dumps(job) + "\n" for job in jobs)


def test_a_fleet_from_stdin_on_gpu_counts(monkeypatch, capsysbinary):
    pq = pytest.importorskip("pyarrow.parquet", reason="tables in files come with the extra 'fleet'")
    import pyarrow as pa

    jobs = [{"job": f"j{n}", **RECIPE} for n in range(3)]
    parquet = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(jobs), parquet)
    csv = "job,effective_batch,lr\n" + "".join(f"j{n},256,0.1\n" for n in range(3))
    words = ["fleet", "-", "--gpus", "8,16", "--json", "--columns", "job,world_size,micro_batch", "-o", "-"]
    rows = [(f"j{n}", gpus, 256 // gpus) for n in range(3) for gpus in (8, 16)]
    for content in (lines(jobs), csv, parquet.getvalue()):
        monkeypatch.setattr(sys, "stdin", Pipe(content))
        assert main(words) == 0
        result = [json.loads(line) for line in capsysbinary.readouterr().out.splitlines()]
        assert [tuple(row.values()) for row in result] == rows


@pytest.mark.parametrize(
    ("text", "code", "says"),
    [
        ("job,lr\na,1\n", 2, "isobatch fleet: stdin: effective_batch is missing"),
        ("job,effective_batch,lr\na,256,no\n", 0, "in job a (stdin, row 1)"),
        ('{"job": 1}\n3\n', 2, "isobatch fleet: stdin, row 2: is no JSON object"),
    ],
)
def test_messages_call_stdin_by_its_name(monkeypatch, ran, text, code, says):
    pytest.importorskip("pyarrow", reason="tables in files come with the extra 'fleet'")
    monkeypatch.setattr(sys, "stdin", Pipe(text))
    output = ran(["fleet", "-", "--gpus", "8"], code).err
    assert says in output and "isobatch-" not in output


def test_rows_from_a_pipe_can_be_explained(monkeypatch, capsysbinary):
    pytest.importorskip("pyarrow", reason="tables in files come with the extra 'fleet'")
    monkeypatch.setattr(sys, "stdin", Pipe(lines([{"job": "a", **RECIPE}])))
    assert main(["fleet", "-", "--gpus", "8"]) == 0
    monkeypatch.setattr(sys, "stdin", Pipe(capsysbinary.readouterr().out))
    assert main(["explain", "-"]) == 0
    assert b"job a, cluster 8, 8 GPUs: ok" in capsysbinary.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fleet", "-", "-"], "- stands for stdin, and cannot be both jobs and clusters"),
        (["fleet", "jobs.csv", "clusters.csv", "--gpus", "8"], "--gpus goes without clusters"),
        (["fleet", "job.toml", "--gpus", "8"],
            "job.toml: this is one recipe, not a table of jobs: use isobatch plan"),
        (["fleet", "jobs.csv", "--gpus", "8,0"], "--gpus must be at least 1, got 0"),
        (["fleet", "jobs.csv", "--gpus", "8..4"], "--gpus must be a range that rises, got 8..4"),
        (["fleet", "jobs.csv", "--gpus", "1..99999999999"],
            "--gpus must be at most 2,147,483,648, got 99999"),
        (["fleet", "jobs.csv", "--gpus", "1..2000000000"],
            "must be at most 1,048,576 counts, got 2,000,000,000"),
        (["counts", "--gpus", "8,99999999999"], "--gpus must be at most 2,147,483,648, got 99999999999"),
    ],
)  # fmt: skip
def test_wrong_use(tmp_path, monkeypatch, ran, words, message):
    pytest.importorskip("pyarrow", reason="tables in files come with the extra 'fleet'")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobs.csv").write_text("effective_batch,lr\n256,0.1\n")
    assert message in ran(words, 2).err
