"""Fills the tables and figures of a results page from the files of a report.

    dap report docs/results/pacs --files runs/pacs-files
    python benchmarks/claims.py docs/results/pacs --out runs/pacs-files/claims.md
    python benchmarks/pages.py runs/pacs-files docs/results/pacs.md docs/results/pacs-claims.md

What stands in a page between `<!-- NAME -->` and `<!-- end -->` becomes the table NAME.md of the report (or of another
that is inside it: `<!-- FOLDER/NAME -->`), and an image `…/images/<folder>-NAME.svg` its figure NAME.svg, where the
folder of the files is `<folder>-files`. The last line is one JSON object.
"""

import argparse
import json
import re
import shutil
from pathlib import Path

from dap.errors import DapError
from dap.runtime.files import write_atomic

TABLE = re.compile(r"<!-- (?P<name>[\w/-]+) -->.*?<!-- end -->", re.DOTALL)
FIGURE = re.compile(r"\]\((?P<image>[^)]*/images/(?P<study>\w+)-(?P<name>[\w-]+)\.svg)\)")


def fill(page: Path, files: Path) -> tuple[list[str], list[str]]:
    """The names of the tables and of the figures that were brought up to date."""
    text = page.read_text()
    names = [found["name"] for found in TABLE.finditer(text)]
    figures = [found for found in FIGURE.finditer(text) if files.name == f"{found['study']}-files"]
    wanted = [files / f"{name}.md" for name in names] + [files / f"{found['name']}.svg" for found in figures]
    for file in wanted:  # before anything is changed
        if not file.is_file():
            raise DapError(f"{page} has a place for {file}, which is not there: make the report first")
    write_atomic(page, TABLE.sub(lambda found: _filled(found, files), text).encode())
    for found in figures:
        shutil.copyfile(files / f"{found['name']}.svg", page.parent / found["image"])
    return names, [found["name"] for found in figures]


def _filled(found: re.Match[str], files: Path) -> str:
    name = found["name"]
    return f"<!-- {name} -->\n\n{(files / f'{name}.md').read_text().strip()}\n\n<!-- end -->"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, help="the folder that `dap report --files` wrote")
    parser.add_argument("pages", type=Path, nargs="+")
    args = parser.parse_args()
    print(json.dumps({str(page): [*map(sorted, fill(page, args.files))] for page in args.pages}))


if __name__ == "__main__":
    main()
