from __future__ import annotations

import hashlib
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kdiff.analysis.canonical import canonical, family
from kdiff.analysis.counts import Counts
from kdiff.analysis.pairing import pair_kernels

LAYER_NORM = (
    "_ZN2at6native53_GLOBAL__N__{}_20_layer_norm_kernel_cu_{}28vectorized_layer_norm_kernelIN3c108BFloat16EfLb0EEEviT0_"
)
REDUCE = "void cub::CUB_{}_NS::DeviceReduceKernel<cub::CUB_{}_NS::Policy, int>(int)"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("nvjet_sm90_tst_64x8_64x16_1x2_h_bz_NNT", "nvjet_sm90_tst_64x8_64x16_1x2_h_bz_NNT"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_cublas", "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_cublas"),
        (
            "cutlass_80_tensorop_f16_s16816gemm_f16_64x64_32x6_0d1d",
            "cutlass_80_tensorop_f16_s16816gemm_f16_64x64_32x6_0d1d",
        ),
        ("ampere_sgemm_128x64_tn", "ampere_sgemm_128x64_tn"),
        ("(graph 1a2b3c4d: 2 x k_0d1d)", "(graph 1a2b3c4d: 2 x k_0d1d)"),
        ("(no name)", "(no name)"),
        ("gelu(float*, int) [clone .constprop.0]", "gelu(float*,int)"),
        ("gelu.llvm.8140302842", "gelu"),
        ("gelu.constprop.0.isra.0", "gelu"),
        (
            LAYER_NORM.format("21739cd4", "9c5ada8a"),
            "_ZN2at6native(layer_norm_kernel_cu)28vectorized_layer_norm_kernelIN3c108BFloat16EfLb0EEEviT0_",
        ),
        ("_INTERNAL_21739cd4_7_norm_cu_9c5ada8a::k(int)", "(norm_cu)::k(int)"),
        ("tmpxft_0000a2b1_00000000_7_gelu", "gelu"),
        (REDUCE.format("200302_700_800_900", "200302_700_800_900"), "cub::DeviceReduceKernel<cub::Policy,int>(int)"),
        ("std::__1::f<std::__cxx11::g>", "std::f<std::g>"),
        (
            "void at::native::(anonymous namespace)::softmax<(int)10, (bool)1, 8ul, std::array<char*, 3ul> >(int)",
            "at::native::softmax<10,true,8,std::array<char*,3>>(int)",
        ),
        (
            "at::native::softmax<10, true, 8, std::array<char*, 3>>(int)",
            "at::native::softmax<10,true,8,std::array<char*,3>>(int)",
        ),
        ("fused_gelu_0d1d2de3", "fused_gelu"),
        ("fused_gelu_01d", "fused_gelu"),
        ("k_0d1d2d3d4d5d6d7d8d9d10d11c12de", "k"),
        ("pool_0d", "pool_0d"),
        ("conv_1d", "conv_1d"),
        ("conv_01", "conv_01"),
        ("conv_0d2d", "conv_0d2d"),
        ("triton__0d1d2de", "triton__0d1d2de"),
        ("triton_poi_fused_add_relu_0", "triton_poi_fused_add_relu"),
        ("triton_red_fused__softmax_12", "triton_red_fused__softmax"),
        ("triton_per_fused_native_layer_norm_1_0d1d2d", "triton_per_fused_native_layer_norm"),
        ("triton_poi_fused_3", "triton_poi_fused_3"),
        ("gelu_v2", "gelu_v2"),
        ("gelu_3f2a9c1b", "gelu"),
        ("gelu_3f2a9c1b_0a1b2c3d", "gelu"),
        ("gelu_20240101", "gelu_20240101"),
        ("gelu_deadbeef", "gelu_deadbeef"),
        ("gelu_3F2A9C1B", "gelu_3F2A9C1B"),
        ("gelu_3f2a9c1", "gelu_3f2a9c1"),
        ("gemm_bf16bf16", "gemm_bf16bf16"),
        ("gemm_f16f16f32", "gemm_f16f16f32"),
        ("_3f2a9c1b", "_3f2a9c1b"),
        ("kernel_3f2a9c1b", "kernel_3f2a9c1b"),
        ("", ""),
    ],
)
def test_names_as_tools_give_them(name: str, expected: str) -> None:
    assert canonical(name) == expected


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("softmax<float, 10>(float*)", "softmax<float, 11>(float*)"),
        ("softmax<float>(float*)", "softmax<c10::Half>(c10::Half*)"),
        ("add<AddFunctor>()", "add<MulFunctor>()"),
        ("triton_poi_fused_add_0", "triton_poi_fused_mul_0"),
        ("gelu_v1", "gelu_v2"),
        ("fusion_1", "fusion_2"),
        ("nvjet_sm90_tst_64x8", "nvjet_sm90_tst_64x16"),
        ("gemm_f16f32acc", "gemm_bf16f32acc"),
        ("moe_64e4096d", "moe_16e4096d"),
        ("attn_64d128d256d", "attn_32d128d256d"),
        ("gemm_128b128b32", "gemm_64b64b32"),
        ("(graph 1a2b3c4d: 2 x k)", "(graph 1a2b3c4e: 2 x k)"),
    ],
)
def test_what_a_kernel_does_stays(one: str, other: str) -> None:
    assert canonical(one) != canonical(other)


def test_of_hashes_nearly_all_are_taken_for_hashes() -> None:
    digests = [hashlib.sha256(str(number).encode()).hexdigest() for number in range(4_000)]
    for length, most in ((8, 0.04), (12, 0.02), (16, 0.02), (64, 0.0)):
        # What is digits alone, or letters alone, may be a size or a word.
        mixed = [d[:length] for d in digests if not d[:length].isdigit() and not d[:length].isalpha()]
        kept = sum(canonical(f"gelu_{digest}") != "gelu" for digest in mixed)
        assert kept <= most * len(mixed), length


def test_families_leave_out_arguments_and_namespaces() -> None:
    names = ("void at::native::softmax<float, 10>(float*)", "Softmax<c10::Half>", "softmax_0d1d")
    assert {family(name) for name in names} == {"softmax"}
    assert family("nvjet_sm90") == "nvjet_sm90"


_PIECES = st.sampled_from(
    [
        *(
            "_0d1d",
            "_3f2a9c1b",
            "_0",
            "_",
            ".constprop.0",
            ".cold",
            " [clone .isra.0]",
            "(anonymous namespace)::",
            "__1::",
        ),
        *(
            "(bool)1",
            "(int)",
            "(int)8",
            "8ul",
            "void ",
            "static void ",
            "<",
            ">",
            " ",
            ", ",
            "triton_poi_fused_add",
            "k",
        ),
        *(
            "_INTERNAL_21739cd4_7_norm_cu_9c5ada8a",
            "tmpxft_0000a2b1_00000000_7_",
            "cub::CUB_200302_NS::",
            "nvjet_",
            "(graph ",
        ),
    ]
)


@settings(max_examples=500, deadline=None)
@given(st.one_of(st.lists(_PIECES, max_size=40).map("".join), st.text(max_size=200)))
def test_canonical_names_are_their_own(name: str) -> None:
    once = canonical(name)
    assert canonical(once) == once
    assert bool(once) == bool(name)
    assert len(once) <= len(name)


@pytest.mark.parametrize(
    "piece",
    [
        *(
            "_3f2a9c1b",
            "_INTERNAL_aaaaaaaa_1_",
            "triton_poi_fused_",
            "(int)",
            "(",
            "<",
            " ",
            ".cold",
            "[clone ",
            "1u",
            "_",
        ),
        *("0d1d", "CUB_200302_", "__1::", "tmpxft_0000a2b1_", "9", "(unsigned long long)", "(bool)1", "void "),
    ],
)
def test_hostile_names_take_bounded_time(piece: str) -> None:
    name = ("k" + piece * 2_000)[:2_000]
    start = time.process_time()
    for _ in range(20):
        canonical(name)
        family(name)
    assert time.process_time() - start < 20 * 0.05


def ran(*names: str, launches: int = 1_000) -> dict[str, Counts]:
    return {name: Counts((place,), launches=launches) for place, name in enumerate(names)}


def paired(
    before: dict[str, Counts], after: dict[str, Counts], **options: bool
) -> list[tuple[tuple[str, ...], str, str]]:
    return [(pair.old, pair.kernel, pair.by) for pair in pair_kernels(before, after, **options).pairs]


def test_gone_and_new_are_paired_by_canonical_name() -> None:
    before, after = ran("norm", "gelu_3f2a9c1b"), ran("norm", "gelu_0a1b2c3d")
    assert paired(before, after) == [(("gelu_3f2a9c1b",), "gelu_0a1b2c3d", "canonical"), ((), "norm", "name")]
    assert [old for old, _, _ in paired(before, after, by_canonical=False)] == [(), (), ()]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (("k_0d1d", "k_0d1"), ("k_0d1d2d",)),
        (("k_0d1d",), ("k_0d1", "k_0d1d2d")),
        (("k_0d1d", "k_0d1"), ("k_0d1", "k_0d1d2d")),
        (("k_0d1d",), ("k_0d1d", "k_0d1d2d")),
    ],
)
def test_names_of_one_window_stay_apart(before: tuple[str, ...], after: tuple[str, ...]) -> None:
    assert all(by == "name" for _, _, by in paired(ran(*before), ran(*after)))


def test_what_ran_at_another_rate_is_not_the_same_kernel() -> None:
    others = ran("norm", launches=10_000)
    before = others | ran("k_0d1d", launches=1_000)
    assert paired(before, others | ran("k_0d1", launches=1_900))[0] == (("k_0d1d",), "k_0d1", "canonical")
    assert all(by == "name" for _, _, by in paired(before, others | ran("k_0d1", launches=3_000)))
