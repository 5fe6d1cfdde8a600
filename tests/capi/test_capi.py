"""The C ABI from a C program: its plans are those of ib.plan and ib.plan_fleet. Needs cc, and `cargo build -p isobatch-c`."""

import math
import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import isobatch as ib

ROOT = Path(__file__).parent.parent.parent
HEADER = ROOT / "rust/capi/include/isobatch.h"


def library():
    """The newest build of it."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    found = [*target.glob("debug/libisobatch.so"), *target.glob("release/libisobatch.so")]
    if not found:
        pytest.skip("the C library is not built: cargo build -p isobatch-c")
    newest = max(found, key=lambda path: path.stat().st_mtime)
    sources = [*ROOT.glob("rust/capi/src/*.rs"), *ROOT.glob("rust/core/src/**/*.rs")]
    if any(path.stat().st_mtime > newest.stat().st_mtime for path in sources):
        pytest.skip("the C library is older than its source: cargo build -p isobatch-c")
    return newest


@pytest.fixture(scope="module")
def call(tmp_path_factory):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("cc is not installed")
    built = library()
    program = tmp_path_factory.mktemp("capi") / "plan"
    subprocess.run(
        [compiler, "-std=c11", "-Wall", "-Wextra", "-Werror", f"-I{HEADER.parent}", str(Path(__file__).parent / "plan.c"),
         "-o", str(program), f"-L{built.parent}", "-lisobatch", f"-Wl,-rpath,{built.parent}"],
        check=True,
    )  # fmt: skip

    def run(*words):
        done = subprocess.run([program, *words], capture_output=True, text=True)
        assert done.returncode in (0, 1), done
        return done.stdout.splitlines()

    return run


def test_the_version_is_that_of_the_package(call):
    assert call() == [ib.__version__]


@pytest.mark.parametrize(
    ("recipe", "cluster", "settings"),
    [
        ({"effective_batch": 256, "lr": 0.1, "optimizer": "sgd", "dataset_size": 1281167, "duration": "90ep", "warmup": "5ep", "gpus": 8, "micro_batch": 32}, {"nodes": 8}, {"policy": "grow"}),
        ({"effective_batch": 256, "lr": 0.1, "duration": "1000st"}, {"nodes": 7, "gpus_per_node": 1}, {}),
        ({"effective_batch": 256, "lr": 0.1, "duration": "1000st"}, {"nodes": 7, "gpus_per_node": 1}, {"ragged": True}),
        ({"effective_batch": 512, "lr": 3e-4, "weight_decay": 0.1, "seq_len": 2048, "duration": "1e9tok", "warmup": "2%", "betas": (0.9, 0.95)}, {"nodes": 2, "model_parallel": 4}, {"policy": 1024, "rule": "sde"}),
        ({"effective_batch": 1024, "lr": 3e-4, "model_parallel": 32}, {"nodes": 63}, {"batch_tolerance": 0.02}),
    ],
)  # fmt: skip
def test_a_plan_is_that_of_python(call, recipe, cluster, settings):
    def text(value):
        return (
            f"{value[0]!r},{value[1]!r}"
            if isinstance(value, tuple)
            else str(value).lower()
            if value is True
            else str(value)
        )

    given = {**recipe, **settings, **{f"cluster.{name}": value for name, value in cluster.items()}}
    lines = [
        line.split(" ", 1)
        for line in call("one", *(f"{name}={text(value)}" for name, value in given.items()))
    ]
    found = {name: value for name, value in lines if name != "reason"}
    plan = ib.plan(ib.Recipe(**recipe), ib.Cluster(**cluster), **settings)
    assert found.pop("status") == str(["ok", "caution", "infeasible"].index(plan.status))
    assert {value for name, value in lines if name == "reason"} == {reason.value for reason in plan.reasons}
    assert len(found) == 18
    for name, value in found.items():
        wanted = getattr(plan, name)
        if wanted is None:
            assert value == "-1" or math.isnan(float(value)), name
        else:
            assert float(value) == wanted, name


def test_columns_are_those_of_a_fleet(call):
    jobs = {
        "effective_batch": np.array([256, 480]),
        "lr": np.array([0.1, 3e-4]),
        "optimizer": np.array(["sgd", "adamw"]),
        "duration": np.array(["1000st", "2000st"]),
    }
    columns = ["status", "reasons", "micro_batch", "accumulation", "total_steps", "lr"]
    clusters = {"nodes": np.arange(1, 65), "gpus_per_node": np.ones(64, int)}
    table = ib.plan_fleet(jobs, clusters, max_micro_batch=32, columns=columns)
    rows = [line.split() for line in call("columns")]
    assert len(rows) == 128 and {row[0] for row in rows} >= {"0", "2"}
    assert [["ok", "caution", "infeasible"][int(row[0])] for row in rows] == table["status"].tolist()
    for place, name in enumerate(columns[1:], 1):
        found = np.array([float(row[place]) for row in rows])
        assert np.array_equal(found, np.asarray(table[name], float), equal_nan=True), name


def test_what_is_wrong_is_a_code_and_a_message(call):
    assert call("wrong") == [
        "2 unknown field 'learning'",
        "3 optimizer must be sgd, adam, adamw, rmsprop, lars, lamb, lion, muon or adafactor",
        "1 a text is no UTF-8",
        "1 lr is given twice",
        "2 unknown field 'cluster.lr'",
        "1 a field's name is null",
        "3 effecti",
        "1",
        "1",
        "1 lr needs 2 values of 8 bytes, got 8 bytes",
        "2 unknown result column 'lrr'",
        "1 nodes has kind 7, must be 0, 1 or 2",
    ]


def test_the_documents_program_works(call, tmp_path):
    page = (ROOT / "docs/howto/inside-a-scheduler.md").read_text(encoding="utf-8")
    (tmp_path / "job.c").write_text(re.search(r"```c\n(.*?)```", page, re.DOTALL)[1])
    built = library()
    subprocess.run(
        ["cc", "-Wall", "-Werror", f"-I{HEADER.parent}", "job.c", "-o", "job", f"-L{built.parent}", "-lisobatch", f"-Wl,-rpath,{built.parent}"],
        cwd=tmp_path,
        check=True,
    )  # fmt: skip
    done = subprocess.run([tmp_path / "job"], capture_output=True, text=True, check=True)
    assert done.stdout == "4 x 1\n"


def test_the_header_and_the_source_declare_the_same():
    header = HEADER.read_text(encoding="utf-8")
    source = (ROOT / "rust/capi/src/lib.rs").read_text(encoding="utf-8")
    exported = re.findall(r"extern \"C\" fn (\w+)", source)
    assert len(exported) == 5
    assert set(re.findall(r"\b(isobatch_\w+)\(", header)) == set(exported)
    for struct, file, name in (("isobatch_row", "row", "PlanRow"), ("isobatch_column", "columns", "Column"), ("isobatch_result", "columns", "Results"), ("isobatch_pair", "fields", "Pair")):  # fmt: skip
        text = (ROOT / f"rust/capi/src/{file}.rs").read_text(encoding="utf-8")
        ours = re.findall(
            r"^    (\w+): ", re.search(rf"struct {name} {{(.*?)}}", text, re.DOTALL)[1], re.MULTILINE
        )
        body = re.search(rf"typedef struct {{([^}}]*)}} {struct};", header)[1]
        assert re.findall(r"(\w+);", re.sub(r"/\*.*?\*/", "", body)) == ours, struct


def test_unsafe_code_is_in_the_c_abi_only():
    elsewhere = [*ROOT.glob("rust/core/src/**/*.rs"), *ROOT.glob("rust/py/src/**/*.rs")]
    assert len(elsewhere) > 50
    assert not [
        str(path) for path in elsewhere if re.search(r"\bunsafe\b(?!_)", path.read_text(encoding="utf-8"))
    ]
