"""Tables as plain text for terminals and as Markdown for pages."""

from collections.abc import Collection, Sequence


def table(header: Sequence[str], rows: Sequence[Sequence[str]], left: Collection[int] = (0,)) -> str:
    """Aligns columns under a header. Columns whose index is in `left` are left-aligned, the others right-aligned."""
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]

    def line(row: Sequence[str]) -> str:
        cells = [c.ljust(w) if i in left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        return "  ".join(cells).rstrip()

    return "\n".join([line(header), "  ".join("-" * w for w in widths), *map(line, rows)])


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], left: Collection[int] = (0,)) -> str:
    """The same table in Markdown."""
    rule = ["---" if i in left else "---:" for i in range(len(header))]
    return "\n".join("| " + " | ".join(row) + " |" for row in (header, rule, *rows))


def gigamacs(macs: int) -> str:
    """Multiply-accumulates in units of 10^9, with more digits for small networks."""
    return f"{macs / 1e9:.{3 if macs >= 1e8 else 5}f}"
