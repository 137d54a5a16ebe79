"""kdiff.probes.wire: the C struct and the numpy dtype are the same bytes."""

from __future__ import annotations

import subprocess
from enum import IntEnum, IntFlag
from pathlib import Path

import numpy as np
import pytest

from kdiff.probes.wire import (
    DEFAULT_NAME_OFFSET,
    EVENT,
    NAME,
    NAME_BYTES,
    WAIT,
    Decision,
    Kind,
    NameSource,
    Sync,
    WireFlags,
    c_header,
    define,
)

STRUCTS = {"event_record": EVENT, "name_record": NAME, "wait_record": WAIT}
TYPES = "typedef unsigned long long u64; typedef unsigned u32; typedef int s32; typedef unsigned char u8;\n"


def run_c(folder: Path, body: str) -> list[str]:
    source, program = folder / "wire.c", folder / "wire"
    source.write_text(
        f"#include <stddef.h>\n#include <stdio.h>\n{TYPES}{c_header()}int main(void) {{\n{body}return 0; }}\n"
    )
    subprocess.run(["gcc", "-Wall", "-Werror", "-Wpadded", "-o", str(program), str(source)], check=True)
    return subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout.splitlines()


def test_offsets_and_sizes_are_the_compilers(tmp_path: Path) -> None:
    body = ""
    wanted = []
    for tag, dtype in STRUCTS.items():
        body += f'printf("%zu\\n", sizeof(struct {tag}));\n'
        wanted.append(str(dtype.itemsize))
        assert dtype.names is not None
        assert dtype.fields is not None
        for name in dtype.names:
            body += f'printf("%zu %zu\\n", offsetof(struct {tag}, {name}), sizeof(((struct {tag} *)0)->{name}));\n'
            field, offset = dtype.fields[name][:2]
            wanted.append(f"{offset} {field.itemsize}")
    assert run_c(tmp_path, body) == wanted


def test_records_fill_whole_words() -> None:
    """The ring pads to 8 bytes, and then records no longer lie as an array."""
    assert [dtype.itemsize for dtype in STRUCTS.values()] == [80, 56 - 4 + 4 + NAME_BYTES - 8, 48]


def test_values_written_by_c_are_read_by_numpy(tmp_path: Path) -> None:
    out = tmp_path / "records"
    body = f"""
    struct event_record e = {{.timestamp_ns = 1ull << 63, .duration_ns = 2, .handle = 0xffffffffffffffff, .stream = 4,
        .pid = 4000000000u, .tid = 6, .grid = {{7, 8, 9}}, .block = {{10, 11, 12}}, .shared_bytes = 13,
        .generation = 14, .status = -15, .kind = 255, .api = 17, .flags = 18, .sync = 19}};
    struct name_record n = {{.timestamp_ns = 1, .handle = 2, .caller = 3, .pid = 4, .generation = 5, .length = -6,
        .source = 7, .name_offset = 8, .name = "_Z2k2Pf"}};
    FILE *f = fopen("{out}", "wb");
    fwrite(&e, sizeof e, 1, f); fwrite(&n, sizeof n, 1, f); fclose(f);
"""
    run_c(tmp_path, body)
    data = out.read_bytes()
    event = np.frombuffer(data, EVENT, 1)[0]
    assert event.tolist()[:6] == (2**63, 2, 2**64 - 1, 4, 4_000_000_000, 6)
    assert (event["grid"].tolist(), event["block"].tolist()) == ([7, 8, 9], [10, 11, 12])
    assert event.tolist()[8:] == (13, 14, -15, 255, 17, 18, 19)
    name = np.frombuffer(data, NAME, 1, EVENT.itemsize)[0]
    assert name.tolist() == (1, 2, 3, 4, 5, -6, 7, 8, 0, b"_Z2k2Pf")


def test_constants_are_the_enums(tmp_path: Path) -> None:
    enums: dict[str, type[IntEnum] | type[IntFlag]] = {
        "KIND": Kind, "SYNC": Sync, "SOURCE": NameSource, "DECISION": Decision, "FLAG": WireFlags,
    }  # fmt: skip
    names = [(f"{prefix}_{member.name}", int(member)) for prefix, enum in enums.items() for member in enum]
    names += [("KINDS", len(Kind)), ("NAME_BYTES", NAME_BYTES), ("DEFAULT_NAME_OFFSET", DEFAULT_NAME_OFFSET)]
    body = "".join(f'printf("%d\\n", {name});\n' for name, _ in names)
    assert run_c(tmp_path, body) == [str(value) for _, value in names]


def test_kinds_are_slots_of_the_loss_counters() -> None:
    assert sorted(Kind) == list(range(len(Kind)))


def test_flags_are_single_bits() -> None:
    assert all(int(flag).bit_count() == 1 for flag in WireFlags)
    assert max(WireFlags) < 256


@pytest.mark.parametrize("enum", [Kind, Sync])
def test_define_writes_one_line_a_member(enum: type[IntEnum]) -> None:
    assert define("X", enum) == [f"#define X_{member.name} {member.value}" for member in enum]
