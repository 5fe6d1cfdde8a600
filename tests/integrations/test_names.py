"""The integrations by their attributes, as documents write them."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "name", ["torch.PlanLR", "lightning.configure_optimizers", "transformers.optimizers"]
)
def test_an_integration_is_there_after_importing_isobatch(name):
    pytest.importorskip("torch", reason="the integrations are of torch")
    program = f"import isobatch, sys; assert 'torch' not in sys.modules; print(isobatch.integrations.{name}.__name__)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == name.split(".")[1], done.stderr


def test_what_is_none_is_said():
    import isobatch

    with pytest.raises(AttributeError, match="no attribute 'keras'"):
        isobatch.integrations.keras  # noqa: B018
