"""Ranks of a PyTorch training go missing: the others must end, soon, with an error that names the
cause, and the calls that clean up must return.

    tutti run -- python3 tests/gpu/torch_kill.py [--backend tutti] [SCENARIO]...

It starts the ranks itself (4, or --ranks), on the GPUs by turns, for torchrun would end the others before
they can say what they saw.
The exit code is 0 if all is well; what a rank wrote is shown where it is not.

  crash    the last rank is killed at step 20; nobody handles the error, so the job must end by itself
  destroy  the same, but the others catch the error and call destroy_process_group
  abort    the last rank stays away from step 20; the others abort while their kernels wait for it"""
import argparse
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time

KILL_STEP, STEPS = 20, 500
LIMIT = 30  # seconds that the others have
# What the others must have written.
SAYS = {"crash": r"rank {} .*died", "destroy": r"rank {} .*died", "abort": ""}


def train(model, optimizer, device, scenario):
    """Runs until something fails, or for `abort` until the other ranks wait for the last."""
    import torch  # here, for the process that starts the ranks needs none of it
    import torch.distributed as dist
    victim = dist.get_rank() == dist.get_world_size() - 1
    for step in range(STEPS):
        if step == KILL_STEP:
            torch.cuda.synchronize()
            print("reached", flush=True)
            if victim and scenario != "abort":
                os.kill(os.getpid(), signal.SIGKILL)
            if victim:
                time.sleep(LIMIT)
                return
        loss = model(torch.full((8, 1024), float(step), device=device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == KILL_STEP and scenario == "abort":
            time.sleep(2)  # the kernels are at it now
            return
        loss.item()
    raise SystemExit(f"all {STEPS} steps passed and nobody missed the last rank")


def run_rank(scenario, backend):
    import torch
    import torch.distributed as dist
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group(backend, device_id=device)
    layers = [torch.nn.Linear(1024, 1024) for _ in range(8)]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    if scenario == "crash":
        train(model, optimizer, device, scenario)
    try:
        train(model, optimizer, device, scenario)
    except Exception as error:
        print(f"caught: {error}", file=sys.stderr, flush=True)
    if scenario == "abort":
        if dist.get_rank() != dist.get_world_size() - 1:
            dist.distributed_c10d._abort_process_group()
            torch.cuda.synchronize()  # the kernels have ended too
    else:
        try:
            dist.destroy_process_group()
        except dist.DistBackendError as error:  # it flushes first, and what failed cannot be flushed
            print(f"not flushed: {error}", file=sys.stderr, flush=True)
            dist.distributed_c10d._abort_process_group()
    print("cleaned up", flush=True)
    os._exit(0)  # no destructor may hide that the call above did not return


def start(scenario, ranks, backend):
    """One process per rank, each with a file for all it writes; and what holds the port where they meet.

    The kernel gives the port to nobody else while a socket is bound to it; rank 0, which asks for it by
    its number and reuses addresses as PyTorch does, gets it, for nobody listens there."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    port = held.getsockname()[1]
    processes = []
    for rank in range(ranks):
        env = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank),
                   LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks), PYTHONUNBUFFERED="1")
        if scenario == "crash":  # PyTorch's watchdog sleeps four times as long before it ends
            env["TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC"] = "1000"
        else:  # or the watchdog would end a process that wants to clean up
            env["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"
        log = tempfile.TemporaryFile()
        process = subprocess.Popen([sys.executable, __file__, "--backend", backend, "--run-rank", scenario],
                                   env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        processes.append((process, log))
    return processes, held


def text_of(log):
    log.seek(0)
    return log.read().decode(errors="replace")


def wait_for(condition, seconds):
    """The seconds until it held, or None."""
    begin = time.monotonic()
    while not condition():
        if time.monotonic() - begin > seconds:
            return None
        time.sleep(0.02)
    return time.monotonic() - begin


def judge(scenario, missing, code, text):
    """What is wrong with how this rank ended, or None."""
    if code is None:
        return f"still runs {LIMIT} s later"
    if scenario == "crash" and code == 0:
        return "ended with exit code 0, as if nothing had been"
    if scenario != "crash" and (code != 0 or "cleaned up" not in text):
        return f"did not clean up (exit code {code})"
    if not re.search(SAYS[scenario].format(missing), text):
        return f"ended without saying that rank {missing} died"
    return None


def run_scenario(scenario, ranks, backend):
    processes, held = start(scenario, ranks, backend)
    missing = ranks - 1
    others = range(missing)
    victim, log = processes[missing]
    wait_for(lambda: "reached" in text_of(log) or victim.poll() is not None, 120)
    reached = "reached" in text_of(log)
    took = wait_for(lambda: all(processes[r][0].poll() is not None for r in others),
                    LIMIT if reached else 0)
    failed = False
    for rank, (process, log) in enumerate(processes):
        code, text = process.poll(), text_of(log)
        if rank == missing:
            wrong = None if reached else f"did not come to step {KILL_STEP}"
        else:
            wrong = judge(scenario, missing, code, text)
        if wrong:
            failed = True
            print(f"{scenario}: rank {rank} {wrong}; it wrote:\n{text[-4000:]}")
        process.kill()
        process.wait()
    held.close()
    if not failed:
        print(f"{scenario}: ok, the others had ended {took:.1f} s after rank {missing} was gone")
    sys.stdout.flush()
    return not failed


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO",
                        help="crash, destroy, abort; default: all")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--backend", default="nccl")
    parser.add_argument("--run-rank", choices=SAYS, help=argparse.SUPPRESS)  # how it starts a rank
    args = parser.parse_args()
    if args.run_rank:
        return run_rank(args.run_rank, args.backend)
    unknown = set(args.scenarios) - set(SAYS)
    if unknown or args.ranks < 2:
        parser.error(f"no scenario {', '.join(unknown)}" if unknown else "--ranks must be 2 or more")
    good = [run_scenario(s, args.ranks, args.backend) for s in args.scenarios or SAYS]
    sys.exit(0 if all(good) else 1)


main()
