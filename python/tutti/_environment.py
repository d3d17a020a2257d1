"""Which rank of a job this process is, and where its ranks meet: by what launchers say in the environment,
with the names and the order that `tutti perf` has."""
import collections
import contextlib
import datetime
import hashlib
import os
import re
import socket
import struct
import threading
import time
import zlib

_FIRST_PORT, _PORTS = 20000, 12000  # derived ports lie below the ephemeral ones of Linux
_ID_BYTES, _PAUSE = 128, 0.02

# Variables of each rank. None: the launcher does not say. Those of a Slurm job, such as SLURM_NTASKS, are
# also there in a batch script, which is no rank. `proxy` names a socket to a process of the launcher.
_Launcher = collections.namedtuple("_Launcher", "name rank size local_size nodes job proxy", defaults=[None])
_LAUNCHERS = [
    _Launcher("Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", None,
              ("PMIX_NAMESPACE", "OMPI_MCA_orte_hnp_uri")),
    _Launcher("torchrun", "RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", None,
              ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT")),
    _Launcher("Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", None, "SLURM_STEP_NUM_NODES",
              ("SLURM_JOB_ID", "SLURM_STEP_ID")),
    _Launcher("PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS", None, ("PMI_ID",), "PMI_FD"),
    _Launcher("PMIx", "PMIX_RANK", "PMIX_SIZE", None, None, ("PMIX_NAMESPACE",)),
]
Place = collections.namedtuple("Place", "rank size launcher")
_meetings = collections.Counter()  # of each job: all ranks make their communicators in the same order


def _said(name):
    return os.environ.get(name or "") or None


def find_place():
    """This process's rank, the number of ranks, and who says so (None: nobody, it is alone)."""
    for launcher in _LAUNCHERS:
        rank, size = _said(launcher.rank), _said(launcher.size)
        if rank is None or size is None:
            continue
        if not (rank.isdecimal() and size.isdecimal() and int(rank) < int(size)):
            raise ValueError(f"{launcher.name} says rank '{rank}' of '{size}' ({launcher.rank}, "
                             f"{launcher.size}), which is no rank")
        return Place(int(rank), int(size), launcher)
    return Place(0, 1, None)


def _one_host(place):
    local, nodes = _said(place.launcher.local_size), _said(place.launcher.nodes)
    return local == str(place.size) if local else nodes == "1"


def _peer(connection):
    """The process, user and group at the other end."""
    return struct.unpack("iii", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))


def _proxy(name):
    """The number of the process that started the ranks on this host, another one for each job; where its
    socket has been closed, as programs between them and this one may do, this process's parent."""
    try:
        with socket.socket(fileno=os.dup(int(_said(name) or ""))) as connection:
            number = _peer(connection)[0]
    except (OSError, ValueError, OverflowError):
        number = 0
    return number if number > 0 and number != os.getpid() else os.getppid()


def _job(place):
    """What tells two jobs from each other."""
    launcher = place.launcher
    words = [_said(name) or "" for name in launcher.job]
    if launcher.proxy and not any(words) and _one_host(place):  # each host has a proxy of its own
        words = [str(_proxy(launcher.proxy))]
    return f"{launcher.name}/{'/'.join(words)}"


def first_slurm_host(nodes):
    """The first host of a node list such as "gpu[003-007,9],login": rank 0 runs there."""
    found = re.match(r"([^\[,]+)(?:\[([^-,\]]+)[^\]]*\]([^\[,]*))?", nodes)
    return "".join(part or "" for part in found.groups()) if found else None


def _meeting_point(place):
    """host:port where rank 0 will listen; None: that cannot be known."""
    host, port = _said("MASTER_ADDR"), _said("MASTER_PORT")
    if not host and place.launcher.name == "Slurm":
        host = first_slurm_host(_said("SLURM_STEP_NODELIST") or "")
    if not host:
        return None
    if _said("MASTER_ADDR") and port and port.isdecimal():  # whose port is another's
        number = int(port) + 1 if int(port) < 65535 else int(port) - 1
    else:
        number = _FIRST_PORT + zlib.crc32(_job(place).encode()) % _PORTS
    return f"[{host}]:{number}" if ":" in host and host[0] != "[" else f"{host}:{number}"


# ---- on one host ----


def _address(job):
    """A socket of this host and user without a name in a file system, which ends with its process."""
    return f"\0tutti/{os.getuid()}/{hashlib.sha256(job.encode()).hexdigest()[:40]}"  # such names are short


def _peer_is_ours(connection):
    return _peer(connection)[1] in (os.getuid(), 0)


def _serve(listener, uid, others, until):
    """Gives the id to all others, who may come while this rank joins already."""
    with listener:
        while others and time.monotonic() < until:
            listener.settimeout(max(0.001, until - time.monotonic()))
            try:
                connection, _ = listener.accept()
                with connection:
                    if not _peer_is_ours(connection):
                        continue
                    connection.settimeout(max(0.001, until - time.monotonic()))
                    connection.sendall(uid)
                    others -= 1
            except OSError:
                continue  # who has gone meanwhile comes again, or never


def _offer_here(job, uid, others, until):
    listener = socket.socket(socket.AF_UNIX)
    while True:
        try:
            listener.bind(_address(job))
            break
        except OSError as error:  # the job before of the same name may still be ending
            if time.monotonic() > until:
                listener.close()
                raise RuntimeError(f"rank 0 cannot offer its ranks a meeting as '{job}': {error}. Another job "
                                   "of this name runs here; give them names or ports of their own") from error
            time.sleep(_PAUSE)
    listener.listen(others)
    threading.Thread(target=_serve, args=(listener, uid, others, until), daemon=True, name="tutti-meet").start()


def _ask(job, until):
    """What rank 0 says at once; None: it is not there."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(max(0.001, until - time.monotonic()))
        try:
            connection.connect(_address(job))
            if not _peer_is_ours(connection):
                raise PermissionError(f"the meeting '{job}' of this host belongs to another user")
            said = b""
            while len(said) < _ID_BYTES:
                more = connection.recv(_ID_BYTES - len(said))
                if not more:
                    return None
                said += more
            return said
        except (ConnectionError, FileNotFoundError, socket.timeout, BlockingIOError):
            return None


def _take_here(job, place, until):
    while time.monotonic() < until:
        uid = _ask(job, until)
        if uid:
            return uid
        time.sleep(_PAUSE)
    raise TimeoutError(f"rank {place.rank} of {place.size} ({place.launcher.name}) found no rank 0 on this host: "
                       "see whether it runs, and has called from_env() as often")


# ---- by others ----


def _by_store(key, place, make, seconds):
    """By the store that torchrun's agent has at MASTER_PORT; torchrun is a part of PyTorch."""
    from torch.distributed import TCPStore

    timeout = datetime.timedelta(seconds=seconds)
    store = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False, timeout=timeout)
    if place.rank == 0:
        uid = make()
        store.set(key, uid)
        return uid
    store.wait([key], timeout)
    return bytes(store.get(key))


@contextlib.contextmanager
def _setting(name, value):
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _at_point(place, make):
    """An id by which all meet at an address that all know."""
    point = _meeting_point(place)
    if not point:
        raise ValueError(f"cannot tell where the {place.size} ranks of {place.launcher.name} meet, as they are on "
                         "several hosts: set TUTTI_COMM_ID=host:port for all of them, host being rank 0's and "
                         "port free there")
    with _setting("TUTTI_COMM_ID", point):
        return make()


def meet(place, make, seconds):
    """The id that the ranks of this place's job have in common; rank 0 makes it by `make`."""
    if place.size == 1 or _said("TUTTI_COMM_ID") or _said("NCCL_COMM_ID"):
        return make()
    job = _job(place)
    _meetings[job] += 1
    key = f"{job}/{_meetings[job]}"
    if _one_host(place):
        until = time.monotonic() + seconds
        if place.rank:
            return _take_here(key, place, until)
        uid = make()
        _offer_here(key, uid, place.size - 1, until)
        return uid
    if _said("TORCHELASTIC_USE_AGENT_STORE") == "True" and _said("MASTER_ADDR") and _said("MASTER_PORT"):
        return _by_store(f"tutti/{key}", place, make, seconds)
    return _at_point(place, make)
