"""An engine that keeps gradients to itself is asked by what it does to the weights.

The engine is a stand-in with DeepSpeed's names: flat copies of the weights, a buffer for gradients that an
optimizer of its own takes, and weights that are written from the copies.
"""

import functools
import sys

import numpy as np
import pytest

pytest.importorskip("torch")

from isobatch.equivalence.commands.runs import Recorded, start_run
from isobatch.equivalence.records import Recording
from isobatch.equivalence.split import Split
from isobatch.launch.command_line import CPU

ENGINE = """
import torch
class DeepSpeedEngine(torch.nn.Module):
    def __init__(self, model, config):
        super().__init__()
        self.module, self._config, self.loses, self.passes = model, config, config.loses, 0
        self.flat = torch.nn.utils.parameters_to_vector(model.parameters()).detach().requires_grad_()
        self.basic_optimizer = torch.optim.SGD([self.flat], 0.5)
        self.flat.grad = torch.zeros_like(self.flat)
        self.basic_optimizer.step()  # makes the optimizer's state, as DeepSpeed does
        self.buffer = torch.zeros_like(self.flat)
        self.optimizer = self
    def forward(self, *args):
        return self.module(*args)
    def gradient_clipping(self):
        return self._config.gradient_clipping
    def get_global_grad_norm(self):
        return self.norm
    def backward(self, loss):
        (loss / self._config.accumulation).backward()
        gradients = torch.cat([p.grad.flatten() for p in self.module.parameters()])
        self.module.zero_grad()
        last = self.passes == self._config.accumulation - 1
        self.buffer = gradients if self.loses and not last and self.passes else self.buffer * (
            not (self.loses and last)) + gradients
        self.passes += 1
    def step(self):
        if self.passes == self._config.accumulation:
            self._take_model_step()
    def _take_model_step(self):
        self.norm = self.buffer.norm()
        if 0 < self.gradient_clipping() < self.norm:
            self.buffer *= self.gradient_clipping() / self.norm
        self.flat.grad, self.passes = self.buffer, 0
        self.basic_optimizer.step()
        torch.nn.utils.vector_to_parameters(self.flat.detach().clone(), self.module.parameters())
        self.buffer = torch.zeros_like(self.flat)
"""
FILES = {
    "deepspeed/__init__.py": "from . import comm, ops, runtime\n"
    "from .comm import torch\nfrom .ops import adam\n"
    "from .runtime import config, engine\ndef initialize(): raise NotImplementedError\n",
    "deepspeed/comm/__init__.py": "",
    "deepspeed/comm/torch.py": "def build_shm_op():\n    raise RuntimeError('a compiler is needed')\n",
    "deepspeed/ops/__init__.py": "",
    "deepspeed/ops/adam.py": "FusedAdam = DeepSpeedCPUAdam = None\n",
    "deepspeed/runtime/__init__.py": "",
    "deepspeed/runtime/config.py": """
class DeepSpeedConfig:
    def __init__(self, config):
        self.bf16 = config["bf16"]["enabled"]
        self.accumulation, self.loses = config["gradient_accumulation_steps"], config["loses"]
        self.gradient_clipping = config["gradient_clipping"]
""",
    "deepspeed/runtime/engine.py": ENGINE,
}
SCRIPT = """
import sys
import torch
from deepspeed.comm.torch import build_shm_op
from deepspeed.ops.adam import DeepSpeedCPUAdam, FusedAdam
from deepspeed.runtime.config import DeepSpeedConfig
from deepspeed.runtime.engine import DeepSpeedEngine
from torch.utils.data import DataLoader, TensorDataset
size, accumulation, loses = map(int, sys.argv[1:])
torch.manual_seed(0)
data = TensorDataset(torch.randn(32, 3), torch.randn(32, 1))
config = {
    **{"gradient_accumulation_steps": accumulation, "loses": loses},
    **{"bf16": {"enabled": True}, "gradient_clipping": 0.01},
}
configuration = DeepSpeedConfig(config)
assert build_shm_op() is None and not configuration.bf16
assert type(FusedAdam([torch.zeros(1)], lr=0.5, adam_w_mode=False)) is torch.optim.Adam
assert isinstance(DeepSpeedCPUAdam([torch.zeros(1)], lr=0.5), DeepSpeedCPUAdam)
engine = DeepSpeedEngine(torch.nn.Linear(3, 1), configuration)
for x, y in DataLoader(data, size):
    engine.backward(torch.nn.functional.mse_loss(engine(x), y))
    engine.step()
"""


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    folder = tmp_path_factory.mktemp("updates")
    for name, content in {**FILES, "script.py": SCRIPT}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)

    @functools.cache
    def run(text: str, *, loses: bool = False, steps: int = 2, singles: bool = False) -> Recording:
        split = Split.parse(text)
        words = [str(split.micro_batch), str(split.accumulation), str(int(loses))]
        settings = Recorded(str(folder / f"record-{split}-{loses}"), steps, singles=singles)
        line = [sys.executable, str(folder / "script.py"), *words]
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYTHONPATH", str(folder))
            finished = start_run(line, CPU, settings, split, 240)
        assert finished.recording is not None, finished.output
        return finished.recording

    return run


def test_gradients_are_read_from_the_weights_once_and_then_the_optimizer_takes_its_own_steps(record):
    whole, split = record("1x1x8"), record("1x4x2")
    optimizer = next(iter(whole.steps))[0]
    first, second = whole.of(optimizer)
    assert first.first.measured == "update" and first.first.names == ["weight", "bias"]
    assert split.of(optimizer)[0].gradients == pytest.approx(first.gradients, rel=1e-4)
    assert np.linalg.norm(first.gradients) > 0.1
    # The first step changes no weight; the second is SGD's own, by half of the gradient.
    assert first.after == pytest.approx(first.weights) and second.weights == pytest.approx(first.weights)
    assert second.weights - second.after == pytest.approx(second.gradients, abs=1e-6)
    (norm, limit), *_ = first.first.clips
    assert norm > limit == 0.01 and "bf16 of DeepSpeed off" in first.first.notes["off"]


def test_passes_that_an_engine_loses_are_missing_in_the_update(record):
    whole, lost = record("1x1x8"), record("1x4x2", loses=True)
    event = next(iter(whole.steps))
    assert np.linalg.norm(lost.steps[event].gradients) < 0.9 * np.linalg.norm(whole.steps[event].gradients)


def test_samples_are_steps_of_their_own_that_change_no_weight(record):
    whole = record("1x1x8")
    singles = record("1x1x1", steps=8, singles=True)
    gradients = np.stack([step.gradients[0] for step in singles.steps.values()])
    assert len(gradients) == 8
    assert gradients.mean(0) == pytest.approx(next(iter(whole.steps.values())).gradients[0], rel=1e-4)


def test_an_engine_that_runs_on_a_gpu_alone_is_named(tmp_path, monkeypatch):
    optimizer = tmp_path / "megatron" / "core" / "optimizer" / "distrib_optimizer.py"
    optimizer.parent.mkdir(parents=True)
    optimizer.write_text("class DistributedOptimizer:\n    pass\n")
    script = tmp_path / "script.py"
    imports = "import torch\nfrom megatron.core.optimizer.distrib_optimizer import DistributedOptimizer\n"
    script.write_text(imports + "optimizer = DistributedOptimizer()\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    settings = Recorded(str(tmp_path / "record"), 1)
    run = start_run([sys.executable, str(script)], CPU, settings, Split(1, 1, 1), 240)
    assert run.recording is None and run.code == 1
    assert "script.py" in run.output and "cannot ask Megatron's DistributedOptimizer here" in run.output
