"""The Python package, ranks as threads on host memory; where PyTorch finds GPUs, also there."""
import array
import subprocess
import sys
import threading
import unittest

try:
    import numpy as np
except ImportError:
    print("skipped: no numpy (Debian: python3-numpy)")
    sys.exit(77)
import tutti


FORKED_RANKS = """
import multiprocessing, numpy, os, tutti
uid = tutti.unique_id()
def run(rank):
    with tutti.Communicator(2, rank, uid, device="host", timeout=20) as comm:
        os.write(1, b"%.1f " % comm.all_reduce(numpy.ones(1))[0])
ranks = [multiprocessing.get_context("fork").Process(target=run, args=(r,)) for r in range(2)]
for process in ranks: process.start()
for process in ranks: process.join()
"""


def on_ranks(n, body, **options):
    """Runs body(comm) on n threads; the first error, if any, is raised."""
    uid, errors = tutti.unique_id(), []

    def run(rank):
        try:
            with tutti.Communicator(n, rank, uid, device="host", timeout=20, **options) as comm:
                body(comm)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(r,)) for r in range(n)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if errors:
        raise errors[0]


class Collectives(unittest.TestCase):
    def test_all_of_them(self):
        def body(comm):
            n, rank = comm.size, comm.rank
            x = np.full(1001, rank + 1, dtype=np.float32)
            y = np.empty_like(x)
            self.assertIs(comm.all_reduce(x, y), y)
            np.testing.assert_array_equal(y, n * (n + 1) / 2)
            np.testing.assert_array_equal(comm.all_reduce(x.copy(), op=tutti.MAX), n)
            np.testing.assert_array_equal(comm.broadcast(x.copy(), root=1), 2)
            got = comm.reduce(x, np.zeros_like(x), root=2)
            np.testing.assert_array_equal(got, n * (n + 1) / 2 if rank == 2 else 0)
            ranks = np.repeat(np.arange(1, n + 1), 1001).astype(np.float32)
            np.testing.assert_array_equal(comm.all_gather(x, np.empty_like(ranks)), ranks)
            part = comm.reduce_scatter(ranks, np.empty_like(x))
            np.testing.assert_array_equal(part, n * (rank + 1))
            got = comm.all_to_all(ranks, np.empty_like(ranks))
            np.testing.assert_array_equal(got, rank + 1)
            got = comm.gather(x, np.empty_like(ranks) if rank == 1 else None, root=1)
            np.testing.assert_array_equal(got, ranks if rank == 1 else x)
            got = comm.scatter(ranks if rank == 0 else None, np.empty_like(x))
            np.testing.assert_array_equal(got, rank + 1)
            with tutti.group():
                comm.send(x.copy(), (rank + 1) % n)  # lives until the group ends
                comm.recv(y, (rank - 1) % n)
            np.testing.assert_array_equal(y, (rank - 1) % n + 1)
            half = comm.split(rank % 2 if rank < 2 else -1)
            self.assertEqual(half is None, rank >= 2)
            if half:
                self.assertEqual((half.size, half.rank), (1, 0))
                half.destroy()

        on_ranks(3, body)

    def test_every_type(self):
        def body(comm):
            for kind in ("int8", "uint8", "int32", "uint32", "int64", "uint64", "float16",
                         "float32", "float64"):
                x = np.full((3, 5), 2, dtype=kind)
                np.testing.assert_array_equal(comm.all_reduce(x), 4)
            x = array.array("d", [1.5, 2.5])
            self.assertEqual(list(comm.all_reduce(x)), [3, 5])
            x = bytearray(b"abc")
            comm.broadcast(x)
            self.assertEqual(x, b"abc")
            comm.all_reduce(np.empty(0, dtype=np.float32))

        on_ranks(2, body)

    def test_bools_stay_bools(self):
        def body(comm):
            for op, want in ((tutti.SUM, [0, 1, 1]), (tutti.MAX, [0, 1, 1]),
                             (tutti.PROD, [0, 0, 1]), (tutti.MIN, [0, 0, 1])):
                x = np.array([False, comm.rank == 1, True])
                self.assertEqual(comm.all_reduce(x, op=op).view(np.uint8).tolist(), want)
            with self.assertRaisesRegex(TypeError, "no average of bools"):
                comm.reduce(x, op=tutti.AVG)

        on_ranks(2, body)


class Errors(unittest.TestCase):
    def test_they_name_what_is_wrong(self):
        def body(comm):
            x = np.ones(4, dtype=np.float32)
            with self.assertRaisesRegex(tutti.Error, "argument root is 7") as caught:
                comm.broadcast(x, root=7)
            self.assertEqual(caught.exception.code, 4)
            self.assertRegex(str(caught.exception), "comm quartet")
            with self.assertRaisesRegex(TypeError, "complex"):
                comm.all_reduce(x.astype(complex))
            with self.assertRaisesRegex(TypeError, "different types"):
                comm.all_reduce(x, np.empty(4))
            with self.assertRaisesRegex(ValueError, "4 and 3 elements"):
                comm.all_reduce(x, x[:3])
            with self.assertRaisesRegex(ValueError, "not contiguous"):
                comm.all_reduce(x[::2])
            with self.assertRaisesRegex(ValueError, "read-only"):
                comm.broadcast(b"abc")
            with self.assertRaisesRegex(ZeroDivisionError, "division"):
                with tutti.group():
                    comm.send(x, 0)
                    1 / 0
            np.testing.assert_array_equal(comm.all_reduce(x), 1)  # nothing of that group is left

        on_ranks(1, body, name="quartet")

    def test_gpu_memory_on_a_host_communicator(self):
        class OnGpu(np.ndarray):
            def __dlpack_device__(self):
                return 2, 0

            def __dlpack__(self, stream=None):
                return np.asarray(self).__dlpack__()

        def body(comm):
            with self.assertRaisesRegex(ValueError, "in GPU memory"):
                comm.all_reduce(np.ones(4).view(OnGpu))

        on_ranks(1, body)

    def test_ranks_forked_after_the_id_was_made(self):
        # In a process that has no communicator yet, whose children could not use it.
        run = subprocess.run([sys.executable, "-c", FORKED_RANKS], timeout=60, text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual(run.stdout.split(), ["2.0", "2.0"])

    def test_a_bad_id(self):
        with self.assertRaisesRegex(ValueError, "128 bytes"):
            tutti.Communicator(1, 0, b"short")
        with self.assertRaisesRegex(tutti.Error, "all zero"):
            tutti.Communicator(1, 0, bytes(128))

    def test_a_destroyed_communicator(self):
        comm = tutti.Communicator(1, 0, tutti.unique_id(), device="host")
        comm.destroy()
        comm.destroy()  # once is enough
        with self.assertRaisesRegex(tutti.Error, "comm is NULL"):
            comm.all_reduce(np.ones(1))


class OnGpu(unittest.TestCase):
    def test_a_tensor(self):
        try:
            import torch
        except ImportError:
            self.skipTest("no PyTorch")
        if not torch.cuda.is_available():
            self.skipTest("no GPU")
        with tutti.Communicator(1, 0, tutti.unique_id(), device="cuda") as comm:
            x = torch.ones(1000, dtype=torch.bfloat16, device="cuda")
            comm.all_reduce(x, stream=torch.cuda.current_stream().cuda_stream)
            self.assertTrue(bool((x == 1).all()))


if __name__ == "__main__":
    print("tutti", ".".join(map(str, tutti.version())))
    unittest.main()
