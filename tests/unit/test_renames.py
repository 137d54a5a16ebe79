from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdiff.analysis import renames
from kdiff.analysis.counts import Counts
from kdiff.analysis.pairing import pair_kernels
from kdiff.analysis.renames import Entry, PairingError, Renames, read_file, resolve, wildcard

BEFORE = ("a", "b", "f<a=b>", "void g<float*>(float*)", "void g<int*>(int*)", "x+y", "triton_add_0", "triton_mul_0")
AFTER = ("c", "d", "g==h", "void h<float*>(float*)", "void h<int*>(int*)", "x+z", "triton_add_7", "triton_mul_7", "b")


def found(*texts: str) -> Renames:
    return resolve(texts, (), BEFORE, AFTER)


@pytest.mark.parametrize(
    ("text", "singles"),
    [
        ("a=c", {"a": "c"}),
        (" a = c ", {"a": "c"}),
        ("f<a=b>=g==h", {"f<a=b>": "g==h"}),
        ("x+y=x+z", {"x+y": "x+z"}),
        ("void g<float*>(float*)=void h<float*>(float*)", {"void g<float*>(float*)": "void h<float*>(float*)"}),
        ("triton_*_0=triton_*_7", {"triton_add_0": "triton_add_7", "triton_mul_0": "triton_mul_7"}),
        (
            "void g<*>(*)=void h<*>(*)",
            {"void g<float*>(float*)": "void h<float*>(float*)", "void g<int*>(int*)": "void h<int*>(int*)"},
        ),
        ("triton_*=c", {"triton_add_0": "c", "triton_mul_0": "c"}),
    ],
)
def test_names_and_patterns(text: str, singles: dict[str, str]) -> None:
    assert found(text) == Renames(singles, ())


def test_names_go_before_patterns_whatever_their_order() -> None:
    for texts in (("triton_*_0=triton_*_7", "triton_add_0=c"), ("triton_add_0=c", "triton_*_0=triton_*_7")):
        assert found(*texts).singles == {"triton_add_0": "c", "triton_mul_0": "triton_mul_7"}


@pytest.mark.parametrize(
    ("text", "group"),
    [
        ("a+b=c", (("a", "b"), ("c",))),
        ("a = c + d", (("a",), ("c", "d"))),
        ("a+b=b+c", (("a", "b"), ("b", "c"))),
        ("x+y=c+d", (("x+y",), ("c", "d"))),
    ],
)
def test_groups(text: str, group: tuple[tuple[str, ...], tuple[str, ...]]) -> None:
    assert found(text) == Renames({}, (group,))


@pytest.mark.parametrize(
    ("texts", "told"),
    [
        (["a"], "--map 'a': write OLD=NEW, or A\\+B=C for a fusion"),
        (["a=nope"], "no kernel named 'nope' ran in the after window"),
        (["triton_add_1=c"], "in the before window: did you mean 'triton_add_0' or 'triton_mul_0'"),
        (["a+nope=c"], "no kernel named 'nope' ran in the before window"),
        (["a+a=c"], "names a kernel twice"),
        (["a=c", "a=d"], "'a' is mapped to 'c' already; for a split write A=B\\+C"),
        (["a+b=c", "a=d"], "names 'a' in a group and elsewhere"),
        (["a+b=c", "x+y=c+d"], "names 'c' in a group and elsewhere"),
        (["nope*=c"], "no kernel that ran in the before window matches 'nope\\*'"),
        (["triton_*_0=nope_*"], "what 'nope_\\*' makes of the kernels that match 'triton_\\*_0' did not run"),
        (["triton_*_0=triton_*_*"], "write as many \\* in the new name as in the old one, or none"),
    ],
)
def test_what_cannot_be_meant_is_refused(texts: list[str], told: str) -> None:
    with pytest.raises(PairingError, match=told) as error:
        found(*texts)
    assert "\n" not in str(error.value)


def test_a_file_names_pairs_patterns_and_groups(tmp_path: Path) -> None:
    path = tmp_path / "names.toml"
    path.write_text(
        '[[map]]\nold = "x+y"\nnew = "x+z"\n[[map]]\nold = ["a", "b"]\nnew = "c"\n'
        '[[map]]\nold = "triton_*_0"\nnew = "triton_*_7"\n[[map]]\nold = "last year"\nnew = "this year"\n'
    )
    entries = read_file(str(path))
    assert [(e.old, e.new) for e in entries] == [
        (("x+y",), ("x+z",)),
        (("a", "b"), ("c",)),
        (("triton_*_0",), ("triton_*_7",)),
        (("last year",), ("this year",)),
    ]
    told = resolve((), entries, BEFORE, AFTER)
    assert told.singles == {"x+y": "x+z", "triton_add_0": "triton_add_7", "triton_mul_0": "triton_mul_7"}
    assert told.groups == ((("a", "b"), ("c",)),)
    assert [w.endswith("entry 4 was not used: what it names did not run in these windows") for w in told.warnings] == [
        True
    ]


@pytest.mark.parametrize(
    "text",
    [
        *("", "map", "map = 1", "[map]\na = 'b'", "[[map]]", "[[map]]\nold = 'a'", "[[map]]\nold = 'a'\nnew = ''"),
        *("[[map]]\nold = 'a'\nnew = []", "[[map]]\nold = 'a'\nnew = 1", "[[map]]\nold = 'a'\nnew = ['b', 1]", "\0"),
        *("[[map]]\nold = 'a'\nnew = 'b'\nextra = 1", "[[map]]\nold = 'a'\nnew = 'b'\n[other]", "a = " + "[" * 5_000),
    ],
)
def test_a_file_that_says_something_else_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "names.toml"
    path.write_text(text)
    with pytest.raises(PairingError, match="write tables \\[\\[map\\]\\] with old") as error:
        read_file(str(path))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("path", ["/nonexistent", "/", "a\0b"])
def test_a_file_that_cannot_be_read_is_refused(path: str) -> None:
    with pytest.raises(PairingError, match="cannot be read"):
        read_file(path)


_TEXT = st.text("ab*", max_size=8)


@given(st.lists(st.text("ab", max_size=4), min_size=2, max_size=5), st.data())
def test_a_pattern_matches_what_it_was_made_of(pieces: list[str], data: st.DataObject) -> None:
    texts = [data.draw(_TEXT) for _ in pieces[1:]]
    name = pieces[0] + "".join(t + p for t, p in zip(texts, pieces[1:], strict=True))
    found = wildcard("*".join(pieces), name)
    assert found is not None
    assert pieces[0] + "".join(t + p for t, p in zip(found, pieces[1:], strict=True)) == name


@pytest.mark.parametrize(
    ("pattern", "name", "texts"),
    [
        ("a", "a", ()),
        ("a", "b", None),
        ("*", "", ("",)),
        ("a*b*c", "a1b2c", ("1", "2")),
        ("a*b*c", "abbc", ("", "b")),
        ("a*a", "a", None),
        ("a*b*", "a1c", None),
        ("*b", "ab", ("a",)),
    ],
)
def test_wildcards(pattern: str, name: str, texts: tuple[str, ...] | None) -> None:
    assert wildcard(pattern, name) == texts


def ran(*names: str) -> dict[str, Counts]:
    return {name: Counts((place,), launches=100 + place, executions=10 + place) for place, name in enumerate(names)}


def test_a_group_takes_its_kernels_out_of_the_pairs() -> None:
    pairing = pair_kernels(ran("a", "b", "n"), ran("a", "c", "n"), ["a+b=c"])
    assert [pair.kernel for pair in pairing.pairs] == ["n"]
    (group,) = pairing.groups
    assert (group.pair.kernel, group.pair.old, group.pair.by) == ("c", ("a + b",), "group")
    assert (group.pair.before.launches, group.pair.after.launches, group.pair.before.keys) == (201, 101, ())
    assert [name for name, _ in group.before] == ["a", "b"]
    assert pairing.named == {"c"}
    assert pairing.warnings == ("'a' still ran in the after window (100 launches): these are left out",)


def test_a_new_kernel_of_a_group_that_ran_before_is_left_out() -> None:
    pairing = pair_kernels(ran("a", "b", "c"), ran("c", "d"), ["a+b=c"])
    assert pairing.warnings == ("'c' ran in the before window (102 launches): these are left out",)
    assert [pair.kernel for pair in pairing.pairs] == ["d"]


@pytest.mark.parametrize(
    ("texts", "before_keys", "left_out"),
    [
        (["a=c"], ("a",), ("'c' ran in the before window (102 launches): these are left out",)),
        (["a=c", "c=c"], ("a", "c"), ()),
        (["*=c"], ("a", "b", "c"), ()),
        (["a=c", "c=d"], ("a",), ()),
    ],
)
def test_a_new_kernel_that_ran_before_is_compared_only_if_it_is_said(
    texts: list[str], before_keys: tuple[str, ...], left_out: tuple[str, ...]
) -> None:
    """A canary's launches of the new kernel are no part of what it is compared with."""
    before = {name: Counts((number,), launches=100 + number) for number, name in enumerate("abc")}
    pairing = pair_kernels(before, ran("c", "d"), texts)
    (pair,) = [pair for pair in pairing.pairs if pair.kernel == "c"]
    assert pair.before.launches == sum(before[name].launches for name in before_keys)
    assert pairing.warnings == left_out


def test_a_text_that_can_be_read_in_two_ways_is_refused() -> None:
    with pytest.raises(PairingError, match="can be read in 2 ways: name both in a file for --map-file"):
        resolve(["a=b=c"], (), ("a", "a=b"), ("b=c", "c"))


def test_of_many_entries_that_are_not_used_few_are_told() -> None:
    entries = [Entry((f"old{number}",), ("new",), f"entry {number}") for number in range(1_003)]
    warnings = resolve((), entries, BEFORE, AFTER).warnings
    assert [w.split(" was")[0] for w in warnings[:3]] == ["entry 0", "entry 1", "entry 2"]
    assert warnings[3:] == ("1,000 more entries of map files were not used",)


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "names.toml"
    path.write_bytes(b'\xef\xbb\xbf[[map]]\r\nold = "a"\r\nnew = "b"\r\n')
    assert [(e.old, e.new) for e in read_file(str(path))] == [(("a",), ("b",))]


def test_a_file_without_an_end_is_not_read_to_it() -> None:
    with pytest.raises(PairingError, match="has more than 1 MiB"):
        read_file("/dev/zero")


def test_a_pipe_is_read_and_not_waited_for_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = subprocess.Popen(
        ["sh", "-c", 'sleep 0.3; printf \'[[map]]\\nold = "a"\\nnew = "b"\\n\' > "$0"', str(pipe)]
    )
    assert [(e.old, e.new) for e in read_file(str(pipe))] == [(("a",), ("b",))]
    assert writer.wait(10) == 0
    monkeypatch.setattr(renames, "_WAIT_S", 0.1)
    with pytest.raises(PairingError, match="cannot be read \\(nothing was written into it for 0 s\\)"):
        read_file(str(pipe))


def test_patterns_of_kernels_choose_by_old_names_and_members_of_groups() -> None:
    before, after = ran("a", "b", "gelu_3f2a9c1b", "n"), ran("c", "gelu_0a1b2c3d", "n")
    assert [p.kernel for p in pair_kernels(before, after, patterns=["3f2a9c1b"]).pairs] == ["gelu_0a1b2c3d"]
    chosen = pair_kernels(before, after, ["a+b=c"], ["[b]"])
    assert ([p.kernel for p in chosen.pairs], [g.pair.kernel for g in chosen.groups]) == ([], ["c"])


def test_an_entry_that_is_no_pattern_is_no_error() -> None:
    entry = Entry(("z*",), ("y",), "here")
    assert resolve((), (entry,), BEFORE, AFTER).warnings == (
        "here was not used: what it names did not run in these windows",
    )
