"""dap data …: looking at suites."""


def data_check(suite: str, root: str | None = None, quick: bool = False, json: bool = False) -> int:
    """Compare a suite on disk with what should be there, and decode every image.

    Example: dap data check PACS --root data

    Args:
        suite: a benchmark's name, a folder <domain>/<class>/<image>, a .csv or .parquet, or hf:<name>
        root: the folder that holds the benchmark's own (default: data)
        quick: count images, but decode none
        json: print one JSON object instead of a table

    Returns:
        0 if the suite is whole, 1 if not
    """
    from dataclasses import asdict
    from json import dumps

    from dap.data.checking import check_suite

    check = check_suite(suite, root, quick)
    if json:
        print(dumps({**asdict(check), "whole": check.whole}))
        return int(not check.whole)
    for domain, found in check.domains.items():
        expected = "" if found.expected is None else f" of {found.expected}"
        unreadable = "not decoded" if quick else f"{len(found.unreadable)} unreadable"
        print(f"{domain:20} {found.images:>7}{expected} images, {unreadable}")
    for line in [*check.notes, *check.problems]:
        print(f"- {line}")
    print(f"{check.suite} is whole" if check.whole else f"{check.suite} is not whole")
    return int(not check.whole)
