"""The files that a configuration builds on: mmengine's `_base_`, detectron2's `_BASE_`. They are data, as the file itself."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from isobatch.errors import InputError, must_be
from isobatch.files.whole import read_whole
from isobatch.tools.reading.bounds import MAX_FILES, check_size

_ELSEWHERE = re.compile(r"[/~\\]|\w+:")
"""An absolute path, a home, an address or another package's (`mmdet::`): only what lies beside a file is read."""


@dataclass
class Bases:
    """Reads the files that one file names, relative to it.

    Attributes:
        file: that names them.
        parse: gives the settings of a text: (text, file, suffix, bases of that file).
        chain: the files that led here, by their real paths; none may come again.
        seen: all files that were read for the first one.
        unread: by the setting that names them, files that are not beside the one that does.
    """

    file: Path
    parse: Callable[[str, str, str, Bases], dict[str, Any]]
    chain: tuple[Path, ...] = ()
    seen: list[Path] = field(default_factory=list)
    unread: dict[str, list[str]] = field(default_factory=dict)

    def settings(self, names: Any, key: str = "_base_") -> dict[str, Any]:
        """What the named files say together.

        Raises:
            InputError: one is missing, names itself, or cannot be read; or two of mmengine's set the same.
        """
        together: dict[str, Any] = {}
        for name in names if isinstance(names, list | tuple) else [names]:
            if not isinstance(name, str):
                raise must_be("a path, or a list of them", name, field=key, file=str(self.file))
            for setting, value in self._one(name, key).items():
                if setting in together and key == "_base_":
                    raise InputError(
                        f"two of the files that it names set {setting!r}: mmengine refuses that",
                        field=key,
                        file=str(self.file),
                    )
                together[setting] = value
        check_size(together, str(self.file))
        return together

    def _one(self, name: str, key: str) -> dict[str, Any]:
        if _ELSEWHERE.match(name):
            self.unread.setdefault(key, []).append(name)
            return {}
        path = self.file.parent / name
        real = path.resolve()
        if not real.is_file():
            raise InputError(
                f"names {name!r}, and there is no such file: {path}", field=key, file=str(self.file)
            )
        if real in (*self.chain, self.file.resolve()):
            raise InputError(
                f"names {name!r}, which builds on this file again", field=key, file=str(self.file)
            )
        if len(self.seen) >= MAX_FILES:
            raise InputError(f"builds on more than {MAX_FILES} files", field=key, file=str(self.file))
        self.seen.append(real)
        inner = Bases(path, self.parse, (*self.chain, self.file.resolve()), self.seen, self.unread)
        return self.parse(read_whole(path), str(path), path.suffix.lower(), inner)
