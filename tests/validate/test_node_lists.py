"""Slurm's node lists: a rank finds rank 0's host by them."""

import pytest

from isobatch.errors import InputError
from isobatch.launch.environments import rank_variables, slurm_hosts


@pytest.mark.parametrize(
    ("nodelist", "hosts"),
    [
        ("gpu[01-03,7],login", ["gpu01", "gpu02", "gpu03", "gpu7", "login"]),
        ("rack[1-2]n[01-02]", ["rack1n01", "rack1n02", "rack2n01", "rack2n02"]),
        ("a-b[098-100].x.y,c[1]", ["a-b098.x.y", "a-b099.x.y", "a-b100.x.y", "c1"]),
        ("127.0.0.1", ["127.0.0.1"]),
        ("", []),
    ],
)
def test_hosts_are_those_of_scontrol(nodelist, hosts):
    assert slurm_hosts(nodelist) == hosts


@pytest.mark.parametrize("nodelist", ["n[1-2", "n[a-b]", "n[[1]]", "a,,b", "n[1-]", "n1 n2"])
def test_a_list_of_another_form_is_refused(nodelist):
    with pytest.raises(InputError, match="SLURM_JOB_NODELIST must be a list such as"):
        slurm_hosts(nodelist)


def test_rank_0_is_on_the_first_host():
    step = {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "0", "SLURM_NODEID": "3"}
    nodes = {"SLURM_STEP_NODELIST": "rack[1-2]n[01-02]", "SLURM_STEP_TASKS_PER_NODE": "1(x4)"}
    assert rank_variables(step | nodes)["MASTER_ADDR"] == "rack1n01"
