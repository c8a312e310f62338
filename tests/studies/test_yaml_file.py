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


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"prune: 1\ntrain: 2\nprune: 3", "line 1 is not sound YAML: 'prune' is there twice"),
        (b"a: [1", "line 1 is not sound YAML"),
        (b"\xff\xfe\x00\x01", "is no text: give a YAML file"),
        (b"a: !!python/object:os.system {}", "is not sound YAML"),
    ],
)
def test_what_is_wrong_is_named(content, message, tmp_path):
    (tmp_path / "a.yaml").write_bytes(content)
    with pytest.raises(DapError, match=message):
        read_yaml(tmp_path / "a.yaml")
