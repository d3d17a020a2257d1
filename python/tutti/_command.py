"""The `tutti` command of the package, and `python -m tutti`."""
import os
import sys

import tutti


def _program():
    """The command that was built with the library in use."""
    folder = os.path.dirname(tutti.library_path())
    for path in (os.path.join(folder, "../bin/tutti"), os.path.join(folder, "../tools/tutti")):
        if os.access(path, os.X_OK):
            return os.path.normpath(path)
    sys.exit(f"tutti: no command beside {tutti.library_path()}; install tutti as a whole")


def main():
    """Becomes the command."""
    program = _program()
    os.execv(program, [program, *sys.argv[1:]])


def run():
    """python -m tutti run PROGRAM.py [ARGUMENT...]: `tutti run` with this interpreter."""
    if len(sys.argv) < 3 or sys.argv[1] != "run":
        sys.exit("usage: python -m tutti run PROGRAM.py [ARGUMENT...]\n"
                 "       (the command itself is `tutti`)")
    program = _program()
    os.execv(program, [program, "run", "--", sys.executable, *sys.argv[2:]])
