"""Makes a child process look like one on Windows or macOS, as far as Python shows it.

What is simulated is what isobatch could trip over: missing modules and names, folders that cannot be opened,
files that cannot be moved while they are open, no /proc, and a console in cp1252.
"""

import builtins
import errno
import io
import os
import select
import signal
import sys
import sysconfig
from pathlib import Path

MODULES = {
    "win32": {"fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog", "readline", "curses"},
    "darwin": set(),
}
NAMES = {
    "win32": {
        os: "fork forkpty getuid geteuid getgid getegid getpgid getpgrp getsid setsid setpgid killpg uname "
        "sysconf fchmod fchown chown lchown sched_getaffinity sched_setaffinity nice getloadavg mkfifo mknod "
        "openpty posix_spawn pread pwrite preadv pwritev statvfs fstatvfs sync fdatasync posix_fadvise "
        "posix_fallocate pipe2 sendfile lockf O_NOFOLLOW O_DIRECTORY O_CLOEXEC O_NONBLOCK O_SYNC O_DSYNC "
        "RTLD_NOLOAD RTLD_LAZY WIFEXITED WEXITSTATUS WIFSIGNALED WTERMSIG wait wait3 wait4 getpriority "
        "setpriority memfd_create pidfd_open eventfd",
        signal: "SIGKILL SIGHUP SIGQUIT SIGUSR1 SIGUSR2 SIGALRM SIGCHLD SIGPIPE SIGSTOP SIGCONT SIGTSTP "
        "alarm setitimer getitimer pause pthread_sigmask pthread_kill sigwait siginterrupt sigpending",
        select: "poll epoll",
    },
    "darwin": {
        os: "sched_getaffinity sched_setaffinity memfd_create pidfd_open eventfd posix_fadvise "
        "posix_fallocate pipe2 O_DIRECT O_NOATIME O_PATH O_TMPFILE",
        select: "epoll",
    },
}


class _Missing:
    """Finds no module of a list."""

    def __init__(self, names):
        self.names = names

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.names:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def become(platform):
    """Turns this process into one on `win32` or `darwin`."""
    import fcntl

    sysconfig.get_config_vars()  # reads a file named after the platform that Python was built for
    _hide_proc()
    if platform == "win32":
        _open_no_folders()
        _sync_only_what_is_written(fcntl)
        _move_no_open_files()
        os.sep, os.altsep = "\\", "/"
    for module, names in NAMES[platform].items():
        for name in names.split():
            if hasattr(module, name):
                delattr(module, name)
    sys.meta_path.insert(0, _Missing(MODULES[platform]))
    for name in MODULES[platform]:
        sys.modules.pop(name, None)
    sys.platform = platform


def _hide_proc():
    """Hides /proc."""

    def without_proc(call):
        def ask(path=".", *args, **more):
            if not isinstance(path, int) and os.fspath(path).startswith("/proc"):
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
            return call(path, *args, **more)

        return ask

    for module, name in ((os, "scandir"), (os, "listdir"), (os, "stat"), (os, "readlink"), (io, "open")):
        setattr(module, name, without_proc(getattr(module, name)))
    builtins.open = io.open


def _open_no_folders():
    """Refuses handles of folders, and paths from one."""
    known = {name: getattr(os, name) for name in ("open", "mkdir", "stat", "replace", "rename", "unlink")}

    def by_path(name):
        def call(path, *args, **more):
            handles = [more.pop(key, None) for key in ("dir_fd", "src_dir_fd", "dst_dir_fd")]
            if any(handle is not None for handle in handles):
                raise NotImplementedError("dir_fd unavailable on this platform")
            if name == "open" and Path(path).is_dir():
                raise PermissionError(errno.EACCES, "Permission denied", path)
            return known[name](path, *args, **more)

        return call

    for name in known:
        setattr(os, name, by_path(name))


def _sync_only_what_is_written(fcntl):
    """Refuses to sync a file open for reading only."""
    fsync = os.fsync

    def sync(file):
        number = file if isinstance(file, int) else file.fileno()
        if fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, "Bad file descriptor")
        fsync(number)

    os.fsync = sync


def _move_no_open_files():
    """Refuses to move, replace or delete an open file of this process."""
    folder, fstat = os.open("/proc/self/fd", os.O_RDONLY), os.fstat  # opened before /proc is hidden
    list_folder = os.listdir

    def is_open(path):
        try:
            status = os.lstat(path)
        except OSError:
            return False
        for number in list_folder(folder):
            try:
                if os.path.samestat(fstat(int(number)), status):
                    return True
            except OSError:
                continue
        return False

    def closed(call):
        def move(*args, **more):
            for path in args[:2]:
                if isinstance(path, str | os.PathLike) and is_open(path):
                    raise PermissionError(errno.EACCES, "The process cannot access the file", os.fspath(path))
            return call(*args, **more)

        return move

    for name in ("replace", "rename", "unlink", "remove"):
        setattr(os, name, closed(getattr(os, name)))
