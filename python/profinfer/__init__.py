"""Reads traces of profinfer (`.pfi` files).

    import profinfer

    run = profinfer.open("run.pfi")
    run.complete, run.incomplete        # whether anything is missing, and what
    run.ops.to_pandas()                 # one row for each op and thread
    run.calls.to_dicts()                # one for each call of llama.cpp

See `Run` for all tables and `Table` for what a table can do.
"""

from .blocks import MAJOR, MINOR, Damage, FormatError
from .run import Run, open_run as open
from .table import Table

__all__ = ["Damage", "FormatError", "MAJOR", "MINOR", "Run", "Table", "open"]
__version__ = "0.2.0"
