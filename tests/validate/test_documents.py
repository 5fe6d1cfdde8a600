"""The workloads that docs/validate.md shows, as a user would save them."""

import re
from pathlib import Path

import msgspec
import pytest

import isobatch as ib

pytest.importorskip("torch", reason="the validator needs torch")

from ddp.validating import failed, validate
from isobatch.validate import Report, Verdict

PAGE = (Path(__file__).parents[2] / "docs" / "validate.md").read_text(encoding="utf-8")
MODULES = dict(re.findall(r"as `(my_\w+)\.py`:\n\n```python\n(.*?)```", PAGE, re.DOTALL))


def test_the_page_shows_two():
    assert sorted(MODULES) == ["my_hf", "my_lightning"]


@pytest.mark.parametrize(("module", "library"), [("my_hf", "transformers"), ("my_lightning", "lightning")])
def test_a_workload_of_the_page_passes(two, tmp_path, module, library):
    pytest.importorskip(library, reason=f"the example uses {library}")
    (tmp_path / f"{module}.py").write_text(MODULES[module])
    recipe = ib.Recipe(effective_batch=16, lr=1e-3, dataset_size=100, duration="2ep", micro_batch=4)
    told = two(
        validate,
        ib.plan(recipe, 2).to_json(),
        path=str(tmp_path),
        workload=f"{module}:factory",
        noise_steps=0,
    )
    report = msgspec.json.decode(told[0], type=Report)
    assert failed(report) == {}
    assert report.proof("gradient").verdict is Verdict.PASS
