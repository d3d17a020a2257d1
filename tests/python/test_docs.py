"""What is said of the Python package: the examples of its docstrings run, and its type stubs are those of
what there is."""
import ast
import doctest
import inspect
import os
import pathlib
import sys
import unittest

try:
    import numpy
except ImportError:
    print("skipped: no numpy (Debian: python3-numpy)")
    sys.exit(77)
import tutti

FOLDER = pathlib.Path(tutti.__file__).resolve().parent


def public(module):
    """(name, object) of all that users see of a module: functions, classes, and methods of these."""
    for name in module.__all__:
        thing = getattr(module, name)
        if inspect.isclass(thing) or inspect.isroutine(thing):
            yield name, thing
        for method, function in vars(thing).items() if inspect.isclass(thing) else ():
            if not method.startswith("_") and isinstance(function, (classmethod, staticmethod, type(public))):
                yield f"{name}.{method}", getattr(thing, method)


class Examples(unittest.TestCase):
    def test_every_public_name_has_one_that_is_right(self):
        finder, runner = doctest.DocTestFinder(recurse=False), doctest.DocTestRunner()
        with tutti.Communicator(1, 0, tutti.unique_id(), device="host", timeout=60) as comm:
            known = {"tutti": tutti, "numpy": numpy, "os": os, "comm": comm}
            for name, thing in public(tutti):
                with self.subTest(name):
                    tests = finder.find(thing, name, globs=dict(known))
                    self.assertTrue(tests and tests[0].examples, "no example")
                    said = []
                    result = runner.run(tests[0], out=said.append)
                    self.assertEqual(result.failed, 0, "".join(said))


def stubs(body, prefix=""):
    """(name, names of its arguments) of every function of a stub file; overloads come one by one."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from stubs(node.body, f"{node.name}.")
        elif isinstance(node, ast.FunctionDef):
            arguments = node.args
            names = arguments.posonlyargs + arguments.args + arguments.kwonlyargs
            more = [a for a in (arguments.vararg, arguments.kwarg) if a]
            yield prefix + node.name, {argument.arg for argument in names + more}


class Stubs(unittest.TestCase):
    def test_they_have_the_names_and_arguments_that_there_are(self):
        self.assertTrue((FOLDER / "py.typed").exists())
        tree = ast.parse((FOLDER / "__init__.pyi").read_text())
        said = dict(stubs(tree.body))
        for name, thing in public(tutti):
            if inspect.isclass(thing):
                continue
            with self.subTest(name):
                there = set(inspect.signature(thing).parameters)
                self.assertEqual(said.get(name, set()) - {"self", "cls"}, there - {"self", "cls"})
        constants = {node.target.id for node in tree.body if isinstance(node, ast.AnnAssign)}
        classes = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
        self.assertEqual(constants | classes | {name for name in said if "." not in name}, set(tutti.__all__))


if __name__ == "__main__":
    unittest.main()
