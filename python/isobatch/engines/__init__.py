"""Fleets of any size: files in, files out, in flat memory; by threads, or by Ray tasks on a cluster.

Data flows one way: `parts` lists what there is to do, `blocks` reads and plans a part of it, `work` writes one whole and leaves its
receipt, `local` and `ray` run many at a time, `folder` holds the output's manifest, and `run` is all of it.
"""

from isobatch.engines.folder import Manifest
from isobatch.engines.run import plan_files

__all__ = ["Manifest", "plan_files"]
