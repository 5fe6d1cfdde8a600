"""How the process of a command ends."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from typing import NoReturn


def leave(code: int) -> NoReturn:
    """Ends the process with this exit code. What was written goes out first, and what libraries have registered for the end is done;
    but Python does not take torch apart object by object, which takes it as long as half of importing it.

    Args:
        code: of the command.

    Raises:
        SystemExit: torch is not loaded, a thread still works, or a stream takes nothing any more: Python's own end, which waits or
            complains, does as it always does.
    """
    working = [one for one in threading.enumerate() if not one.daemon and one is not threading.main_thread()]
    if "torch" not in sys.modules or working:
        raise SystemExit(code)
    atexit._run_exitfuncs()
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    except OSError:
        raise SystemExit(code) from None
    os._exit(code)
