"""The process of a run's store: its address, and the key it makes."""

import errno
import socket
import sys
import threading
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import torch.distributed as dist

from isobatch.elastic.messages import NO_KEY, Seal, find_key, make_key, read_key
from isobatch.elastic.store import KEY
from isobatch.errors import InputError, must_be

_C10D: Any = dist  # Its types do not know all of its stores.


def serve(
    port: int, address: str | None = None, key_file: Path | None = None, *, is_open: bool = False
) -> None:
    """Runs the store until the process ends.

    Args:
        port, address: where it listens; no address: this host's with a key, else loopback.
        key_file: the file of the key, made if it does not exist; None: the key of the environment.
        is_open: whether ranks without a key may reach it from other hosts.
    """
    if not 0 <= port < 65536:
        raise must_be("0 to 65535", port, field="--port")
    if key_file is None:
        key = b"" if is_open else find_key()
    else:
        key = read_key(key_file) if key_file.exists() else None
    if address is None and (key or is_open):
        address = own_address()
        if is_local(address):
            why = f"this host's name is of loopback ({address}), and ranks on other hosts cannot reach it"
            print(f"isobatch store: {why}: give --bind HOST", file=sys.stderr, flush=True)
    address = address or "127.0.0.1"
    if key == b"" and not (is_open or is_local(address)):
        raise InputError(
            f"the store has no key ({NO_KEY}), and others reach it at {address}: give it one, as with "
            "--key-file run.key, or let whoever reaches it join with --open",
            field="--bind",
        )
    listener = _listen(address, port)
    host, port = listener.getsockname()[:2]
    if key is None:
        text = make_key(key_file)
        key = text.encode()
        print(_key_help(text, key_file, local=is_local(host)), file=sys.stderr, flush=True)
    own = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    # Our own listener, as torch's default one would listen on all addresses.
    store = _C10D.TCPStore(
        own, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
    )
    if key and not is_local(host):
        store.set(KEY, Seal(key).fingerprint)
    print(f"the store listens on {host}, port {port}", flush=True)
    threading.Event().wait()


def own_address() -> str:
    """Returns the address of this host's name, or loopback if the name has none."""
    with suppress(OSError):
        for _, _, _, _, address in socket.getaddrinfo(socket.gethostname(), None, type=socket.SOCK_STREAM):
            with suppress(OSError):
                _bound(str(address[0]), 0).close()
                return str(address[0])
    return "127.0.0.1"


def is_local(host: str) -> bool:
    """Returns whether a host's name or address is loopback, reached from this host only.

    >>> is_local("127.0.0.1"), is_local("0.0.0.0"), is_local("192.0.2.1")
    (True, False, False)
    """
    with suppress(OSError):
        addresses = {str(entry[4][0]) for entry in socket.getaddrinfo(host, None)}
        return all(ip_address(address.partition("%")[0]).is_loopback for address in addresses)
    return False


def _listen(address: str, port: int) -> socket.socket:
    try:
        return _bound(address, port)
    except OSError as error:
        faults: dict[int | None, tuple[str, str | int, str]] = {
            errno.EADDRINUSE: ("--port", port, "a free port"),
            errno.EACCES: ("--port", port, "a port that this user may use"),
        }
        field, value, scope = faults.get(error.errno, ("--bind", address, "an address of this host"))
        raise must_be(scope, value, field=field, todo=f"{error.strerror or error}") from None


def _bound(address: str, port: int) -> socket.socket:
    family, kind, _, _, place = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
        listener.listen(1024)
    except OSError:
        listener.close()
        raise
    return listener


def _key_help(key: str, path: Path | None, *, local: bool) -> str:
    """Explains how to pass a new key to the ranks; printed only once."""
    how = f"export ISOBATCH_RUN_KEY={key}" if path is None else f"export ISOBATCH_RUN_KEY_FILE={path}"
    whom = "all ranks on this host, or to none (other users can then join)" if local else "all ranks"
    return f"made a key for this run; pass it to {whom}:\n  {how}"
