"""Ranks for the tests of tutti.torch: processes that carry out functions of a module together."""
import datetime
import faulthandler
import importlib
import multiprocessing
import pathlib
import re
import sys
import tempfile
import traceback

from torch.distributed import TCPStore

_HERE = pathlib.Path(__file__).resolve().parent


def _serve(rank, size, port, pipe, backend, timeout):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=datetime.timedelta(seconds=120))
    try:
        dist.init_process_group(backend, store=store, rank=rank, world_size=size,
                                timeout=datetime.timedelta(seconds=timeout))
        pipe.send(None)
    except Exception:
        pipe.send(traceback.format_exc())
        return
    faulthandler.enable()
    while True:
        job = pipe.recv()
        if job is None:
            break
        module, name = job
        faulthandler.dump_traceback_later(90)  # says where a rank hangs
        try:
            getattr(importlib.import_module(module), name)(dist, rank, size)
            pipe.send(None)
        except BaseException:
            pipe.send(traceback.format_exc())
        faulthandler.cancel_dump_traceback_later()
    if dist.is_initialized():
        dist.destroy_process_group()
    pipe.send("left")


def _installed():
    """A folder that says of this checkout what the installed package says: its entry points, by which
    PyTorch finds the backend."""
    folder = tempfile.TemporaryDirectory()
    about = pathlib.Path(folder.name) / "tutti-0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: tutti\nVersion: 0\n")
    text = (_HERE.parents[1] / "pyproject.toml").read_text()
    points = re.findall(r'\[project\.entry-points\."(.+?)"\]\n((?:\w+ = .+\n)+)', text)
    assert points, "no entry points in pyproject.toml"
    (about / "entry_points.txt").write_text("".join(
        f"[{group}]\n" + lines.replace('"', "") for group, lines in points))
    return folder


class Ranks:
    """`size` processes in one process group. They start by spawn: a process that had a communicator
    could not fork ranks."""

    def __init__(self, size, backend="tutti", timeout=60):
        context = multiprocessing.get_context("spawn")
        self.store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        port = self.store.port
        self.installed = _installed()
        sys.path.append(self.installed.name)  # what is spawned has this path, too
        self.pipes, self.processes = [], []
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, daemon=True,
                                      args=(rank, size, port, theirs, backend, timeout))
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)
        sys.path.remove(self.installed.name)
        self.expect("their init")

    def expect(self, what, seconds=120, ranks=None):
        """Waits for all these ranks, then fails with what those say that failed."""
        failures = []
        for rank in ranks if ranks is not None else range(len(self.pipes)):
            try:
                text = self.pipes[rank].recv() if self.pipes[rank].poll(seconds) else "no answer"
            except EOFError:
                text = "the process has ended"
            if text:
                failures.append(f"rank {rank} of {what}: {text}")
        if failures:
            raise AssertionError("\n".join(failures))

    def run(self, module, name, seconds=100, ranks=None):
        for pipe in self.pipes:
            pipe.send((module, name))
        self.expect(name, seconds, ranks)

    def kill(self):
        for process in self.processes:
            process.kill()
            process.join()
        self.installed.cleanup()

    def end(self):
        """Lets all leave their group and end; those that do not are killed."""
        left = []
        for pipe, process in zip(self.pipes, self.processes):
            try:
                pipe.send(None)
            except (BrokenPipeError, OSError):
                pass
        for pipe, process in zip(self.pipes, self.processes):
            try:
                left.append(pipe.recv() if pipe.poll(60) else "no answer")
            except EOFError:
                left.append("ended")
            process.join(60)
            if process.is_alive():
                process.kill()
                process.join()
        self.installed.cleanup()
        return left, [process.exitcode for process in self.processes]
