"""A small float64 training among ranks that are killed, paused and joined; run as a process for each rank:

python tests/ddp/surviving.py STORE FOLDER NAME OPTIONS

OPTIONS is JSON: ranks, min_ranks, lease, timeout, seed (of the weights), recipe (its fields), steps (of
the run), kills (a step and a place in it, where the rank gets `signal`, else SIGKILL), inside (the loop
in `with crew:`), workers, stuck (they hang), killed (a step in which one is killed), pause (seconds a
step), check (ask for the state every ten steps), disk (where checkpoints are written), gpus (0: on the CPU),
shards (the ranks of a replica, under
fully_shard), clip (the gradient's norm), gloo (also on GPUs), leaves (nothing sharded), deaf (a step at
which this rank does not hear that all are about to apply it), tears (a step that an error interrupts when
half of it is applied), scaler (a GradScaler
multiplies the loss), fails (a step in which its GPU fails), own (floats of a collective of the
training's own in each step), unwrapped (no crew.wrap), compiled, chunk, dropout, phases (log when each part
of forming begins and ends), netns (the network namespace to be in), environment (variables, as of a key).
"""

import hashlib
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
import warnings
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import mse_loss

import isobatch as ib
from isobatch.elastic import collectives, healing
from isobatch.elastic import survivors as survivors_module
from isobatch.elastic.crew import Crew
from isobatch.elastic.group import CrewGroup, is_loss
from isobatch.elastic.membership import Membership
from isobatch.elastic.messages import OUT, Circle, Held, Roster, Seal, Seat
from isobatch.integrations.torch import ElasticRun, LeftOut, survivors

PLACES = ("forward", "between", "reduced", "applying", "applied", "scheduled", "end")
RECIPE = {"effective_batch": 24, "lr": 0.01, "optimizer": "adamw", "dataset_size": 500, "warmup": "20st"}
SETTINGS = {"max_micro_batch": 3, "split": "uneven"}


class ByHalves(torch.optim.AdamW):
    """Of two groups; something may happen between them in a step."""

    between = staticmethod(lambda: None)

    def _init_group(self, group, *args):
        if group is self.param_groups[1]:
            self.between()
        return super()._init_group(group, *args)


class Averages:
    """An average of the weights, which the loop moves after each step."""

    def __init__(self, net: nn.Module) -> None:
        self.net, self.kept = net, [parameter.detach().clone() for parameter in net.parameters()]

    def move(self) -> None:
        for average, parameter in zip(self.kept, self.net.parameters(), strict=True):
            average.lerp_(parameter.detach(), 0.1)

    def final(self):
        """Returns the weights and their averages."""
        return {**self.net.state_dict(), **{f"average {n}": value for n, value in enumerate(self.kept)}}

    def state_dict(self):
        return {"average": self.kept}

    def load_state_dict(self, state):
        self.kept = [value.clone() for value in state["average"]]


def made(seed: int = 0, device: torch.device | str = "cpu", dropout: float = 0.0):
    if torch.device(device).type == "cuda":
        torch.cuda.set_device(device)
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(1)
    x = torch.randn(500, 8)
    data = torch.utils.data.TensorDataset(torch.arange(500), x, torch.sin(x.sum(1, keepdim=True)))
    torch.manual_seed(seed)
    layers = [
        nn.Linear(8, 32),
        nn.Tanh(),
        nn.Dropout(dropout),
        nn.Linear(32, 32),
        nn.Tanh(),
        nn.Linear(32, 1),
    ]
    net = nn.Sequential(*layers).to(device)
    parameters = [*net.parameters()]
    halves = [{"params": parameters[:3]}, {"params": parameters[3:]}]
    optimizer = ByHalves(halves, lr=0.01, foreach=False)
    return data, net, optimizer, Averages(net)


def recipe_of(options) -> ib.Recipe:
    return ib.Recipe(**{**RECIPE, "duration": f"{options.get('steps', 84)}st", **options.get("recipe", {})})


def undisturbed(options) -> tuple[dict, dict]:
    """The same run on one rank: each step's samples and learning rate; the weights and their averages."""
    before = torch.get_default_dtype()
    data, net, optimizer, averages = made(dropout=options.get("dropout", 0.0))
    run = ElasticRun(recipe_of(options), **SETTINGS, chunk=options.get("chunk"))
    model = run.wrap(net)
    scheduler, steps = run.scheduler(optimizer), {}
    for step in run.steps(run.loader(data)):
        ids: list[int] = []
        for micro in step:
            index, x, y = micro.batch
            with micro.sync(model):
                (mse_loss(model(x), y) * micro.weight).backward()
            ids += index.tolist()
        if options.get("clip"):
            nn.utils.clip_grad_norm_(net.parameters(), options["clip"])
        steps[step.number] = sorted(ids), optimizer.param_groups[0]["lr"]
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        averages.move()
    torch.set_default_dtype(before)
    return steps, averages.final()


def shard(net, mesh) -> None:
    for layer in net:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)


PHASES = {"agree": (Membership, "form"), "form": (CrewGroup, "form"), "heal": (survivors_module, "heal")}
"""The parts of a crew's making that have a function; what is before the first is the detection."""


def _say_phases(say) -> None:
    """Logs when each part begins and ends."""
    for phase, (owner, name) in PHASES.items():
        setattr(owner, name, _around(getattr(owner, name), phase, say))


def _around(function, phase, say):
    def around(*args, **options):
        say(begins=phase)
        result = function(*args, **options)
        say(ends=phase)
        return result

    return around


def write(disk: Path, net, optimizer, crew) -> None:
    """Writes a checkpoint."""
    state = {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "run": crew.run.state_dict()}
    torch.save(state, disk / "checkpoint.new")
    (disk / "checkpoint.new").replace(disk / "checkpoint.pt")


def train(store: str, folder: Path, name: str, options: dict) -> None:
    gpus = options.get("gpus", 0)
    device = torch.device("cuda", int(name) % gpus) if gpus else torch.device("cpu")
    data, net, optimizer, averages = made(options.get("seed", 0), device, options.get("dropout", 0.0))
    log = (folder / f"log-{name}-{os.getpid()}.jsonl").open("w", buffering=1)

    def say(**facts):
        log.write(json.dumps({"t": time.time(), **facts}) + "\n")

    kills = {tuple(value) for value in options.get("kills", [])}

    def at(step: int, where: str) -> None:
        if (step, where) in kills:
            kills.discard((step, where))
            say(kill=where, step=step)
            os.kill(os.getpid(), getattr(signal, options.get("signal", "SIGKILL")))

    def torn() -> None:
        at(step.number, "applying")
        if step.number == options.get("tears"):
            time.sleep(1.0)  # Until the others are in their step too.
            raise RuntimeError("gloo: the connection was closed")

    optimizer.between = torn
    form = CrewGroup.form

    def formed(group, members, table, *args, **settings):
        at(table.number, "forming")
        form(group, members, table, *args, **settings)
        at(table.number, "healing")

    CrewGroup.form = formed
    new_group = torch.distributed.new_group

    def connecting(*args, **settings):
        if any(where == "connecting" for _, where in kills):
            # A moment later its address is known, and it is gone.
            say(kill="connecting")
            threading.Timer(0.003, os.kill, (os.getpid(), signal.SIGKILL)).start()
        return new_group(*args, **settings)

    torch.distributed.new_group = connecting
    commit = Crew.commit

    def committed(crew, step):
        commit(crew, step)
        if step - 1 == options.get("deaf"):
            crew._training.prepare(step)
            raise RuntimeError("gloo: the connection was closed")

    Crew.commit = committed
    if options.get("phases"):
        _say_phases(say)
    if options.get("gloo"):
        collectives._C10D.ProcessGroupNCCL = collectives._C10D.ProcessGroupGloo
    timing = {key: options[key] for key in ("ranks", "min_ranks", "lease", "timeout") if key in options}
    shards = options.get("shards", 1)
    if shards > 1:
        timing |= {"shard": (lambda *_: None) if options.get("leaves") else shard, "shards": shards}
    else:
        timing["extra"] = {"averages": averages}
    scaler = torch.amp.GradScaler(
        "cpu", init_scale=64.0, growth_interval=50, enabled=options.get("scaler", False)
    )
    if options.get("scaler"):
        timing["extra"]["scaler"] = scaler
    timing |= {"store": store, "name": name, "chunk": options.get("chunk"), **SETTINGS}
    crews = survivors(recipe_of(options), net, optimizer, **timing)
    for crew in crews:
        say(crew=crew.number, rank=crew.rank, of=crew.size, at=crew.run.position.step)
        with crew if options.get("inside") else nullcontext():
            own = {"device_ids": [device.index]} if gpus else {}
            model = net if options.get("unwrapped") else crew.wrap(net, **own)
            if options.get("compiled"):
                model = torch.compile(model, backend="eager")
            own = {"worker_init_fn": lambda _: time.sleep(3600)} if options.get("stuck") else {}
            own |= {"num_workers": options.get("workers", 0), "equal_passes": shards > 1}
            loader = crew.run.loader(data, **own)
            for step in crew.run.steps(loader):
                ids: list[int] = []
                at(step.number, "forward")
                if step.number == options.get("killed"):
                    os.kill(multiprocessing.active_children()[0].pid, signal.SIGKILL)
                if step.number == options.get("fails"):
                    raise RuntimeError("ProcessGroupNCCL: CUDA error: an illegal memory access was met")
                for micro in step:
                    index, x, y = micro.batch
                    ids += [] if micro.stand_in else index.tolist()
                    if micro.last:
                        say(take=step.number, crew=crew.number, ids=ids, lr=optimizer.param_groups[0]["lr"])
                    with micro.sync(model):
                        loss = mse_loss(model(x.to(device)), y.to(device)) * micro.weight
                        if not micro.last:
                            at(step.number, "between")
                        scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
                if options.get("clip"):
                    nn.utils.clip_grad_norm_(net.parameters(), options["clip"])
                at(step.number, "reduced")
                scaler.step(optimizer)
                scaler.update()
                at(step.number, "applied")
                crew.scheduler.step()
                at(step.number, "scheduled")
                optimizer.zero_grad()
                if options.get("own"):
                    torch.distributed.broadcast(torch.ones(options["own"]), 0)
                if shards == 1:
                    averages.move()
                if not crew.void:
                    say(done=step.number, crew=crew.number, of=crew.size)
                at(step.number, "end")
                time.sleep(options.get("pause", 0.0))
                if step.number % 10 == 9 and crew.rank == 0 and options.get("check"):
                    say(state=crew.run.state_dict()["step"])
                    if "disk" in options:
                        write(Path(options["disk"]), net, optimizer, crew)
    final = averages.final()
    if shards > 1:
        shard_of_rank = {key: value.to_local().detach() for key, value in net.named_parameters()}
        final = {"place": (crew.rank % shards, shards), **shard_of_rank}
    torch.save(final, folder / f"final-{name}-{os.getpid()}.pt")
    say(ended=True)


class Unsendable:
    def state_dict(self):
        raise RuntimeError("it holds a file")


def circle_of(*votes: int, key: bytes = b"") -> Circle:
    """The ranks of the present group, as they would have come into a crew with these votes."""
    seats = tuple(Seat(f"r{rank}|127.0.0.1:1|{rank:032x}", vote) for rank, vote in enumerate(votes))
    return Circle(Seal(key), Roster(3, seats))


def healed() -> str:
    """A rank's error where a new rank is healed from a state with a value that cannot be sent."""
    _, net, optimizer, _ = made()
    training = healing.TrainingState(net, optimizer, {"extra": Unsendable()})
    ahead = torch.distributed.get_rank() == 0
    try:
        state = Held(5 if ahead else OUT, ahead, str(ahead), None)
        healing.heal(training, state, 5.0, circle_of(5, OUT))
    except ib.InputError as error:
        return str(error)
    finally:
        torch.set_default_dtype(torch.float32)
    return "healed"


def forged(how: str) -> str:
    """Rank 0's error where rank 1 lacks the run's key, and claims to be far ahead."""
    own = torch.distributed.get_rank() == 0
    circle = circle_of(5, 5, key=b"" if not own and how == "unsigned" else b"the key of this run")
    if not own and how == "another":
        circle = circle_of(5, 5, key=b"the key of another run")
    if not own and how == "huge":
        torch.distributed.all_gather(
            [torch.zeros(1, dtype=torch.long) for _ in range(2)], torch.tensor([1 << 40])
        )
        return ""
    try:
        circle.gather("answer" if not own and how == "swapped" else "held", Held(5, True, "", None))
    except RuntimeError as error:
        return str(error)
    return "read"


def drifted() -> str:
    """Returns the warnings where two ranks of a crew hold other weights at the same step."""
    _, net, optimizer, _ = made()
    training = healing.TrainingState(net, optimizer, {})
    checksum = training.checksum() if torch.distributed.get_rank() == 0 else "other"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        healing.heal(training, Held(5, True, checksum, None), 5.0, circle_of(5, 5))
    torch.set_default_dtype(torch.float32)
    return " ".join(str(warning.message) for warning in caught)


def changed_on_the_way() -> str:
    """Returns the error of a rank that receives other bytes than were sent."""
    written, patience = torch.zeros(64, dtype=torch.uint8), timedelta(seconds=5)
    if torch.distributed.get_rank() == 0:
        healing._pass_on(written, torch.distributed.isend, [1], patience)
        return "sent"
    try:
        _, digest = healing._received(64, 0, patience)
        healing._check_digest(digest, hashlib.sha256(bytes(written.numpy() ^ 1)).hexdigest())
    except RuntimeError as error:
        return str(error)
    return "read"


def passed_on(store, late, patience):
    """Returns the sum of a state that rank 0 sent to one that came late, or the error; the ranks of their
    group had a second to connect.
    """
    distributed, rank = torch.distributed, int(os.environ["RANK"])
    distributed.destroy_process_group()
    options = {"store": distributed.FileStore(store, 2), "rank": rank, "world_size": 2}
    distributed.init_process_group("gloo", **options, timeout=timedelta(seconds=1))
    state = torch.full((healing._PIECE + 7,), 1 - rank, dtype=torch.uint8)
    time.sleep(late * rank)
    begin = distributed.isend if rank == 0 else distributed.irecv
    try:
        healing._pass_on(state, begin, [1 - rank], timedelta(seconds=patience))
    except RuntimeError as error:
        return is_loss(error)
    return int(state.long().sum())


def main(store: str, folder: Path, name: str, options: dict) -> None:
    """Trains; ends with 3 where the run refuses to go on, and with 4 where it went on without this rank."""
    try:
        train(store, folder, name, options)
    except ib.InputError as error:
        print(f"InputError: {error}", flush=True)
        sys.exit(3)
    except LeftOut as error:
        print(f"LeftOut: {error}", flush=True)
        sys.exit(4)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4]))
