"""Runs one file of PyTorch's tests for pytorch_tests: `pytorch_driver.py MODULE RESULTS [-k PATTERN ...]`.
RESULTS gets a line of JSON for each test as soon as it has ended: its name, the verdict, and why."""
import importlib
import json
import os
import re
import sys
import types
import unittest

import torch
import torch.distributed as dist
from torch.testing._internal import common_distributed

if os.environ["BACKEND"] == "tutti":
    import tutti.torch


def group(store, rank, size, options):
    """What a test gets that makes a ProcessGroupGloo itself."""
    from tutti import _torch_groups

    kind = _torch_groups.Group if _torch_groups.PARTS else _torch_groups.WholeGroup
    return kind(store, rank, size, options._timeout, "direct")


def last_line(text):
    """What went wrong, of a traceback of a rank within one of PyTorch's: its last line but for advice."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Refused|WrongType)\b", line)]
    return (errors or lines or [""])[-1]


class Result(unittest.TextTestResult):
    path = ""

    def note(self, test, verdict, why=""):
        name = test.id().split(".", 1)[1] if test.id().count(".") > 1 else test.id()
        with open(self.path, "a") as file:
            print(json.dumps([name, verdict, why]), file=file)

    def startTest(self, test):
        super().startTest(test)
        self.note(test, "no verdict")

    def addSuccess(self, test):
        super().addSuccess(test)
        self.note(test, "ok")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.note(test, "skipped", reason)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.note(test, "failed", last_line(str(err[1])))

    addError = addFailure

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err:
            self.note(test, "failed", last_line(str(err[1])))


def fork(test, *arguments, **named):
    """Ranks by fork, as spawn would load PyTorch once for each rank of each test."""
    test._start_processes(torch.multiprocessing.get_context("fork").Process, *arguments, **named)


def forks_first(suite):
    """Those tests that have ranks before those that make a group in this process, which could fork no more."""
    tests = []

    def flatten(part):
        for one in part:
            if isinstance(one, unittest.TestSuite):
                flatten(one)
            else:
                tests.append(one)

    flatten(suite)
    tests.sort(key=lambda test: not isinstance(test, common_distributed.MultiProcessTestCase))
    return unittest.TestSuite(tests)


def dist_tests(source):
    """A module of the tests of distributed_test.py, which leaves it to others to say how its ranks start."""
    class Tests(source.TestDistBackend, source.DistributedTest._DistTestBase):
        def setUp(self):
            super().setUp()
            fork(self)

    Tests.__module__, Tests.__qualname__ = source.__name__, "DistributedTest"
    tested = types.ModuleType("distributed")
    tested.DistributedTest = Tests
    return tested


class Loader(unittest.TestLoader):
    def loadTestsFromModule(self, *arguments, **named):
        return forks_first(super().loadTestsFromModule(*arguments, **named))


def main():
    module, Result.path = sys.argv[1:3]
    for feature in ("gpu", "ddp", "subgroup", "plugin"):
        common_distributed.DistTestCases.backend_feature[feature].add(os.environ["BACKEND"])
    common_distributed.MultiProcessTestCase._spawn_processes = fork
    tested = importlib.import_module(module)
    vars(tested).pop("load_tests", None)  # refuses tests that are not of the program itself
    if hasattr(tested, "DistributedTest"):
        tested = dist_tests(tested)
    unittest.main(module=tested, argv=[sys.argv[0], "-v", *sys.argv[3:]], testLoader=Loader(),
                  testRunner=unittest.TextTestRunner(resultclass=Result, verbosity=2))


if __name__ == "__main__":
    main()
