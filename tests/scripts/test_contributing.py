#!/usr/bin/env python3
"""The first commands of CONTRIBUTING.md, in a folder that scripts/demo has configured without tests."""
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
DEMO = (ROOT / "scripts" / "demo").read_text(encoding="utf-8")
if not (shutil.which("cmake") and shutil.which("ctest") and shutil.which("ninja")):
    print("skipped: needs cmake, ctest and ninja")
    sys.exit(77)


class Commands(unittest.TestCase):
    def run_in(self, build, command):
        words = [build if word == "build" else word for word in shlex.split(command, comments=True)]
        return subprocess.run(words, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300)

    def test_they_have_tests_after_the_demo(self):
        configure = re.search(r"^\$ (cmake -S .*?) && cmake --build", PAGE, re.MULTILINE).group(1)
        test = re.search(r"^\$ (ctest .*)", PAGE, re.MULTILINE).group(1)
        with tempfile.TemporaryDirectory() as build:
            run = self.run_in(build, re.search(r"^cmake -S .*", DEMO, re.MULTILINE).group())
            self.assertEqual(run.returncode, 0, run.stdout)
            run = self.run_in(build, test)
            self.assertNotEqual(run.returncode, 0, "no tests are no success: " + run.stdout)
            run = self.run_in(build, configure)
            self.assertEqual(run.returncode, 0, run.stdout)
            said = subprocess.run(["ctest", "--test-dir", build, "-N"], text=True, stdout=subprocess.PIPE).stdout
            self.assertGreater(int(re.search(r"Total Tests: (\d+)", said).group(1)), 10)


if __name__ == "__main__":
    unittest.main()
