"""NCCL's place in a process: tutti.enable(), `python -m tutti run`, the .pth file, and tutti.which()."""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

import tutti
from tutti._nccl import _ours

HERE = pathlib.Path(__file__).resolve().parents[2]
LOAD = "import ctypes; ctypes.CDLL('libnccl.so.2')"  # as PyTorch, CuPy and JAX do in their ways
PTH = (HERE / "python/tutti-enable.pth").read_text()


class Nccl(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # Another library of that name: tutti's own under another file, which is all that matters here.
        cls.folder = tempfile.TemporaryDirectory()
        cls.other = os.path.join(cls.folder.name, "libnccl.so.2")
        shutil.copy(_ours(), cls.other)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def python(self, program, *more, **environment):
        """What a new interpreter prints, and its exit code."""
        clean = {name: value for name, value in os.environ.items() if name not in ("LD_PRELOAD", "TUTTI_ENABLE")}
        run = subprocess.run([sys.executable, *more, "-c", program], env={**clean, **environment}, text=True,
                             timeout=120, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return run.stdout.strip(), run.returncode

    def test_nothing_happens_by_itself(self):
        self.assertEqual(self.python("import tutti; print(tutti.which())"), ("None", 0))

    def test_enable_is_for_all_that_comes_later(self):
        said = self.python(f"import os, tutti; a = tutti.enable(); {LOAD}; print(a == tutti.which() == "
                           "tutti.enable() == os.environ['VLLM_NCCL_SO_PATH'])")
        self.assertEqual(said, ("True", 0))

    def test_enable_refuses_half_a_process(self):
        program = f"{LOAD}\nimport tutti\ntry: tutti.enable()\nexcept RuntimeError as e: print(e)\nprint(tutti.which())"
        text, code = self.python(program, LD_LIBRARY_PATH=self.folder.name)
        self.assertRegex(text, f"this process uses {self.other} already: call tutti.enable.. before")
        self.assertEqual((text.splitlines()[-1], code), (self.other, 0))  # still the one library

    def test_no_second_one_comes_later(self):
        program = (f"import ctypes, tutti; ours = tutti.enable()\ntry: ctypes.CDLL({self.other!r})\n"
                   f"except RuntimeError as e: print(e)\nctypes.CDLL(ours); {LOAD}; ctypes.CDLL(None)\n"
                   "print(tutti.which() == ours)")
        text, code = self.python(program, LD_LIBRARY_PATH=self.folder.name)
        self.assertRegex(text, f"^{self.other} is not loaded: tutti.enable.. has put {_ours()} into")
        self.assertEqual((text.splitlines()[-1], code), ("True", 0))

    def test_which_says_if_there_are_two(self):
        text, code = self.python(f"import ctypes, tutti; ctypes.CDLL({_ours()!r}); "
                                 f"ctypes.CDLL({self.other!r}); tutti.which()")
        self.assertEqual(code, 1)
        self.assertRegex(text.splitlines()[-1], "has loaded 2 NCCL libraries: .*" + self.other)

    def test_whose_a_library_is(self):
        """tutti's also by another file, as of another installation."""
        text, code = self.python("import tutti\nfrom tutti._nccl import is_ours\n"
                                 f"for path in ({_ours()!r}, {self.other!r}, 'libm.so.6'): print(is_ours(path))")
        self.assertEqual((text.split(), code), (["True", "True", "False"], 0))

    def test_a_program_that_is_run(self):
        script = os.path.join(self.folder.name, "train.py")
        pathlib.Path(script).write_text(
            f"{LOAD}; import subprocess, sys, tutti; assert tutti.which() == {_ours()!r}, tutti.which()\n"
            "if len(sys.argv) == 2: sys.exit(subprocess.call([sys.executable, sys.argv[0]]) or 3)\n")
        run = subprocess.run([sys.executable, "-m", "tutti", "run", script, "also what it starts"], text=True,
                             env={**os.environ, "LD_LIBRARY_PATH": self.folder.name}, timeout=120,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual((run.returncode, run.stdout), (3, ""))
        run = subprocess.run([sys.executable, "-m", "tutti"], text=True, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT)
        self.assertRegex(run.stdout, "usage: python -m tutti run PROGRAM.py")
        self.assertNotEqual(run.returncode, 0)

    def test_the_hook_is_off_until_it_is_asked_for(self):
        """The .pth file in a folder of the interpreter's, as an installation puts it there."""
        site = os.path.join(self.folder.name, "site")
        os.makedirs(site, exist_ok=True)
        pathlib.Path(site, "tutti-enable.pth").write_text(PTH)
        read = f"import site, sys; site.addsitedir({site!r}); print('tutti' in sys.modules); "
        self.assertEqual(self.python(read), ("False", 0))
        for off in ("", "0"):
            self.assertEqual(self.python(read, TUTTI_ENABLE=off), ("False", 0))
        text, code = self.python(read + f"{LOAD}; print(sys.modules['tutti'].which())", TUTTI_ENABLE="1",
                                 LD_LIBRARY_PATH=self.folder.name)
        self.assertEqual((text, code), (f"True\n{_ours()}", 0))

    def test_the_hook_is_no_unknown_setting(self):
        text, code = self.python("import tutti; tutti.unique_id()", TUTTI_ENABLE="1", TUTTI_DEBUG="WARN")
        self.assertEqual(code, 0)
        self.assertNotIn("TUTTI_ENABLE", text)


if __name__ == "__main__":
    print("tutti", ".".join(map(str, tutti.version())))
    unittest.main()
