"""tutti.Communicator.from_env(): ranks that a launcher has started, or environments such as they make."""
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

try:
    import numpy  # noqa: F401  (the ranks need it)
except ImportError:
    print("skipped: no numpy (Debian: python3-numpy)")
    sys.exit(77)
import tutti
from tutti import _environment

RANK = """
import numpy, os, tutti
for _ in range(2):  # one after the other, in the same environment
    with tutti.Communicator.from_env(device="host", timeout=float(os.environ.get("TIMEOUT", 60))) as comm:
        x = comm.all_reduce(numpy.full(2, comm.rank + 1.0))
        assert (x == comm.size * (comm.size + 1) / 2).all(), x
    line = f"{comm.rank} {comm.size}\\n"
    if "SAID" in os.environ:  # what launchers pass on may be cut within a line
        open(os.environ["SAID"], "a").write(line)
    else:
        print(line, end="")
"""
# In one piece, as two ranks write to one pipe.
JOB = "from tutti import _environment as e; print(e._job(e.find_place()) + '\\n', end='')"
# Starts two ranks as MPICH's hydra_pmi_proxy does, which gives their job no name.
PROXY = """
import os, socket, subprocess, sys
ranks, sockets = [], []
for rank in range(2):
    sockets.append(socket.socketpair())
    fd = sockets[-1][1].fileno()
    place = {"PMI_RANK": str(rank), "PMI_SIZE": "2", "MPI_LOCALNRANKS": sys.argv[2], "PMI_FD": str(fd)}
    ranks.append(subprocess.Popen([sys.executable, "-c", sys.argv[1]], env={**os.environ, **place}, pass_fds=[fd]))
sys.exit(any([rank.wait() for rank in ranks]))
"""
CLEAN = {name: value for name, value in os.environ.items()
         if not name.startswith(("OMPI_", "PMIX_", "PMI_", "SLURM_", "MASTER_", "TORCHELASTIC_", "LOCAL_", "MPI_"))
         and name not in ("RANK", "WORLD_SIZE", "TUTTI_COMM_ID", "NCCL_COMM_ID")}


def started(environments):
    """What ranks say that have these environments; their exit codes are 0."""
    ranks = [subprocess.Popen([sys.executable, "-c", RANK], env={**CLEAN, **more}, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for more in environments]
    try:
        said = [rank.communicate(timeout=120)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert all(rank.returncode == 0 for rank in ranks), said
    return [sorted(set(text.split("\n")) - {""}) for text in said]


def job_of(command):
    """The one name that the ranks of this command give their job."""
    run = subprocess.run(command, env=CLEAN, text=True, timeout=60, stdout=subprocess.PIPE)
    name, other = run.stdout.splitlines()
    assert run.returncode == 0 and name == other, run.stdout
    return name


@contextlib.contextmanager
def environment(**names):
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update({**CLEAN, **names})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


class Started(unittest.TestCase):
    def test_by_slurm(self):
        job = {"SLURM_STEP_NUM_TASKS": "3", "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_ID": "0",
               "SLURM_JOB_ID": f"tutti-{os.getpid()}"}
        said = started([{**job, "SLURM_PROCID": str(rank)} for rank in range(3)])
        self.assertEqual(said, [[f"{rank} 3"] for rank in range(3)])

    def test_by_slurm_on_hosts_that_are_this_one(self):
        """As if on several hosts: they meet at a port of the first one's name."""
        job = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_ID": "0",
               "SLURM_STEP_NODELIST": "localhost,other", "SLURM_JOB_ID": f"tutti-{os.getpid()}"}
        said = started([{**job, "SLURM_PROCID": str(rank)} for rank in range(2)])
        self.assertEqual([lines[-1] for lines in said], ["0 2", "1 2"])

    def test_by_mpirun(self):
        if not shutil.which("mpirun"):
            self.skipTest("no mpirun (Debian: openmpi-bin)")
        if "Open MPI" not in subprocess.run(["mpirun", "--version"], text=True, stdout=subprocess.PIPE).stdout:
            self.skipTest("this mpirun is not Open MPI's")
        root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        with tempfile.NamedTemporaryFile("r") as said:
            run = subprocess.run(["mpirun", "--oversubscribe", "-np", "3", sys.executable, "-c", RANK], text=True,
                                 env={**CLEAN, **root, "SAID": said.name}, timeout=120, stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT)
            lines = said.read().splitlines()
        self.assertEqual(run.returncode, 0, run.stdout)
        self.assertEqual(sorted(lines), sorted(2 * [f"{r} 3" for r in range(3)]))

    def test_by_torchrun(self):
        job = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1",
               "TORCHELASTIC_RUN_ID": f"tutti-{os.getpid()}", "TORCHELASTIC_RESTART_COUNT": "0"}
        said = started([{**job, "RANK": str(rank)} for rank in range(2)])
        self.assertEqual(said, [["0 2"], ["1 2"]])

    def test_timeouts_that_never_come(self):
        job = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "1", "SLURM_JOB_ID": f"tutti-{os.getpid()}"}
        for step, timeout in enumerate(("0", "5e6", "inf")):
            job.update(TIMEOUT=timeout, SLURM_STEP_ID=str(step))
            said = started([{**job, "SLURM_PROCID": str(rank)} for rank in range(2)])
            self.assertEqual(said, [["0 2"], ["1 2"]], timeout)

    def test_two_jobs_of_mpich_at_once(self):
        if not shutil.which("mpiexec.hydra"):
            self.skipTest("no mpiexec.hydra (Debian: hydra)")
        command = ["mpiexec.hydra", "-n", "2", sys.executable, "-c"]
        self.assertEqual(len({job_of([*command, JOB]) for _ in range(2)}), 2)
        with tempfile.TemporaryDirectory() as folder:
            jobs = [subprocess.Popen([*command, RANK], env={**CLEAN, "SAID": f"{folder}/{job}"}) for job in range(2)]
            self.assertEqual([job.wait(timeout=120) for job in jobs], [0, 0])
            for job in range(2):
                with open(f"{folder}/{job}") as said:
                    self.assertEqual(sorted(said.read().split("\n")), ["", "0 2", "0 2", "1 2", "1 2"])

    def test_by_nobody(self):
        self.assertEqual(started([{}]), [["0 1"]])


class Places(unittest.TestCase):
    def test_slurm_hosts(self):
        for nodes, first in (("gpu[003-007,9],login", "gpu003"), ("node1", "node1"), ("a,b", "a"),
                             ("rack[1-2]-ib", "rack1-ib"), ("", None)):
            self.assertEqual(_environment.first_slurm_host(nodes), first, nodes)

    def test_jobs_without_names(self):
        """The process that started the ranks on one host tells jobs apart, and not the parts of one on several."""
        proxy = [sys.executable, "-c", PROXY, JOB]
        self.assertEqual(len({job_of([*proxy, "2"]) for _ in range(3)}), 3)
        self.assertEqual({job_of([*proxy, "1"]) for _ in range(2)}, {"PMI/"})
        nowhere = os.open(os.devnull, os.O_RDONLY)
        self.addCleanup(os.close, nowhere)
        for fd in ("", str(nowhere), "1000000", "x", "-1", "9" * 30):  # no socket of such a process: the parent tells
            with environment(PMI_RANK="0", PMI_SIZE="2", MPI_LOCALNRANKS="2", PMI_FD=fd):
                self.assertEqual(_environment._job(_environment.find_place()), f"PMI/{os.getppid()}", fd)
                os.environ["PMI_ID"] = "mine"
                self.assertEqual(_environment._job(_environment.find_place()), "PMI/mine")

    def test_what_is_no_rank(self):
        with environment(RANK="2", WORLD_SIZE="2"):
            with self.assertRaisesRegex(ValueError, "torchrun says rank '2' of '2'.*no rank"):
                tutti.Communicator.from_env()

    def test_several_hosts_that_say_nothing_of_each_other(self):
        with environment(OMPI_COMM_WORLD_RANK="0", OMPI_COMM_WORLD_SIZE="4", OMPI_COMM_WORLD_LOCAL_SIZE="2"):
            with self.assertRaisesRegex(ValueError, "set TUTTI_COMM_ID=host:port"):
                tutti.Communicator.from_env()

    def test_a_rank_0_that_does_not_come(self):
        with environment(OMPI_COMM_WORLD_RANK="1", OMPI_COMM_WORLD_SIZE="2", OMPI_COMM_WORLD_LOCAL_SIZE="2",
                         PMIX_NAMESPACE=f"alone-{os.getpid()}"):
            with self.assertRaisesRegex(TimeoutError, "rank 1 of 2 .Open MPI. found no rank 0"):
                tutti.Communicator.from_env(timeout=0.1)


if __name__ == "__main__":
    unittest.main()
