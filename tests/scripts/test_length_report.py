#!/usr/bin/env python3
"""What scripts/length-report measures, on functions of each kind that the source has."""
import contextlib
import importlib.machinery
import importlib.util
import io
import pathlib
import subprocess
import textwrap
import unittest
from unittest import mock

PATH = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "length-report"
loader = importlib.machinery.SourceFileLoader("length_report", str(PATH))
report = importlib.util.module_from_spec(importlib.util.spec_from_loader("length_report", loader))
loader.exec_module(report)


def lines_of(text):
    return report.without_comments(text).splitlines()


def measured(text):
    """(first line, length, nesting, complexity) of each function."""
    lines = lines_of(textwrap.dedent(text).lstrip("\n"))
    bodies = [(start, lines[start - 1:start - 1 + length]) for start, length in report.functions(lines)]
    return [(start, len(body), report.nesting(body), report.complexity(body)) for start, body in bodies]


class Functions(unittest.TestCase):
    def test_heads_on_one_line_and_on_several(self):
        self.assertEqual(measured("""
            int one(void) {
              return 1;
            }

            static int
            two(int a,
                int b) {
              return a;
            }
            """), [(1, 3, 0, 1), (7, 3, 0, 1)])

    def test_results_that_are_structs_and_linkage_of_c(self):
        self.assertEqual(measured("""
            struct node *next(struct node *n) {
              return n ? n->next : 0;
            }
            extern "C" int launch(int n) {
              if (n) return 1;
              return 0;
            }
            """), [(1, 3, 0, 2), (4, 4, 1, 2)])

    def test_what_linkage_of_c_and_namespaces_enclose(self):
        self.assertEqual(measured("""
            extern "C" {
            namespace {
            int inside(int n) {
              return n;
            }
            } // namespace
            }
            """), [(3, 3, 0, 1)])

    def test_methods(self):
        self.assertEqual(measured("""
            template <typename T> struct Block {
              int first(int n) const {
                if (n) return 1;
                return 0;
              }
              int second() {
                return 2;
              }
            };
            int after(void) {
              return 3;
            }
            """), [(2, 4, 1, 2), (6, 3, 0, 1), (10, 3, 0, 1)])

    def test_kernels(self):
        self.assertEqual(measured("""
            __global__ void __launch_bounds__(512)
                run(const __grid_constant__ Args args) {
              for (int i = 0; i < 3; i++)
                step(i);
            }
            """), [(2, 4, 1, 2)])


class Nesting(unittest.TestCase):
    def depth(self, body):
        ((_, _, nesting, _),) = measured("void f(void) {\n" + body.strip("\n") + "\n}\n")
        return nesting

    def test_each_control_statement_is_one_deeper(self):
        self.assertEqual(self.depth("  a();"), 0)
        self.assertEqual(self.depth("  if (a)\n    b();"), 1)
        self.assertEqual(self.depth("""
  for (;;) {
    while (a)
      if (b) {
        do {
          switch (c) {
          default:
            d();
          }
        } while (e);
      }
  }
"""), 5)

    def test_an_else_is_as_deep_as_its_if(self):
        self.assertEqual(self.depth("""
  if (a) {
    b();
  } else if (c) {
    d();
  } else {
    e();
  }
"""), 1)

    def test_within_a_case(self):
        self.assertEqual(self.depth("  switch (a) {\n  case 1:\n    if (b) c();\n  }"), 2)


class Complexity(unittest.TestCase):
    def number(self, body):
        ((_, _, _, complexity),) = measured("int f(int a) {\n" + body.strip("\n") + "\n}\n")
        return complexity

    def test_one_and_one_for_each_decision(self):
        self.assertEqual(self.number("  return a;"), 1)
        for decision in ("if (a) b();", "else if (a) b();", "for (;;) b();", "while (a) b();", "a = b ? c : d;",
                         "a = b ?: c;", "a = b && c;", "a = b || c;", "do b(); while (a);"):
            self.assertEqual(self.number("  " + decision), 2, decision)

    def test_an_assignment_behind_and_is_no_reference(self):
        self.assertEqual(self.number("  if (a && (b = c(a)) != 0) d();"), 3)

    def test_a_switch_counts_once(self):
        body = "  switch (a) {\n  case 1:\n  case 2:\n    b();\n  default:\n    c();\n  }"
        self.assertEqual(self.number(body), 2)

    def test_what_a_compiler_leaves_out_counts(self):
        self.assertEqual(self.number("#if defined(A) && B\n  b();\n#elif C\n  c();\n#else\n  d();\n#endif"), 4)
        self.assertEqual(self.number("#ifdef A\n  b();\n#endif\n#ifndef A\n  c();\n#endif"), 3)

    def test_macros_count_as_they_are_written(self):
        self.assertEqual(self.number("  TUTTI_TRY(b());"), 1)
        self.assertEqual(self.number("#define X(n) \\\n  if (n) b();\n  LIST(X)\n#undef X"), 2)

    def test_comments_and_texts_hold_no_code(self):
        self.assertEqual(self.number("""
  /* if while && */
  // for ?
  puts("if (a && b) \\" ? ");
  putchar('?');
"""), 1)


class Outside(unittest.TestCase):
    def test_control_statements_that_nobody_measures(self):
        self.assertEqual(report.outside(lines_of("int f(void)\n{\n  if (a) b();\n}\n")), [3])
        self.assertEqual(report.outside(lines_of("int f(void) {\n  if (a) b();\n}\n")), [])

    def test_macros_hold_none(self):
        self.assertEqual(report.outside(lines_of("#define X(a)   \\\n  do {         \\\n    if (a) b(); \\\n"
                                                 "  } while (0)\n#if A\n#endif\n")), [])


class Report(unittest.TestCase):
    def outcome(self, text):
        """Exit code and errors for a source that is this text alone."""
        errors = io.StringIO()
        with mock.patch.object(report, "sources", lambda: [("a.c", lines_of(text))]):
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
                return report.main(), errors.getvalue()

    def body(self, lines):
        return "void f(void) {\n" + lines + "}\n"

    def test_what_is_within_the_limits(self):
        nested = "".join("  " * depth + "if (a)\n" for depth in range(1, 5)) + "          b();\n"
        for lines in ("  a = b" + " && c" * 14 + ";\n", nested, "  a();\n" * 98):
            self.assertEqual(self.outcome(self.body(lines)), (0, ""))

    def test_what_is_above_them(self):
        nested = "".join("  " * depth + "if (a)\n" for depth in range(1, 6)) + "            b();\n"
        for lines, what in (("  a = b" + " && c" * 15 + ";\n", "a.c:1: complexity 16, limit 15\n"),
                            (nested, "a.c:1: nesting 5, limit 4\n"),
                            ("  a();\n" * 99, "a.c:1: function of lines: 101, limit 100\n")):
            self.assertEqual(self.outcome(self.body(lines)), (1, what))
        self.assertEqual(self.outcome("int a;\n" * 1001), (1, "a.c: lines 1001, limit 1000\n"))
        self.assertEqual(self.outcome("void f(void)\n{\n  if (a) b();\n}\n"),
                         (1, "a.c:3: a control statement in no function\n"))


class Source(unittest.TestCase):
    def test_the_whole_source_is_measured(self):
        try:
            files = list(report.sources())
        except (OSError, subprocess.CalledProcessError) as error:
            self.skipTest(f"the source is in no repository here: {error}")
        self.assertGreater(len(files), 100)
        self.assertGreater(sum(len(list(report.functions(lines))) for _, lines in files), 1000)
        for path, lines in files:
            self.assertEqual(report.outside(lines), [], path)


if __name__ == "__main__":
    unittest.main()
