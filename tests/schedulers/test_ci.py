"""Examples of docs/ci.md: a test of three lines around `same`, and the hook of pre-commit."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from isobatch.cli import parser_of

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/ci.md").read_text(encoding="utf-8")
SCRIPT = """
import argparse
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--bs", type=int)
parser.add_argument("--accum", type=int)
args = parser.parse_args()
torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.randn(64, 4))
loader = iter(torch.utils.data.DataLoader(data, args.bs))
net = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(4):
    for _ in range(args.accum):
        (batch,) = next(loader)
        (net(batch).pow(2).mean() / DIVISOR).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("divisor", "passes"), [("args.accum", True), ("1", False)])
def test_the_test_of_three_lines_fails_where_accumulation_is_another_training(tmp_path, divisor, passes):
    pytest.importorskip("torch", reason="same starts a torch training")
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "test_training.py").write_text(code)
    (tmp_path / "train.py").write_text(SCRIPT.replace("DIVISOR", divisor))
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_training.py"]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    how = {"cwd": tmp_path, "env": {**os.environ, "PATH": path}, "timeout": 300}
    run = subprocess.run(words, capture_output=True, text=True, **how)
    assert (run.returncode == 0) == passes, run.stdout + run.stderr
    assert "1 passed" in run.stdout if passes else "Not the same training" in run.stdout


def hooks():
    """Reads the repository's hook and the page's."""
    blocks = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)]
    (config,) = [block for block in blocks if "repos" in block]
    (own,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    return {"own": own, "page": config["repos"][0]["hooks"][0]}


@pytest.mark.parametrize("name", ["own", "page"])
def test_the_hook_is_a_command_on_several_files(name):
    hook = hooks()[name]
    program, command, *words = shlex.split(hook["entry"])
    args = parser_of(command).read([*words, "--gpus", "8", "configs/a.yaml", "configs/b.yaml"])
    assert (program, command, args.file) == ("isobatch", "doctor", ["configs/a.yaml", "configs/b.yaml"])
    assert (hook["id"], hook["language"]) == ("isobatch-doctor", "python")
    assert any(re.match(r"PyYAML|isobatch\[fleet\]", line) for line in hook["additional_dependencies"])
    pattern = re.compile(hook["files"])
    assert not pattern.search("pyproject.toml") and not pattern.search("package.json")
    files = {"own": "runs/training_args.json", "page": "configs/axolotl.yaml"}
    assert pattern.search(files[name])


@pytest.mark.parametrize(
    ("file", "is_taken"),
    [
        ("configs/accelerate.yaml", True),
        ("configs/ds_zero3.json", True),
        ("configs/llama3_lora.axolotl.yaml", True),
        ("configs/llama3_8b.titan.toml", True),
        ("run_megatron.sh", True),
        ("deepspeed/README.md", False),
        ("data/records_2.json", False),
        ("configs/deploy.yaml", False),
        ("control.yaml", False),
    ],
)
def test_the_hook_takes_files_with_a_tools_name(file, is_taken):
    assert bool(re.search(hooks()["own"]["files"], file)) == is_taken


def test_the_workflow_fails_where_the_batch_grew_with_the_gpus(tmp_path, ran):
    (line,) = re.findall(r"- run: isobatch (doctor .*)", PAGE)
    command, _, *options = shlex.split(line)
    file = tmp_path / "llama.axolotl.yaml"
    text = "base_model: x\nmicro_batch_size: {}\ngradient_accumulation_steps: {}\nlearning_rate: 1e-4\n"
    file.write_text(text.format(2, 4))
    assert "8 × the 64 that it was tuned with" in ran([command, str(file), *options], 1).out
    file.write_text(text.format(1, 1))
    ran([command, str(file), *options])
