import pytest

from dap.errors import DapError
from dap.studies.yaml_file import read_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001), ("1E5", 100000.0), ("-2.5", -2.5), (".5", 0.5), ("3", 3), ("-3", -3), ("010", "010"),
        ("2:4", "2:4"), ("1:30", "1:30"), ("true", True), ("null", None), ("runs/1", "runs/1"), ("1_000", "1_000"),
    ],
)  # fmt: skip
def test_values_are_what_they_look_like(text, value, tmp_path):
    (tmp_path / "a.yaml").write_text(f"a: [{text}]")
    (found,) = read_yaml(tmp_path / "a.yaml")["a"]
    assert found == value
    assert type(found) is type(value)


def test_blocks_can_be_taken_over(tmp_path):
    (tmp_path / "a.yaml").write_text("one: &one {a: 1, b: 2}\ntwo:\n  <<: *one\n  b: 3")
    assert read_yaml(tmp_path / "a.yaml")["two"] == {"a": 1, "b": 3}


def test_what_is_written_twice_is_no_bomb(tmp_path):
    (tmp_path / "a.yaml").write_text("a: &a [1, 2]\nb: [*a, *a]\nc: &c 3\nd: [*c, [[*c]]]")
    assert read_yaml(tmp_path / "a.yaml") == {"a": [1, 2], "b": [[1, 2], [1, 2]], "c": 3, "d": [3, [[3]]]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"prune: 1\ntrain: 2\nprune: 3", "line 1 is not sound YAML: 'prune' is there twice"),
        (b"a: [1", "line 1 is not sound YAML"),
        (b"\xff\xfe\x00\x01", "is no text: give a YAML file"),
        (b'a: "x\\0"', "line 1 is not sound YAML: .* which no name can have"),
        (b'a: "\\ud800"', "line 1 is not sound YAML: .* which no name can have"),
        (b"a: &a [1, *a]", r"line 1 is not sound YAML: \*a is inside of what it stands for"),
        (b"a: " + b"[" * 10**5, "line 1 is not sound YAML: it is nested deeper than 50 levels"),
        (b"[" + b"1," * 100_001 + b"]", "line 1 is not sound YAML: it stands for more than 100,000 values"),
        (b"a: !!python/object:os.system {}", "is not sound YAML"),
    ],
)
def test_what_is_wrong_is_named(content, message, tmp_path):
    (tmp_path / "a.yaml").write_bytes(content)
    with pytest.raises(DapError, match=message):
        read_yaml(tmp_path / "a.yaml")
