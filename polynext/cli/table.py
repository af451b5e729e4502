"""Plain tables for terminals."""

from collections.abc import Collection, Sequence


def table(header: Sequence[str], rows: Sequence[Sequence[str]], left: Collection[int] = (0,)) -> str:
    """Aligned columns under a header; the columns in `left` are flush left, the others flush right."""
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]

    def line(row: Sequence[str]) -> str:
        cells = [c.ljust(w) if i in left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))]
        return "  ".join(cells).rstrip()

    return "\n".join([line(header), "  ".join("-" * w for w in widths), *map(line, rows)])


def gigamacs(macs: int) -> str:
    """Multiply-accumulates in units of 10^9, with more digits for small networks."""
    return f"{macs / 1e9:.{3 if macs >= 1e8 else 5}f}"
