import pytest

from dap.runtime.progress import _Lines, duration, progress, stages


def test_lines_where_there_is_no_terminal(capsys, monkeypatch):
    clock = iter(range(0, 1000, 10))
    monkeypatch.setattr("dap.runtime.progress.time.monotonic", lambda: next(clock))
    with stages() as advance:
        for step in range(1, 8):
            advance("training", step, 7, f"loss {step}")
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == ["training: 4 of 7, about 30 s left, loss 4", "training: 7 of 7, about 0 s left, loss 7"]


def test_nothing_where_it_should_be_quiet(capsys, monkeypatch):
    monkeypatch.setattr(_Lines, "EVERY", 0.0)
    with progress("training", 3, quiet=True) as advance:
        for _ in range(3):
            advance("loss")
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(("seconds", "words"), [(5.2, "5 s"), (119.9, "2 min 0 s"), (7260, "2 h 1 min")])
def test_durations(seconds, words):
    assert duration(seconds) == words
