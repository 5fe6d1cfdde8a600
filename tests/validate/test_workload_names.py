"""A workload's name that leads nowhere: the user's own function is named, and what to write."""

import pytest

import isobatch as ib

pytest.importorskip("torch")

from isobatch.validate.workload import factory_of, load

PLAN = ib.plan(ib.Recipe(effective_batch=8, lr=0.1), 2)


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch):
    (tmp_path / "its_work.py").write_text("def needs(a, b=1): pass\ndef none(): pass\n")
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.parametrize("name", ["work.py:factory", "./work.py:factory"])
def test_a_file_is_no_module(name):
    with pytest.raises(ib.InputError, match="name the module, not its file: work:factory"):
        factory_of(name)


def test_a_factory_with_arguments_is_named():
    with pytest.raises(ib.InputError, match="its_work:needs must be a function without arguments.* needs a"):
        load("its_work:needs", PLAN, 1000)
    with pytest.raises(ib.InputError, match=r"its_work:none must return an isobatch\.validate\.Workload"):
        load("its_work:none", PLAN, 1000)
