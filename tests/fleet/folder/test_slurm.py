"""The lookup table, read by examples/slurm/job_submit.lua as slurmctld runs it."""

from pathlib import Path

import pytest

from isobatch.cli import main

PLUGIN = Path(__file__).parents[3] / "examples" / "slurm" / "job_submit.lua"
JOBS = "job,effective_batch,lr,duration,gpus\nvision,256,0.1,1000st,8\nodd one,250,0.1,1000st,\n"
COLUMNS = (
    "job,world_size,status,reasons,nearest_world_size,micro_batch,accumulation,lr,warmup_steps,total_steps"
)


@pytest.fixture
def table(tmp_path):
    (tmp_path / "jobs.csv").write_text(JOBS)
    (tmp_path / "clusters.csv").write_text("nodes,gpus_per_node\n1,8\n2,8\n")
    made = tmp_path / "plans.tsv"
    words = ["fleet", str(tmp_path / "jobs.csv"), str(tmp_path / "clusters.csv"), "-o", str(made)]
    assert main([*words, "--columns", COLUMNS]) == 0
    return made


@pytest.fixture
def submit(table, monkeypatch):
    lupa = pytest.importorskip("lupa", reason="the plugin is run by lupa's Lua")
    monkeypatch.setenv("ISOBATCH_TABLE", str(table))

    def submitted(**job):
        lua = lupa.LuaRuntime()
        told = []
        lua.globals()["slurm"] = lua.table_from(
            {"SUCCESS": 0, "ERROR": -1, "log_user": lambda text: told.append(text)}
        )
        lua.execute(PLUGIN.read_text())
        request = lua.table_from({**job, "environment": lua.table_from({})})
        code = lua.globals().slurm_job_submit(request, None, 1000)
        return code, dict(request.environment), told

    return submitted


def test_the_table_has_no_quotes(table):
    lines = table.read_text().splitlines()
    assert lines[0] == COLUMNS.replace(",", "\t")
    assert lines[2].split("\t")[:7] == ["vision", "16", "ok", "", "", "16", "1"]
    assert lines[3].split("\t")[:4] == ["odd one", "8", "infeasible", "not_divisible"]


def test_a_cell_that_a_table_without_quotes_cannot_hold_is_refused(tmp_path, capsys):
    (tmp_path / "jobs.csv").write_text('job,effective_batch,lr\n"a\tb",256,0.1\n')
    (tmp_path / "clusters.csv").write_text("nodes\n1\n")
    words = [
        "fleet",
        str(tmp_path / "jobs.csv"),
        str(tmp_path / "clusters.csv"),
        "-o",
        str(tmp_path / "o.tsv"),
    ]
    assert main(words) == 2
    assert "o.tsv: cannot be written" in capsys.readouterr().err
    assert not (tmp_path / "o.tsv").exists()


@pytest.mark.parametrize(
    "asked",
    [
        {"tres_per_node": "gres/gpu:8", "min_nodes": 2},
        {"tres_per_node": "gres/gpu:h100:8", "min_nodes": 2},
        {"tres_per_job": "license:1,gres/gpu=16", "min_nodes": 1},
        {"tres_per_task": "gres/gpu", "num_tasks": 16, "min_nodes": 1},
    ],
)
def test_a_job_gets_the_plan_for_its_gpus(submit, asked):
    code, given, told = submit(comment="isobatch:vision", **asked)
    assert (code, told) == (0, [])
    assert given == {
        "ISOBATCH_MICRO_BATCH": "16",
        "ISOBATCH_ACCUMULATION": "1",
        "ISOBATCH_LR": "0.1",
        "ISOBATCH_WARMUP_STEPS": "0",
        "ISOBATCH_TOTAL_STEPS": "1000",
    }


def test_what_has_no_plan_is_refused_with_the_reason(submit):
    assert submit(comment=None) == (0, {}, [])
    code, given, told = submit(comment="isobatch:odd one", tres_per_node="gres/gpu:8", min_nodes=1)
    assert (code, given) == (-1, {})
    assert told == ["isobatch: odd one cannot be trained on 8 GPUs: not_divisible; try 10 GPUs"]
    for job, where in (("nobody", {"tres_per_job": "gres/gpu:8"}), ("vision", {})):
        code, _, told = submit(comment=f"isobatch:{job}", min_nodes=1, **where)
        assert code == -1 and told[0].startswith(f"isobatch: no plan for {job} on ")
