"""Where figures come from: the commit and the machine, as reports say them."""
import os
import pathlib
import platform
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent


def cpu_times():
    """(all, stolen) time of all cores since the start of the machine, in ticks, as proc(5) has it."""
    user, nice, system, idle, iowait, irq, softirq, steal = map(int, open("/proc/stat").readline().split()[1:9])
    return user + nice + system + idle + iowait + irq + softirq + steal, steal


BEFORE = cpu_times()


def stolen():
    """How much of the cores' time the host of a virtual machine gave to others since this program began: with
    much of it figures say more of the neighbours than of a library."""
    total, steal = (now - before for now, before in zip(cpu_times(), BEFORE))
    return f"{100 * steal / max(total, 1):.1f} % of the cores' time"


def git(*words):
    return subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True, check=False).stdout.strip()


def commit(given):
    """What --commit says, for a build that is of no checkout; else that of this one."""
    if given:
        return given
    changed = " with changes" if git("status", "--porcelain", "-uno") else ""
    return git("rev-parse", "--short", "HEAD") + changed


def machine():
    model = next((l.split(":")[1].strip() for l in open("/proc/cpuinfo") if "model name" in l),
                 platform.processor())
    return f"{model}, {len(os.sched_getaffinity(0))} cores, Linux {platform.release()}"
