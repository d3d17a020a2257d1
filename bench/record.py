"""Runs of a report that takes several calls: what is measured is written at once, to DIR/NAME.json, and
later calls go on from what earlier ones wrote. For the programs beside this file."""
import datetime
import json
import math
import os
import pathlib
import subprocess
import sys
import time

import provenance

ROOT = pathlib.Path(__file__).resolve().parent.parent


def arguments(parser, timeout):
    parser.add_argument("--timeout", type=float, default=timeout, help="of one run, in seconds")
    parser.add_argument("--seconds", type=float, default=math.inf, help="end after this, whatever is left to do")
    parser.add_argument("--earlier", type=pathlib.Path, nargs="+", default=[], metavar="JSON",
                        help="what earlier calls wrote; their runs count, and are not repeated")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "bench/results", metavar="DIR")
    parser.add_argument("--commit", default="", help="of tutti, if this is no checkout")


def gpu():
    """Name and driver of the GPUs, or "" where there is none."""
    try:
        told = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
                              capture_output=True, text=True, check=False).stdout
    except OSError:
        return ""
    return "; ".join(told.split("\n")).strip("; ")


class Record:
    """The runs, each a dictionary with the key "cell"; what failed; and where they are from."""

    def __init__(self, args, name, machine=""):
        self.args, self.name = args, name
        self.end = time.monotonic() + args.seconds
        self.runs, self.failures, self.sources, self.late = [], [], [], []
        for file in args.earlier:
            told = json.loads(file.read_text())
            for list_, word in ((self.runs, "runs"), (self.failures, "failures"), (self.sources, "sources")):
                list_ += [one for one in told[word] if one not in list_]
        words = [w.rsplit("/", 1)[-1] if w.startswith("/") else w for w in sys.argv[1:]]
        if machine:
            machine += f", {len(os.sched_getaffinity(0))} cores"
        self.sources.append(f"{datetime.date.today().isoformat()}, commit {provenance.commit(args.commit)}, "
                            f"{machine or provenance.machine()}: "
                            f"bench/{pathlib.Path(sys.argv[0]).name} {' '.join(words)}")
        args.out.mkdir(parents=True, exist_ok=True)

    def left(self):
        """Seconds."""
        return self.end - time.monotonic()

    def of(self, cell):
        return [run for run in self.runs if run["cell"] == cell]

    def measure(self, cell, run):
        """Keeps what run(seconds) returns, a dictionary, and the seconds that it took, or why it raised
        RuntimeError or OSError. Where the time is up it is not called; returns None then, and on a failure."""
        what = ", ".join(map(str, cell))
        limit, began, result = min(self.args.timeout, self.left()), time.monotonic(), None
        if limit < 2:
            self.late.append(what)
            return None
        try:
            told = run(limit)
            result = dict(told, cell=cell, seconds=round(time.monotonic() - began, 2))
            self.runs.append(result)
        except (RuntimeError, OSError, subprocess.SubprocessError) as error:
            if limit < self.args.timeout and self.left() <= 0:
                self.late.append(what)
            else:
                self.failures.append({"cell": cell, "why": str(error)})
            print(f"failed: {what}: {error}", file=sys.stderr, flush=True)
        self.save()
        print(f"{what}: {time.monotonic() - began:.1f} s, {self.left():.0f} s left", file=sys.stderr, flush=True)
        return result

    def save(self):
        text = json.dumps({"sources": self.sources, "runs": self.runs, "failures": self.failures}, indent=0)
        part = self.args.out / f"{self.name}.json.part"
        part.write_text(text + "\n")
        part.rename(self.args.out / f"{self.name}.json")

    def head(self, title):
        """Lines of the report before its tables."""
        return [f"# {title}\n", *(f"- {source}" for source in self.sources)]

    def tail(self):
        """What is missing of it."""
        lines = [f"- failed: {', '.join(map(str, f['cell']))}: {f['why'].splitlines()[0] if f['why'] else ''}"
                 for f in self.failures]
        return ["", *lines, *(f"- no time left: {what}" for what in self.late)] if lines or self.late else []

    def write(self, lines):
        text = "\n".join(lines) + "\n"
        self.save()
        (self.args.out / f"{self.name}.md").write_text(text)
        print(text)


def verdict(requirement, cells, least=True):
    """A line that says of how many cells it holds, and of which it does not, the worst first: cells is a
    list of (name, figure, whether it holds), and the least figure is the worst, or the greatest."""
    bad = sorted(((figure, name) for name, figure, good in cells if not good), reverse=not least)
    if not cells:
        return f"- {requirement}: nothing measured"
    line = f"- {requirement}: holds in {len(cells) - len(bad)} of {len(cells)}"
    if bad:
        line += "; not in " + ", ".join(f"{name} ({figure:.2f})" for figure, name in bad[:40])
        line += f" and {len(bad) - 40} more" if len(bad) > 40 else ""
    return line
