"""`isobatch store`: where the ranks of a training meet that goes on without those that it loses."""

import argparse

DESCRIPTION = (
    "Runs the store where ranks meet that survive the loss of others. It must outlive them: use a host "
    "that is not expected to fail. Without a key it makes one, prints it once, and listens on this host "
    "only; with a key it listens on the address of this host's name. Give the key in ISOBATCH_RUN_KEY or in "
    "a file, never on a command line, which others can read."
)
EXAMPLES = ("isobatch store --port 29400", "isobatch store --port 29400 --bind node0 --key-file run.key")


OPTIONS = {
    "--port N": ("the port; 0: a free one, which is printed", {"type": int, "required": True}),
    "--bind ADDRESS": "address or name to listen on (default: this host's name with a key, else 127.0.0.1)",
    "--key-file FILE": "file of the run's key, made if it does not exist (default: ISOBATCH_RUN_KEY, or "
    "ISOBATCH_RUN_KEY_FILE)",
    "--open": "use no key: whoever reaches the store may join",
}


def run(args: argparse.Namespace) -> int:
    """Runs until it is ended."""
    from pathlib import Path

    from isobatch.elastic.server import serve
    from isobatch.errors import InputError

    if args.open and args.key_file is not None:
        raise InputError("--open uses no key: leave --key-file out", field="--open")
    key_file = None if args.key_file is None else Path(args.key_file)
    serve(args.port, args.bind, key_file, is_open=args.open)
    return 0
