"""The Python package, ranks as threads on host memory; where PyTorch finds GPUs, also there."""
import array
import asyncio
import gc
import pickle
import subprocess
import sys
import threading
import time
import unittest
import weakref

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
            with tutti.Communicator(n, rank, uid, device="host", **{"timeout": 20, **options}) as comm:
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

    def test_timeouts_that_are_none(self):
        for timeout in (-1, float("nan"), float("-inf")):
            with self.assertRaisesRegex(ValueError, f"timeout is {timeout}"):
                tutti.Communicator(1, 0, tutti.unique_id(), device="host", timeout=timeout)
            with self.assertRaisesRegex(ValueError, f"timeout is {timeout}"):
                tutti.Communicator.from_env(device="host", timeout=timeout)

    def test_timeouts_longer_than_the_library_has(self):
        """The first is 20 ms in 32 bits."""
        def body(comm):
            if comm.rank == 1:
                time.sleep(0.2)
            self.assertEqual(comm.all_reduce(np.ones(1))[0], 2)

        for timeout in ((2**32 + 20) / 1000, float("inf"), 1e300):
            on_ranks(2, body, timeout=timeout)

    def test_a_destroyed_communicator(self):
        comm = tutti.Communicator(1, 0, tutti.unique_id(), device="host")
        comm.destroy()
        comm.destroy()  # once is enough
        with self.assertRaisesRegex(tutti.Error, "comm is NULL"):
            comm.all_reduce(np.ones(1))


    def test_they_say_which_rank_and_what_helps(self):
        def body(comm):
            with self.assertRaisesRegex(tutti.Error, "argument root is 7") as caught:
                comm.broadcast(np.ones(1), root=7, async_op=True).wait()
            for error in (caught.exception, pickle.loads(pickle.dumps(caught.exception))):
                self.assertEqual((error.rank, error.code, error.name), (comm.rank, 4, "tuttiInvalidArgument"))
                self.assertRegex(error.remedy, "goes on")
            self.assertEqual(comm.all_reduce(np.ones(1))[0], 2)
            if comm.rank == 0:
                comm.all_reduce(np.ones(1))
                with self.assertRaisesRegex(tutti.Error, "rank 1") as caught:
                    comm.all_reduce(np.ones(1))
                self.assertEqual((caught.exception.rank, caught.exception.name), (0, "tuttiRemoteError"))
            else:
                comm.all_reduce(np.ones(1), async_op=True).wait()
                comm.abort()

        on_ranks(2, body)

    def test_no_communicator_of_others_in_a_group(self):
        def body(comm):
            for name, make in (("split", lambda: comm.split(0)), ("shrink", lambda: comm.shrink([]))):
                with self.assertRaisesRegex(ValueError, f"{name} cannot be in a group"):
                    with tutti.group():
                        make()
            self.assertEqual(comm.all_reduce(np.ones(1))[0], 2)

        on_ranks(2, body)

    def test_a_shrink_goes_on_without_those_who_left(self):
        def body(comm):
            if comm.rank == 1:
                comm.abort()
                return
            with self.assertRaisesRegex(tutti.Error, "rank 1"):
                while True:
                    comm.all_reduce(np.ones(1))
            with comm.shrink([1], abort=True) as rest:
                self.assertEqual((rest.size, rest.rank), (2, comm.rank // 2))
                self.assertEqual(rest.all_reduce(np.ones(1))[0], 2)
            comm.abort()

        on_ranks(3, body)


class BesideTheCaller(unittest.TestCase):
    def test_each_call_can_be_started(self):
        def body(comm):
            n, rank = comm.size, comm.rank
            x, all_of_them = np.full(5, rank + 1.0), np.repeat(np.arange(1.0, n + 1), 5)
            y, wide = np.empty_like(x), np.empty_like(all_of_them)
            for operation, want in (
                    (comm.all_reduce(x, y, async_op=True), n * (n + 1) / 2),
                    (comm.broadcast(x.copy(), root=1, async_op=True), 2),
                    (comm.all_gather(x, wide, async_op=True), all_of_them),
                    (comm.reduce_scatter(all_of_them, np.empty(5), async_op=True), n * (rank + 1)),
                    (comm.all_to_all(all_of_them, np.empty_like(wide), async_op=True), rank + 1),
                    (comm.scatter(all_of_them if rank == 0 else None, np.empty(5), async_op=True), rank + 1)):
                np.testing.assert_array_equal(operation.wait(60), want)
                self.assertTrue(operation.done())
            total = comm.reduce(x, y, root=1, async_op=True)
            gathered = comm.gather(x, wide if rank == 0 else None, async_op=True)
            # A plain call comes behind what has been started, though nobody waits for it.
            if rank == 0:
                comm.send(x, 1)
            elif rank == 1:
                np.testing.assert_array_equal(comm.recv(np.empty(5), 0), 1)
                np.testing.assert_array_equal(total.wait(), n * (n + 1) / 2)
            got = gathered.wait()
            np.testing.assert_array_equal(got, all_of_them if rank == 0 else x)
            if rank < 2:
                send = comm.send(x, 1, async_op=True) if rank == 0 else None
                recv = comm.recv(y, 0, async_op=True) if rank == 1 else None
                np.testing.assert_array_equal((recv or send).wait(), 1 if recv else None)
            comm.all_reduce(np.ones(100000), async_op=True)  # whose buffer nobody else keeps

        on_ranks(3, body)

    def test_a_loop_runs_other_tasks_meanwhile(self):
        go, ticks = threading.Event(), []

        async def first(comm):
            operation = comm.all_reduce(np.ones(3), async_op=True)
            tasks = [asyncio.ensure_future(operation) for _ in range(2)]
            done, _ = await asyncio.wait(tasks, timeout=0)
            self.assertFalse(done)
            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(operation, 0.01)  # gives up the waiting, not the operation
            ticks.append(1)
            go.set()
            return [await task for task in tasks] + [await operation]

        def body(comm):
            if comm.rank == 0:
                for got in asyncio.run(first(comm)):
                    np.testing.assert_array_equal(got, 2)
            else:
                self.assertTrue(go.wait(60))
                comm.all_reduce(np.ones(3))

        on_ranks(2, body)
        self.assertEqual(ticks, [1])

    def test_a_plain_call_waits_for_what_has_been_started(self):
        """Rank 1 comes when rank 0 has long made its second call, in which two threads would meet."""
        go = threading.Event()

        def body(comm):
            if comm.rank == 0:
                first = comm.all_reduce(np.ones(1), async_op=True)
                threading.Timer(0.2, go.set).start()
                self.assertEqual(comm.all_reduce(np.full(1, 5.0))[0], 10)
                self.assertEqual(first.wait()[0], 2)
            else:
                self.assertTrue(go.wait(60))
                comm.all_reduce(np.ones(1))
                comm.all_reduce(np.full(1, 5.0))

        on_ranks(2, body)

    def test_what_cannot_be_started_is_refused(self):
        def body(comm):
            with self.assertRaisesRegex(ValueError, "in a group"):
                with tutti.group():
                    comm.all_reduce(np.ones(1), async_op=True)
            comm.all_reduce(np.ones(1), async_op=True)
            comm.destroy()
            with self.assertRaisesRegex(ValueError, "destroyed"):
                comm.all_reduce(np.ones(1), async_op=True)

        on_ranks(1, body)

    def test_one_that_is_late_ends(self):
        def body(comm):
            if comm.rank == 0:
                with self.assertRaisesRegex(tutti.Error, "timeout") as caught:
                    comm.all_reduce(np.ones(1), async_op=True).wait(0.05)
                self.assertEqual(caught.exception.name, "tuttiTimeout")
                comm.abort()
            else:
                with self.assertRaisesRegex(tutti.Error, "revoke|rank 0"):
                    while True:
                        comm.all_reduce(np.ones(2))

        # Rank 1 comes only when rank 0 has given up.
        given_up = threading.Event()

        def in_turn(comm):
            if comm.rank == 0:
                try:
                    body(comm)
                finally:
                    given_up.set()
            else:
                self.assertTrue(given_up.wait(60))
                body(comm)

        on_ranks(2, in_turn)

    def test_who_forgets_a_communicator_keeps_its_buffers(self):
        run = subprocess.run([sys.executable, "-c", FORGETS], timeout=60, text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual((run.returncode, run.stdout), (0, "2 2\n"))

    def test_one_that_has_ended_is_kept_by_nobody(self):
        def body(comm):
            comm.all_reduce(np.ones(1), async_op=True)
            other = comm.split(0)
            other.all_reduce(np.ones(1), async_op=True)
            ends.append(weakref.ref(other))
            (other.destroy if comm.rank else other.abort)()

        ends = []
        on_ranks(2, body)
        gc.collect()
        self.assertEqual([end() for end in ends], [None, None])

    def test_an_interpreter_that_ends_waits_for_nobody(self):
        run = subprocess.run([sys.executable, "-c", ENDS_EARLY], timeout=60, text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual((run.returncode, run.stdout), (0, "started\n"))


JOINED = """
import gc, numpy, threading, tutti
uid, comms = tutti.unique_id(), {}
def join(rank): comms[rank] = tutti.Communicator(2, rank, uid, device="host", timeout=600)
def on_both(call):
    threads = [threading.Thread(target=call, args=(r,)) for r in range(2)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
on_both(join)
"""
ENDS_EARLY = JOINED + """
operation = comms[0].all_reduce(numpy.ones(1), async_op=True)
print("started")
"""
# Rank 1 comes when nobody has a name for rank 0's communicator, operation or buffer any more.
FORGETS = JOINED + """
x = bytearray(b"\\1") * (64 << 20)
comms.pop(0).all_reduce(bytearray(b"\\1") * (64 << 20), async_op=True)
gc.collect()
comms[1].all_reduce(x)
print(min(x), max(x))
"""


# Rank 1 writes to a window of rank 0 that nobody has a name for.
OPEN_WINDOWS = JOINED + """
import contextlib, sys
size, windows, way = 64 << 20, {}, sys.argv[1]
data = bytearray(size)
def make(rank):
    if rank == 1: windows[1] = comms[1].window(bytearray(size))
    elif way == "forgotten": comms[0].window(bytearray(size))
    elif way == "left": comms.pop(0).window(bytearray(size))
    else:
        with contextlib.suppress(ZeroDivisionError):
            with comms[0].window(bytearray(size)): 1 / 0
on_both(make)
gc.collect()
windows[1].put(data, 0)
print("written")
"""
LEAVES_A_WINDOW = """
import os, tutti
class Part(bytearray):
    def __del__(self, write=os.write): write(1, b"freed")
comm = tutti.Communicator(1, 0, tutti.unique_id(), device="host", timeout=20)
window = comm.window(Part(1000))
print("left")
"""


class OneSided(unittest.TestCase):
    def test_puts_and_signals(self):
        def body(comm):
            n, rank = comm.size, comm.rank
            part = np.zeros(n, dtype=np.float64)
            with comm.window(part) as window:
                for peer in range(n):
                    window.put(np.array([rank + 1.0]), peer, offset=8 * rank, signal=1)
                comm.wait_signals(range(n), signal=1)
                np.testing.assert_array_equal(part, np.arange(1.0, n + 1))
                comm.signal((rank + 1) % n, context=1)
                comm.signal((rank + 1) % n, context=1)
                comm.wait_signals((rank - 1) % n, count=2, context=1)
                with self.assertRaisesRegex(tutti.Error, "offset|bytes"):
                    window.put(np.ones(1), 0, offset=8 * n)
                with self.assertRaisesRegex(tutti.Error, "sig"):
                    comm.signal(0, signal=2)
            with self.assertRaisesRegex(ValueError, "closed"):
                window.put(np.ones(1), 0)

        on_ranks(3, body, signals=2, contexts=2)

    def test_windows_of_different_sizes_are_refused(self):
        def body(comm):
            x = np.zeros(comm.rank + 1)
            end = weakref.ref(x)
            with self.assertRaisesRegex(tutti.Error, "size"):
                comm.window(x)
            del x
            gc.collect()
            self.assertIsNone(end())

        on_ranks(2, body)

    def test_memory_stays_where_nobody_has_closed_its_window(self):
        for way in ("forgotten", "failed", "left"):
            with self.subTest(way):
                run = subprocess.run([sys.executable, "-c", OPEN_WINDOWS, way], timeout=60, text=True,
                                     stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
                self.assertEqual((run.returncode, run.stdout), (0, "written\n"))

    def test_memory_stays_to_the_end_of_the_process(self):
        run = subprocess.run([sys.executable, "-c", LEAVES_A_WINDOW], timeout=60, text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual((run.returncode, run.stdout), (0, "left\n"))

    def test_memory_is_let_go_with_its_window_or_communicator(self):
        def body(comm):
            def window(of):
                x = np.zeros(4)
                ends.append(weakref.ref(x))
                return of.window(x)

            ends, other, last = [], comm.split(0), comm.split(0)
            window(comm).close()
            window(other)
            other.destroy()
            window(last)
            with tutti.group():
                last.destroy()
                gc.collect()
                self.assertEqual([end() is None for end in ends], [True, True, False])
            gc.collect()
            self.assertEqual([end() for end in ends], [None] * 3)

        on_ranks(1, body)


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
