"""Messages between ranks: read where it is signed for its place to the last bit, and never executed."""

import math
import pickle
import re
import socket
import stat
import threading
import time
from collections import OrderedDict
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

import isobatch as ib

torch = pytest.importorskip("torch", reason="survivors drives a torch training")

from torch import nn  # noqa: E402

from ddp import mutations, surviving  # noqa: E402
from ddp.stranger import Canary  # noqa: E402
from isobatch.elastic import parcels  # noqa: E402
from isobatch.elastic import server as stores  # noqa: E402
from isobatch.elastic.group import _meet  # noqa: E402
from isobatch.elastic.membership import START, Membership  # noqa: E402
from isobatch.elastic.messages import (  # noqa: E402
    MAX_BYTES,
    NEW,
    OUT,
    Beat,
    Circle,
    Held,
    Here,
    Roster,
    RunFacts,
    Saved,
    Seal,
    Seat,
    find_key,
    key_for,
    make_key,
    name_of,
)
from isobatch.elastic.store import Beats, Store  # noqa: E402
from isobatch.elastic.training import TrainingState  # noqa: E402
from isobatch.integrations.torch import survivors  # noqa: E402
from isobatch.training import exchange  # noqa: E402

PACKAGE = Path(ib.__file__).parent
KEY = Seal(b"the key of this run alone")


@pytest.fixture
def store(raw):
    return Store(f"127.0.0.1:{raw.port}", 5.0, KEY)


# ---- no pickle ----

UNPICKLING = re.compile(
    r"\b(all_gather_object|broadcast_object_list|gather_object|scatter_object_list|send_object_list"
    r"|recv_object_list|Unpickler|from (pickle|marshal) import"
    r"|(pickle|marshal|dill|cloudpickle|shelve)\.loads?)\b"
    r"|[=(\[,] ?torch\.load\((?!.*weights_only=True)"
)


def test_nothing_that_a_peer_sends_is_unpickled():
    """Except files that this process's own children wrote, in a folder of its own."""
    calls = [
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if UNPICKLING.search(path.read_text())
    ]
    assert calls == ["validate/launching.py"]


def test_no_clock_counts_in_the_crews_of_a_run():
    for path in (PACKAGE / "elastic").glob("*.py"):
        assert not re.search(r"\btime\.time|datetime\.now|import time\b", path.read_text()), path


# ---- signatures ----


def test_mutations_of_every_message_are_refused():
    outcomes = mutations.play(20_000)
    assert outcomes["refused"] > 18_000
    too_large = KEY.write("saved", RunFacts({"x": "y" * MAX_BYTES}))
    assert KEY.read("saved", too_large, RunFacts) is None


def test_a_name_with_a_bar_or_a_line_s_end_stays_one_rank(store):
    members = Membership(store, "a|b\nc 5", ranks=1, min_ranks=1, lease=2.0, timeout=5.0)
    table = members.form(NEW, NEW)
    assert [name_of(member) for member in table.ids] == ["a|b\nc 5"]
    assert not Beats(store, 2.0).gone(members.id)
    members.leave()
    assert Beats(store, 2.0).gone(members.id)


# ---- the store ----

GARBAGE = [b"", b"\0nothing", b"\xff\x00", b"not signed", b"0" * 64 + b" {}", b"x" * (5 << 20)]
GARBAGE += [pickle.dumps({})]


@pytest.mark.parametrize("garbage", GARBAGE, ids=range(len(GARBAGE)))
def test_a_strangers_message_is_replaced_by_a_signed_one(store, raw, garbage):
    raw.set("run/saved", garbage)
    raw.set("run/lines", garbage + b"\n")
    assert store.read("saved", Saved) is None
    assert store.messages("lines", Saved) == []
    assert store.messages("lines", Saved, Saved(1)) == [Saved(1)]
    assert store.once("saved", Saved(3)) == Saved(3)
    assert store.once("saved", Saved(4)) == Saved(3)
    raw.append("run/lines", garbage + b"\n")
    assert store.messages("lines", Saved, Saved(1)) == [Saved(1)]


def test_another_key_or_none_is_refused_by_name(store, raw):
    store.check_key()
    address = f"127.0.0.1:{raw.port}"
    for seal, own in (Seal(b"the key of another run"), "another"), (Seal(), "none"):
        with pytest.raises(
            ib.InputError,
            match=f"the run 'run' of the store at {address} has a key, and this rank has {own}: set ISO",
        ):
            Store(address, 5.0, seal).check_key()
    Store(address, 5.0, Seal(b"the key of another run", "another run")).check_key()
    # Whoever says that the key is another, where the run's own facts are there.
    store.write("facts", RunFacts({}))
    raw.set("run/key", "0123456789abcdef")
    store.check_key()


def test_a_newcomer_s_vote_is_none(raw, store):
    """He joins with the run's key and a claimed step of a million."""
    rank = Membership(store, "r0", ranks=1, min_ranks=1, lease=2.0, timeout=5.0)
    first = rank.form(NEW, NEW)
    late = Membership(store, "late", ranks=1, min_ranks=1, lease=2.0, timeout=5.0)
    store.add(f"{first.mark}/in", Seat(late.id, 10**6))
    table = rank.form(7, OUT)
    assert [(seat.name, seat.vote) for seat in table.seats] == [("r0", 7), ("late", NEW)]
    rank.leave()
    late.leave()


def test_a_list_that_was_deleted_is_not_closed_anew(raw, store):
    """Nor is a rank in a crew formed without it."""
    rank, late = (Membership(store, f"r{n}", ranks=1, min_ranks=1, lease=1.0, timeout=5.0) for n in range(2))
    first = rank.form(NEW, NEW)
    old = rank.table
    raw.delete_key(f"run/{START.mark}/next")
    raw.set(f"run/{first.mark}/next", b"not signed")
    assert rank.is_current()
    second = rank.form(3, OUT)
    raw.delete_key(f"run/{first.mark}/next")
    rank.table = old  # As one that was paused.
    assert not rank.is_current()
    rank.table = second
    rank.publish(store)
    assert late._next(START) == first
    for member in rank, late:
        member.leave()


def test_a_beat_of_a_stranger_ends_no_rank(raw, store):
    members = Membership(store, "r0", ranks=1, min_ranks=1, lease=0.3, timeout=5.0)
    beats, ended = Beats(store, 0.3), threading.Event()

    def answer():
        while not ended.wait(0.02):
            members.lifeline.answer()

    thread = threading.Thread(target=answer)
    thread.start()
    for written in (
        b"left",
        Seal().write(f"beat/{members.id}", Beat(0, is_last=True)),
        KEY.write("beat/x", Beat(9, is_last=True)),
    ):
        raw.set(f"run/beat/{members.id}", written)
        for _ in range(5):
            assert not beats.gone(members.id)
            time.sleep(0.1)
    ended.set()
    thread.join()
    time.sleep(0.4)
    assert beats.gone(members.id)  # It neither beats nor answers, as one that is paused.
    members.leave()


# ---- states ----


class Lambda:
    def state_dict(self):
        return {"schedule": [lambda step: step]}


TREE = {
    "betas": (0.9, 0.999),
    0: {"exp_avg": torch.tensor([[1.0, -0.0], [math.inf, 2**-149]], dtype=torch.bfloat16)},
    "whole": [
        torch.tensor(2**62 + 1),
        torch.tensor(True),
        torch.zeros(0, 3),
        torch.tensor(0.1, dtype=torch.float64),
    ],
    "complex": torch.tensor([1 + 2j]).conj(),
    "turned": torch.arange(6, dtype=torch.int16).view(2, 3).t(),
    "numbers": [0.1, 1e-320, math.inf, -math.inf, -0.0, 2**64, -(2**80), 3, True, False, None, 1.0],
    1: "one",
    "1": {"x": torch.ones(1), 1: torch.zeros(2), "1": torch.ones(3)},
    "text": "\n\u2028\0",
}


def test_a_state_comes_back_to_the_bit():
    layout, tensors = parcels.layout_of(TREE)
    sent, _ = parcels.read_layout(msgspec.json.encode(layout))
    again = parcels.read_tree(sent.tree, parcels.from_bytes(sent, parcels.to_bytes(layout, tensors)))
    assert repr(again) == repr(
        {**TREE, "turned": TREE["turned"].contiguous(), "complex": TREE["complex"].resolve_conj()}
    )
    assert [type(number) for number in again["numbers"]] == [type(number) for number in TREE["numbers"]]
    assert math.isnan(parcels.read_tree(parcels.write_tree(math.nan)[0], []))


def test_a_module_s_state_keeps_its_versions():
    state = nn.BatchNorm1d(2).state_dict()
    layout, tensors = parcels.layout_of(state)
    again = parcels.read_tree(layout.tree, tensors)
    assert type(again) is OrderedDict
    assert again._metadata == state._metadata


@pytest.mark.parametrize(
    ("state", "why"),
    [
        (
            {"a": [1, {2, 3}]},
            r"a.1 is a builtins.set, and must be made of numbers, texts, lists, .* never unpickled",
        ),
        ({"a": {("x", 1): 2}}, "a is a builtins.dict"),
        ({"a": torch.eye(2).to_sparse()}, "a is a torch.Tensor"),
        ({"a": torch.float32}, "a is a torch.dtype"),
    ],
)
def test_a_state_of_anything_else_is_refused_by_name(state, why):
    with pytest.raises(ib.InputError, match=why):
        parcels.layout_of(state)


def test_a_state_that_holds_itself_is_refused():
    state = {}
    state["self"] = state
    with pytest.raises(ib.InputError, match="nested too deeply"):
        parcels.layout_of(state)


def training_of(net, **extra):
    return TrainingState(net, torch.optim.AdamW(net.parameters()), extra)


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        (nn.Linear(4, 3), r"net.weight is float32 \(3, 4\) there, float32 \(2, 4\) here"),
        (nn.Linear(4, 2).double(), r"net.weight is float64 \(2, 4\) there, float32 \(2, 4\) here"),
        (nn.Linear(4, 2, bias=False), r"net.bias is missing there, float32 \(2,\) here"),
        (nn.Sequential(nn.Linear(4, 2)), r"net.weight is missing there"),
    ],
)
def test_a_state_unlike_this_rank_s_is_refused_by_name(sent, why):
    layout, tensors = training_of(sent).write()
    with pytest.raises(ib.InputError, match=f"the others' state does not fit here: {why}"):
        training_of(nn.Linear(4, 2)).check_layout(layout, tensors.numel())


def test_a_state_that_announces_other_bytes_than_it_describes_is_refused():
    layout, tensors = training_of(nn.Linear(4, 2)).write()
    with pytest.raises(ib.InputError, match="it is damaged"):
        training_of(nn.Linear(4, 2)).check_layout(layout, tensors.numel() + 1)


@pytest.mark.parametrize("how", ["unsigned", "another", "swapped", "huge"])
def test_a_rank_of_the_group_without_the_key_is_a_loss_and_no_vote(two, how):
    messages = two(surviving.forged, how)
    assert messages[0].startswith("gloo: ")


def test_ranks_that_drifted_apart_are_named(two):
    messages = two(surviving.drifted)
    assert "rank r1 had other weights than r0 at the same step, 5" in messages[0]


def test_bytes_that_are_not_the_announced_state_are_a_loss(two):
    assert two(surviving.changed_on_the_way)[1] == "gloo: what came is not the state that was announced"


def test_an_extra_with_a_function_ends_all_ranks_before_the_first_step(raw, monkeypatch):
    monkeypatch.delenv("ISOBATCH_RUN_KEY", raising=False)
    net = nn.Linear(1, 1)
    recipe = ib.Recipe(effective_batch=4, lr=0.1, optimizer="sgd", dataset_size=8, duration="2ep")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    address = f"127.0.0.1:{raw.port}"
    options = {"store": address, "ranks": 2, "lease": 2.0, "timeout": 20.0, "extra": {"own": Lambda()}}
    why = "extra.own.schedule.0 is a builtins.function"
    with pytest.raises(ib.InputError, match=why):
        next(survivors(recipe, net, optimizer, **options))
    waiting = Membership(Store(address, 5.0), "r1", ranks=2, min_ranks=1, lease=2.0, timeout=20.0)
    with pytest.raises(ib.InputError, match=f"rank .*: {why}"):
        waiting.form(NEW, NEW)
    waiting.leave()


# ---- keys ----


def test_a_key_is_of_the_environment_or_of_a_file(tmp_path):
    path = tmp_path / "run.key"
    key = make_key(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert find_key({"ISOBATCH_RUN_KEY_FILE": str(path)}) == key.encode()
    assert find_key({"ISOBATCH_RUN_KEY": f" {key}\n"}) == key.encode()
    assert find_key({"ISOBATCH_RUN_KEY": "none"}) == b""
    assert find_key({}) is None
    with pytest.raises(ib.InputError, match="cannot be written"):
        make_key(path)
    with pytest.raises(ib.InputError, match=r"cannot be read: .*No such file"):
        find_key({"ISOBATCH_RUN_KEY_FILE": str(tmp_path / "none.key")})
    with pytest.raises(
        ib.InputError, match="ISOBATCH_RUN_KEY must have a key of 16 characters or more, got 6"
    ) as error:
        find_key({"ISOBATCH_RUN_KEY": "secret"})
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o644, 0o640])
def test_a_key_file_that_others_can_read_is_named(monkeypatch, capsys, tmp_path, mode):
    path = tmp_path / "run.key"
    make_key(path)
    path.chmod(mode)
    expected = f"isobatch: {path}: others on this host can read or change the run's key: chmod 600\n"
    find_key({"ISOBATCH_RUN_KEY_FILE": str(path)})
    assert capsys.readouterr().err == expected * (mode in (0o644, 0o640))
    assert started(monkeypatch, capsys, {}, "127.0.0.2", path).err == expected * (mode in (0o644, 0o640))


def test_a_rank_without_a_key_trains_on_its_own_host_only(monkeypatch):
    monkeypatch.delenv("ISOBATCH_RUN_KEY", raising=False)
    monkeypatch.delenv("ISOBATCH_RUN_KEY_FILE", raising=False)
    assert key_for("127.0.0.1:1", is_local=True) == b""
    with pytest.raises(
        ib.InputError,
        match="the run's key is missing, and others may reach the store at node0:29400: set ISO",
    ):
        key_for("node0:29400", is_local=False)
    monkeypatch.setenv("ISOBATCH_RUN_KEY", "none")
    assert key_for("node0:29400", is_local=False) == b""


def test_a_store_that_cannot_listen_says_why(ran):
    with socket.create_server(("127.0.0.1", 0)) as server:
        in_use = str(server.getsockname()[1])
        for port, why in ("65536", "0 to 65535"), ("-1", "0 to 65535"), (in_use, "a free port"):
            assert f"--port must be {why}, got {port}" in ran(["store", "--port", port], 2).err
    printed = ran(["store", "--port", "0", "--bind", "192.0.2.254"], 2).err
    assert "--bind must be an address of this host, got '192.0.2.254'" in printed


def started(monkeypatch, capsys, environment, *words):
    """Returns the output of a store's process about its address and its key."""
    for name in "ISOBATCH_RUN_KEY", "ISOBATCH_RUN_KEY_FILE":
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with monkeypatch.context() as patch:  # Else it waits for its end.
        patch.setattr(stores.threading, "Event", lambda: SimpleNamespace(wait=lambda: None))
        stores.serve(0, *words)
    return capsys.readouterr()


def test_a_store_makes_a_key_and_says_it_once_and_listens_for_its_host_alone(monkeypatch, capsys, tmp_path):
    out, printed = started(monkeypatch, capsys, {})
    assert out.startswith("the store listens on 127.0.0.1, port ")
    assert len(find_key({"ISOBATCH_RUN_KEY": printed.split("ISOBATCH_RUN_KEY=")[1]})) == 43
    path = tmp_path / "run.key"
    out, printed = started(monkeypatch, capsys, {}, "127.0.0.2", path)
    assert out.startswith("the store listens on 127.0.0.2, port ")
    assert f"ISOBATCH_RUN_KEY_FILE={path}" in printed
    assert path.read_text().strip() not in printed


@pytest.mark.parametrize("is_loopback", [True, False])
def test_a_store_with_a_key_warns_where_its_host_s_name_is_of_loopback(
    monkeypatch, capsys, tmp_path, is_loopback
):
    path = tmp_path / "run.key"
    make_key(path)
    monkeypatch.setattr(stores, "own_address", lambda: "127.0.0.3")
    warning = (
        "isobatch store: this host's name is of loopback (127.0.0.3), and ranks on other hosts cannot reach "
        "it: give --bind HOST\n"
    )
    assert started(monkeypatch, capsys, {"ISOBATCH_RUN_KEY": "x" * 20}, "127.0.0.3").err == ""
    monkeypatch.setattr(stores, "is_local", lambda _: is_loopback)
    assert started(monkeypatch, capsys, {"ISOBATCH_RUN_KEY": "x" * 20}).err == warning * is_loopback
    assert started(monkeypatch, capsys, {}, None, path).err == warning * is_loopback


def test_a_store_s_key_file_wins_over_the_environment_and_is_made(monkeypatch, capsys, tmp_path):
    path, unused = tmp_path / "run.key", tmp_path / "unused.key"
    for environment in {"ISOBATCH_RUN_KEY_FILE": str(unused)}, {"ISOBATCH_RUN_KEY": "none"}:
        path.unlink(missing_ok=True)
        out, printed = started(monkeypatch, capsys, environment, "127.0.0.2", path)
        assert out.startswith("the store listens on 127.0.0.2")
        assert f"ISOBATCH_RUN_KEY_FILE={path}" in printed
        assert len(find_key({"ISOBATCH_RUN_KEY_FILE": str(path)})) == 43
    assert not unused.exists()


def test_a_store_is_open_only_where_it_is_asked_to_be(monkeypatch, capsys, ran):
    monkeypatch.setattr(stores, "own_address", lambda: "127.0.0.3")
    nowhere = {"ISOBATCH_RUN_KEY": "none"}
    assert started(monkeypatch, capsys, nowhere).out.startswith("the store listens on 127.0.0.1, port ")
    monkeypatch.setattr(stores, "is_local", lambda _: False)
    with pytest.raises(
        ib.InputError, match=r"the store has no key .*others reach it at 127.0.0.2: .* --open"
    ):
        started(monkeypatch, capsys, nowhere, "127.0.0.2")
    monkeypatch.setattr(stores, "serve", partial(stores.serve, is_open=True))
    assert started(monkeypatch, capsys, {}).out.startswith("the store listens on 127.0.0.3, port ")
    printed = ran(["store", "--port", "0", "--open", "--key-file", "run.key"], 2).err
    assert "--open uses no key: leave --key-file out" in printed


def test_a_store_listens_where_it_is_bound_and_nowhere_else(monkeypatch):
    listener = stores._listen("127.0.0.2", 0)
    port = listener.getsockname()[1]
    server = torch.distributed.TCPStore(
        "127.0.0.2", port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
    )
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=1)
    socket.create_connection(("127.0.0.2", port), timeout=1).close()
    del server


def test_a_host_s_own_address_is_one_that_it_has(monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "127.0.0.3")
    assert stores.own_address() == "127.0.0.3"
    monkeypatch.setattr(socket, "gethostname", lambda: "192.0.2.254")
    assert stores.own_address() == "127.0.0.1"


def test_a_rank_in_a_crew_is_known_by_the_list_that_all_have(store):
    """Two lists of one number, as a stranger may bring about by deleting the first: none of their ranks
    train.
    """
    ids = [f"r{rank}|127.0.0.1:1|{rank:032x}" for rank in range(2)]
    first, swapped = (Roster(1, tuple(Seat(name, 3) for name in names)) for names in (ids, ids[::-1]))
    store.add(f"{swapped.mark}/here", Here(ids[1]))
    with pytest.raises(RuntimeError, match="not all 2 ranks came"):
        _meet(store, first, 0, 0.2)


def test_a_vote_in_the_group_is_bound_by_the_list(monkeypatch):
    circle = surviving.circle_of(5, 5, NEW)
    every = [Held(6, True, "", None), Held(10**6, True, "", None), Held(5, True, "", None)]
    monkeypatch.setattr(Circle, "gather", lambda *_: every)
    states = circle.held("held", every[0])
    assert [(state.step, state.trained) for state in states] == [(6, True), (OUT, False), (OUT, False)]
    begins = surviving.circle_of(NEW, NEW, NEW).held("held", every[0])
    assert not any(state.trained for state in begins)


def test_a_value_that_is_too_large_is_not_sent():
    with pytest.raises(ValueError, match="too large to send: at most"):
        exchange.gather_bytes(bytes(exchange.MAX_BYTES + 1))


def test_a_lightning_checkpoint_executes_nothing(tmp_path):
    pytest.importorskip("lightning", reason="state_in reads its checkpoints")
    from isobatch.integrations.lightning import state_in

    torch.save({"isobatch": {"step": 3}, "state_dict": {"w": torch.ones(2)}}, tmp_path / "good.ckpt")
    assert state_in(str(tmp_path / "good.ckpt")) == {"step": 3}
    torch.save({"isobatch": Canary(tmp_path)}, tmp_path / "evil.ckpt")
    with pytest.raises(ib.InputError, match=r"evil.ckpt: the checkpoint cannot be read without executing"):
        state_in(str(tmp_path / "evil.ckpt"))
    with pytest.raises(ib.InputError, match="there is no such checkpoint"):
        state_in(str(tmp_path / "none.ckpt"))
    assert not (tmp_path / "CANARY").exists()
