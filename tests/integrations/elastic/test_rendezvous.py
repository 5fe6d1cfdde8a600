"""Addresses of ranks reach gloo only if a rank of the run has signed them for their place."""

from datetime import timedelta

import pytest

torch = pytest.importorskip("torch", reason="survivors drives a torch training")

import torch.distributed as dist  # noqa: E402

from ddp import surviving  # noqa: E402
from ddp.crews import Ranks  # noqa: E402
from ddp.stranger import Poisoner  # noqa: E402
from isobatch.elastic import group as groups  # noqa: E402
from isobatch.elastic.group import CrewGroup, is_loss  # noqa: E402
from isobatch.elastic.messages import MAX_BYTES, Roster, Seal, Seat  # noqa: E402
from isobatch.elastic.rendezvous import Rendezvous  # noqa: E402
from isobatch.elastic.store import Store  # noqa: E402

KEY = Seal(b"the key of this run alone")


@pytest.fixture
def connected(store):
    """Makes a rank's rendezvous, of a crew and a lease."""
    return lambda mark="3-ab", seal=KEY, lease=0.2: Rendezvous(
        Store(store, 5.0, seal), mark, lease, lambda: None
    )


STRANGE = {
    "empty": lambda *_: b"",
    "garbage": lambda *_: b"\xff" * 16,
    "truncated": lambda written, _: written[:-9],
    "longer": lambda written, _: written + b"x",
    "oversized": lambda *_: b"x" * (MAX_BYTES + 1),
    "another rank's": lambda _, others: others[0],
    "another list's": lambda _, others: others[1],
    "another run's": lambda _, others: others[2],
    "another key's": lambda _, others: others[3],
}


@pytest.mark.parametrize("strange", STRANGE.values(), ids=STRANGE)
def test_a_value_that_no_rank_signed_for_its_place_is_not_there(connected, raw, strange):
    rank, keys = connected(), []
    others = [
        (connected(), "cpu/1", "run/3-ab/group/cpu/1"),
        (connected("2-ab"), "cpu/0", "run/2-ab/group/cpu/0"),
        (connected(seal=Seal(b"the key of this run alone", "other")), "cpu/0", "other/3-ab/group/cpu/0"),
        (connected("4-ab", Seal(b"the key of a stranger")), "cpu/0", "run/4-ab/group/cpu/0"),
    ]
    for peer, key, place in others:
        peer.set(key, b"an address")
        keys.append(raw.get(place))
    rank.set("cpu/0", b"an address")
    assert connected().get("cpu/0") == b"an address"
    raw.set("run/3-ab/group/cpu/0", strange(raw.get("run/3-ab/group/cpu/0"), keys))
    reader = connected()
    assert not reader.check(["cpu/0"])
    with pytest.raises(dist.DistStoreError, match="no rank wrote cpu/0 for the process group"):
        reader.wait(["cpu/0"], timedelta(seconds=0.1))
    rank.keep(rank._store)  # Its owner writes it again.
    assert reader.get("cpu/0") == b"an address"


def test_torch_s_other_questions_are_answered_for_signed_values(connected, raw):
    rank = connected()
    raw.set("run/3-ab/group/count", "99")
    assert [rank.add("count", 2), connected().add("count", 3)] == [2, 5]
    assert rank.delete_key("count")
    assert not rank.delete_key("count")
    prefixed = dist.PrefixStore("cpu", rank)  # As torch does, whose C++ then calls it.
    prefixed.set("0", "an address")
    assert prefixed.get("0") == b"an address"
    assert rank.check(["cpu/0"])


def test_a_wait_ends_with_the_crew(store):
    def over():
        raise RuntimeError("gloo: the group was cut")

    with pytest.raises(RuntimeError, match="was cut"):
        Rendezvous(Store(store, 5.0, KEY), "3-ab", 60.0, over).get("cpu/0")


@pytest.mark.parametrize("error", [ValueError("basic_string::_M_create"), MemoryError(), TypeError("no")])
def test_each_error_of_forming_is_a_loss_of_its_list(store, monkeypatch, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(groups.dist, "init_process_group", fail)
    group, table = CrewGroup(), Roster(0, (Seat("r0|127.0.0.1:1|" + "0" * 32, 0),))
    group.begin()
    with pytest.raises(RuntimeError, match="the process group was not formed") as caught:
        group.form(Store(store, 5.0, KEY), table, 0, cuda=False, lease=2.0, timeout=5.0)
    assert is_loss(caught.value)


@pytest.mark.parametrize(
    "value",
    [b"\xff" * 16, *(pytest.param(value, marks=pytest.mark.slow) for value in (b"", b"x" * (5 << 20)))],
)
def test_a_stranger_who_poisons_the_addresses_ends_no_rank(tmp_path, value):
    options = {"ranks": 2, "min_ranks": 1, "lease": 5.0, "timeout": 60.0, "steps": 30, "pause": 0.05}
    options |= {"recipe": {"warmup": "5st"}, "environment": {"ISOBATCH_RUN_KEY": "the-key-of-this-run-alone"}}
    with Ranks(tmp_path, options) as ranks:
        poisoner = Poisoner(f"127.0.0.1:{ranks.port}", value)
        poisoner.start()
        ranks.start_all()
        ranks.finish(surviving.undisturbed(options), {"r0": 0, "r1": 0})
        poisoner.end()
    assert poisoner.writes > 10
