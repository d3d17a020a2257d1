"""Runs programs made for NCCL on tutti's libnccl.so.2, all their ranks on GPU 0, and says which passed: what
tests/gpu/nccl_tests and tests/gpu/nccl_examples have in common. The programs are ready-made; the library is preloaded,
and so is shared_gpu.c, which shows each process as many devices as it wants."""
import argparse
import dataclasses
import json
import math
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
SKIPPED = 77
DEVICE = pathlib.Path("/dev/nvidiactl")
# Ranks that share a GPU want no core of their own each; nothing is started on another host, by ssh or otherwise.
MPIRUN = ("mpirun", "--mca", "plm", "isolated", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none")
OURS = re.compile(r"\btutti \d+\.\d+\.\d+")  # what NCCL_DEBUG=VERSION says


@dataclasses.dataclass
class Command:
    """A program of the folder, with its arguments. `verdict` gets its exit status and its output, and returns why it
    has not passed, or an empty text; `known` says why it is not expected to pass."""
    words: list
    verdict: object
    processes: int = 0  # of MPI; 0: no MPI
    devices: int = 1
    environment: dict = dataclasses.field(default_factory=dict)
    known: str = ""

    def name(self):
        settings = [f"{key}={value}" for key, value in self.environment.items()]
        return " ".join([*settings, *(["mpirun", "-n", str(self.processes)] if self.processes else []), *self.words])

    def line(self, arguments):
        """The words to start it with, and its environment. What is preloaded is for the ranks, not for mpirun."""
        preload = ":".join(str(path) for path in (arguments.aid, arguments.lib))
        # A wait that never ends is to say for whom, before its command is ended.
        settings = {"LD_PRELOAD": preload, "SHARED_GPU_DEVICES": str(self.devices), "NCCL_DEBUG": "VERSION",
                    "TUTTI_TIMEOUT": str(math.ceil(arguments.limit * 2 / 3)), **self.environment}
        program = [str(arguments.folder / self.words[0]), *self.words[1:]]
        if not self.processes:
            return program, {**os.environ, **settings}
        passed = [word for key, value in settings.items() for word in ("-x", f"{key}={value}")]
        return [*MPIRUN, "-n", str(self.processes), *passed, *program], dict(os.environ)


def end_session(leader):
    """Ends what that leader of a session has started. mpirun gives each rank a process group of its own, but the
    session is the same; a rank in a call of CUDA does not notice that mpirun has gone."""
    for status in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            session = int(status.read_text().rpartition(")")[2].split()[3])
            if session == leader:
                os.kill(int(status.parent.name), signal.SIGKILL)
        except (OSError, ValueError):  # has ended meanwhile
            continue


class Running:
    """A command that has been started, and is ended with all of its processes at its limit."""

    def __init__(self, command, arguments):
        self.command = command
        self.limit = arguments.limit
        self.log = tempfile.TemporaryFile("w+", errors="replace")
        words, environment = command.line(arguments)
        self.began = time.monotonic()
        # Programs that write files do so where nothing is kept.
        self.program = subprocess.Popen(words, env=environment, cwd=arguments.scratch, stdin=subprocess.DEVNULL,
                                        stdout=self.log, stderr=subprocess.STDOUT, start_new_session=True)

    def over(self):
        self.seconds = time.monotonic() - self.began
        late = self.program.poll() is None
        if late and self.seconds < self.limit:
            return False
        end_session(self.program.pid)
        code = self.program.wait()
        self.log.seek(0)
        self.output = self.log.read()
        self.log.close()
        ours = "" if OURS.search(self.output) else "did not run with this library"
        self.why = f"not done after {self.limit:g} s" if late else self.command.verdict(code, self.output) or ours
        return True

    def record(self):
        return {"command": self.command.name(), "passed": not self.why, "why": self.why, "known": self.command.known,
                "seconds": round(self.seconds, 1), "output": self.output}


def not_run(command):
    return {"command": command.name(), "passed": False, "why": "not run, as there was no time left",
            "known": command.known, "seconds": 0.0, "output": ""}


def say(record):
    word = "passed" if record["passed"] else "known" if record["known"] else "FAILED"
    why = "" if record["passed"] else f": {record['why']}"
    if record["known"]:
        why += f" ({'although ' if record['passed'] else ''}not expected to pass: {record['known']})"
    print(f"{word:6} {record['seconds']:5.1f} s  {record['command']}{why}", flush=True)


def run_all(commands, arguments):
    """The records, in the order of the commands. Those not expected to pass take long, so they start first."""
    waiting = sorted(enumerate(commands), key=lambda one: not one[1].known)
    running, records = {}, {}
    end = time.monotonic() + arguments.total if arguments.total else math.inf
    try:
        while waiting or running:
            while waiting and len(running) < arguments.jobs:
                number, command = waiting.pop(0)
                if time.monotonic() < end:
                    running[number] = Running(command, arguments)
                    continue
                records[number] = not_run(command)
                say(records[number])
            for number in [number for number, one in running.items() if one.over()]:
                records[number] = running.pop(number).record()
                say(records[number])
            time.sleep(0.02)
    finally:
        for one in running.values():
            end_session(one.program.pid)
    return [records[number] for number in sorted(records)]


def report(records):
    """How many failed that are expected to pass. The outputs of all that failed come before the sum."""
    for record in records:
        if not record["passed"]:
            print(f"\n== {record['command']}: {record['why']}\n{record['output'].rstrip()}")
    passed = sum(record["passed"] for record in records)
    known = sum(not record["passed"] and bool(record["known"]) for record in records)
    text = f"; {known} of the others not expected to" if known else ""
    print(f"\n{passed} of {len(records)} passed{text}", flush=True)
    return len(records) - passed - known


def parse(description, folder_help):
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path, help=folder_help)
    parser.add_argument("--lib", type=pathlib.Path, help="libnccl.so.2 (that of the build in build/)",
                        default=HERE.parent.parent / "build/src/tutti/libnccl.so.2")
    parser.add_argument("--aid", type=pathlib.Path, help="shared_gpu.c, compiled (else it is compiled now)")
    parser.add_argument("--jobs", type=int, default=1, help="commands at once, which share the GPU too")
    parser.add_argument("--limit", type=float, default=45, help="seconds a command may take")
    parser.add_argument("--total", type=float, help="seconds after which no command is started any more")
    parser.add_argument("--only", help="only commands in which this regular expression is found")
    parser.add_argument("--json", type=pathlib.Path, help="a file for the results")
    parser.add_argument("--list", action="store_true", help="only print the commands")
    arguments = parser.parse_args()
    if arguments.jobs < 1:
        parser.error("--jobs is at least 1")
    for name in ("folder", "lib", "aid"):
        path = getattr(arguments, name)
        if path and not arguments.list:
            if not path.exists():
                parser.error(f"there is no {path}")
            setattr(arguments, name, path.resolve())
    return parser, arguments


def compiled_aid(folder):
    aid = folder / "shared_gpu.so"
    words = [os.environ.get("CC", "cc"), "-O1", "-shared", "-fPIC", "-o", str(aid), str(HERE / "shared_gpu.c")]
    try:
        subprocess.run(words, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"{shlex.join(words)}: {error}")
    return aid


def main(description, folder_help, commands):
    """The program: runs those of the commands that are asked for, and exits."""
    parser, arguments = parse(description, folder_help)
    wanted = [one for one in commands if not arguments.only or re.search(arguments.only, one.name())]
    if not wanted:
        parser.error(f"--only {arguments.only} finds no command")
    if arguments.list:
        print(*(one.name() for one in wanted), sep="\n")
        return
    missing = sorted({one.words[0] for one in wanted if not (arguments.folder / one.words[0]).is_file()})
    if missing:
        parser.error(f"{arguments.folder} has no {', '.join(missing)}")
    if not DEVICE.exists():
        print(f"skipped: no NVIDIA GPU ({DEVICE})")
        sys.exit(SKIPPED)
    if any(one.processes for one in wanted) and not shutil.which(MPIRUN[0]):
        parser.error("there is no mpirun")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that what runs is ended
    with tempfile.TemporaryDirectory() as folder:
        arguments.scratch = pathlib.Path(folder)
        arguments.aid = arguments.aid or compiled_aid(arguments.scratch)
        began = time.monotonic()
        records = run_all(wanted, arguments)
        if arguments.json:
            arguments.json.write_text(json.dumps(records, indent=1) + "\n")
        failed = report(records)
        print(f"{time.monotonic() - began:.0f} s", flush=True)
    sys.exit(failed > 0)
