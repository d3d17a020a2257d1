"""What programs of bench/ make of what runs tell: python3 test_bench.py"""
import argparse
import contextlib
import importlib.machinery
import importlib.util
import io
import json
import math
import os
import pathlib
import sys
import tempfile
import unittest
import xml.etree.ElementTree as xml

BENCH = pathlib.Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))

import record  # noqa: E402
import softhca  # noqa: E402


def load(name):
    loader = importlib.machinery.SourceFileLoader(name, str(BENCH / name))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    loader.exec_module(module)
    return module


@contextlib.contextmanager
def folder():
    with tempfile.TemporaryDirectory() as name:
        yield pathlib.Path(name)


def row(**more):
    return dict({"collective": "all_reduce", "size": 8, "count": 2, "type": "float32", "time": 10.0, "wrong": 0,
                 "nranks": 2, "checks": 1}, **more)


class Launch(unittest.TestCase):
    """Of a `tutti` that is a script."""

    def told(self, script, ranks=1, threads=False, timeout=20):
        with folder() as build:
            (build / "tools").mkdir()
            (build / "tools/tutti").write_text("#!/bin/sh\n" + script)
            (build / "tools/tutti").chmod(0o755)
            return softhca.launch(build, ["all_reduce"], [{"SIDE": f"of {r}"} for r in range(ranks)], timeout, threads)

    def test_rows_and_what_is_printed_beside_them(self):
        told = self.told(f"echo '{json.dumps(row())}'; echo a line of NCCL; echo a line of tutti >&2")
        self.assertEqual(told.rows, [row()])
        self.assertEqual(told.log.splitlines(), ["a line of tutti", "a line of NCCL"])
        self.assertEqual(told.good().wrong(), 0)

    def test_ranks_are_processes_with_settings_of_their_own(self):
        told = self.told('echo "$PMI_RANK of $PMI_SIZE $SIDE"', ranks=2)
        self.assertEqual(told.log.split("\n")[-2:], ["0 of 2 of 0", "1 of 2 of 1"])
        self.assertEqual(len(told.pids), 2)

    def test_or_threads_of_one(self):
        told = self.told('echo "$* $SIDE $PMI_RANK"', ranks=3, threads=True)
        self.assertIn("--threads --ranks 3 of 0", told.log)
        self.assertEqual(len(told.pids), 1)

    def test_wrong_data_are_no_failure(self):
        said = "tutti perf: rank 1: all_reduce of 2 float32 elements, sum: element 0 of the output is 1"
        told = self.told(f"echo '{json.dumps(row(wrong=3))}'; echo '{said}' >&2; "
                         "echo 'tutti perf: 3 wrong elements' >&2; exit 1")
        self.assertEqual((told.failure, told.wrong()), ("", 3))
        told = self.told("echo 'tutti perf: 3 wrong elements' >&2; echo 'tutti perf: rank 0 (pid 7): broken' >&2; exit 1")
        self.assertIn("rank 0 (pid 7): broken", told.failure)
        self.assertIn("exit code 1", self.told("exit 1").failure)
        self.assertIn("exit code -9", self.told("kill -9 $$").failure)

    def test_what_came_before_the_time_was_up_counts(self):
        told = self.told(f"echo '{json.dumps(row())}'; exec sleep 60", timeout=1)
        self.assertEqual((told.rows, told.failure), ([row()], "no end within 1 s"))
        self.assertRaises(RuntimeError, told.good)


class Channels(unittest.TestCase):
    def test_lines_of_either_library(self):
        for line, found in (
                ("h:1:2 TUTTI INFO Channel 00/02 : 1[-1] -> 0[-1] [send] via NET/IB/0 (InfiniBand from",
                 ("1", "0", "send", "NET/IB/0")),
                ("h:1:2 TUTTI INFO Channel 01/16 : 3[1] -> 4[0] [send] via NET/IB/1/GDRDMA by rank 2 (RoCE",
                 ("3", "4", "send", "NET/IB/1/GDRDMA by rank 2")),
                ("h:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [receive] via NET/IB/0/GDRDMA",
                 ("0", "1", "receive", "NET/IB/0/GDRDMA")),
                ("h:1:2 [0] NCCL INFO Channel 00/1 : 0[0] -> 3[1] [send] via NET/IB/1(1)/GDRDMA/Shared",
                 ("0", "3", "send", "NET/IB/1(1)/GDRDMA/Shared")),
                ("h:1:2 NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/IPC", ("0", "1", "", "P2P/IPC"))):
            self.assertEqual(softhca.CHANNEL.search(line).groups(default=""), found, line)


class Records(unittest.TestCase):
    def record(self, out, seconds=math.inf, earlier=()):
        args = argparse.Namespace(timeout=10, seconds=seconds, earlier=earlier, out=out, commit="abc")
        with contextlib.redirect_stderr(io.StringIO()):
            made = record.Record(args, "page", "a machine")
        return made

    def measure(self, made, cell, run):
        with contextlib.redirect_stderr(io.StringIO()):
            return made.measure(cell, run)

    def fail(self, _):
        raise RuntimeError("broken\nmore")

    def test_goes_on_from_earlier_calls(self):
        with folder() as out:
            first = self.record(out)
            self.measure(first, ["a", 1], lambda limit: {"us": limit})
            self.measure(first, ["b", 1], self.fail)
            told = json.loads((out / "page.json").read_text())
            self.assertEqual(told["runs"], [{"us": 10, "cell": ["a", 1], "seconds": 0.0}])
            second = self.record(out, earlier=[out / "page.json"])
            self.assertEqual(len(second.of(["a", 1])), 1)
            self.measure(second, ["a", 2], lambda _: {"us": 1})
            self.assertEqual(len(second.runs), 2)
            self.assertEqual(second.tail()[-1], "- failed: b, 1: broken")
            self.assertEqual(len(second.sources), 2)

    def test_measures_nothing_when_the_time_is_up(self):
        with folder() as out:
            made = self.record(out, seconds=0)
            self.assertIsNone(self.measure(made, ["a"], lambda _: self.fail(_)))
            self.assertEqual((made.failures, made.late), ([], ["a"]))
            self.assertEqual(made.tail()[-1], "- no time left: a")

    def test_a_run_has_no_more_time_than_is_left(self):
        with folder() as out:
            limit = self.measure(self.record(out, seconds=5), ["a"], lambda limit: {"limit": limit})["limit"]
            self.assertTrue(4 < limit <= 5)

    def test_verdicts(self):
        cells = [("x", 1.0, True), ("y", 0.5, False), ("z", 0.2, False)]
        self.assertEqual(record.verdict("R", cells), "- R: holds in 1 of 3; not in z (0.20), y (0.50)")
        self.assertEqual(record.verdict("R", cells, least=False), "- R: holds in 1 of 3; not in y (0.50), z (0.20)")
        self.assertEqual(record.verdict("R", []), "- R: nothing measured")


class GdrVsNccl(unittest.TestCase):
    def setUp(self):
        self.bench = load("gdr_vs_nccl")

    def test_bytes_of_the_line(self):
        size = 1200
        for n, shared, wanted in ((2, False, [1200, 1200, 600, 600, 1200]), (2, True, [2400, 1200, 1200, 600, 2400]),
                                  (4, False, [1800, 1200, 900, 300, 1200]), (4, True, [7200, 3600, 3600, 900, 4800])):
            self.assertEqual([self.bench.line_bytes(c, size, n, shared) for c in
                              ("all_reduce", "broadcast", "all_gather", "gather", "sendrecv")], wanted, (n, shared))

    def cell(self, side, us, size=64 << 20, ranks_as="processes", hca="2.5"):
        return {"cell": [hca, ranks_as, "plain", "s", side], "rows": [["all_reduce", "float32", size, us, 0]],
                "ranks": 2, "channels": 4, "gdr": 4, "failure": "", "line": ""}

    def figure(self, runs, copies=0):
        rows = list(self.bench.figures(self.bench.table(runs), 2, copies))
        self.assertEqual(len(rows), 1)
        return rows[0]

    def test_shares_and_ratios(self):
        least = (64 << 20) / 2.5e3 # us of the line: each NIC sends so many bytes
        runs = [self.cell("tutti GDR", least / 0.96), self.cell("tutti staged", least / 0.5),
                self.cell("NCCL GDR", least / 0.48), self.cell("NCCL staged", least / 0.4)]
        f = self.figure(runs)
        self.assertAlmostEqual(f["share"], 0.96)
        self.assertAlmostEqual(f["ratio"], 2)
        self.assertAlmostEqual(f["latency"], 0.5)
        self.assertAlmostEqual(f["staged"], 0.5)
        # PCIe, which both ranks share, is the lower limit here.
        self.assertAlmostEqual(self.figure(runs, copies=2.5)["staged"], 1)
        # Threads share the NIC.
        threads = [self.cell(side, 2 * least / 0.96, ranks_as="threads") for side in self.bench.SIDES]
        self.assertAlmostEqual(self.figure(threads)["share"], 0.96)
        # No rate, no share.
        self.assertTrue(math.isnan(self.figure([self.cell("tutti GDR", 1, hca="0:direct")])["share"]))

    def test_medians_of_rounds_and_no_types(self):
        runs = [self.cell("tutti GDR", us) for us in (1, 9, 2)]
        types = self.cell("tutti GDR", 5)
        types["cell"][2] = "types"
        self.assertEqual(self.figure([*runs, types])["us"], {"tutti GDR": 2})

    def test_requirements(self):
        runs = [self.cell("tutti GDR", 10, size=8), self.cell("NCCL GDR", 12, size=8)]
        rows = list(self.bench.figures(self.bench.table(runs), 2, 0))
        lines = self.bench.requirements(rows, runs)
        self.assertIn("nothing measured", lines[0])
        self.assertIn("holds in 1 of 1", lines[1])
        self.assertIn("holds in 0 of 1; not in 2.5 processes plain all_reduce 8 (0.83)", lines[3])
        self.assertIn("holds in 1 of 1", lines[5])
        runs[0]["gdr"] = 3
        self.assertIn("(0.75)", self.bench.requirements(rows, runs)[5])

    def test_wrong_elements_fail(self):
        run = self.cell("tutti GDR", 10)
        with folder() as out, contextlib.redirect_stdout(io.StringIO()):
            args = argparse.Namespace(timeout=10, seconds=0, earlier=[], out=out, commit="abc", ranks=2)
            made = record.Record(args, "gdr-vs-nccl", "a machine")
            made.runs = [run]
            self.assertEqual(self.bench.report(args, made), 0)
            run["rows"][0][4] = 1
            self.assertEqual(self.bench.report(args, made), 1)
            self.assertIn("wrong elements: 1", (out / "gdr-vs-nccl.md").read_text())


class OrderAndVisibility(unittest.TestCase):
    def setUp(self):
        self.bench = load("order_and_visibility")

    def test_counts_what_came_from_others(self):
        for collective, n, wanted in (("all_reduce", 2, 200), ("sendrecv", 3, 300), ("all_gather", 2, 200),
                                      ("all_gather", 3, 600), ("broadcast", 3, 200)):
            self.assertEqual(self.bench.received(row(collective=collective, count=10, checks=10, nranks=n)), wanted)

    def code(self, runs):
        with folder() as out, contextlib.redirect_stdout(io.StringIO()):
            args = argparse.Namespace(timeout=10, seconds=0, earlier=[], out=out, commit="abc", elements=100,
                                      device="cuda")
            made = record.Record(args, "page", "a machine")
            made.runs = [{"cell": [mode, part], "what": "", "elements": elements, "wrong": wrong, "channels": 1, "gdr": 1,
                          "failure": "", "first": "", "seconds": 1} for mode, part, elements, wrong in runs]
            return self.bench.report(args, made)

    def test_what_must_be_right_and_what_wrong(self):
        good = [("reorder", 0, 60, 0), ("reorder", 1, 40, 0), ("reorder, by writes", 0, 100, 5)]
        self.assertEqual(self.code(good), 0)
        self.assertEqual(self.code([("reorder", 0, 60, 0), *good[2:]]), 1, "too few elements")
        self.assertEqual(self.code([("reorder", 0, 100, 1), *good[2:]]), 1, "a wrong one")
        self.assertEqual(self.code([*good[:2], ("reorder, by writes", 0, 100, 0)]), 1, "a mode that shows nothing")


class GpuRails(unittest.TestCase):
    def setUp(self):
        self.bench = load("gpu_rails")

    def switches(self, gpus, rank, each=2, nics=4):
        """What the file of a rank has below each switch, on a machine of so many GPUs."""
        nodes = "".join(f'<node kind="Gpu" name="gpu{i}" bus="0000:0{i + 1}:00.0"/>' for i in range(gpus))
        self.bench.machine = lambda _: f'<system><node kind="Cpu" name="0">{nodes}</node></system>'
        with folder() as out:
            file = self.bench.topology(argparse.Namespace(build=out), rank, each, nics, out)
            tree = xml.parse(file)
        below = {switch.get("name"): [node.get("name") for node in switch] for switch in tree.iter("node")
                 if switch.get("kind") == "Switch"}
        self.assertEqual(len([n for n in tree.iter("node") if n.get("kind") == "Gpu"]), gpus)
        return [below[f"00f{place}:00:00.0"] for place in range(each)]

    def test_each_gpu_has_its_nics(self):
        self.assertEqual(self.switches(2, 2), [["gpu0", "host1nic0", "host1nic1"], ["gpu1", "host1nic2", "host1nic3"]])

    def test_a_shared_gpu_is_where_the_rank_is(self):
        self.assertEqual(self.switches(1, 0), [["gpu0", "host0nic0", "host0nic1"], ["host0nic2", "host0nic3"]])
        self.assertEqual(self.switches(1, 3), [["host1nic0", "host1nic1"], ["gpu0", "host1nic2", "host1nic3"]])

    def test_messages_between_rails(self):
        run = {"layout": "2x2", "nics": 2, "side": "tutti", "us": {"sendrecv": {}}, "bytes": [{}] * 4,
               "ways": [{}, {2: ["NET/IB/0/GDRDMA by rank 0"]}, {}, {"0": ["NET/IB/1/GDRDMA"]}]}
        lines = self.bench.crossings([run])
        self.assertEqual(lines[-2:], ["| 2x2 | 2 | tutti | 1 -> 2 | [1] -> [0] | NET/IB/0/GDRDMA by rank 0 |",
                                      "| 2x2 | 2 | tutti | 3 -> 0 | [1] -> [0] | NET/IB/1/GDRDMA |"])
        self.assertEqual(self.bench.crossings([dict(run, nics=1)]), [])


class FewCores(unittest.TestCase):
    def code(self, *more):
        bench = load("few_cores")
        with folder() as out, contextlib.redirect_stdout(io.StringIO()):
            args = argparse.Namespace(timeout=10, seconds=0, earlier=[], out=out, commit="abc", limit=2, size="8",
                                      device="host")
            made = record.Record(args, "page", "a machine")
            made.runs = [{"cell": ["IB", 4, by, cores, round_], "us": us, "wrong": 0}
                         for by, cores, round_, us in (("all", 0, 0, 10), *more)]
            return bench.report(args, made)

    def test_a_core_for_each_rank_is_enough(self):
        self.assertEqual(self.code(("quota", 4, 0, 19), ("affinity", 2, 0, 900)), 0)
        self.assertEqual(self.code(("quota", 4, 0, 21)), 1)
        self.assertEqual(self.code(*(("quota", 4, round_, us) for round_, us in enumerate((1, 19, 500)))), 0)


class PortOutage(unittest.TestCase):
    def test_the_span_before_is_the_measure(self):
        bench = load("port_outage")
        spans = [{"span": s, "port": 1, "gbps": g, "longest_ms": 1} for s, g in
                 (("before", 1.0), ("down", 0.5), ("after", 0.8), ("down", 0.4), ("after", 0.8))]
        lines, back = bench.outages([{"cell": ["outages", "GDR", 0], "spans": spans}])
        self.assertEqual(len(lines), 2)
        self.assertEqual([good for *_, good in back], [False, True])


if __name__ == "__main__":
    os.environ.pop("PMI_RANK", None)
    unittest.main()
