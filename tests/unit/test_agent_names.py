"""kdiff.agent.names and kdiff.agent.drivers over memory that is made up."""

from __future__ import annotations

import json
import os
import struct
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from kdiff.agent.drivers import Drivers
from kdiff.agent.names import Kernel, Names, Place, plausible
from kdiff.probes.wire import DEFAULT_NAME_OFFSET, NAME, NAME_BYTES, NameSource
from kdiff.queries.locks import lock

BUILD = "ab" * 20
KNOWN = "7e9c286fc38ae5fefb137b6fd33be02b251d3dff"  # in drivers.json
PID, GENERATION = 10, 3
PAGE = 4096


@dataclass
class Memory:
    """One process: strings and handles at addresses, a file mapped at `base`."""

    build: str = BUILD
    base: int = 0x5500_0000_0000
    functions: dict[int, str] = field(default_factory=dict)
    content: dict[int, bytes] = field(default_factory=dict)
    alive: bool = True
    reads: int = 0

    def put(self, address: int, data: bytes) -> int:
        self.content[address] = data
        return address

    def handle(self, address: int, name: str | bytes, offset: int = DEFAULT_NAME_OFFSET) -> int:
        """A handle, 512 bytes, with a pointer to its name at an offset."""
        text = self.put(address + 0x10_0000, (name.encode() if isinstance(name, str) else name) + b"\0")
        body = bytearray(512)
        struct.pack_into("<Q", body, offset, text)
        return self.put(address, bytes(body))

    # kdiff.agent.names.Processes

    def driver_build(self, pid: int) -> str:
        return self.build if pid == PID else ""

    def locate(self, pid: int, address: int) -> Place | None:
        offset = address - self.base
        return Place("cd" * 20, offset, self.functions.get(offset)) if 0 <= offset < 0x10_0000 else None

    def read(self, pid: int, address: int, size: int) -> bytes:
        self.reads += 1
        assert size <= PAGE
        for start, data in self.content.items():
            if self.alive and start <= address < start + len(data):
                return data[address - start : address - start + size]
        return b""


@dataclass
class Host:
    """Names over one process, fed as BPF would."""

    memory: Memory = field(default_factory=Memory)
    drivers: Drivers = field(default_factory=Drivers)
    moved: list[tuple[int, int]] = field(default_factory=list)
    bpf_offset: int = DEFAULT_NAME_OFFSET

    def __post_init__(self) -> None:
        self.names = Names(self.drivers, self.memory, self.on_moved)

    def on_moved(self, pid: int, offset: int) -> None:
        self.moved.append((pid, offset))
        self.bpf_offset = offset

    def feed(self, source: NameSource, handle: int, name: bytes | None, caller: int = 0, generation: int = GENERATION,
             pid: int = PID) -> None:  # fmt: skip
        record = np.zeros(1, NAME)
        record["pid"], record["generation"], record["handle"] = pid, generation, handle
        record["source"], record["caller"] = source, caller
        if source in (NameSource.HANDLE, NameSource.RUNTIME):
            record["name_offset"] = self.bpf_offset
        # As bpf_probe_read_user_str: what fits with its NUL, and the length with it; negative when not readable.
        record["length"] = -14 if name is None else min(len(name) + 1, NAME_BYTES)
        record["name"] = b"" if name is None else name[: NAME_BYTES - 1]
        self.names.feed(record)

    def load(self, handle: int, name: str | bytes, **more: int) -> None:
        self.feed(NameSource.LOAD, handle, name.encode() if isinstance(name, str) else name, **more)

    def launch(self, handle: int, caller: int = 0x5500_0000_0123, **more: int) -> None:
        """The first launch of a handle: BPF reads the name behind it."""
        pointer = self.memory.read(PID, handle + self.bpf_offset, 8)
        text = self.memory.read(PID, struct.unpack("<Q", pointer)[0], PAGE) if len(pointer) == 8 else b""
        found = text.partition(b"\0")[0] if b"\0" in text or text else None
        self.feed(NameSource.HANDLE, handle, found, caller, **more)

    def kernel(self, handle: int, generation: int = GENERATION) -> Kernel:
        return self.names.kernel(PID, generation, handle)


H1, H2, H3, H4 = 0x7F00_0000_0000, 0x7F00_0100_0000, 0x7F00_0200_0000, 0x7F00_0300_0000


def test_a_name_seen_at_load_needs_nothing_else() -> None:
    host = Host()
    host.load(H1, "_Z2k2Pf")
    assert host.kernel(H1) == Kernel("_Z2k2Pf", "k2(float*)", "load")
    assert host.kernel(H1).resolved


def test_a_name_read_from_a_handle_counts_only_when_the_driver_is_confirmed() -> None:
    host = Host()
    for handle, name in ((H1, "one"), (H2, "two")):
        host.memory.handle(handle, name)
    host.launch(H1)
    assert host.kernel(H1).source == "unresolved"
    assert host.names.unconfirmed() == {BUILD}
    host.load(H2, "two")
    host.launch(H2)
    assert host.kernel(H1) == Kernel("one", "one", "handle"), "also what was read before"
    assert host.names.unconfirmed() == set()


def test_a_shipped_driver_is_confirmed_from_the_start() -> None:
    host = Host(Memory(build=KNOWN))
    host.memory.handle(H1, "_Z2k2Pf")
    host.launch(H1)
    assert host.kernel(H1) == Kernel("_Z2k2Pf", "k2(float*)", "handle")


def test_what_load_says_beats_what_the_handle_says() -> None:
    host = Host(Memory(build=KNOWN))
    host.memory.handle(H1, "lie")
    host.load(H1, "truth")
    host.launch(H1)
    assert host.kernel(H1).mangled == "truth"


def test_one_contradiction_and_no_handle_is_believed() -> None:
    host = Host(Memory(build=KNOWN))
    host.memory.handle(H1, "one")
    host.memory.content[H2] = bytes(512)
    host.load(H2, "two")
    host.launch(H2)
    host.launch(H1)
    assert host.kernel(H1).source == "unresolved"
    assert host.names.unconfirmed() == {KNOWN}
    host.memory.handle(H3, "three")
    host.load(H3, "three")
    host.launch(H3)
    assert host.kernel(H1).source == "unresolved", "later agreement does not undo it"


def test_another_offset_is_learned_from_two_handles(tmp_path: Path) -> None:
    state = tmp_path / "state" / "drivers.json"
    host = Host(drivers=Drivers(state))
    for handle, name in ((H1, "one"), (H2, "two"), (H3, "three"), (H4, "four")):
        host.memory.handle(handle, name, offset=40)
    host.launch(H4)
    host.load(H1, "one")
    host.launch(H1)
    assert host.moved == []
    assert host.kernel(H4).source == "unresolved"
    host.load(H2, "two")
    host.launch(H2)
    assert (PID, 40) in host.moved
    assert host.kernel(H4) == Kernel("four", "four", "handle"), "read anew at the offset learned"
    host.launch(H3)
    assert host.kernel(H3).mangled == "three"
    assert json.loads(state.read_text()) == {BUILD: 40}
    assert Drivers(state).get(BUILD).name_offset == 40
    assert Drivers(state).get(BUILD).confirmed


def test_bpf_that_read_elsewhere_is_told_and_the_name_read_again() -> None:
    """A process is launched from before its driver is known: BPF reads at the default offset."""
    host = Host()
    host.drivers.get(BUILD).name_offset = 24
    host.drivers.get(BUILD).confirmed = True
    host.memory.handle(H1, "one", offset=24)
    host.launch(H1)
    assert host.moved == [(PID, 24)]
    assert host.kernel(H1) == Kernel("one", "one", "handle")


def test_a_function_of_a_kernel_has_its_name() -> None:
    host = Host()
    host.load(H1, "one")
    host.feed(NameSource.ALIAS, H2, b"", caller=H1)
    assert host.kernel(H2) == Kernel("one", "one", "load")
    host.feed(NameSource.ALIAS, H3, b"", caller=H4)
    assert host.kernel(H3).source == "unresolved"
    # An alias confirms the driver as any name seen at load does.
    host.memory.handle(H2, "one")
    host.launch(H2)
    assert host.names.unconfirmed() == set()


def test_a_handle_reused_after_an_unload_is_another_kernel() -> None:
    host = Host(Memory(build=KNOWN))
    host.load(H1, "before", generation=1)
    host.load(H1, "after", generation=2)
    assert [host.kernel(H1, g).mangled for g in (1, 2)] == ["before", "after"]
    host.memory.handle(H2, "old")
    host.launch(H2, generation=1)
    host.memory.handle(H2, "new")
    host.launch(H2, generation=2)
    assert [host.kernel(H2, g).mangled for g in (1, 2)] == ["old", "new"]


def test_a_name_that_comes_later_replaces_unresolved() -> None:
    host = Host()
    assert host.kernel(H1).name == "unresolved:unknown"
    host.load(H1, "one")
    assert host.kernel(H1).mangled == "one"


@pytest.mark.parametrize("length", [1, 1022, 1023, 1024, 5000])
@pytest.mark.parametrize("at", ["load", "handle"])
def test_names_of_every_length(at: str, length: int) -> None:
    name = "k" + "a" * (length - 2) + "z" * (length > 1)
    host = Host(Memory(build=KNOWN))
    if at == "load":
        text = host.memory.put(0x1_0000_0F00, name.encode() + b"\0")
        host.load(H1, name, caller=text)
    else:
        host.memory.handle(H1, name)
        host.launch(H1)
    assert host.kernel(H1) == Kernel(name, name, at)


@pytest.mark.parametrize("at", ["load", "handle"])
def test_half_a_name_is_none(at: str) -> None:
    """The rest cannot be read any more, or is another name by now."""
    name = "k" * 5000
    for alive, other in ((False, None), (True, b"other" + b"k" * 5000 + b"\0")):
        host = Host(Memory(build=KNOWN))
        host.memory.handle(H1, name)
        pointer = H1 + 0x10_0000
        record = name.encode()
        host.memory.alive = alive
        if other:
            host.memory.put(pointer, other)
        if at == "load":
            host.load(H1, record, caller=pointer)
        else:
            host.feed(NameSource.HANDLE, H1, record)
        assert not host.kernel(H1).resolved


def test_names_without_an_end_are_not_read_for_ever() -> None:
    host = Host(Memory(build=KNOWN))
    host.memory.handle(H1, b"k" * 300_000)
    host.launch(H1)
    assert not host.kernel(H1).resolved
    assert host.memory.reads < 64


@pytest.mark.parametrize(
    "name",
    [
        b"",
        b"\x01k",
        b"k\n",
        b"k k",
        b"9k",
        b"k\xc3\xa9",
        b"\xff\xfe",
        b"k\x7f",
        b"k(int)",
        b"k;DROP",
        b"/bin/sh",
        b"k\t",
    ],
)
def test_what_is_no_name_is_refused(name: bytes) -> None:
    assert not plausible(name.decode("latin-1"))
    host = Host(Memory(build=KNOWN))
    host.memory.handle(H1, name)
    host.launch(H1)
    host.load(H2, name)
    assert not host.kernel(H1).resolved
    assert not host.kernel(H2).resolved


@pytest.mark.parametrize("name", ["k", "_Z2k2Pf", "$k", "%k", "triton_red.fused.0d1d", "K$_1", "a" * 1000])
def test_what_ptx_allows_is_a_name(name: str) -> None:
    assert plausible(name)


def test_handles_that_cannot_be_read() -> None:
    host = Host(Memory(build=KNOWN))
    host.launch(H1)  # nothing is mapped there
    assert host.kernel(H1).source == "unresolved"
    host.memory.content[H2] = struct.pack("<QQ", 0, 0xDEAD_0000)  # a pointer to nothing
    host.launch(H2)
    assert host.kernel(H2).source == "unresolved"


def test_the_host_function_names_the_kernel_the_runtime_was_given() -> None:
    host = Host(Memory(functions={0x100: "_Z2k2Pf", 0x200: "bad name"}))
    for offset in (0x100, 0x200, 0x300):
        host.feed(NameSource.RUNTIME, host.memory.base + offset, None, caller=host.memory.base + 0x999)
    assert host.kernel(host.memory.base + 0x100) == Kernel("_Z2k2Pf", "k2(float*)", "symbol")
    for offset in (0x200, 0x300):
        assert host.kernel(host.memory.base + offset).name == f"unresolved:{'cd' * 20}+{offset:#x}"


def test_unresolved_names_do_not_depend_on_where_the_program_was_loaded() -> None:
    found = set()
    for base in (0x5500_0000_0000, 0x5600_1234_5000):
        host = Host(Memory(base=base))
        host.launch(H1, caller=base + 0xBEEF)
        found.add((host.kernel(H1).name, host.kernel(H1).id))
    assert {name for name, _ in found} == {f"unresolved:{'cd' * 20}+0xbeef"}
    assert len(found) == 1


def test_a_process_that_ended_is_forgotten() -> None:
    host = Host()
    host.load(H1, "one")
    host.load(H1, "other", pid=PID + 1)
    host.names.forget(PID)
    assert host.kernel(H1).name == "unresolved:unknown"
    assert host.names.kernel(PID + 1, GENERATION, H1).mangled == "other"


def test_ids_are_of_the_mangled_name_and_the_same_everywhere() -> None:
    assert Kernel("_Z2k2Pf", "k2(float*)", "load").id == Kernel("_Z2k2Pf", "x", "handle").id
    assert Kernel("k1", "k1", "load").id == 2324281397090770841


# What a host keeps of its drivers


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "null", "7", '{"x": "y"}', '{"x": null}', '{"x": {}}', "\0\xff", '"text"']
)
def test_a_state_file_that_is_torn_or_foreign_is_none(tmp_path: Path, content: str) -> None:
    state = tmp_path / "drivers.json"
    state.write_bytes(content.encode("latin-1"))
    drivers = Drivers(state)
    assert not drivers.get(BUILD).confirmed
    assert drivers.get(KNOWN).confirmed
    driver = drivers.get(BUILD)
    drivers.agree(driver)
    assert json.loads(state.read_text()) == {BUILD: DEFAULT_NAME_OFFSET}
    assert [p.name for p in tmp_path.iterdir()] == ["drivers.json"], "nothing else is left there"


def test_what_a_killed_agent_left_of_a_state_file_is_removed(tmp_path: Path) -> None:
    state = tmp_path / "drivers.json"
    left, young, held, foreign = (tmp_path / f".drivers.json.{end}" for end in ("4242", "4243", "4244", "bak"))
    for path in (left, young, held, foreign):
        path.write_text("{")
        if path != young:
            os.utime(path, (1, 1))
    with held.open() as file:
        assert lock(file.fileno())
        Drivers(state)
    assert {path.name for path in tmp_path.iterdir()} == {young.name, held.name, foreign.name}
    os.utime(young, (1, 1))
    drivers = Drivers(tmp_path / "other.json")
    drivers.agree(drivers.get(BUILD))
    assert young.exists(), "it is of another state file"
    drivers = Drivers(state)
    drivers.agree(drivers.get(BUILD))
    assert {path.name for path in tmp_path.iterdir()} == {"drivers.json", "other.json", foreign.name}


def test_what_is_learned_is_kept_beside_what_was(tmp_path: Path) -> None:
    state = tmp_path / "deep" / "er" / "drivers.json"
    for build in ("aa", "bb"):
        drivers = Drivers(state)
        drivers.agree(drivers.get(build))
    assert json.loads(state.read_text()) == {"aa": 8, "bb": 8}


def test_a_driver_without_a_build_id_is_never_confirmed(tmp_path: Path) -> None:
    drivers = Drivers(tmp_path / "state")
    drivers.agree(drivers.get(""))
    assert not drivers.get("").confirmed
    assert not (tmp_path / "state").exists()


def test_a_state_that_cannot_be_kept_is_confirmed_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    drivers = Drivers(tmp_path / "file" / "drivers.json")
    drivers.agree(drivers.get(BUILD))
    assert drivers.get(BUILD).confirmed


# Faults


def test_a_contradiction_also_takes_back_what_was_believed_before() -> None:
    host = Host(Memory(build=KNOWN))
    host.memory.handle(H1, "one")
    host.launch(H1)
    assert host.kernel(H1).source == "handle"
    host.memory.content[H2] = bytes(512)
    host.load(H2, "two")
    host.launch(H2)
    assert host.kernel(H1).source == "unresolved"


def test_two_handles_must_agree_on_the_offset() -> None:
    host = Host()
    host.memory.handle(H1, "one", offset=40)
    host.memory.handle(H2, "two", offset=48)
    host.memory.handle(H3, "three", offset=48)
    for handle, name in ((H1, "one"), (H2, "two")):
        host.load(handle, name)
        host.launch(handle)
    assert host.moved == []
    host.load(H3, "three")
    host.launch(H3)
    assert host.moved[-1] == (PID, 48)


def test_a_contradiction_is_remembered_on_the_host(tmp_path: Path) -> None:
    state = tmp_path / "drivers.json"
    state.write_text(json.dumps({BUILD: 8}))
    drivers = Drivers(state)
    drivers.disagree(drivers.get(BUILD))
    assert not Drivers(state).get(BUILD).confirmed
