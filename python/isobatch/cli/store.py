"""`isobatch store`: where the ranks of a training meet that goes on without those that it loses."""

import argparse

DESCRIPTION = (
    "Runs the store where ranks meet that survive the loss of others. It must outlive them: one for each run, on a host that is not "
    "expected to fail. Whoever reaches its port can change the run, as with torch's own store."
)
EXAMPLES = ("isobatch store --port 29400",)


OPTIONS = {"--port N": ("the port; 0: a free one, which is printed", {"type": int, "required": True})}


def run(args: argparse.Namespace) -> int:
    """Runs until it is ended."""
    from isobatch.integrations.torch.elastic.store import serve

    serve(args.port)
    return 0
