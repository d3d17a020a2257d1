"""tutti.torch: the backend of torch.distributed, ranks as processes on host memory."""
import ast
import doctest
import inspect
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

try:
    import torch
    import torch.distributed as dist
except ImportError as error:
    print(f"skipped: no PyTorch ({error})")
    sys.exit(77)
if not hasattr(dist, "Backend") or not dist.is_available():
    print("skipped: this PyTorch has no torch.distributed")
    sys.exit(77)

import torch_cases
import torch_parallel
import torch_ranks
import tutti.torch
from test_docs import stubs

ALONE = {"one_dies", "one_leaves", "again", "recovers"}  # what leaves no group to go on with


class Cases(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.ranks = torch_ranks.Ranks(3)

    @classmethod
    def tearDownClass(cls):
        left, codes = cls.ranks.end()
        assert left == ["left"] * 3 and codes == [0] * 3, (left, codes)


def case(module, name):
    def run(self):
        try:
            self.ranks.run(module, name)
        except AssertionError:
            self.ranks.kill()  # who knows what they are at
            type(self).ranks = torch_ranks.Ranks(3)
            raise

    return run


for _module in (torch_cases, torch_parallel):
    for _name, _function in vars(_module).items():
        if getattr(_function, "__code__", None) and _name not in ALONE and \
                _function.__code__.co_varnames[:3] == ("dist", "rank", "size"):
            setattr(Cases, f"test_{_name}", case(_module.__name__, _name))


class Ends(unittest.TestCase):
    def test_a_rank_that_dies(self):
        ranks = torch_ranks.Ranks(3)
        ranks.run("torch_cases", "one_dies", ranks=[0, 2])
        ranks.end()

    def test_a_rank_that_leaves(self):
        ranks = torch_ranks.Ranks(3)
        ranks.run("torch_cases", "one_leaves")
        ranks.end()

    def test_again(self):
        ranks = torch_ranks.Ranks(2)
        ranks.run("torch_cases", "again")
        left, codes = ranks.end()
        self.assertEqual((left, codes), (["left"] * 2, [0] * 2))

    def test_recovers(self):
        ranks = torch_ranks.Ranks(3)
        ranks.run("torch_cases", "recovers")
        left, codes = ranks.end()
        self.assertEqual((left, codes), (["left"] * 3, [0] * 3))

    def test_torchrun_starts_the_ranks_again(self):
        """A rank dies in the first life; in the second all is well."""
        with tempfile.TemporaryDirectory() as folder:
            said = os.path.join(folder, "said")
            program = os.path.join(folder, "train.py")
            with open(program, "w") as file:
                file.write(DIES_ONCE)
            run = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2",
                                  "--max-restarts", "1", "--standalone", program], text=True, timeout=240,
                                 env={**os.environ, "SAID": said, "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT)
            self.assertEqual(run.returncode, 0, run.stdout)
            with open(said) as file:
                lines = sorted(file.read().splitlines())
        self.assertRegex(lines[0], "^life 0 of rank 0: .*rank 1 .*died")
        self.assertEqual(lines[1:], ["life 1 of rank 0: 2.0", "life 1 of rank 1: 2.0"])


DIES_ONCE = """
import os, signal, time, torch, torch.distributed as dist, tutti.torch
told = []
signal.signal(signal.SIGTERM, lambda *which: told.append(which))  # the agent may see the death first
dist.init_process_group("tutti")
life, x = os.environ["TORCHELASTIC_RESTART_COUNT"], torch.ones(1)
try:
    dist.barrier()  # rank 1 may be through and dead before rank 0 is
    if life == "0" and dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(x)
    what = x.item()
except dist.DistBackendError as error:
    what = error
with open(os.environ["SAID"], "a") as file:
    file.write(f"life {life} of rank {dist.get_rank()}: {what}\\n")
while life == "0" and not told:
    time.sleep(0.01)  # the agent ends whoever is left
if life == "0":
    os._exit(1)
dist.destroy_process_group()
"""


FROM_ENV = """
import array, os, tutti
for life in range(2):  # one after the other, in the same environment
    with tutti.Communicator.from_env(device="host", timeout=60) as comm:
        x = comm.all_reduce(array.array("f", [comm.rank + 1.0]))
        with open(os.environ["SAID"], "a") as file:
            file.write(f"{comm.rank} {comm.size} {x[0]}\\n")
"""


class FromEnv(unittest.TestCase):
    """tutti.Communicator.from_env() under torchrun itself."""

    def run_agents(self, *agents):
        with tempfile.TemporaryDirectory() as folder:
            said, program = os.path.join(folder, "said"), os.path.join(folder, "rank.py")
            with open(program, "w") as file:
                file.write(FROM_ENV)
            runs = [subprocess.Popen([sys.executable, "-m", "torch.distributed.run", *agent, program], text=True,
                                     env={**os.environ, "SAID": said, "OMP_NUM_THREADS": "1"},
                                     stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for agent in agents]
            try:
                texts = [run.communicate(timeout=240)[0] for run in runs]
            finally:
                for run in runs:
                    run.terminate()
            self.assertEqual([run.returncode for run in runs], [0] * len(runs), "\n".join(texts))
            with open(said) as file:
                self.assertEqual(sorted(file.read().splitlines()), sorted(["0 2 3.0", "1 2 3.0"] * 2))

    def test_on_one_host(self):
        self.run_agents(["--standalone", "--nproc-per-node", "2"])

    def test_of_two_agents(self):
        """As on two hosts: neither agent is the other's host, and the ranks meet at a store of somebody else."""
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        agent = ["--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-id", "tutti",
                 "--rdzv-endpoint", f"127.0.0.1:{store.port}", "--rdzv-conf", "is_host=0", "--local-addr", "127.0.0.1"]
        self.run_agents(agent, agent)


class Packages(unittest.TestCase):
    """What is built upon torch.distributed, where it is installed."""

    def run_ranks(self, package, size=2, **environment):
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        job = {**os.environ, "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1",
               "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True", "OMP_NUM_THREADS": "1",
               **environment}
        program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch_packages.py")
        with tempfile.TemporaryDirectory() as folder:
            ranks = [subprocess.Popen([sys.executable, "-W", "ignore", program, package], text=True, cwd=folder,
                                      env={**job, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for rank in range(size)]
            try:
                said = [rank.communicate(timeout=300)[0] for rank in ranks]
            finally:
                for rank in ranks:
                    rank.kill()
        if all(rank.returncode == 77 for rank in ranks):
            self.skipTest(said[0].strip())
        self.assertEqual([rank.returncode for rank in ranks], [0] * size, "\n".join(said))
        self.assertEqual([text.split()[-1] for text in said], ["done"] * size)

    def test_accelerate(self):
        self.run_ranks("accelerate", ACCELERATE_USE_CPU="true")

    def test_deepspeed(self):
        self.run_ranks("deepspeed", DS_ACCELERATOR="cpu")


class Nccl(unittest.TestCase):
    """Whose libnccl.so.2 a PyTorch that is linked with NCCL uses."""

    @classmethod
    def setUpClass(cls):
        if not os.path.isfile(tutti.which() or ""):
            raise unittest.SkipTest("this PyTorch is not linked with NCCL")

    def python(self, program):
        run = subprocess.run([sys.executable, "-c", program], text=True, timeout=120, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT)
        self.assertEqual(run.returncode, 0, run.stdout)
        return run.stdout.strip().splitlines()[-1]

    def test_enabled_before(self):
        self.assertEqual(self.python("import tutti; ours = tutti.enable(); import torch; print(tutti.which() == ours)"),
                         "True")

    def test_too_late(self):
        said = self.python("import torch, tutti\ntry: tutti.enable()\nexcept RuntimeError as error: print(error)")
        self.assertRegex(said, "this process uses .*libnccl.so.2 already: call tutti.enable")


class Docs(unittest.TestCase):
    """What is said of tutti.torch: test_docs does the same for tutti."""

    def test_every_public_name_has_an_example_that_is_right(self):
        finder, runner = doctest.DocTestFinder(recurse=False), doctest.DocTestRunner()
        with tempfile.TemporaryDirectory() as folder:
            dist.init_process_group("tutti", f"file://{folder}/meeting", rank=0, world_size=1)
            try:
                for name in tutti.torch.__all__:
                    known = {"tutti": tutti, "torch": torch, "dist": dist}
                    with self.subTest(name):
                        tests, said = finder.find(getattr(tutti.torch, name), name, globs=known), []
                        self.assertTrue(tests and tests[0].examples, "no example")
                        self.assertEqual(runner.run(tests[0], out=said.append).failed, 0, "".join(said))
            finally:
                dist.destroy_process_group()

    def test_the_stubs_have_the_names_and_arguments_that_there_are(self):
        tree = ast.parse(pathlib.Path(tutti.torch.__file__).with_suffix(".pyi").read_text())
        said = dict(stubs(tree.body))
        for name, arguments in said.items():
            self.assertEqual(arguments, set(inspect.signature(getattr(tutti.torch, name)).parameters), name)
        classes = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
        self.assertEqual(classes | set(said), set(tutti.torch.__all__))


if __name__ == "__main__":
    unittest.main()
