"""Where figures come from: the commit and the machine, as reports say them."""
import os
import pathlib
import platform
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent


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
