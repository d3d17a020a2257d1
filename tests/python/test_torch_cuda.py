"""CUDA tensors of tutti.torch: all up to PyTorch's own backend for NCCL, in whose place one stands that writes down
what it is asked for, and tensors that say that they are on a GPU. So it needs none."""
import contextlib
import datetime
import sys
import tempfile
import unittest
from unittest import mock

try:
    import torch
    import torch.distributed as dist
    from torch._subclasses.fake_tensor import FakeTensorMode
except ImportError as error:
    print(f"skipped: no PyTorch ({error})")
    sys.exit(77)
if not dist.is_available():
    print("skipped: this PyTorch has no torch.distributed")
    sys.exit(77)

import tutti.torch
from torch_cases import SPLITS_CPUS
from tutti import _nccl, _process_group, _torch_cuda
from tutti._torch_groups import PARTS
from tutti._torch_work import DONE

c10d = torch._C._distributed_c10d
MODE = FakeTensorMode()
OPTIONS = c10d.ProcessGroupNCCL.Options if hasattr(c10d, "ProcessGroupNCCL") else None


def gpu(*shape):
    with MODE:
        return torch.ones(*(shape or (4,)), device="cuda")


def noted(name):
    def call(self, *arguments, **named):
        if name != "_set_sequence_number_for_group":
            self.calls.append((name, arguments, named))
        return DONE

    return call


def notes_calls(of):
    """Gives a class the calls that this class of PyTorch's has, and no others: each is noted by its newest name."""
    newest = {old: new for new, old in _torch_cuda._OLD_NAMES.items()}

    def decorate(kind):
        for name, what in vars(of).items():
            if not name.startswith("__") and callable(what) and not isinstance(what, type) and \
                    name not in vars(kind) and name != "_set_group_uid":
                setattr(kind, name, noted(newest.get(name, name)))
        return kind

    return decorate


@notes_calls(getattr(c10d, "ProcessGroupNCCL", c10d.Backend))
@notes_calls(c10d.Backend)
class Nccl(c10d.Backend if PARTS else object):
    """What notes the calls that it gets, in ProcessGroupNCCL's place."""

    def __init__(self, store, rank, size, timeout, name, ranks, options):
        if PARTS:
            super().__init__(rank, size)
        self.calls, self.made_of = [], (rank, size, timeout, name, list(ranks), options)
        store.set("is", "a store")

    supports_coalescing = supports_splitting = supports_shrinking = property(lambda self: True)
    options = property(lambda self: self.made_of[5])

    def comm_split_count(self):
        return 0

    def shrink(self, ranks_to_exclude, shrink_flags=0, opts_override=None):
        self.calls.append(("shrink", (ranks_to_exclude, shrink_flags, opts_override), {}))
        return c10d.ProcessGroupGloo(dist.HashStore(), 0, 1, datetime.timedelta(seconds=10))  # one of PyTorch's own


@notes_calls(c10d.ProcessGroup)
class Plain:
    """The plain group around it, whose calls are noted as its own: tensors that are on no GPU would not arrive."""

    BackendType = c10d.ProcessGroup.BackendType

    def __init__(self, store, rank, size):
        self.calls = []

    def _register_backend(self, device, kind, backend):
        assert (device, kind) == (torch.device("cuda"), self.BackendType.NCCL)
        self.calls = backend.calls

    def _set_default_backend(self, kind):
        assert kind == self.BackendType.NCCL


@contextlib.contextmanager
def group(backend="tutti", library=None, make=Nccl, **options):
    """The default group of this process alone, on such a libnccl.so.2 (None: tutti's)."""
    library = library or (lambda: _nccl._ours())
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(_nccl, "which", library), \
            mock.patch.object(_torch_cuda.dist, "is_nccl_available", lambda: True), \
            mock.patch.object(_torch_cuda, "_make", make), mock.patch.object(_torch_cuda, "ProcessGroup", Plain), \
            mock.patch.object(torch.cuda, "get_device_capability", lambda device: (8, 0)):
        dist.init_process_group(backend, f"file://{folder}/meeting", rank=0, world_size=1, **options)
        try:
            yield dist.group.WORLD
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()


@contextlib.contextmanager
def group_of_a_gpu(named=True, **options):
    """That of one that is in use, and may be named at the beginning."""
    one = torch.device("cuda", 0) if named else None
    with mock.patch.object(torch.accelerator, "device_count", lambda: 1), \
            mock.patch.object(torch.accelerator, "is_available", lambda: True), \
            mock.patch.object(torch.accelerator, "current_accelerator", lambda *which: torch.device("cuda")), \
            mock.patch.object(torch.cuda, "is_initialized", lambda: True), \
            mock.patch.object(torch.cuda, "current_device", lambda: 0), group(device_id=one, **options) as world:
        yield world


# What each call is named on the way, and how it is made with tensors of one device.
CALLS = {
    "allreduce": lambda x: dist.all_reduce(x()),
    "broadcast": lambda x: dist.broadcast(x(), 0),
    "reduce": lambda x: dist.reduce(x(), 0),
    "allgather": lambda x: dist.all_gather([x()], x()),
    "all_gather_single": lambda x: dist.all_gather_into_tensor(x(), x()),
    "gather": lambda x: dist.gather(x(), [x()], 0),
    "scatter": lambda x: dist.scatter(x(), [x()], 0),
    "reduce_scatter": lambda x: dist.reduce_scatter(x(), [x()]),
    "reduce_scatter_single": lambda x: dist.reduce_scatter_tensor(x(), x()),
    "alltoall": lambda x: dist.all_to_all([x()], [x()]),
    "all_to_all_single": lambda x: dist.all_to_all_single(x(), x()),
}


class Calls(unittest.TestCase):
    def check_calls(self, backend):
        with group(backend) as world:
            for name, call in CALLS.items():
                call(lambda: torch.ones(2))
            self.assertFalse(world.engine.cuda.is_made(), "CPU tensors ask for no NCCL")
            for name, call in CALLS.items():
                with self.subTest(name):
                    call(lambda: gpu(2))
                    nccl = world.engine.cuda.backend()
                    self.assertEqual(nccl.calls[-1][0], name)
                    self.assertTrue(_torch_cuda.first_tensor(nccl.calls[-1][1]).is_cuda)
            self.assertEqual(len(nccl.calls), len(CALLS))
            x = torch.ones(2)
            dist.all_reduce(x)  # and now none of the CPU
            self.assertEqual(len(nccl.calls), len(CALLS))

    def test_the_name_alone(self):
        self.check_calls("tutti")

    def test_for_each_device(self):
        self.check_calls("cpu:tutti,cuda:tutti")

    @unittest.skipUnless(PARTS, "this PyTorch has no backends in Python beside others")
    def test_a_part_beside_another_backend(self):
        with group("cpu:gloo,cuda:tutti") as world:
            part = world._get_backend(torch.device("cuda"))
            x = gpu()
            part.allreduce([x], dist.AllreduceOptions()).wait()
            part.start_coalescing()
            part.broadcast([x], dist.BroadcastOptions())
            part.end_coalescing().wait()
            self.assertEqual([call[0] for call in part.engine.cuda.backend().calls], ["allreduce", "broadcast"])

    def test_what_c_calls(self):
        with group() as world:
            x = gpu()
            with MODE:
                c10d.ProcessGroup.allreduce(world, [x], dist.AllreduceOptions()).wait()
            (name, arguments, _), = world.engine.cuda.backend().calls
            self.assertEqual((name, arguments[0][0].device.type), ("allreduce", "cuda"))

    def test_other_calls(self):
        with group() as world:
            x, options = gpu(), dist.BarrierOptions()
            options.device = torch.device("cuda", 0)
            world.send([x], 0, 3)
            world.recv([x], 0, 3)
            world.recv_anysource([x], 3)
            world.allreduce_coalesced([x, x])
            world.all_gather_single_coalesced([x], [x], None)
            world.reduce_scatter_single_coalesced([x], [x])
            world.barrier(options)
            world.broadcast(tensors=[x], root=0)
            said = world.engine.cuda.backend().calls
            self.assertEqual([call[0] for call in said], [
                "send", "recv", "recv_anysource", "allreduce_coalesced", "all_gather_single_coalesced",
                "reduce_scatter_single_coalesced", "barrier", "broadcast"])
            self.assertEqual(said[0][1][1:], (0, 3))
            self.assertEqual([len(call[1]) for call in said], [3, 3, 2, 1, 2, 2, 1, 0])
            dist.barrier()
            world.monitored_barrier()
            self.assertEqual(len(said), 8, "barriers without a GPU are the CPU's")

    def test_coalescing(self):
        with group() as world:
            device = torch.device("cuda", 0)
            with dist._coalescing_manager(device=device):
                dist.all_reduce(gpu())
            said = world.engine.cuda.backend().calls
            self.assertEqual([call[0] for call in said],
                             ["_start_coalescing", "allreduce_coalesced", "_end_coalescing"])
            with dist._coalescing_manager():
                dist.all_gather_into_tensor(gpu(), gpu())
            with dist._coalescing_manager():
                dist.reduce_scatter_tensor(gpu(), gpu())
            self.assertEqual([call[0] for call in said[3:]],
                             ["all_gather_single_coalesced", "reduce_scatter_single_coalesced"])

    def test_each_call_has_a_name_there(self):
        with group() as world:
            for name, method in vars(_process_group.Calls).items():
                if hasattr(method, "__wrapped__"):  # by device
                    with self.subTest(name):
                        world.engine.cuda.call(method.__name__, ([gpu()],), {})
                        self.assertEqual(world.engine.cuda.backend().calls[-1][0], method.__name__)

    def test_sparse(self):
        with group() as world:
            with MODE:
                x = torch.sparse_coo_tensor(torch.zeros(1, 1, dtype=torch.long, device="cuda"), gpu(1), (4,))
            dist.all_reduce(x)
            self.assertEqual([call[0] for call in world.engine.cuda.backend().calls], ["allreduce"])

    def test_objects_go_by_the_cpu(self):
        with group() as world:
            world._get_backend(torch.device("cuda", 0))
            out = [None]
            dist.all_gather_object(out, {"a": 1})
            self.assertEqual((out, world.engine.cuda.backend().calls), ([{"a": 1}], []))


class Life(unittest.TestCase):
    def test_it_is_the_group_s_own(self):
        minute = datetime.timedelta(seconds=60)
        with group(timeout=minute) as world:
            self.assertEqual(world._device_types, [torch.device("cpu")])
            with contextlib.suppress(RuntimeError):
                world._get_backend(torch.device("cuda"))  # as PyTorch does where nobody uses a GPU
            self.assertFalse(world.engine.cuda.is_made())
            nccl = world._get_backend(torch.device("cuda", 0))
            self.assertEqual(nccl.made_of, (0, 1, minute, world.engine.name, [0], None))
            self.assertIs(world.get_backend(torch.device("cuda")), nccl)
            self.assertEqual({device.type for device in world._device_types}, {"cpu", "cuda"})
            dist.all_reduce(gpu())
            self.assertEqual(len(nccl.calls), 1, "it is made once")
            part = dist.new_group([0], timeout=minute / 2)
            dist.all_reduce(gpu(), group=part)
            self.assertEqual(part.engine.cuda.backend().made_of[2:5], (minute / 2, part.engine.name, [0]))
            self.assertEqual(len(nccl.calls), 1)
            dist.destroy_process_group(part)
        self.assertEqual(nccl.calls[-1][0], "shutdown")

    def test_timeouts_and_abort(self):
        second = datetime.timedelta(seconds=1)
        with group() as world:
            nccl = world._get_backend(torch.device("cuda", 0))
            world.set_timeout(second)
            world.abort()
            self.assertEqual([call[:2] for call in nccl.calls], [("set_timeout", (second,)), ("abort", ())])
            with self.assertRaisesRegex(dist.DistBackendError, "shut down or aborted"):
                dist.all_reduce(gpu())

    def test_what_an_abort_stands_in_is_ended(self):
        device = torch.device("cuda", 0)
        with group() as world:
            nccl = world._get_backend(device)
            world._start_coalescing(device)
            world.abort()
            world._end_coalescing(device)
            self.assertEqual([call[0] for call in nccl.calls], ["_start_coalescing", "abort", "_end_coalescing"])

    def test_what_a_shutdown_cannot_end_is_aborted(self):
        with group_of_a_gpu() as world:
            nccl = world._get_backend(torch.device("cuda", 0))
            nccl.shutdown = mock.Mock(side_effect=dist.DistBackendError("rank 1 died"))
            with self.assertRaisesRegex(dist.DistBackendError, "rank 1 died"):
                dist.destroy_process_group()
            dist.distributed_c10d._abort_process_group()
            self.assertEqual([call[0] for call in nccl.calls].count("abort"), 1)
            self.assertFalse(dist.is_initialized())

    def test_abort_of_all_groups(self):
        for aborted in (False, True):
            with self.subTest(aborted=aborted), group_of_a_gpu() as world:
                nccl = world._get_backend(torch.device("cuda", 0))
                if aborted:
                    world.abort()
                dist.distributed_c10d._abort_process_group()
                self.assertEqual([call[0] for call in nccl.calls].count("abort"), 1)
                self.assertFalse(dist.is_initialized())


class Pretends(torch.Tensor):
    """A tensor on the CPU that says that it is on a GPU."""

    is_cuda = property(lambda self: True)


@unittest.skipUnless(dist.is_gloo_available(), "this PyTorch has no other backend")
class PlainGroup(unittest.TestCase):
    def gloo(self, store, rank, size, *others):
        return c10d.ProcessGroupGloo(store, rank, size, datetime.timedelta(seconds=10))

    def plain(self, gloo, store, rank, size):
        """As _group_of makes it, but for tensors where these are."""
        group = c10d.ProcessGroup(store, rank, size)
        group._register_backend(torch.device("cpu"), group.BackendType.NCCL, gloo)
        group._set_default_backend(group.BackendType.NCCL)
        return group

    def test_it_serves_gpus(self):
        store, cuda = dist.HashStore(), torch.device("cuda")
        gloo = self.gloo(store, 0, 1)
        plain = _torch_cuda._group_of(gloo, store, 0, 1)
        self.assertEqual((plain._device_types, plain.size()), ([cuda], 1))
        self.assertIs(plain._get_backend(cuda), gloo)

    def test_pytorch_s_own_takes_all_forms(self):
        def x():
            return torch.ones(4).as_subclass(Pretends)

        with group(make=self.gloo) as world, mock.patch.object(_torch_cuda, "_group_of", self.plain):
            for name, call in CALLS.items():
                if name != "alltoall":  # which gloo has in new versions
                    with self.subTest(name):
                        call(x)
            out = x().zero_()
            with dist._coalescing_manager():
                dist.all_gather_into_tensor(out, x())
            self.assertEqual(out.tolist(), [1] * 4)
            with dist._coalescing_manager():
                dist.reduce_scatter_tensor(out, x() * 2)
            self.assertEqual(out.tolist(), [2] * 4)
            world.all_gather_single_coalesced([out], [x()], None)
            world.allreduce_coalesced([x(), x()])
            world.allgather_coalesced([[x()]], [x()])
            world.allreduce(x())
            world.allreduce([x()], dist.ReduceOp.SUM)
            world.broadcast(tensors=[x()], opts=dist.BroadcastOptions())
            world.broadcast(x(), 0)
            world.reduce(x(), 0)
            world.gather([x()], x(), 0)
            world.scatter(x(), [x()], 0)
            world.reduce_scatter(x(), [x()])
            self.assertTrue(world.engine.cuda.is_made())


class Parts(unittest.TestCase):
    def test_split(self):
        """A part has an NCCL of its own, with the options of the whole."""
        options = OPTIONS and OPTIONS(is_high_priority_stream=True)
        with group_of_a_gpu(pg_options=options) as world:
            nccl = world._get_backend(torch.device("cuda"))
            part = dist.split_group(split_ranks=[[0]], timeout=datetime.timedelta(seconds=20))
            dist.all_reduce(gpu(), group=part)
            own = part._get_backend(torch.device("cuda"))
            self.assertEqual(own.made_of[:5], (0, 1, datetime.timedelta(seconds=20), part.group_name, [0]))
            self.assertEqual([call[0] for call in own.calls], ["allreduce"])
            self.assertIsNot(own.options, options)
            self.assertTrue(own.options.is_high_priority_stream if OPTIONS else own.options is None)
            x = torch.ones(1)
            dist.all_reduce(x, group=part)
            self.assertEqual((x.item(), part.get_group_store() is None), (1, False))
            dist.destroy_process_group(part)
            self.assertEqual([call[0] for call in nccl.calls], ["eager_connect_single_device"])

    @unittest.skipUnless(hasattr(dist, "shrink_group") and dist.is_gloo_available(), "this PyTorch shrinks no group")
    def test_shrink(self):
        """What NCCL makes is PyTorch's new default group, for CUDA tensors."""
        for named in (True, False):
            with self.subTest(named=named), group_of_a_gpu(named) as world:
                nccl = world._get_backend(torch.device("cuda"))
                with mock.patch.object(type(world), "size", lambda self: 2):
                    shrunk = dist.shrink_group([1])
                self.assertEqual([call[:2] for call in nccl.calls[-2:]], [("shrink", ([1], 0, None)), ("shutdown", ())])
                self.assertEqual((shrunk.size(), shrunk._device_types), (1, [torch.device("cuda")]))
                self.assertEqual(shrunk.bound_device_id, torch.device("cuda", 0))
                self.assertIs(dist.group.WORLD, shrunk)

    @unittest.skipUnless(hasattr(dist, "shrink_group"), "this PyTorch shrinks no group")
    def test_shrink_without_a_gpu(self):
        with group() as world, mock.patch.object(type(world), "size", lambda self: 2):
            with self.assertRaisesRegex(TypeError, "does not support shrinking"):
                dist.shrink_group([1])

    def test_only_those_see_the_gpu(self):
        with group_of_a_gpu() as world:
            nccl = world._get_backend(torch.device("cuda"))
            self.assertIsNone(world.bound_device_id)
            dist.barrier()
            part = dist.new_group([0])
            self.assertFalse(part.engine.cuda.is_made())
            self.assertEqual([call[0] for call in nccl.calls], ["eager_connect_single_device"])

    def test_split_without_a_gpu(self):
        with group():
            if SPLITS_CPUS:
                self.assertEqual(dist.split_group(split_ranks=[[0]]).size(), 1)
            else:
                with self.assertRaisesRegex(RuntimeError, "No device associated"):
                    dist.split_group(split_ranks=[[0]])


class Refused(unittest.TestCase):
    def refused(self, library, words, **options):
        with group(library=library) as world:
            with self.assertRaisesRegex(RuntimeError, words):
                dist.all_reduce(gpu())
            x = torch.ones(1)
            dist.all_reduce(x)  # the CPU's go on
            self.assertFalse(world.engine.cuda.is_made())

    def test_another_library(self):
        with mock.patch.object(_nccl, "is_ours", lambda path: False):
            self.refused(lambda: "/opt/nccl/libnccl.so.2", "uses /opt/nccl/libnccl.so.2: start it by `python -m "
                         "tutti run` or with TUTTI_ENABLE=1.*cuda:nccl")

    def test_none(self):
        self.refused(lambda: None, "loaded none, as this PyTorch has an NCCL of its own inside")

    def test_two(self):
        def two():
            raise RuntimeError("this process has loaded 2 NCCL libraries")

        self.refused(two, "loaded 2 NCCL libraries")

    def test_a_pytorch_without(self):
        with group():
            with mock.patch.object(_torch_cuda.dist, "is_nccl_available", lambda: False):
                with self.assertRaisesRegex(RuntimeError, "built without: install a build for CUDA"):
                    dist.all_reduce(gpu())

    def test_at_the_beginning_where_a_gpu_is_named(self):
        with mock.patch.object(_nccl, "is_ours", lambda path: False), \
                mock.patch.object(torch.accelerator, "device_count", lambda: 1), \
                self.assertRaisesRegex(RuntimeError, "python -m tutti run"):
            with group(library=lambda: "/opt/nccl/libnccl.so.2", device_id=torch.device("cuda", 0)):
                pass


@unittest.skipUnless(dist.is_nccl_available() and not torch.cuda.is_available(),
                     "for a PyTorch that is built for CUDA, on a machine without a GPU")
class LastStep(unittest.TestCase):
    def test_pytorch_is_asked(self):
        """It says itself that there is no GPU, after it has taken all options."""
        options = c10d.ProcessGroupNCCL.Options()
        with group(make=_torch_cuda._make, pg_options=options):
            with self.assertRaisesRegex(Exception, "no GPUs found"):
                dist.all_reduce(gpu())
            self.assertEqual((options.global_ranks_in_group, options.group_name), ([0], "0"))


if __name__ == "__main__":
    unittest.main()
