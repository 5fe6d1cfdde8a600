"""Crews of the same ranks, forming again and again in one step."""

from isobatch.errors import InputError

_TIMES = 5
"""How often the same ranks may form without finishing a step."""


class Standstill:
    """Counts crews formed in the same step.

    Attributes:
        why: the reason why the last crew was lost.
    """

    def __init__(self) -> None:
        self.why = "steps are lost"
        self._last: tuple[list[str], int] = [], -1
        self._times = 0

    def check(self, members: list[str], step: int) -> None:
        """Refuses a further crew where the crews before it finished no step."""
        self._times = self._times + 1 if self._last == (members, step) else 1
        self._last = members, step
        if self._times > _TIMES:
            raise InputError(
                f"the same {len(members)} ranks formed {_TIMES} times and finished no step, as their network "
                f"fails ({self.why}); where hosts have several, GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME "
                "name the one to use"
            )
