"""Canonical names of kernels: what stays the same when a kernel is only compiled anew.

`canonical` drops what compilers, build systems and demanglers add to a name, and nothing that says what the kernel
does: types, functors, tile sizes and operators stay. `family` drops template arguments and parameters too: it only
tells how much alike two names are.
"""

from __future__ import annotations

import re
from typing import Final

from kdiff.analysis.counts import UNNAMED, is_graph

_LIBRARY: Final = re.compile(
    r"(?:nvjet_|cutlass_?\d*_|(?:maxwell|pascal|volta|turing|ampere|hopper|blackwell)_|sm\d+_|cudnn_|cublas_|cask_)"
)

# nvcc's unit of a static symbol: a hash of the file's path, the file, a hash of what is in it. As it is mangled, with
# the length before it, and as a demangler leaves it.
_UNIT: Final = re.compile(
    r"\d{0,4}_(?:GLOBAL__N_|INTERNAL)_[0-9a-f]{8}_\d{1,4}_(\w{1,200}?)_[0-9a-f]{8}(?:_[0-9]{1,8}(?!\w))?(?=::|\W|\d|$)"
)
_TEMPORARY: Final = re.compile(r"tmpxft_[0-9a-f]{8}_[0-9a-f]{8}_\d{1,6}_")
_INLINE_NAMESPACE: Final = re.compile(
    r"\b(?:__\d{1,4}|__cxx11|(?:CUB|THRUST|CUDA|CCCL)_\d{6}[A-Z0-9_]{0,400}|_V_\d{6}[A-Z0-9_]{0,400})::"
)
_CLONE: Final = re.compile(r"\s{0,8}\[clone [^\[\]]{0,200}\]")
_CLONE_TAIL: Final = re.compile(r"\.(?:constprop|isra|part|cold|clone|localalias|llvm)(?:\.\d{1,20}){0,3}\Z")
_CAST: Final = re.compile(
    r"\((?:bool|char|short|int|long|long long|(?:unsigned|signed) (?:char|short|int|long|long long))\)(?=-?\d)"
)
_BOOL: Final = re.compile(r"\(bool\)([01])(?!\d)")
_LITERAL: Final = re.compile(r"(?<![\w.])(\d{1,20})(?:u|l|ul|ll|ull)(?!\w)")
_SPACE: Final = re.compile(r"\s+")
_TIGHT: Final = re.compile(r" ?([,<>()*&]) ?")
_RETURNS: Final = re.compile(r"(?:static )?void ")

_INDUCTOR: Final = re.compile(r"triton_[a-z]{2,8}_fused_(?=\w*[a-z])")
_HEX: Final = re.compile(r"[0-9a-f]{8,64}\Z")
# As `bf16bf16`, `f16f32acc`, `d128c256`, `64e4096d` have: of hashes of 8 digits 1 in 50 looks so, of 16 none.
_SIZE: Final = r"(?:[1-468]|12|16|24|32|48|64|80|96|128|192|256|384|512|768|1024|2048|4096|8192)"
_TYPES: Final = re.compile(rf"{_SIZE}?(?:[a-f]{{1,3}}{_SIZE})+[a-f]{{0,3}}\Z")
_MOST_TAILS: Final = 16
_MOST_PASSES: Final = 4
_LONGEST_TAIL: Final = 512
_NOTHING: Final = frozenset({"", "triton", "triton_", "kernel", "kernel_", "_"})
"""What says nothing of what a kernel does: a tail stays if only this would be left."""


def is_kernel(name: str) -> bool:
    """Whether it is the name of a kernel: neither that of a graph nor what stands for none."""
    return name != UNNAMED and not is_graph(name)


def canonical(name: str) -> str:
    """The name without what a compilation adds to it; the name itself where nothing else would be left.

    In order, each rule with a name as the tool gives it:

    1. What is in parentheses is no kernel (`(graph 1a2b3c4d: ...)`), and names of NVIDIA's libraries are their own:
       `nvjet_sm90_tst_64x8_64x16_1x2_h_bz_NNT`, `sm90_xmma_gemm_bf16bf16_...`, `ampere_sgemm_128x64_tn`. Left alone.
    2. `[clone .constprop.0]`, `.llvm.8140302842` at the end: clones that a compiler made.
    3. `53_GLOBAL__N__21739cd4_20_layer_norm_kernel_cu_9c5ada8a`, `_INTERNAL_21739cd4_7_norm_cu_9c5ada8a`: of nvcc's
       name for a file, in which two hashes change with its path and its text, only the file stays;
       `tmpxft_0000a2b1_00000000_7_` goes.
    4. `std::__1::`, `cub::CUB_200302_700_800_900_NS::`: inline namespaces that tell a library's version.
    5. What demanglers write differently: `(anonymous namespace)::` or nothing, `(bool)1` or `true`, `(int)8`, `8u` or
       `8`, `> >` or `>>`, and `void ` before the name.
    6. Tails, until none is left: `_0d1d2de3` (Triton before 3.0: which arguments are specialised), the number of
       inductor's `triton_poi_fused_add_relu_0` where operators are named, and hashes (`_3f2a9c1b`: 8 to 64 lower-case
       hexadecimal digits, letters and digits, that are no row of types and sizes like `_bf16bf16` or `_f16f32acc`).

    Idempotent, and linear in the length of the name: one that four passes do not settle is left alone.
    """
    text = name
    for _ in range(_MOST_PASSES):
        once = _pass(text)
        if once == text:
            return text if text.strip("_") and text not in _NOTHING else name
        text = once
    return name


def family(name: str) -> str:
    """A kernel's own name in lower case, of any template arguments, parameters and namespace, of its canonical one."""
    text = canonical(name)
    if is_graph(text):
        return text
    kept, depth = [], 0
    for char in text:
        if char in "<([{":
            depth += 1
        elif char in ">)]}":
            depth = max(0, depth - 1)
        elif not depth:
            kept.append(char)
    bare = "".join(kept).strip().rpartition("::")[2]
    return (bare or text).lower()


def _pass(name: str) -> str:
    if not is_kernel(name) or _LIBRARY.match(name):
        return name
    text = _CLONE.sub("", name)
    text = _UNIT.sub(r"(\1)", text)
    text = _TEMPORARY.sub("", text)
    text = _INLINE_NAMESPACE.sub("", text)
    text = text.replace("(anonymous namespace)::", "")
    text = _BOOL.sub(lambda found: "true" if found.group(1) == "1" else "false", text)
    text = _LITERAL.sub(r"\1", _CAST.sub("", text))
    text = _TIGHT.sub(r"\1", _SPACE.sub(" ", text)).strip()
    if returns := _RETURNS.match(text):
        text = text[returns.end() :]
    for _ in range(_MOST_TAILS):
        shorter = _without_tail(text)
        if shorter in _NOTHING or shorter == text:
            break
        text = shorter
    return text


def _without_tail(text: str) -> str:
    if found := _CLONE_TAIL.search(text, max(0, len(text) - _LONGEST_TAIL)):
        return text[: found.start()]
    at = max(text.rfind("_", max(0, len(text) - _LONGEST_TAIL)), text.rfind(".", max(0, len(text) - _LONGEST_TAIL)))
    if at < 0:
        return text
    head, tail = text[:at], text[at + 1 :]
    if text[at] == "_" and _specialises(tail):
        return head
    # Of `triton_poi_fused_0` nothing would be left that says what it computes.
    if text[at] == "_" and tail.isascii() and tail.isdigit() and _INDUCTOR.match(head):
        return head
    if _HEX.match(tail) and tail.isalnum() and not tail.isdigit() and not tail.isalpha() and not _TYPES.match(tail):
        return head
    return text


def _specialises(tail: str) -> bool:
    """Whether it is Triton's suffix: two arguments or more by number, with d, c or e where they are specialised."""
    at, number, letters = 0, 0, 0
    while at < len(tail):
        argument = str(number)
        if not tail.startswith(argument, at):
            return False
        at += len(argument)
        while at < len(tail) and tail[at] in "cde":
            at += 1
            letters += 1
        number += 1
    return number >= 2 and letters > 0
