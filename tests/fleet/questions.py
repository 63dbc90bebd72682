#!/usr/bin/env python3
"""Asks a data set the questions of docs/SQL.md, the same text in DuckDB and in Apache Spark, and compares the answers.

usage: questions.py DATASET PAGE            print all answers as JSON
       questions.py DATASET PAGE --duckdb   the same without Spark
       questions.py DATASET PAGE --check    also compare them with those in PAGE
       questions.py DATASET PAGE --update   write them into PAGE

Exits with 3 if a package or Java is missing; scripts/setup.sh brings them.
"""

import datetime
import decimal
import json
import os
import re
import shutil
import sys
import time
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "profinfer" / "fleet"
QUESTION = re.compile(r"^## (\d+\. .*?)\n(.*?)```sql\n(.*?)```\n\n```text\n(.*?)```\n", re.MULTILINE | re.DOTALL)


def missing(what):
    print(f"{what}: run scripts/setup.sh", file=sys.stderr)
    sys.exit(3)


def tables(dataset):
    return sorted(p.name for p in Path(dataset).iterdir() if p.is_dir())


class DuckDB:
    name = "DuckDB"

    def __init__(self, dataset):
        try:
            import duckdb
        except ImportError as e:
            missing(f"no package duckdb ({e})")
        self.connection = duckdb.connect()
        for table in tables(dataset):
            files = f"{dataset}/{table}/*/*/*.parquet"
            self.connection.execute(
                f"create view {table} as select * from read_parquet('{files}', hive_partitioning = true)"
            )

    def ask(self, sql):
        found = self.connection.execute(sql)
        return [c[0] for c in found.description], found.fetchall()


class Spark:
    name = "Spark"

    def __init__(self, dataset):
        if not shutil.which("java") and "JAVA_HOME" not in os.environ:
            missing("no Java")
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        # It asks the system for the names of its users' groups.
        os.environ.setdefault("HADOOP_USER_NAME", "fleet")
        try:
            from pyspark.sql import SparkSession
        except ImportError as e:
            missing(f"no package pyspark ({e})")
        builder = SparkSession.builder.master("local[2]").appName("fleet")
        options = {
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.driver.memory": "3g",
            "spark.sql.shuffle.partitions": "4",
            "spark.sql.session.timeZone": "UTC",
            # Many small files.
            "spark.sql.files.openCostInBytes": "65536",
        }
        for key, value in options.items():
            builder = builder.config(key, value)
        self.session = builder.getOrCreate()
        self.session.sparkContext.setLogLevel("ERROR")
        for table in tables(dataset):
            self.session.read.parquet(f"{dataset}/{table}").createOrReplaceTempView(table)

    def ask(self, sql):
        found = self.session.sql(sql)
        return found.columns, [tuple(row) for row in found.collect()]


def plain(value):
    """A value without the types of its engine."""
    if isinstance(value, decimal.Decimal):
        value = float(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return value
    if isinstance(value, (datetime.date, datetime.datetime)):
        return value.isoformat()
    return value


def same(a, b):
    """Equal; a rounded number may differ in its last digit, as sums depend on their order."""
    if isinstance(a, (int, float)) and isinstance(b, (int, float)) and not isinstance(a, bool):
        digits = max(len(repr(float(x)).partition(".")[2]) for x in (a, b))
        return abs(a - b) <= 1.01 * 10.0 ** -min(digits, 9)
    return a == b


def shown(columns, rows):
    """An answer as text."""
    cells = [list(columns)] + [["" if v is None else f"{v:g}" if isinstance(v, float) and v.is_integer() else str(v)
                                for v in row] for row in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    numbers = [all(isinstance(row[i], (int, float)) or row[i] is None for row in rows) for i in range(len(columns))]

    def line(row):
        return "  ".join(c.rjust(w) if n else c.ljust(w) for c, w, n in zip(row, widths, numbers)).rstrip()

    return "\n".join(map(line, cells)) + "\n"


def main():
    if len(sys.argv) not in (3, 4) or sys.argv[3:] not in ([], ["--duckdb"], ["--check"], ["--update"]):
        print(__doc__, file=sys.stderr)
        return 2
    dataset, page = sys.argv[1], Path(sys.argv[2])
    mode = (sys.argv[3:] or [""])[0]
    sys.path.insert(0, str(CACHE))
    text = page.read_text()
    questions = QUESTION.findall(text)
    if not questions:
        print(f"{page} has no questions", file=sys.stderr)
        return 1
    engines = [DuckDB(dataset)] + ([] if mode == "--duckdb" else [Spark(dataset)])
    answers, wrong = [], []
    for title, _, sql, written in questions:
        asked = []
        for engine in engines:
            start = time.monotonic()
            columns, rows = engine.ask(sql)
            rows = [[plain(v) for v in row] for row in rows]
            asked.append((list(columns), rows))
            print(f"{engine.name}: {title} {time.monotonic() - start:.2f} s", file=sys.stderr)
        (columns, rows), (other_columns, other_rows) = asked[0], asked[-1]
        alike = len(rows) == len(other_rows) and all(
            len(a) == len(b) and all(map(same, a, b)) for a, b in zip(rows, other_rows))
        if columns != other_columns or not alike:
            wrong.append(f"{title}: the engines differ:\n{shown(columns, rows)}\n{shown(other_columns, other_rows)}")
        now = shown(columns, rows)
        if mode == "--check" and now != written:
            wrong.append(f"{title}: the page has another answer; now it is\n{now}")
        if mode == "--update":
            text = text.replace(f"```sql\n{sql}```\n\n```text\n{written}```", f"```sql\n{sql}```\n\n```text\n{now}```")
        answers.append({"question": title, "columns": columns, "rows": rows})
    if mode == "--update":
        page.write_text(text)
    print(json.dumps({"questions": answers}))
    print("\n".join(wrong), file=sys.stderr, end="")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
