"""Which libnccl.so.2 a process uses, and how tutti's gets into it."""
import ctypes
import os

import tutti


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
    folder = os.path.dirname(tutti.library_path())
    for path in (os.path.join(folder, "tutti", "libnccl.so.2"), os.path.join(folder, "libnccl.so.2")):
        if os.path.exists(path):
            return os.path.realpath(path)
    raise ImportError(f"no libnccl.so.2 of tutti beside {tutti.library_path()}; install tutti as a whole")


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


def enable():
    """Loads tutti's libnccl.so.2, so that whatever wants NCCL later in this process (PyTorch, CuPy, JAX,
    vLLM) finds it there; returns its file. RuntimeError if another one has been loaded already: call it
    before `import torch`. `python -m tutti run train.py` does so for a program, and for the Python
    processes that it starts.

    >>> tutti.enable() == tutti.which()  # doctest: +SKIP
    True
    """
    path, found = _ours(), which()
    if found and os.path.realpath(found) != path:
        raise RuntimeError(f"this process uses {found} already: call tutti.enable() before whatever loads "
                           "NCCL is imported (torch, cupy, jax), or start it by `python -m tutti run`")
    ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    os.environ["VLLM_NCCL_SO_PATH"] = path  # vLLM loads NCCL by its file
    which()  # one, or it says so
    return path
