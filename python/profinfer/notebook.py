"""What a notebook shows of a run or a table: HTML without styles or scripts. All text is escaped, as it comes from files of
others."""

from html import escape

# Rows of a table, and characters of a cell and of a fact.
ROWS, CELL, FACT = 10, 80, 2000


def _shown(value, most=CELL):
    """Text for a cell; control characters and the like are escaped."""
    if value is None:
        return ""
    text = str(value)
    text = text if len(text) <= most else text[:most - 3] + "..."
    return escape("".join(c if c.isprintable() else ascii(c)[1:-1] for c in text))


def _row(cells, tag="td"):
    return "<tr>" + "".join(f"<{tag}>{_shown(cell)}</{tag}>" for cell in cells) + "</tr>"


def table(title, names, rows, count):
    """The first rows of a table, and how many there are."""
    head = _row(names, "th")
    body = "".join(_row(row) for row in rows)
    more = f", of which the first {len(rows)} are shown" if len(rows) < count else ""
    caption = _shown(f"{title}: {count} rows{more}")
    return f"<table><caption>{caption}</caption><thead>{head}</thead><tbody>{body}</tbody></table>"


def facts(title, pairs):
    """Names with their values; what is None is left out."""
    known = [(_shown(name), _shown(value, FACT)) for name, value in pairs if value is not None]
    rows = "".join(f"<tr><th>{name}</th><td>{value}</td></tr>" for name, value in known)
    return f"<table><caption>{_shown(title)}</caption><tbody>{rows}</tbody></table>"
