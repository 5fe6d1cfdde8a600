"""With only the core installed, each command works or names the extra; none is a fault of isobatch."""

import json
import subprocess
import sys

PROGRAM = """
import contextlib, io, json, sys

class Missing:
    packages = {"pyarrow", "rich", "yaml", "torch", "altair", "vl_convert", "jinja2", "pandas", "shtab"}
    packages |= {"scipy", "ray"}

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.packages:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
from isobatch.cli import main

for words in json.loads(sys.argv[1]):
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        code = main(words)
    print(json.dumps([code, said.getvalue()]))
"""


def test_each_command_works_or_names_its_extra(tmp_path):
    (tmp_path / "job.toml").write_text('effective_batch = 256\nlr = 0.1\nduration = "100st"\n')
    (tmp_path / "job.yaml").write_text("effective_batch: 256\nlr: 0.1\n")
    (tmp_path / "jobs.csv").write_text("job,effective_batch,lr\na,256,0.1\n")
    expected = [
        (["plan", "job.toml", "--gpus", "8", "-o", "plan.json"], 0, ""),
        (["plan", "job.yaml", "--gpus", "8"], 2,
            "YAML files need more than the core: pip install '.[fleet]'"),
        (["doctor", "job.yaml", "--gpus", "8"], 2, "pip install '.[fleet]'"),
        (["counts", "job.toml", "--gpus", "8,16"], 0, ""),
        (["replan", "plan.json", "--at-step", "10", "--gpus", "16"], 0, ""),
        (["fleet", "jobs.csv", "--gpus", "8"], 2, "pip install '.[fleet]'"),
        (["fleet", "jobs.csv", "jobs.csv", "-o", "o.csv"], 2, "pip install '.[fleet]'"),
        (["fleet", "jobs.csv", "jobs.csv", "-o", "plans/"], 2, "pip install '.[fleet]'"),
        (["schedule", "cosine", "--steps", "9", "--plot", "a.png"], 2, "pip install '.[report]'"),
        (["--completion", "bash"], 2, "pip install '.[fleet]'"),
        (["explain", "jobs.csv"], 2, "pip install '.[fleet]'"),
        (["report", "plan.json", "-o", "a.html"], 2, "pip install '.[report]'"),
        (["schedule", "cosine", "--steps", "9", "--plot", "a.svg"], 2, "pip install '.[report]'"),
        (["schedule", "cosine", "--steps", "9", "--plot"], 0, ""),
        (["validate", "plan.json"], 2, "pip install '.[validate]'"),
        (["explain", "--rules"], 0, ""),
    ]  # fmt: skip
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps([words for words, *_ in expected])],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    for (words, code, says), line in zip(expected, process.stdout.splitlines(), strict=True):
        actual, output = json.loads(line)
        assert actual == code and says in output, (words, actual, output)
        assert "a fault of isobatch" not in output and (code == 0 or output.count("\n") == 1), output


def test_a_plan_loads_no_numpy():
    """It takes as long to load as all else of the command."""
    words = ["plan", "--set", "effective_batch=64", "--set", "lr=0.1", "--gpus", "4", "--json"]
    program = f"import sys; from isobatch.cli import main; main({words}); sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True).returncode == 0
