"""The lookup table, read by examples/slurm/job_submit.lua as slurmctld runs it."""

from pathlib import Path

import pytest

from isobatch.cli import main

PLUGIN = Path(__file__).parents[2] / "examples" / "slurm" / "job_submit.lua"
JOBS = "job,effective_batch,lr,duration,gpus\nvision,256,0.1,1000st,8\nodd one,250,0.1,1000st,\n"
COLUMNS = (
    "job,world_size,status,reasons,nearest_world_size,micro_batch,accumulation,lr,warmup_steps,total_steps"
)


@pytest.fixture
def table(tmp_path):
    (tmp_path / "jobs.csv").write_text(JOBS)
    (tmp_path / "clusters.csv").write_text("nodes,gpus_per_node\n1,8\n2,8\n")
    path = tmp_path / "plans.tsv"
    words = ["fleet", str(tmp_path / "jobs.csv"), str(tmp_path / "clusters.csv"), "-o", str(path)]
    assert main([*words, "--columns", COLUMNS]) == 0
    return path


@pytest.fixture
def submit(table, monkeypatch):
    lupa = pytest.importorskip("lupa", reason="the plugin is run by lupa's Lua")
    monkeypatch.setenv("ISOBATCH_TABLE", str(table))

    def submitted(**job):
        """Returns the request of sbatch with equal minimum and maximum nodes."""
        lua, messages = controller(lupa)
        job = {"max_nodes": job.get("min_nodes"), "script": "#!/bin/bash", **job}
        request = lua.table_from({**job, "environment": lua.table_from({})})
        code = lua.globals().slurm_job_submit(request, None, 1000)
        return code, dict(request.environment), messages

    return submitted


def controller(lupa):
    """Starts a controller, and returns it with its messages."""
    lua, messages = lupa.LuaRuntime(), []
    lua.globals()["slurm"] = lua.table_from(
        {"SUCCESS": 0, "ERROR": -1, "log_user": lambda text: messages.append(text)}
    )
    lua.execute(PLUGIN.read_text())
    return lua, messages


def test_the_table_has_no_quotes(table):
    lines = table.read_text().splitlines()
    assert lines[0] == COLUMNS.replace(",", "\t")
    assert lines[2].split("\t")[:7] == ["vision", "16", "ok", "", "", "16", "1"]
    assert lines[3].split("\t")[:4] == ["odd one", "8", "infeasible", "not_divisible"]


@pytest.mark.parametrize(
    "options",
    [
        {"tres_per_node": "gres/gpu:8", "min_nodes": 2},
        {"tres_per_node": "gres/gpu:h100:8", "min_nodes": 2},
        {"tres_per_job": "license:1,gres/gpu=16", "min_nodes": 1},
        {"tres_per_job": "gres/gpu:16", "min_nodes": 1, "max_nodes": 2},
        {"tres_per_task": "gres/gpu", "num_tasks": 16, "min_nodes": 1, "max_nodes": 4},
        {"tres_per_node": "gres/gpu:a100:4,gres/gpu:h100:4", "min_nodes": 2},
        {"tres_per_node": "gres/gpu:8,gres/gpumem:40960", "min_nodes": 2},
        {"tres_per_node": "gres/gpu:h100:8(S:0-1)", "min_nodes": 2},
        {"tres_per_node": "gres/gpu:16", "min_nodes": 4294967294},
        {"tres_per_node": "gres/gpu:16", "min_nodes": 4294967294, "num_tasks": 1},
        {"tres_per_node": "gres/gpu:16", "min_nodes": None},
    ],
)
def test_a_job_gets_the_plan_for_its_gpus(submit, options):
    code, submission, messages = submit(comment="isobatch:vision", **options)
    assert (code, messages) == (0, [])
    assert submission == {
        "ISOBATCH_WORLD_SIZE": "16",
        "ISOBATCH_MICRO_BATCH": "16",
        "ISOBATCH_ACCUMULATION": "1",
        "ISOBATCH_LR": "0.1",
        "ISOBATCH_WARMUP_STEPS": "0",
        "ISOBATCH_TOTAL_STEPS": "1000",
    }


def test_jobs_without_a_plan_are_refused_with_the_reason(submit):
    assert submit(comment=None) == (0, {}, [])
    code, submission, messages = submit(comment="isobatch:odd one", tres_per_node="gres/gpu:8", min_nodes=1)
    assert (code, submission) == (-1, {})
    assert messages == ["isobatch: odd one cannot be trained on 8 GPUs: not_divisible; try 10 GPUs"]
    code, _, messages = submit(comment="isobatch:nobody", tres_per_job="gres/gpu:8", min_nodes=1)
    assert (code, messages) == (-1, ["isobatch: no plan for nobody on 8 GPUs"])


WHERE = {"tres_per_node": "gres/gpu:8", "min_nodes": 2}


@pytest.mark.parametrize(
    "options",
    [
        {"tres_per_node": "gres/gpumem:16", "min_nodes": 1},
        {"tres_per_task": "gres/gpu", "num_tasks": 4294967294},
        {"tres_per_node": "gres/gpu:8", "min_nodes": 1, "max_nodes": 2},
        {"tres_per_node": "gres/gpu:8", "min_nodes": 2, "max_nodes": 4294967294},
        {"tres_per_node": "gres/gpu:8", "min_nodes": 4294967294, "num_tasks": 2},
        {"tres_per_socket": "gres/gpu:8", "min_nodes": 2},
        {"min_nodes": 2},
    ],
)
def test_gpus_that_are_open_are_refused(submit, options):
    """Slurm chooses how many nodes: a job of 1 to 2 was planned for one, and started on two."""
    code, submission, messages = submit(comment="isobatch:vision", **options)
    assert (code, submission, len(messages)) == (-1, {}, 1)
    assert messages[0].startswith("isobatch: how many GPUs vision gets is open: give --nodes")


def test_without_a_script_there_is_no_environment(submit):
    """srun and salloc started without their plan, and without a word."""
    code, submission, messages = submit(comment="isobatch:vision", script=None, **WHERE)
    assert (code, submission) == (-1, {})
    assert messages[0].endswith(
        "export ISOBATCH_WORLD_SIZE=16 ISOBATCH_MICRO_BATCH=16 ISOBATCH_ACCUMULATION=1 ISOBATCH_LR=0.1 "
        "ISOBATCH_WARMUP_STEPS=0 ISOBATCH_TOTAL_STEPS=1000"
    )
    assert submit(comment=None, script=None, **WHERE) == (0, {}, [])


UNSET = {"min_nodes": 4294967294, "max_nodes": 4294967294, "num_tasks": 4294967294}
UNSET |= {"ntasks_per_node": 65534, "ntasks_per_tres": 65534}


@pytest.mark.parametrize(
    ("comment", "change", "refusal"),
    [
        ("isobatch:vision", {"tres_per_node": "gres/gpu:8"}, "cancel it, and submit it for others"),
        ("isobatch:vision", {"min_nodes": 2}, "cancel it, and submit it for others"),
        ("isobatch:vision", {"ntasks_per_node": 2}, "cancel it, and submit it for others"),
        ("isobatch:vision", {"comment": "mine"}, "cancel it, and submit it for others"),
        ("isobatch:vision", {"comment": "isobatch:other"}, "given to a job when it is submitted"),
        (None, {"comment": "isobatch:vision"}, "given to a job when it is submitted"),
        ("isobatch:vision", {"comment": "isobatch:vision"}, None),
        ("isobatch:vision", {"time_limit": 7}, None),
        ("nightly", {"tres_per_node": "gres/gpu:8", "comment": "mine"}, None),
    ],
)
def test_a_job_with_a_plan_keeps_its_gpus(table, submit, comment, change, refusal):
    lua, messages = controller(pytest.importorskip("lupa"))
    record = lua.table_from({"comment": comment, "job_id": 7})
    code = lua.globals().slurm_job_modify(lua.table_from({**UNSET, **change}), record, None, 1000)
    assert code == (0 if refusal is None else -1)
    assert len(messages) == (refusal is not None) and all(refusal in text for text in messages)


def test_the_table_of_the_documented_command_loads(tmp_path, table, submit):
    """Its clusters have many shapes, some with as many GPUs."""
    examples = PLUGIN.parents[1]
    command = PLUGIN.read_text().split("--columns ")[1].splitlines()[0]
    words = ["fleet", str(examples / "jobs.csv"), str(examples / "clusters.csv"), "-o", str(table)]
    assert main([*words, "--columns", command]) == 0
    code, _, messages = submit(comment="isobatch:no such job", **WHERE)
    assert code == -1 and messages == ["isobatch: no plan for no such job on 16 GPUs"]


def test_clusters_with_as_many_gpus(tmp_path, table, submit):
    header = f"cluster\t{COLUMNS}".replace(",", "\t")
    plan = "{}\tvision\t16\t{}\t{}\t{}\t{}\t1\t0.1\t0\t1000"
    rows = [plan.format("a", "ok", "", "", 16), plan.format("b", "ok", "", "", 16)]
    table.write_text("\n".join([header, *rows, ""]))
    assert submit(comment="isobatch:vision", **WHERE)[0] == 0
    rows[1] = plan.format("b", "infeasible", "not_divisible", "8", "")
    table.write_text("\n".join([header, *rows, ""]))
    assert submit(comment="isobatch:vision", **WHERE)[1]["ISOBATCH_MICRO_BATCH"] == "16"
    code, _, messages = submit(comment="isobatch:vision@b", **WHERE)
    assert code == -1 and messages == [
        "isobatch: vision cannot be trained on 16 GPUs: not_divisible; try 8 GPUs"
    ]
    rows[1] = plan.format("b", "ok", "", "", 8)
    table.write_text("\n".join([header, *rows, ""]))
    code, _, messages = submit(comment="isobatch:vision", **WHERE)
    assert code == -1 and "several plans; name the cluster" in messages[0]
    assert submit(comment="isobatch:vision@b", **WHERE)[1]["ISOBATCH_MICRO_BATCH"] == "8"
    code, _, messages = submit(comment="isobatch:vision@c", **WHERE)
    assert code == -1 and "no plan for cluster c" in messages[0]


def test_a_byte_order_mark(table, submit):
    table.write_bytes(b"\xef\xbb\xbf" + table.read_bytes())
    assert submit(comment="isobatch:vision", **WHERE)[0] == 0


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        (lambda table: table.unlink(), "No such file"),
        (lambda table: table.write_text(""), "has no column job"),
        (lambda table: table.write_text("job\tworld_size\nvision\t16\n"), "has no column status"),
        (lambda table: table.write_bytes(bytes(range(256))), "has no column job"),
    ],
)
def test_a_table_that_cannot_be_used_refuses_only_those_who_ask(table, submit, harm, why):
    harm(table)
    assert submit(comment=None, **WHERE) == (0, {}, [])
    assert submit(comment="nightly", **WHERE) == (0, {}, [])
    code, _, messages = submit(comment="isobatch:vision", **WHERE)
    assert code == -1 and why in messages[0]


def test_a_request_of_an_odd_kind_is_refused_and_raises_nothing(submit):
    code, _, messages = submit(comment="isobatch:vision", tres_per_node=8, min_nodes="two")
    assert code == -1 and messages[0].startswith("isobatch: ")
