"""The heartbeat of a rank: it shows that the rank lives, and notices the end of its crew."""

import threading
from time import monotonic

from isobatch.elastic.group import CrewGroup
from isobatch.elastic.membership import Membership
from isobatch.elastic.messages import Note, Roster, Seat, name_of
from isobatch.elastic.store import Beats
from isobatch.errors import InputError


class Heartbeat(threading.Thread):
    """Beats, answers and looks: for the crew's end, for the next rank in the ring, and for newcomers.

    Attributes:
        is_awaited: whether ranks wait to join, or the store is gone: the crew then ends after a step.
    """

    def __init__(self, membership: Membership, group: CrewGroup) -> None:
        super().__init__(name="isobatch pulse", daemon=True)
        self._membership, self._group = membership, group
        self._store = membership.store.another()
        self._inside: Roster | None = None
        self._lock, self._ended = threading.Lock(), threading.Event()
        self.is_awaited = False

    def enter(self, table: Roster) -> None:
        """Watches a crew from here on."""
        with self._lock:
            self._inside, self.is_awaited = table, False
            self._next = table.ids[(table.ids.index(self._membership.id) + 1) % len(table.ids)]
            self._beats = Beats(self._store, self._membership.lease)

    def exit(self) -> None:
        """Watches no crew any more: its group may be torn down."""
        with self._lock:
            self._inside = None

    def end(self) -> None:
        """Ends the thread."""
        self._ended.set()

    def run(self) -> None:
        count, period = 0, min(1.0, self._membership.lease / 10)
        due = 0.0
        try:
            while not self._ended.wait(0.1):
                full = monotonic() >= due
                if full:
                    self._membership.lifeline.answer()
                    due, count = monotonic() + period, count + 1
                    self._membership.beat(self._store, count)
                with self._lock:
                    if self._inside is not None:
                        self._look(self._inside, full)
        except (InputError, OSError):
            # If the store died, all ranks end the crew together after a step. If only this host is cut off,
            # they do not: after the lease this rank's group is cut.
            self.is_awaited = True
            self._ended.wait(self._membership.lease)
            with self._lock:
                if self._inside is not None:
                    self._group.cut()

    def _look(self, crew: Roster, full: bool) -> None:
        over = f"{crew.mark}/over"
        if full and self._next != self._membership.id and self._beats.gone(self._next):
            self._store.once(over, Note(self._membership.name, f"{name_of(self._next)} is gone"))
        if self._store.read(over, Note) is not None:
            # Cut again at each look until `exit`: connections still being made would outlive the first cut.
            self._group.cut()
        elif full:
            self._membership.publish(self._store)
            self._group.keep(self._store)
            waiting = {seat.id for seat in self._store.messages(f"{crew.mark}/in", Seat)}
            count = sum(not self._beats.gone(member) for member in waiting)
            self.is_awaited = count > 0 and self._membership.has_room(len(crew.seats), count)
