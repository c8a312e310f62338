"""A table, whatever it is about: as Markdown, LaTeX and CSV."""

import csv
import io
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from dap.report.statistics import Difference, Mean

Value = Mean | Difference | str | None  # None: missing
MISSING = "–"


@dataclass(frozen=True)
class Column:
    title: str
    group: str = ""  # a heading over several columns
    marked: bool = False  # best and second best


@dataclass(frozen=True)
class Row:
    cells: tuple[Value, ...]
    # What the row is about, for a page that hides some.
    series: str = ""
    wished: str | None = None  # the sparsity that was asked for; None: any


@dataclass(frozen=True)
class Table:
    name: str  # of its files
    title: str
    note: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]

    def marks(self) -> dict[tuple[int, int], int]:
        """1 for the best of a column, 2 for the second best, by row and column. What looks equal is equal.

        Among those with the most seeds: a mean over fewer, which may be easier ones, is neither better nor worse.
        """
        found = {}
        for place, column in enumerate(self.columns):
            cells = {number: row.cells[place] for number, row in enumerate(self.rows)}
            means = {number: value for number, value in cells.items() if isinstance(value, Mean)}
            most = max((mean.seeds for mean in means.values()), default=0)
            shown = {number: round(100 * mean.mean, 1) for number, mean in means.items() if mean.seeds == most}
            if column.marked and len(set(shown.values())) > 1:
                best = sorted(set(shown.values()), reverse=True)[:2]
                found |= {(number, place): 1 + best.index(value) for number, value in shown.items() if value in best}
        return found

    def groups(self) -> list[tuple[str, int]]:
        """Headings over columns, and over how many each; "" over one that has none."""
        found: list[tuple[str, int]] = []
        for column in self.columns:
            if found and column.group and found[-1][0] == column.group:
                found[-1] = column.group, found[-1][1] + 1
            else:
                found.append((column.group, 1))
        return found

    def markdown(self) -> str:
        titles = [_markdown(_heading(column)) for column in self.columns]
        lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
        marks = self.marks()
        for number, row in enumerate(self.rows):
            cells = []
            for place, value in enumerate(row.cells):
                text = _markdown(value) if isinstance(value, str) else show(value)
                cells.append({1: f"**{text}**", 2: f"<u>{text}</u>"}.get(marks.get((number, place), 0), text))
            lines.append(f"| {' | '.join(cells)} |")
        return visible("\n".join(lines))

    def latex(self) -> str:
        """With booktabs and graphicx; no wider than the text."""
        form = "".join("l" if self.is_text(place) else "c" for place in range(len(self.columns)))
        lines = [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{escape(f'{self.title}. {self.note}')}}}",
            rf"\label{{tab:{self.name}}}",
            r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
            rf"\begin{{tabular}}{{{form}}}",
            r"\toprule",
            *self._latex_groups(),
            _latex_row([escape(column.title) for column in self.columns]),
            r"\midrule",
        ]
        marks = self.marks()
        for number, row in enumerate(self.rows):
            if number and row.series != self.rows[number - 1].series:
                lines.append(r"\midrule")
            cells = []
            for place, value in enumerate(row.cells):
                text = escape(show(value))
                command = {1: "textbf", 2: "underline"}.get(marks.get((number, place), 0))
                cells.append(rf"\{command}{{{text}}}" if command else text)
            lines.append(_latex_row(cells))
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}}", r"\end{table}", ""])

    def csv(self) -> str:
        """Numbers as they are, with their spread, interval and number of seeds in columns of their own."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        kinds = [self._kind(place) for place in range(len(self.columns))]
        parts = {
            Mean: ("", " std", " stderr", " seeds", " remark"),
            Difference: ("", " low", " high", " seeds"),
            str: ("",),
        }
        writer.writerow(
            no_formula(f"{_heading(column)}{part}")
            for column, kind in zip(self.columns, kinds, strict=True)
            for part in parts[kind]
        )
        for row in self.rows:
            cells = []
            for value, kind in zip(row.cells, kinds, strict=True):
                if isinstance(value, Mean | Difference):
                    cells += _numbers(value)
                else:  # a dash among numbers is none
                    cells += [no_formula(value) if value and kind is str else None] + [None] * (len(parts[kind]) - 1)
            writer.writerow(cells)
        return visible(text.getvalue())

    def _kind(self, place: int) -> type:
        kinds = {type(row.cells[place]) for row in self.rows}
        return next((kind for kind in (Mean, Difference) if kind in kinds), str)

    def is_text(self, place: int) -> bool:
        return self._kind(place) is str

    def _latex_groups(self) -> list[str]:
        cells, rules, start = [], [], 1
        for group, span in self.groups():
            cells.append(rf"\multicolumn{{{span}}}{{c}}{{{escape(group)}}}" if group else "")
            if group:
                rules.append(rf"\cmidrule(lr){{{start}-{start + span - 1}}}")
            start += span
        return [" & ".join(cells) + r" \\", " ".join(rules)] if rules else []


def show(value: Value) -> str:
    """In percent, as people read it.

    >>> show(Mean(0.5, 0.125, 3)), show(Difference(0.021, None, None, 1)), show(None)
    ('50.0 ± 12.5', '+2.1', '–')
    """
    if value is None:
        return MISSING
    if isinstance(value, str):
        return value
    if isinstance(value, Mean):
        spread = "" if value.spread is None else f" ± {100 * value.spread:.1f}"
        return f"{100 * value.mean:.1f}{spread}" + (f" {value.remark}" if value.remark else "")
    if value.low is None or value.high is None:
        return points(value.mean)
    return f"{points(value.mean)} [{points(value.low)}, {points(value.high)}]"


_Values = TypeVar("_Values")
# Control characters, marks that reorder the text after them, and halves of characters, which no file can hold.
_HIDDEN = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(values: _Values) -> _Values:
    """A text, or all texts in lists and dictionaries, with what would act and not be seen shown as �.

    >>> visible(["a\\x1bb", {"c": 1}])
    ['a�b', {'c': 1}]
    """
    found: Any = values
    if isinstance(found, str):
        found = _HIDDEN.sub("\ufffd", found)
    elif isinstance(found, list):
        found = [visible(value) for value in found]
    elif isinstance(found, dict):
        found = {visible(name): visible(value) for name, value in found.items()}
    return found


def points(difference: float) -> str:
    """In percent, with its sign.

    >>> points(-0.021)
    '−2.1'
    """
    return f"{100 * difference:+.1f}".replace("-", "−")


def file_name(*parts: str) -> str:
    """
    >>> file_name("domains", "hf:me/images")
    'domains-hf-me-images'
    """
    return "-".join(re.sub(r"[^\w.]+", "-", part).strip("-") for part in parts)


def sparsity_title(wished: str) -> str:
    """Of what was asked for: a share, or a pattern.

    >>> sparsity_title("0.8"), sparsity_title("0.995"), sparsity_title("2:4")
    ('80 %', '99.5 %', '2:4')
    """
    return f"{100 * float(wished):.4g} %" if re.fullmatch(r"[\d.]+", wished) else wished


def _heading(column: Column) -> str:
    return f"{column.group}: {column.title}" if column.group else column.title


def _numbers(value: Mean | Difference) -> list[float | int | str | None]:
    if isinstance(value, Mean):
        return [value.mean, value.spread, value.error, value.seeds, value.remark]
    return [value.mean, value.low, value.high, value.seeds]


def no_formula(text: str) -> str:
    """For a cell of CSV: a spreadsheet takes what begins with one of these for a formula, unless an apostrophe does.

    >>> no_formula("=1+1"), no_formula("-0.5"), no_formula("plain")
    ("'=1+1", '-0.5', 'plain')
    """
    is_number = re.fullmatch(r"[+-]?\d+(\.\d+)?", text)
    return f"'{text}" if text.lstrip(" ")[:1] in ("=", "+", "-", "@", "\t", "\r", "\n") and not is_number else text


def _markdown(text: str) -> str:
    r"""For a cell of Markdown: whatever is in a name is shown, and formats nothing.

    >>> _markdown("a_b | <i> *c*")
    'a_b \\| &lt;i> \\*c\\*'
    """
    text = re.sub(r"[\\`*\[\]|~]|(?<![^\W_])_|_(?![^\W_])", r"\\\g<0>", " ".join(text.split()))
    text = re.sub(r"&(?=[#\w])", "&amp;", text).replace("<", "&lt;")
    return text.replace("://", "&#58;//").replace("www.", "www&#46;")  # some readers make links of these


def _latex_row(cells: Sequence[str]) -> str:
    r"""What begins with a bracket or a star would be an option of the line break or the rule before it."""
    text = " & ".join(cells).lstrip()
    return ("{}" if text.startswith(("[", "*")) else "") + text + r" \\"


_LATEX = {
    "\0": "{}", "\n": " ", "\r": " ", "\t": " ", "`": r"\textasciigrave{}", "|": r"\textbar{}",
    '"': r"\texttt{\char34}",
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": "$<$", ">": "$>$", "±": r"$\pm$", "×": r"$\times$",
    "Δ": r"$\Delta$", "α": r"$\alpha$", "β": r"$\beta$", "γ": r"$\gamma$", "ε": r"$\varepsilon$", "λ": r"$\lambda$",
    "τ": r"$\tau$", "σ": r"$\sigma$", "→": r"$\to$", "−": "$-$", "–": "--", "—": "---", "ß": r"\ss{}", "æ": r"\ae{}",
    "Æ": r"\AE{}", "ø": r"\o{}", "Ø": r"\O{}", "œ": r"\oe{}", "Œ": r"\OE{}", "ł": r"\l{}", "Ł": r"\L{}", "ı": r"\i{}",
}  # fmt: skip
_MARKS = "\u0300\u0301\u0302\u0303\u0304\u0306\u0307\u0308\u030a\u030b\u030c\u0323\u0327\u0331"
_ACCENTS = dict(zip(_MARKS, "`'^~=u.\"rHvdcb", strict=True))


def escape(text: str) -> str:
    r"""For LaTeX, with fonts of any encoding: accents are commands, and what TeX may not know is a question mark.

    >>> escape("a_b ± 1 %"), escape("Malmö--x")
    ('a\\_b $\\pm$ 1 \\%', 'Malm\\"{o}-{}-x')
    """
    text = unicodedata.normalize("NFC", visible(text))
    apart = re.sub(r"(?<=([-',]))(?=\1)", "\0", text)  # or TeX makes one dash of two
    return "".join(_LATEX.get(letter) or _latex_letter(letter) for letter in apart)


def _latex_letter(letter: str) -> str:
    base, *accents = unicodedata.normalize("NFD", letter)
    if base.isascii() and len(accents) == 1 and accents[0] in _ACCENTS:
        return rf"\{_ACCENTS[accents[0]]}{{{base}}}"
    return letter if letter.isascii() else "?"
