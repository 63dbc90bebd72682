"""Tables as Python, numpy, pandas and pyarrow have them."""

import subprocess
import sys
import unittest
from array import array
from unittest import mock

import profinfer
from profinfer.table import MAYBE, from_rows, words
from writer import small

FIELDS = (("n", int), ("maybe", MAYBE), ("big", int), ("text", str), ("flag", bool), ("list", object))
ROWS = [(1, None, 1 << 63, "a", True, (1, 2)), (-2, 0, 0, None, False, None), (3, 1 << 60, 5, "a", True, (3, 4))]


def found(name):
    try:
        return __import__(name)
    except ImportError:
        return None


class Tables(unittest.TestCase):
    def setUp(self):
        self.table = from_rows("example", FIELDS, ROWS)

    def test_rows(self):
        rows = [dict(zip([name for name, _ in FIELDS], row)) for row in ROWS]
        self.assertEqual((len(self.table), list(self.table), self.table.to_dicts()), (3, rows, rows))
        self.assertEqual(self.table.names, ("n", "maybe", "big", "text", "flag", "list"))
        self.assertIn("3 rows of n, maybe", repr(self.table))

    def test_in_a_notebook(self):
        shown = self.table._repr_html_()
        self.assertIn("<caption>example: 3 rows</caption>", shown)
        self.assertIn("<tr><td>-2</td><td>0</td><td>0</td><td></td><td>False</td><td></td></tr>", shown)
        long = from_rows("long", FIELDS, ROWS * 5)._repr_html_()
        self.assertIn("long: 15 rows, of which the first 10 are shown", long)
        self.assertEqual(long.count("<tr><td>"), 10)

    def test_what_a_notebook_shows_is_text(self):
        hostile = "<script>\x1b\u202e" + "x" * 200
        shown = from_rows("<b>", (("text", str),), [(hostile,)])._repr_html_()
        self.assertNotRegex(shown, "<script|<b>|\x1b|\u202e|x{80}")
        self.assertIn("&lt;script&gt;\\x1b\\u202exxx", shown)

    def test_a_run_in_a_notebook(self):
        run = profinfer.open(small())
        shown = run._repr_html_()
        self.assertIn(f"<td>{'yes' if run.complete else 'no: '}", shown)
        self.assertIn("<th>calls</th>", shown)
        self.assertIn("<th>tables</th><td>ops, calls, graphs", shown)

    def test_no_such_column(self):
        with self.assertRaisesRegex(KeyError, "it has n, maybe"):
            self.table["m"]

    def test_columns_without_numpy(self):
        with mock.patch.dict(sys.modules, {"numpy": None}):
            columns = from_rows("example", FIELDS, ROWS).columns
        self.assertEqual(columns["n"], array("q", [1, -2, 3]))
        self.assertEqual(columns["big"], array("Q", [1 << 63, 0, 5]))
        self.assertEqual({name: list(column) for name, column in columns.items()},
                         {name: [row[i] for row in ROWS] for i, (name, _) in enumerate(FIELDS)})

    def test_without_optional_packages(self):
        for package, call in (("pandas", self.table.to_pandas), ("pyarrow", self.table.to_arrow)):
            with mock.patch.dict(sys.modules, {package: None}):
                with self.assertRaisesRegex(ImportError, f"needs {package}: pip install {package}"):
                    call()

    def test_numbers_of_hostile_files(self):
        self.assertEqual(list(words([1 << 70, -(1 << 70)])), [(1 << 63) - 1, -(1 << 63)])

    @unittest.skipUnless(found("numpy"), "no numpy")
    def test_numpy(self):
        import numpy as np
        columns = self.table.columns
        self.assertEqual((columns["n"].dtype, columns["big"].dtype, columns["flag"].dtype), (np.int64, np.uint64, np.bool_))
        self.assertEqual((columns["maybe"].mask.tolist(), columns["maybe"][2]), ([True, False, False], 1 << 60))
        self.assertEqual(columns["text"].tolist(), ["a", None, "a"])
        self.assertEqual(columns["list"].tolist(), [(1, 2), None, (3, 4)])

    @unittest.skipUnless(found("pandas"), "no pandas")
    def test_pandas(self):
        import pandas as pd
        frame = self.table.to_pandas()
        self.assertEqual({name: str(kind) for name, kind in frame.dtypes.items()}, {
            "n": "int64", "maybe": "Int64", "big": "uint64", "text": "category", "flag": "bool", "list": "object"})
        self.assertTrue(frame["maybe"][0] is pd.NA and pd.isna(frame["text"][1]))
        self.assertEqual((frame["maybe"].sum(), frame["text"][2]), (1 << 60, "a"))
        self.assertEqual(list(self.table.to_pandas(["flag", "n"]).columns), ["flag", "n"])
        self.assertEqual(len(from_rows("none", FIELDS, []).to_pandas()), 0)
        # The type does not depend on whether a number is missing.
        self.assertEqual(str(from_rows("known", FIELDS, ROWS[1:]).to_pandas()["maybe"].dtype), "Int64")

    @unittest.skipUnless(found("pyarrow"), "no pyarrow")
    def test_arrow(self):
        self.assertEqual(self.table.to_arrow(["n", "maybe", "big", "text", "flag"]).to_pylist(),
                         [{key: row[key] for key in ("n", "maybe", "big", "text", "flag")} for row in self.table])
        self.assertEqual(self.table.to_arrow().column("list").to_pylist(), [[1, 2], None, [3, 4]])

    def test_all_tables_convert(self):
        for name, table in profinfer.open(small()).tables().items():
            with self.subTest(table=name):
                self.assertEqual(len(table.columns), len(table.names))
                for package, convert in (("pandas", table.to_pandas), ("pyarrow", table.to_arrow)):
                    if found(package):
                        self.assertEqual(len(convert()), len(table))

    def test_importing_needs_nothing_else(self):
        code = "import sys, profinfer; sys.exit(any(name in sys.modules for name in ('numpy', 'pandas', 'pyarrow')))"
        subprocess.run([sys.executable, "-c", code], check=True)


if __name__ == "__main__":
    unittest.main()
