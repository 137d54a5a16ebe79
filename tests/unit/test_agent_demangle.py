"""kdiff.queries.kernel_names.demangle against names whose C++ is known."""

from __future__ import annotations

import string
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kdiff.queries import kernel_names as module
from kdiff.queries.kernel_names import demangle


@pytest.mark.parametrize(
    ("mangled", "name"),
    [
        ("_Z2k2Pf", "k2(float*)"),
        ("_Z3addPKfS0_Pfi", "add(float const*, float const*, float*, int)"),
        ("_ZN2at4gemmIfLi8EEEvPT_", "void at::gemm<float, 8>(float*)"),
        (
            "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEESt5arrayIPcLm1EEEEviT0_T1_",
            "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul> >"
            "(int, at::native::FillFunctor<float>, std::array<char*, 1ul>)",
        ),
        ("_ZN12_GLOBAL__N_11kEv", "(anonymous namespace)::k()"),
    ],
)
def test_mangled_names(mangled: str, name: str) -> None:
    assert demangle(mangled) == name


@pytest.mark.parametrize("name", ["", "k1", "triton_red_fused_0d1d", "_Z", "_Z9", "_Zzz", "i", "f", "_ZN2at", "__Z1kv"])
def test_what_is_not_mangled_or_broken_stays(name: str) -> None:
    assert demangle(name) == name


def test_without_the_library_names_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_library", lambda: None)
    assert demangle.__wrapped__("_Z2k2Pf") == "_Z2k2Pf"


@settings(max_examples=200, deadline=None)
@given(st.text(string.ascii_letters + string.digits + "_$.", max_size=300))
def test_no_name_does_harm(tail: str) -> None:
    assert demangle("_Z" + tail)


@pytest.mark.parametrize("body", ["P" * 60_000 + "i", "1fv" + "N1a" * 20_000, "1fI" * 15_000, "L" * 60_000])
def test_deep_names_do_no_harm(body: str) -> None:
    assert demangle("_Z" + body) == "_Z" + body
    assert demangle("_Z" + "i" * 70_000) == "_Z" + "i" * 70_000


def doubling(levels: int) -> str:
    """pair<A, A>, then pairs of the pair before: twice as long at each level."""
    digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    return "_Z1f1ASt4pairIS_S_E" + "".join(f"S0_IS{digits[n - 1]}_S{digits[n - 1]}_E" for n in range(2, levels))


NESTED_PACKS = "_Z1fIJ" + "i" * 60 + "EEv" + "DpSt4pairIT_" * 5 + "i" + "E" * 5


@pytest.mark.parametrize("name", [doubling(32), NESTED_PACKS])
def test_a_name_that_stands_for_gigabytes_stays(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Of 350 characters and of 135: without a bound they take all of the memory."""
    monkeypatch.setattr(module, "_ended", 0)
    assert demangle(name) == name
    assert module._ended == 1


def test_after_three_of_them_none_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ended", 3)
    monkeypatch.setattr("subprocess.run", lambda *_, **__: pytest.fail("was tried"))
    assert demangle.__wrapped__(doubling(30)) == doubling(30)


def test_many_references_are_followed_where_the_name_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "_Z1fIfEv" + "T_" * 31
    assert demangle(name) == f"void f<float>({', '.join(['float'] * 31)})"
    apart = [demangle.__wrapped__(doubling(levels)) for levels in (10, 11)]  # 27 and 30 references
    monkeypatch.setattr(module, "_MOST_REFERENCES", 1_000)
    assert apart == [demangle.__wrapped__(doubling(levels)) for levels in (10, 11)]
    assert apart[0].startswith("f(A, std::pair<A, A>, ")
    assert demangle.__wrapped__(doubling(20)) == doubling(20)  # over 65,536 characters


def long_name(arguments: int) -> str:
    return "_Z1fI" + "i" * arguments + "EvT_"


def test_as_cpp_filt_says() -> None:
    names = [long_name(count) for count in (1, 10, 100, 1000)]
    done = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True)
    assert [demangle(name) for name in names] == done.stdout.splitlines()


def test_names_too_long_for_libstdcxx_stay_mangled() -> None:
    name = long_name(2000)
    assert demangle(name) == name
