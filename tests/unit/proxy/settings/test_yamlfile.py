"""YAML with line numbers: values, places, and problems that name their line."""

import pytest

from proxy.settings.yamlfile import ConfigurationError, parse, read


def test_every_key_knows_its_line():
    document = parse(
        "listen: a:1\nlanes:\n  short:\n    ttft_slo: 1s\nbackends:\n  - http://a\n  - url: http://b\n", "f"
    )
    assert document.values["lanes"] == {"short": {"ttft_slo": "1s"}}
    places = [document.place(path) for path in [("lanes", "short", "ttft_slo"), ("backends", 1, "url"), ("nothing",)]]
    assert places == ["f:4", "f:7", "f"]


def test_an_empty_file_says_nothing():
    assert parse("# nothing\n", "f").values == {}


def test_an_alias_stands_for_its_value():
    assert parse("a: &x {b: 1}\nc: *x\n", "f").values == {"a": {"b": 1}, "c": {"b": 1}}


def test_aliases_that_unfold_into_thousands_of_values_are_refused():
    levels = ["a: &a [1,1,1,1,1,1,1,1,1,1]"]
    levels += [f"{new}: &{new} [{','.join([f'*{old}'] * 10)}]" for old, new in zip("abcdef", "bcdefg", strict=True)]
    with pytest.raises(ConfigurationError, match="more than 10000 values"):
        parse("\n".join(levels), "f")


def test_several_problems_are_named_together():
    with pytest.raises(ConfigurationError) as caught:
        parse("a: 1\na: 2\nb: !x 3\n", "f")
    assert caught.value.sentences == (
        'f:2: key "a" is written twice (first in line 1); keep one',
        "f:3: the tag !x has no meaning here",
    )


def test_a_file_that_is_missing_or_no_text_is_named(tmp_path):
    with pytest.raises(ConfigurationError, match=r"none\.yaml: cannot be read: No such file"):
        read(tmp_path / "none.yaml")
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"listen: \xff\xfe")
    with pytest.raises(ConfigurationError, match=r"binary\.yaml: not UTF-8 text \(byte 8\)"):
        read(binary)


def test_control_characters_are_no_yaml():
    with pytest.raises(ConfigurationError, match="f: not valid YAML"):
        parse("a: \x00", "f")
