"""Slurm's node lists: a rank finds rank 0's host by them."""

import pytest

from isobatch.errors import InputError
from isobatch.launch.environments import rank_variables

STEP = {
    "SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "0", "SLURM_NODEID": "3",
    "SLURM_STEP_TASKS_PER_NODE": "1(x4)",
}  # fmt: skip


@pytest.mark.parametrize(
    ("nodelist", "host"),
    [
        ("gpu[01-03,7],login", "gpu01"),
        ("rack[1-2]n[01-02]", "rack1n01"),
        ("a-b[098-100].x.y,c[1]", "a-b098.x.y"),
        ("127.0.0.1", "127.0.0.1"),
    ],
)
def test_rank_0_is_on_the_first_host_of_scontrol(nodelist, host):
    assert rank_variables(STEP | {"SLURM_STEP_NODELIST": nodelist})["MASTER_ADDR"] == host


@pytest.mark.parametrize("nodelist", ["n[1-2", "n[a-b]", "n[[1]]", ",b", "n1 n2"])
def test_a_list_of_another_form_is_refused(nodelist):
    with pytest.raises(InputError, match="SLURM_JOB_NODELIST must be a list such as"):
        rank_variables(STEP | {"SLURM_STEP_NODELIST": nodelist})
