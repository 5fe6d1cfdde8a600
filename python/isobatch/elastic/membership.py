"""The membership of crews, the ranks training together: each crew is a list in the store, closed once."""

import re
import secrets
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from time import monotonic, sleep
from typing import Any

import msgspec

from isobatch.elastic.messages import (
    HALF,
    NEW,
    OUT,
    Beat,
    Here,
    Note,
    Roster,
    RunFacts,
    Saved,
    Seat,
    name_of,
)
from isobatch.elastic.store import Beats, Lifeline, Store, StoreGone
from isobatch.errors import InputError
from isobatch.words import shown

START = Roster(-1, ())
"""Before the first crew."""


class Membership:
    """This process's place in the crews of a run.

    A crew's list is closed once, by the store's compare-and-set, so all ranks read the same list. A process
    missing from it is left out until the next crew forms.

    Attributes:
        fits: returns whether the plan has work for a number of ranks; the others wait until it does. Before
            the first crew this is the plan of a run that begins.
        saved: the step of this rank's last saved state.
    """

    def __init__(
        self,
        store: Store,
        name: str,
        *,
        ranks: int,
        min_ranks: int | None,
        lease: float,
        timeout: float,
        shards: int = 1,
    ) -> None:
        self.store, self.lease, self.timeout, self.shards = store, lease, timeout, shards
        self.ranks, self.min_ranks, self.name = ranks, min_ranks, name
        self.lifeline = Lifeline(store.address)
        self.id = f"{name}|{self.lifeline.address}|{secrets.token_hex(16)}"
        self.table = self._origin = START
        self.fits: Callable[[int], bool] = lambda _: True
        self.saved: int | None = None
        self._has_said = False
        self.beat(store, 0)

    def beat(self, store: Store, count: int, *, is_last: bool = False) -> None:
        """Writes a heartbeat; after the last one this process takes no further part in the run."""
        store.write(f"beat/{self.id}", Beat(count, is_last))

    # ---- facts ----

    def compare(self, facts: Mapping[str, Any]) -> None:
        """Refuses this process if its facts differ from those of the first process."""
        facts_here = msgspec.json.decode(msgspec.json.encode(facts))
        first = self.store.once("facts", RunFacts(facts_here)).facts
        for name in {**facts_here, **first}:
            value = facts_here.get(name)
            if first.get(name) != value:
                reason = (
                    f"{name} is {shown(value)} on this rank, {shown(first.get(name))} on the rank that came "
                    "first: one of the two was started wrongly"
                )
                self.refuse(reason)
                raise InputError(reason, field=name)

    def refuse(self, reason: str) -> None:
        """Tells ranks waiting for the first crew why this rank is missing."""
        self.store.add("refused", Note(self.name, reason))

    # ---- crews ----

    @property
    def number(self) -> int:
        """The number of this process's present or last crew; −1: none yet."""
        return self.table.number

    def is_current(self) -> bool:
        """Returns whether this process's crew is the newest, so it was not left out."""
        return self._next(self.table) is None and self._newest(self.table) is self.table

    def has_room(self, size: int, waiting: int) -> bool:
        """Returns whether the plan has work for a crew of `size` ranks and some of those who wait."""
        return any(self.fits(size + more) for more in range(self.shards, waiting + 1, self.shards))

    def publish(self, store: Store) -> None:
        """Writes the lists of the first and the present crew if the store lacks them, for new ranks."""
        store.once(f"{START.mark}/next", self._origin)
        key = f"{self._origin.mark}/crew"
        crew = store.read(key, Roster)
        if crew is None or crew.number < self.number:
            store.write(key, self.table)

    def say_over(self, why: str) -> None:
        """Declares the present crew over; called before anything of it is torn down."""
        self.store.once(f"{self.table.mark}/over", Note(self.name, why))

    def note_saved(self, step: int) -> None:
        """Notes a saved state for all ranks."""
        self.saved = step
        with suppress(StoreGone):
            self.store.write("saved", Saved(step))

    def last_saved(self) -> int | None:
        """Returns the step of the last state saved by any rank, or by this one if the store is gone."""
        with suppress(StoreGone):
            if (saved := self.store.read("saved", Saved)) is not None:
                return saved.step
        return self.saved

    def end_all(self, why: str) -> None:
        """Ends the run on all ranks, including those waiting to join."""
        self.close(self.table, Roster(self.number + 1, (), why))

    def close(self, before: Roster, table: Roster) -> None:
        """Closes the list of the crew after `before`, unless it is closed already."""
        self.store.once(f"{before.mark}/next", table)

    def form(self, vote: int, left_out: int, is_asked: Callable[[], bool] = lambda: False) -> Roster | None:
        """Joins the next crew; returns None if the run is over, or this process is asked to stop before its
        first crew. If the crew forms without it, the process votes `left_out`: NEW if it never had the run's
        state, else OUT."""
        before = self.table
        if self.number < 0 or not self.is_current():
            before, vote = self._newest(before), left_out
        is_over = self.number < 0 and self._next(before) is not None
        while not self._is_done(before):
            table = self._wait_for(before, Seat(self.id, vote), is_asked)
            if table is None:
                break
            if before is START:
                self._origin = table
            if table.error is not None:
                over = f"the run of this store has ended ({table.error}): a new run needs a new store"
                raise InputError(over if is_over else table.error)
            if self.id in table.ids:
                self.table = table
                self.publish(self.store)
                return table
            before, vote, is_over = self._newest(table), left_out, False
        return None

    def _wait_for(self, before: Roster, seat: Seat, is_asked: Callable[[], bool]) -> Roster | None:
        """Waits until the next crew's list is closed; closes it itself once the crew is complete."""
        closing = _Closing(self, before, seat)
        while (table := self._next(before)) is None:
            if self._is_done(before) or (self.number < 0 and is_asked()):
                return None
            if (list_to_close := closing.look()) is not None:
                self.close(before, list_to_close)
            else:  # The first ranks to arrive look often, later ones rarely, to spare the store.
                self._say_waits(len(before.seats), closing)
                sleep(min(0.01 * closing.turn, 0.25))
        return table

    def _say_waits(self, size: int, closing: "_Closing") -> None:
        """Warns once if this rank waits because the plan has no work for it."""
        if closing.waiting and not self._has_said and not self.has_room(size, closing.waiting):
            self._has_said = True
            warnings.warn(
                f"{self.name} waits: the plan has no work for {size + self.shards} ranks; it joins once one "
                "of those that train is lost",
                stacklevel=2,
            )

    def _next(self, before: Roster) -> Roster | None:
        """Returns the list of the crew after `before`; None until it is closed."""
        return self.store.read(f"{before.mark}/next", Roster)

    def _newest(self, known: Roster) -> Roster:
        """Returns the newest crew in the store, else the known one. The key contains the digest of the first
        crew's list, so that a crew of an earlier run with the same name never fits."""
        if self.number < 0:
            self._origin = self._next(START) or self._origin
        crew = self.store.read(f"{self._origin.mark}/crew", Roster)
        return known if crew is None or crew.number <= known.number else crew

    def _is_done(self, table: Roster) -> bool:
        """Returns whether a crew reached the end of the run."""
        return self.store.read(f"{table.mark}/done", Here) is not None

    def least(self, before: int) -> int:
        """Returns the fewest ranks to go on with after a crew of `before` ranks."""
        return self.min_ranks or before // 2 + 1

    # ---- the end ----

    def end(self) -> bool:
        """Leaves the run together with the whole crew; returns False if a rank was lost before, as it may
        need this rank's state."""
        mark, own = self.table.mark, Here(self.id)
        beats, until = Beats(self.store, self.lease), monotonic() + self.timeout
        while self.store.read(f"{mark}/over", Note) is None:
            members = {message.id for message in self.store.messages(f"{mark}/end", Here, own)}
            gone = all(beats.gone(member) for member in {*self.table.ids} - members)
            if self._is_done(self.table) or gone or monotonic() > until:
                self.store.write(f"{mark}/done", own)
                return True
            sleep(0.01)
        return False

    def leave(self) -> None:
        """Leaves the run for good."""
        with suppress(StoreGone):
            self.beat(self.store, 0, is_last=True)
        self.lifeline.close()


class _Closing:
    """Decides when to close the next crew's list, and on its ranks, while this process waits."""

    def __init__(self, membership: Membership, before: Roster, seat: Seat) -> None:
        self._all, self._before, self._seat = membership, before, seat
        self._number, self._old = before.number + 1, before.ids
        self._beats = Beats(membership.store, membership.lease)
        # Until the previous crew is over it trains, and newcomers wait.
        self._since: float | None = None if self._old else monotonic()
        self._waited = 0.0
        self.turn, self.waiting = 1, 0

    def look(self) -> Roster | None:
        """Returns the list to close, without ranks and with the error if the run ends; None: wait."""
        come: dict[str, Seat] = {}
        for seat in self._all.store.messages(f"{self._before.mark}/in", Seat, self._seat):
            # Only ranks of the previous crew vote about the step.
            come[seat.id] = seat if seat.id in self._old else seat._replace(vote=min(seat.vote, NEW))
        self.turn = 1 + [*come].index(self._all.id)
        missing = [member for member in self._old if member not in come]
        if self._since is None and (len(missing) < len(self._old) or self._is_over(missing)):
            self._since = monotonic()
        self.waiting = 0
        if self._since is None:  # This rank is none of the previous crew.
            self.waiting = len(come)
            return None
        self._waited = monotonic() - self._since
        late = self._waited > self._all.timeout
        if not (late or self._are_gone(missing)):
            return None
        if not self._old and len(come) < self._all.ranks and not late:
            refused = self._all.store.messages("refused", Note)
            return self._given_up(f"rank {refused[0].name}: {refused[0].text}") if refused else None
        alive = {
            seat.id: seat
            for seat in come.values()
            if seat.id == self._all.id or not self._beats.gone(seat.id)
        }
        members = [alive[member] for member in self._old if member in alive]
        newcomers = [alive[member] for member in sorted(alive, key=natural) if member not in self._old]
        if all(seat.vote in (NEW, OUT) for seat in members):
            return self._beginning([*members, *newcomers], late)
        whole, rest = _whole_replicas(members, self._old, self._all.shards)
        if not whole:
            return self._without_replica(members)
        if self._all.shards > 1:
            members, newcomers = whole, [*rest, *newcomers]
        return self._going_on(members, newcomers, late)

    def _is_over(self, missing: list[str]) -> bool:
        """Returns whether the previous crew is known to be over although none of its ranks has come."""
        return self._all.store.read(f"{self._before.mark}/over", Note) is not None or self._are_gone(missing)

    def _are_gone(self, members: Iterable[str]) -> bool:
        return all(self._beats.gone(member) for member in members)

    def _going_on(self, members: list[Seat], newcomers: list[Seat], late: bool) -> Roster | None:
        if self._seat.vote in (NEW, OUT):
            return None  # Only ranks that have the run's state have its plan, and know the counts that fit.
        least, shards = self._all.least(len(self._old)), self._all.shards
        newcomers = _full(newcomers, shards)
        count = len(members) + (len(newcomers) if self._all.min_ranks else 0)
        if count >= least:
            fitting = self._fitting(len(members) + len(newcomers), least) or len(members)
            members = _furthest(members, fitting, shards)
            return Roster(self._number, (*members, *newcomers[: fitting - len(members)]))
        if not late:
            return None
        rule = f"more than half is {least} (min_ranks= lets fewer go on)"
        if self._all.min_ranks:
            rule = f"min_ranks is {least}"
        return self._given_up(f"{count} of {len(self._old)} ranks are left, and {rule}")

    def _fitting(self, most: int, least: int) -> int | None:
        """Returns the largest number of ranks with work, from `least` to `most`; None if there is none."""
        shards = self._all.shards
        return next(filter(self._all.fits, range(most // shards * shards, least - 1, -shards)), None)

    def _beginning(self, seats: list[Seat], late: bool) -> Roster | None:
        """Begins the run; again only if all ranks with its state are known to be gone, not merely silent."""
        if silent := self._silent(seats):
            return self._waiting_for(silent)
        if len(seats) >= self._all.ranks and any(seat.vote == NEW for seat in seats):
            fitting = self._fitting(len(seats), self._all.ranks) or self._all.ranks
            return Roster(self._number, tuple(_furthest(seats, fitting, self._all.shards)))
        why = f"{len(seats)} of {self._all.ranks} ranks came in {self._waited:.0f} s"
        return self._given_up(why) if late else None

    def _without_replica(self, members: list[Seat]) -> Roster | None:
        """Waits if silent ranks could complete a replica; else ends the run."""
        silent, shards = self._silent(members), self._all.shards
        hopes, _ = _whole_replicas([*members, *(Seat(member, 0) for member in silent)], self._old, shards)
        if hopes:
            return self._waiting_for([seat.id for seat in hopes if seat.id in silent])
        return self._given_up(_no_replica(members, len(self._old), shards))

    def _silent(self, seats: list[Seat]) -> list[str]:
        """Returns the missing ranks of the previous crew, except those known to be gone."""
        present = {seat.id for seat in seats}
        return [member for member in self._old if member not in present and not self._beats.ended(member)]

    def _waiting_for(self, silent: list[str]) -> Roster | None:
        """Gives up after twice the time-out: a silent rank's collective may have to time out first."""
        names = ", ".join(map(name_of, silent))
        why = f"the ranks that hold the run's state did not come in {self._waited:.0f} s: {names}"
        return self._given_up(why) if self._waited > 2 * self._all.timeout else None

    def _given_up(self, why: str) -> Roster:
        return Roster(self._number, (), why)


def _full(seats: list[Seat], shards: int) -> list[Seat]:
    """Returns as many seats as are whole replicas."""
    return seats[: len(seats) // shards * shards]


def _furthest(seats: list[Seat], count: int, shards: int) -> list[Seat]:
    """Returns so many seats, in their order: whole replicas, those with the most steps first."""
    replicas = [seats[first : first + shards] for first in range(0, len(seats), shards)]
    whole = [replica for replica in replicas if len(replica) == shards]
    whole.sort(key=lambda replica: -min(seat.vote for seat in replica))
    chosen = {seat.id for replica in whole[: count // shards] for seat in replica}
    return [seat for seat in seats if seat.id in chosen]


def _whole_replicas(members: list[Seat], old: list[str], shards: int) -> tuple[list[Seat], list[Seat]]:
    """Splits ranks of the previous crew into whole replicas and the rest; the rest lose their vote."""
    holds = {seat.id for seat in members if seat.vote >= 0}
    replicas = [{*old[first : first + shards]} for first in range(0, len(old), shards)]
    whole = set().union(*(replica for replica in replicas if replica <= holds))
    return (
        [seat for seat in members if seat.id in whole],
        [seat._replace(vote=OUT) for seat in members if seat.id not in whole],
    )


def _no_replica(members: list[Seat], before: int, shards: int) -> str:
    names = ", ".join(seat.name for seat in members)
    half = ", ".join(seat.name for seat in members if seat.vote == HALF)
    reasons = [f"{half} applied half of a step"] if half or shards == 1 else []
    if shards > 1:
        reasons.insert(0, f"of {before // shards} replicas of {shards} ranks only {names} are left")
    fault = "no replica is left" + " with all of its shards" * (shards > 1)
    return f"{fault}: {', and '.join(reasons)}; start a new run from a checkpoint"


def natural(name: str) -> list[tuple[int, int | str]]:
    """Returns a sort key with "node10" after "node9".

    >>> sorted(["node10/0", "node9/1"], key=natural)
    ['node9/1', 'node10/0']
    """
    return [(0, int(part)) if part.isdigit() else (1, part) for part in re.split(r"(\d+)", name) if part]
