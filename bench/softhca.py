"""Ranks on the software HCA (tests/softhca), each a process that a launcher of PMI's kind would have
started, by tutti or by NCCL; and what they told. For the programs beside this file."""
import contextlib
import json
import os
import pathlib
import subprocess
import tempfile

# NCCL 2.28 crashes on devices that are not mlx5 unless its GIN is kept to the CPU. Devices without a
# place on PCI must not be taken for one.
NCCL = {"NCCL_GIN_TYPE": "2", "NCCL_NVLS_ENABLE": "0", "NCCL_SOCKET_IFNAME": "lo",
        "NCCL_CUMEM_ENABLE": "0", "NCCL_IB_MERGE_NICS": "0"}


@contextlib.contextmanager
def sharing():
    """Processes that share a GPU without the daemon take turns of milliseconds. It is ours alone."""
    with tempfile.TemporaryDirectory() as folder:
        env = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        merged = dict(os.environ, **env)
        subprocess.run(["nvidia-cuda-mps-control", "-d"], env=merged, check=True)
        try:
            yield env
        finally:
            subprocess.run(["nvidia-cuda-mps-control"], input="quit", text=True, env=merged,
                           capture_output=True, check=False)


def launch(build, arguments, ranks, timeout):
    """`tutti perf` with the arguments; ranks is a list of settings, one for each. Returns the rows of
    rank 0's JSON and the ranks' process ids; raises RuntimeError with what is known of a failure."""
    processes = []
    for rank, settings in enumerate(ranks):
        env = dict(os.environ, LD_LIBRARY_PATH=str(pathlib.Path(build).resolve() / "tests/softhca"),
                   CUDA_DEVICE_MAX_CONNECTIONS="32", PMI_ID=str(os.getpid()), PMI_RANK=str(rank),
                   PMI_SIZE=str(len(ranks)), MPI_LOCALRANKID=str(rank),
                   MPI_LOCALNRANKS=str(len(ranks)), **settings)
        command = [str(pathlib.Path(build) / "tools/tutti"), "perf", *arguments, "--json", "-"]
        processes.append(subprocess.Popen(command, env=env, text=True, stdout=subprocess.PIPE,
                                          stderr=subprocess.PIPE))
    outputs = []
    try:
        for process in processes:
            outputs.append(process.communicate(timeout=timeout))
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"no end within {timeout} s") from None
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for process, (_, error) in zip(processes, outputs):
        if process.returncode:
            raise RuntimeError(f"exit code {process.returncode}: {error[-400:].strip()}")
    rows = [json.loads(l) for out, _ in outputs for l in out.splitlines() if l.startswith("{")]
    return [row for row in rows if "size" in row], [process.pid for process in processes]
