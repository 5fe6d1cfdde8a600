"""A program on a pretended terminal."""

import os
import pty
import subprocess
import sys

QUIET = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}


def all_from(end):
    """The bytes from a terminal's end, until its other end is closed."""
    shown = b""
    while True:
        try:
            more = os.read(end, 1 << 16)
        except OSError:  # the other end is closed
            return shown
        if not more:
            return shown
        shown += more


def on_a_terminal(*words, columns=80, code=0, **environment):
    """Runs `isobatch` on a terminal, and returns its output, stderr too."""
    main_end, process_end = pty.openpty()
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "isobatch", *map(str, words)],
            stdout=process_end,
            stderr=process_end,
            env={**QUIET, "COLUMNS": str(columns), "TERM": "xterm", **environment},
        )
        os.close(process_end)
        shown = all_from(main_end)
        assert process.wait(timeout=200) == code, shown
        return shown.decode().replace("\r\n", "\n")
    finally:
        os.close(main_end)
