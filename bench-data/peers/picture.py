"""Bar charts as SVG, without a library."""

from html import escape

# Distinguishable with red-green colour blindness.
COLOURS = ["#0b5fa5", "#e08a1e", "#9aa0a6"]
INK, FAINT, GRID, LINE = "#1f2328", "#57606a", "#e3e6ea", "#b3261e"

WIDTH, LEFT, RIGHT = 1000, 200, 130
BAR, ROW_GAP = 7, 10
SECTION, HEAD, FOOT = 34, 104, 46
STEPS = (100, 200, 250, 500, 1000, 2000, 2500, 5000, 10_000)


def bars(title, subtitle, unit, series, mark, remark, line, sections):
    """Draw horizontal bars, one group for each row."""
    # sections: (heading, rows). A row is {"label", "values" in the order of `series`, "mark", "remark"}. A value is a number,
    # or says why there is none. `mark` and `remark` are the legends of those columns. `line` is (name, value) of a line across all rows.
    rows = [row for _, rows in sections for row in rows]
    figures = [value for row in rows for value in (*row["values"], row["mark"] or 0) if not isinstance(value, str)]
    line_name, line_value = line
    most = max([*figures, line_value or 0, 1]) * 1.04
    step = next((step for step in STEPS if most / step <= 8), STEPS[-1])
    group = len(series) * BAR + ROW_GAP
    height = HEAD + sum(SECTION + group * len(rows) for _, rows in sections) + FOOT
    bottom = height - FOOT

    def x(value):
        return LEFT + (WIDTH - LEFT - RIGHT) * value / most

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
           'font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif">',
           rect(0, 0, WIDTH, height, "#ffffff"),
           text(20, 32, title, 18, INK, weight="600"),
           text(20, 52, subtitle, 11.5, FAINT)]
    out += legend(series, mark, line_name if line_value else None)
    at = 0
    while at <= most:
        out += [f'<line x1="{x(at):.1f}" y1="{HEAD}" x2="{x(at):.1f}" y2="{bottom}" stroke="{GRID}"/>',
                text(x(at), bottom + 18, f"{at:,}", 11, FAINT, "middle")]
        at += step
    out.append(text((LEFT + WIDTH - RIGHT) / 2, bottom + 36, unit, 11.5, FAINT, "middle"))
    y = HEAD
    for heading, rows in sections:
        out.append(text(20, y + 22, heading, 12.5, INK, weight="600"))
        out.append(text(WIDTH - 20, y + 22, remark, 11, FAINT, "end"))
        y += SECTION
        for row in rows:
            out += drawn(row, y, x, len(series))
            y += group
    if line_value:
        out.append(f'<line x1="{x(line_value):.1f}" y1="{HEAD}" x2="{x(line_value):.1f}" y2="{bottom}" '
                   f'stroke="{LINE}" stroke-width="1.2" stroke-dasharray="5 3"/>')
    return "\n".join([*out, "</svg>"]) + "\n"


def drawn(row, y, x, count):
    """Draw one group of bars with its label, mark and remark."""
    middle = y + count * BAR / 2 + 4
    out = [text(LEFT - 10, middle, row["label"], 12, INK, "end")]
    for place, value in enumerate(row["values"]):
        top = y + place * BAR
        if isinstance(value, str):
            out.append(text(LEFT + 4, top + BAR - 1, value, 7.5, FAINT))
        else:
            out.append(rect(LEFT, top, x(value) - LEFT, BAR - 1, COLOURS[place], f"{value:,.0f}"))
    if row["mark"]:
        out.append(f'<line x1="{x(row["mark"]):.1f}" y1="{y - 2}" x2="{x(row["mark"]):.1f}" '
                   f'y2="{y + count * BAR + 1}" stroke="{INK}" stroke-width="2"/>')
    out.append(text(WIDTH - 20, middle, row["remark"] or "", 12, INK, "end"))
    return out


def legend(series, mark, line):
    out, at, y = [], 20, 80
    for colour, name in zip(COLOURS, series):
        out += [rect(at, y - 9, 14, 10, colour), text(at + 20, y, name, 12, INK)]
        at += 36 + 6.4 * len(name)
    out += [f'<line x1="{at + 4}" y1="{y - 11}" x2="{at + 4}" y2="{y + 2}" stroke="{INK}" stroke-width="2"/>',
            text(at + 14, y, mark, 12, INK)]
    at += 30 + 6.4 * len(mark)
    if line:
        out += [f'<line x1="{at}" y1="{y - 4}" x2="{at + 20}" y2="{y - 4}" stroke="{LINE}" stroke-width="1.2" '
                'stroke-dasharray="5 3"/>', text(at + 26, y, line, 12, INK)]
    return out


def rect(x, y, width, height, fill, title=None):
    box = f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{fill}"'
    return f"{box}><title>{escape(title)}</title></rect>" if title else f"{box}/>"


def text(x, y, words, size, fill, anchor="start", weight="400"):
    return (f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{fill}" text-anchor="{anchor}" '
            f'font-weight="{weight}">{escape(words)}</text>')
