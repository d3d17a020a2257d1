"""Which libnccl.so.2 a process uses, and how tutti's gets into it."""
import ctypes
import os
import re
import sys

from tutti._library import found_beside


def _loaded():
    """The files of all libnccl.so.2 in this process."""
    found = []
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        for line in maps:
            path = line.rstrip("\n").split(None, 5)[5:]
            name = os.path.basename(path[0]) if path else ""
            if name.startswith("libnccl.so") and path[0] not in found:
                found.append(path[0])
    return found


def _ours():
    return found_beside("libnccl.so.2 of tutti", "tutti/libnccl.so.2", "libnccl.so.2")


def is_ours(path):
    """Is the library of this file, which is loaded, tutti's, though perhaps of another installation?"""
    return hasattr(ctypes.CDLL(path), "tuttiGetVersion")


def which():
    """The file of the NCCL library that this process uses; None while it has loaded none. RuntimeError if
    there are two, of which half of the process may use one and half the other.

    >>> tutti.which() is None or "libnccl" in tutti.which()
    True
    """
    found = _loaded()
    if len(found) > 1:
        raise RuntimeError(f"this process has loaded {len(found)} NCCL libraries: {', '.join(found)}. What "
                           "is linked with NCCL may use one or the other; start it with one only")
    return found[0] if found else None


_guarded = []


def _refuse_others(event, arguments):
    """An audit hook: no second NCCL comes into the process by its file. PyTorch tries so, for all libraries
    that its wheels bring, and goes on with the one that is there."""
    if event != "ctypes.dlopen" or not isinstance(arguments[0], (str, bytes)):
        return
    path = os.fsdecode(arguments[0])
    name = os.path.basename(path)
    if "/" in path and re.match(r"libnccl\.so(\.|$)", name) and os.path.realpath(path) != _guarded[0]:
        raise RuntimeError(f"{path} is not loaded: tutti.enable() has put {_guarded[0]} into this process, half "
                           "of which would use one and half the other; leave enable() out to use that one")


def _guard(path):
    if not _guarded:
        _guarded.append(path)
        sys.addaudithook(_refuse_others)


def enable():
    """Loads tutti's libnccl.so.2, so that whatever wants NCCL later in this process (PyTorch, CuPy, JAX,
    vLLM) finds it there, and nothing in Python can load another; returns its file. RuntimeError if another
    one has been loaded already: call it before `import torch`. `python -m tutti run train.py` does so for a
    program, and for the Python processes that it starts.

    >>> tutti.enable() == tutti.which()  # doctest: +SKIP
    True
    """
    path, found = _ours(), which()
    if found and os.path.realpath(found) != path:
        raise RuntimeError(f"this process uses {found} already: call tutti.enable() before whatever loads "
                           "NCCL is imported (torch, cupy, jax), or start it by `python -m tutti run`")
    ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    _guard(path)
    os.environ["VLLM_NCCL_SO_PATH"] = path  # vLLM loads NCCL by its file
    which()  # one, or it says so
    return path
