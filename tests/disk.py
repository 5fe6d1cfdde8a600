"""A disk that loses what was not synced: it listens to os.fsync and os.replace, and says what is left after a power cut.

A filesystem may write names and contents in any order, as long as it keeps what fsync has waited for. The two ends of that are tried:

- `late`: nothing is on the disk that nobody waited for. A folder has the names that it had when it was synced last, a file its content
  of then, and a folder that no synced folder names is gone with all that is in it.
- `early`: names are on the disk at once, in front of the contents: a file that was not synced is there, and empty.
"""

import os
import threading
from pathlib import Path

Tree = dict[str, bytes]
"""The files of a folder by their paths in it."""


class Disk:
    """What would be left of `root` after a power cut at each moment at which something was synced or renamed.

    Attributes:
        cuts: for each moment (what happened, the late tree, the early tree), each distinct one once.
    """

    def __init__(self, root: Path, monkeypatch) -> None:
        self.root, self.cuts = root, []
        self._contents: dict[int, bytes] = {}
        self._names: dict[int, dict[str, int]] = {}
        self._lock = threading.Lock()
        root.mkdir(parents=True, exist_ok=True)
        self._note(root)
        fsync, replace = os.fsync, os.replace

        def listening_fsync(handle):
            fsync(handle)
            path = Path(f"/proc/self/fd/{handle}").readlink()
            with self._lock:
                self._note(path)
                self._cut(f"fsync {path.name}")

        def listening_replace(source, target, **how):
            replace(source, target, **how)
            with self._lock:
                self._cut(f"replace {Path(target).name}")

        monkeypatch.setattr(os, "fsync", listening_fsync)
        monkeypatch.setattr(os, "replace", listening_replace)

    def _note(self, path: Path) -> None:
        """What fsync has waited for: the names of a folder, or the bytes of a file."""
        inode = path.stat().st_ino  # which something that was removed may have had before
        self._contents.pop(inode, None)
        self._names.pop(inode, None)
        if path.is_dir():
            self._names[inode] = {entry.name: entry.inode() for entry in os.scandir(path)}
        else:
            self._contents[inode] = path.read_bytes()

    def _cut(self, event: str) -> None:
        trees = self._late(self.root.stat().st_ino, ""), self._early()
        if not self.cuts or self.cuts[-1][1:] != trees:
            self.cuts.append((event, *trees))

    def _late(self, folder: int, prefix: str) -> Tree:
        found: Tree = {}
        for name, inode in self._names.get(folder, {}).items():
            if inode in self._names:
                found |= self._late(inode, f"{prefix}{name}/")
            elif inode in self._contents:
                found[prefix + name] = self._contents[inode]
        return found

    def _early(self) -> Tree:
        found: Tree = {}
        for path in self.root.rglob("*"):
            try:
                if path.is_file():
                    found[str(path.relative_to(self.root))] = self._contents.get(path.stat().st_ino, b"")
            except FileNotFoundError:
                pass  # removed meanwhile by another thread
        return found


def restore(tree: Tree, root: Path) -> Path:
    """Writes the files of a tree into a new folder, which it gives."""
    root.mkdir(parents=True)
    for name, content in tree.items():
        place = root / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
    return root
