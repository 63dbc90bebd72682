"""Tables of columns that are computed when they are asked for."""

from array import array
from itertools import islice
from operator import attrgetter, itemgetter

from . import notebook
from .wire import I64_MAX


def _need(package, what):
    """Imports an optional package."""
    try:
        return __import__(package)
    except ImportError as error:
        raise ImportError(f"{what} needs {package}: pip install {package}. Without it, use to_dicts(), columns or a loop "
                          "over the table") from error


class Numbers:
    """Whole numbers of 64 bits. `missing` has a 1 for each that is not known, and is None where all are always known."""

    def __init__(self, values, missing=None):
        self.values, self.missing = values, missing
        self._some = missing is not None and 1 in missing

    @classmethod
    def of(cls, values):
        """From a list of numbers."""
        return cls(words(values))

    @classmethod
    def maybe(cls, values):
        """From a list in which None is a number that is not known."""
        return cls(words([0 if value is None else value for value in values]), bytearray(value is None for value in values))

    def plain(self):
        if not self._some:
            return self.values
        return [None if gone else value for value, gone in zip(self.values, self.missing)]

    def _mask(self, np):
        return np.array(self.missing, dtype=bool)

    def numpy(self, np):
        values = np.array(self.values)
        return np.ma.MaskedArray(values, self._mask(np)) if self._some else values

    def pandas(self, pd, np):
        values = np.array(self.values)
        return values if self.missing is None else pd.arrays.IntegerArray(values, self._mask(np))

    def arrow(self, pa):
        return pa.array(self.plain(), type=pa.uint64() if self.values.typecode == "Q" else pa.int64())


def words(values):
    """An array of 64-bit numbers: signed if all fit, which those of every whole trace do."""
    try:
        return array("q", values)
    except OverflowError:
        pass
    try:
        return array("Q", values)
    except OverflowError:
        return signed_words(values)


def signed_words(values):
    """An array of signed 64-bit numbers; larger ones, which only a hostile file has, become the largest."""
    try:
        return array("q", values)
    except OverflowError:
        return array("q", [clamp(value) for value in values])


def clamp(value):
    """A number that a hostile file may have put beyond 64 bits."""
    return min(max(value, -I64_MAX - 1), I64_MAX)


class Coded:
    """Texts with few different values: `codes` are indices in `texts`, -1 is a text that is not known."""

    def __init__(self, codes, texts):
        self.codes, self.texts = codes, texts

    @classmethod
    def of(cls, values):
        """From a list of texts in which None is one that is not known."""
        index, codes = {}, array("i")
        for value in values:
            codes.append(-1 if value is None else index.setdefault(value, len(index)))
        return cls(codes, list(index))

    def plain(self):
        # Code -1 is the last.
        texts = self.texts + [None]
        return [texts[code] for code in self.codes]

    def numpy(self, np):
        texts = np.empty(len(self.texts) + 1, dtype=object)
        texts[:-1] = self.texts
        return texts[np.array(self.codes)]

    def pandas(self, pd, np):
        return pd.Categorical.from_codes(np.array(self.codes), categories=self.texts)

    def arrow(self, pa):
        codes = pa.array([None if code < 0 else code for code in self.codes], type=pa.int32())
        return pa.DictionaryArray.from_arrays(codes, pa.array(self.texts, type=pa.string()))


def repeated(values, counts, kind):
    """A column in which each value is repeated so often: int, MAYBE or str."""
    column = _WRAP[kind](values)
    if kind is str:
        codes = array("i")
        for code, count in zip(column.codes, counts):
            codes.extend(array("i", [code]) * count)
        return Coded(codes, column.texts)
    out, missing = array("q"), None if column.missing is None else bytearray()
    for value, count in zip(column.values, counts):
        out.extend(array("q", [clamp(value)]) * count)
    if missing is not None:
        for gone, count in zip(column.missing, counts):
            missing.extend(bytes([gone]) * count)
    return Numbers(out, missing)


class Flags:
    """True or false."""

    def __init__(self, values):
        self.values = values

    def plain(self):
        return self.values

    def numpy(self, np):
        return np.array(self.values, dtype=bool)

    def pandas(self, pd, np):
        return self.numpy(np)

    def arrow(self, pa):
        return pa.array(self.values, type=pa.bool_())


class Objects:
    """Anything else: lists, bytes."""

    def __init__(self, values):
        self.values = values

    def plain(self):
        return self.values

    def numpy(self, np):
        out = np.empty(len(self.values), dtype=object)
        for i, value in enumerate(self.values):
            out[i] = value
        return out

    def pandas(self, pd, np):
        return self.numpy(np)

    def arrow(self, pa):
        return pa.array(self.values)


class Table:
    """Columns of equal length. `names` are their names; `table["start_ns"]` is one column, `len(table)` the number of
    rows, and a loop gives one dict for each row. A value that is not known is None, in numpy masked and in pandas NA."""

    def __init__(self, title, names, make, length):
        """`make(name)` computes a column, and `length()` the number of rows."""
        self._title, self.names, self._make, self._length, self._made = title, tuple(names), make, length, {}

    def _column(self, name):
        if name not in self._made:
            if name not in self.names:
                raise KeyError(f"the table {self._title} has no column {name!r}: it has {', '.join(self.names)}")
            self._made[name] = self._make(name)
        return self._made[name]

    def __len__(self):
        return self._length()

    def __repr__(self):
        return f"<profinfer table {self._title}: {len(self)} rows of {', '.join(self.names)}>"

    def _repr_html_(self):
        """For notebooks: the first rows."""
        rows = [row.values() for row in islice(self, notebook.ROWS)]
        return notebook.table(self._title, self.names, rows, len(self))

    def __getitem__(self, name):
        """One column: a numpy array if numpy is installed (masked where values are not known), else an array or a list."""
        column = self._column(name)
        try:
            import numpy
        except ImportError:
            return column.plain()
        return column.numpy(numpy)

    @property
    def columns(self):
        """All columns by name, as `table[name]` gives them."""
        return {name: self[name] for name in self.names}

    def __iter__(self):
        names = self.names
        for row in zip(*(self._column(name).plain() for name in names)):
            yield dict(zip(names, row))

    def to_dicts(self):
        """One dict for each row."""
        return list(self)

    def to_pandas(self, columns=None):
        """A pandas.DataFrame of all columns, or of those named. Texts are categories; numbers that may be unknown are of
        the nullable types of pandas.

        Raises ImportError without pandas.
        """
        pd = _need("pandas", "to_pandas()")
        import numpy as np
        names = self.names if columns is None else columns
        data = {name: self._column(name).pandas(pd, np) for name in names}
        return pd.DataFrame(data, columns=list(names))

    def to_arrow(self, columns=None):
        """A pyarrow.Table of all columns, or of those named.

        Raises ImportError without pyarrow.
        """
        pa = _need("pyarrow", "to_arrow()")
        names = list(self.names if columns is None else columns)
        return pa.table([self._column(name).arrow(pa) for name in names], names=names)


# The type of a number that may be unknown.
MAYBE = "int or None"
_WRAP = {int: Numbers.of, MAYBE: Numbers.maybe, str: Coded.of, bool: Flags, object: Objects}


def from_records(title, fields, records):
    """A table of records. `fields` are a name, a type (int, MAYBE, str, bool or object), and the name or the index of the
    value in a record, or a function of the record."""
    place = {name: (_WRAP[kind], get) for name, kind, get in fields}

    def make(name):
        of, get = place[name]
        if not callable(get):
            get = attrgetter(get) if isinstance(get, str) else itemgetter(get)
        return of(list(map(get, records)))
    return Table(title, place, make, lambda: len(records))


def from_rows(title, fields, rows):
    """A table of tuples that have the fields in this order."""
    return from_records(title, [(name, kind, i) for i, (name, kind) in enumerate(fields)], rows)
