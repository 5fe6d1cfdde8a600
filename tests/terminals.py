"""What a program shows on a pretended terminal."""

import os


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
