#!/usr/bin/env python3
"""What plain copies between pinned host memory and GPU 0 reach, in 10^9 bytes per second: to it, from it,
and each of both at once. One JSON object. Needs libcuda.so.1 alone; for the programs beside this file."""
import ctypes
import json
import mmap
import sys
import time

BYTES, ROUNDS = 64 << 20, 8


def cuda(name, *arguments):
    code = getattr(ctypes.CDLL("libcuda.so.1"), name)(*arguments)
    if code:
        sys.exit(f"{name}: CUDA error {code}")


def pointer(name, *arguments):
    """What a call leaves at its first argument."""
    value = ctypes.c_uint64()
    cuda(name, ctypes.byref(value), *arguments)
    return value


class Way:
    """A stream, memory of the GPU, and pinned memory of the host."""

    def __init__(self, to_gpu):
        self.memory = mmap.mmap(-1, BYTES)
        host = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        cuda("cuMemHostRegister_v2", ctypes.c_void_p(host), ctypes.c_size_t(BYTES), 0)
        gpu = pointer("cuMemAlloc_v2", ctypes.c_size_t(BYTES)).value
        self.ends = (gpu, host) if to_gpu else (host, gpu)
        self.stream = pointer("cuStreamCreateWithPriority", 1, 0)

    def copy(self):
        cuda("cuMemcpyAsync", *map(ctypes.c_uint64, self.ends), ctypes.c_size_t(BYTES), self.stream)

    def wait(self):
        cuda("cuStreamSynchronize", self.stream)


def rate(*ways):
    """Of each; the best round, as what else runs can only take from it."""
    best = 0
    for _ in range(ROUNDS):
        began = time.monotonic()
        for way in ways:
            way.copy()
        for way in ways:
            way.wait()
        best = max(best, BYTES / (time.monotonic() - began) / 1e9)
    return round(best, 2)


def main():
    cuda("cuInit", 0)
    cuda("cuCtxSetCurrent", pointer("cuDevicePrimaryCtxRetain", 0))
    there, back = Way(True), Way(False)
    for way in (there, back):
        rate(way)
    print(json.dumps({"to": rate(there), "from": rate(back), "both": rate(there, back)}))


if __name__ == "__main__":
    main()
