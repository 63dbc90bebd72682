"""What the questions of docs/SQL.md say of data sets, as JSON: for each set, the rows of each question by their columns.

usage: questions.py PAGE SET...
"""

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "fleet"))
import questions  # noqa: E402

sys.path.insert(0, str(questions.CACHE))


def said(texts, dataset):
    database = questions.DuckDB(dataset)
    import duckdb

    answers = {}
    for number, text in enumerate(texts, 1):
        try:
            columns, rows = database.ask(text)
        except duckdb.CatalogException:
            # A set has only the tables that its recordings fill.
            continue
        answers[f"question{number}"] = [dict(zip(columns, map(questions.plain, row))) for row in rows]
    return answers


page = Path(sys.argv[1]).read_text()
texts = [text for _, _, text, _ in questions.QUESTION.findall(page)]
json.dump({dataset: said(texts, dataset) for dataset in sys.argv[2:]}, sys.stdout)
