"""Workloads of other libraries, as a user would save them.

The one that docs/validate.md shows, and a Lightning module.
"""

import re
from pathlib import Path

import msgspec
import pytest

import isobatch as ib

pytest.importorskip("torch", reason="the validator needs torch")

from ddp.validating import failed, validate
from isobatch.validate import Report, Verdict

PAGE = (Path(__file__).parents[2] / "docs" / "validate.md").read_text(encoding="utf-8")
MODULES = dict(re.findall(r"`(my_\w+)\.py`:\n\n```python\n(.*?)```", PAGE, re.DOTALL))
MODULES["my_lightning"] = """
import lightning.pytorch as pl
import torch

from isobatch.validate import Workload


class Classifier(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(20, 32), torch.nn.ReLU(), torch.nn.Linear(32, 5))

    def forward(self, x):
        return self.net(x)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def factory():
    def batch(n, generator, device):
        x = torch.randn(n, 20, generator=generator)
        return x.to(device), torch.randint(5, (n,), generator=generator).to(device)

    return Workload(
        model=Classifier(),
        optimizer=lambda params: torch.optim.AdamW(params, lr=1e-3),
        batch=batch,
        loss=lambda model, batch: torch.nn.functional.cross_entropy(model(batch[0]), batch[1]),
    )
"""


def test_the_page_shows_one():
    assert sorted(MODULES) == ["my_hf", "my_lightning"]


@pytest.mark.parametrize(("module", "library"), [("my_hf", "transformers"), ("my_lightning", "lightning")])
def test_a_workload_passes(two, tmp_path, module, library):
    pytest.importorskip(library, reason=f"the example uses {library}")
    (tmp_path / f"{module}.py").write_text(MODULES[module])
    recipe = ib.Recipe(effective_batch=16, lr=1e-3, dataset_size=100, duration="2ep", micro_batch=4)
    reports = two(
        validate,
        ib.plan(recipe, 2).to_json(),
        path=str(tmp_path),
        workload=f"{module}:factory",
        noise_steps=0,
    )
    report = msgspec.json.decode(reports[0], type=Report)
    assert failed(report) == {}
    assert report.proof("gradient").verdict is Verdict.PASS
