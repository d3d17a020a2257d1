"""The `tutti` command of the package, and `python -m tutti`."""
import os
import sys

from tutti._library import found_beside


def _program():
    """The command that was built with the library in use."""
    try:
        return found_beside("command", "../bin/tutti", "../tools/tutti")
    except ImportError as error:
        sys.exit(f"tutti: {error}")


def main():
    """Becomes the command."""
    program = _program()
    os.execv(program, [program, *sys.argv[1:]])


def run():
    """python -m tutti run PROGRAM.py [ARGUMENT...]: `tutti run` with this interpreter, in which, and in those
    that it starts, an installed package also calls enable()."""
    if len(sys.argv) < 3 or sys.argv[1] != "run":
        sys.exit("usage: python -m tutti run PROGRAM.py [ARGUMENT...]\n"
                 "       (the command itself is `tutti`)")
    program = _program()
    os.environ["TUTTI_ENABLE"] = "1"
    os.execv(program, [program, "run", "--", sys.executable, *sys.argv[2:]])
