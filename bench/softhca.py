"""Ranks on the software HCA (tests/softhca), by tutti or by NCCL, as threads of one process or as processes
that a launcher of PMI's kind would have started; and what they told. For the programs beside this file."""
import contextlib
import dataclasses
import json
import os
import pathlib
import re
import subprocess
import tempfile
import time

# NCCL 2.28 crashes on devices that are not mlx5 unless its GIN is kept to the CPU. Devices without a
# place on PCI must not be taken for one.
NCCL = {"NCCL_GIN_TYPE": "2", "NCCL_NVLS_ENABLE": "0", "NCCL_SOCKET_IFNAME": "lo",
        "NCCL_CUMEM_ENABLE": "0", "NCCL_IB_MERGE_NICS": "0"}
# The network alone, between ranks of one host, too.
APART = {"TUTTI_P2P_DISABLE": "1", "TUTTI_SHM_DISABLE": "1"}
NCCL_APART = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}
# A channel of either library's log: who sends to whom, and by what. Behind the words may stand by way of which rank.
CHANNEL = re.compile(r"Channel \S+ : (\d+)\[\S+\] -> (\d+)\[\S+\] (?:\[(send|receive)\] )?via ([^\s,]+(?: by rank \d+)?)")
# What perf says on stderr where data are wrong, and nothing else is.
WRONG = re.compile(r"tutti perf: (rank \d+: \w+ of \d+ .* elements, |\d+ wrong elements$)")


@dataclasses.dataclass
class Told:
    """Of a run: rank 0's JSON rows, as far as they came; all that was printed beside them; the ranks'
    processes; and why it failed, or "". Wrong data are no failure."""
    rows: list
    log: str
    pids: list
    failure: str

    def wrong(self):
        return sum(row["wrong"] or 0 for row in self.rows)

    def good(self):
        """Itself; raises RuntimeError if the run failed."""
        if self.failure:
            raise RuntimeError(self.failure)
        return self


class Daemon:
    """Processes that share a GPU without the MPS daemon take turns of milliseconds. This one is ours alone."""

    def __init__(self, wanted=True):
        self.wanted, self.stack, self.settings = wanted, None, {}

    def env(self):
        """Settings of its clients; starts it first."""
        if self.wanted and self.stack is None:
            self.stack = contextlib.ExitStack()
            folder = self.stack.enter_context(tempfile.TemporaryDirectory())
            self.settings = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
            subprocess.run(["nvidia-cuda-mps-control", "-d"], env=dict(os.environ, **self.settings), check=True)
        return self.settings

    def end(self):
        """Whatever died may have taken its server along: the next env() starts another."""
        if self.stack:
            with self.stack, contextlib.suppress(subprocess.TimeoutExpired):
                subprocess.run(["nvidia-cuda-mps-control"], input="quit", text=True, timeout=20,
                               env=dict(os.environ, **self.settings), capture_output=True, check=False)
        self.stack = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()


def await_all(processes, timeout):
    """False if they have not ended by then. One that fails ends the others, which would wait for it."""
    end = time.monotonic() + timeout
    noticed = None
    while any(p.poll() is None for p in processes):
        now = time.monotonic()
        if noticed is None and any(p.poll() for p in processes):
            noticed = now
        if now > end or (noticed and now > noticed + 10):
            return now <= end
        time.sleep(0.02)
    return True


def launch(build, arguments, ranks, timeout, threads=False, before=None):
    """`tutti perf` with the arguments. ranks is a list of settings, one for each rank; as threads they share
    the first one's. `before` is called in each process before it begins."""
    build = pathlib.Path(build).resolve()
    command = [str(build / "tools/tutti"), "perf", *arguments, "--json", "-"]
    if threads:
        command += ["--threads", "--ranks", str(len(ranks))]
    processes, failure = [], ""
    with tempfile.TemporaryDirectory() as name:
        for rank, settings in enumerate(ranks[:1] if threads else ranks):
            env = dict(os.environ, LD_LIBRARY_PATH=str(build / "tests/softhca"), CUDA_DEVICE_MAX_CONNECTIONS="32")
            if not threads:
                env.update(PMI_ID=str(os.getpid()), PMI_RANK=str(rank), PMI_SIZE=str(len(ranks)),
                           MPI_LOCALRANKID=str(rank), MPI_LOCALNRANKS=str(len(ranks)))
            env.update(settings)
            with open(f"{name}/out{rank}", "a") as out, open(f"{name}/err{rank}", "a") as err:
                processes.append(subprocess.Popen(command, env=env, stdout=out, stderr=err, preexec_fn=before))
        try:
            if not await_all(processes, timeout):
                failure = f"no end within {timeout:.0f} s"
        finally:
            for process in processes:
                process.kill()
                process.wait()
        outs, errs = ([pathlib.Path(f"{name}/{kind}{rank}").read_text(errors="replace")
                       for rank in range(len(processes))] for kind in ("out", "err"))
    found = [line for out in outs for line in out.splitlines() if line.startswith('{"collective"')]
    rows = [json.loads(line) for line in found if line.endswith("}")]
    for process, error in zip(processes, errs):
        said = [line for line in error.splitlines() if line.startswith("tutti perf: ")]
        only_wrong = process.returncode == 1 and said and all(WRONG.match(line) for line in said)
        if process.returncode and not failure and not only_wrong:
            failure = f"exit code {process.returncode}: {error[-400:].strip()}"
    others = [line for out in outs for line in out.splitlines() if not line.startswith('{"collective"')]
    return Told(rows, "".join(errs) + "\n".join(others), [process.pid for process in processes], failure)
