"""kdiff.agent.procfs on real processes: this one, its children, and none."""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from kdiff.agent import procfs

GONE = 4_194_304  # above the highest pid there can be


def test_a_process_that_is_gone_answers_nothing() -> None:
    assert procfs.stat(GONE) is None
    assert procfs.file_mappings(GONE) == []
    assert procfs.thread_name(GONE, GONE) == ""
    assert procfs.container_id(GONE) == ""
    assert procfs.read_memory(GONE, 4096, 8) == b""
    assert not procfs.filters_system_calls(GONE)
    assert list(procfs.ancestors(GONE)) == [GONE]
    assert GONE not in procfs.pids()


@pytest.mark.parametrize("name", ["plain", "a) S 1 (b", "sp ace", ") 0 0", "\xe9t\xe9"])
def test_comm_may_hold_anything(name: str) -> None:
    """Also what looks like the fields after it."""
    done = threading.Event()
    tids: list[int] = []

    def named() -> None:
        ctypes.CDLL(None).prctl(15, name.encode(), 0, 0, 0)
        tids.append(threading.get_native_id())
        done.wait()

    thread = threading.Thread(target=named)
    thread.start()
    while not tids:
        pass
    try:
        assert procfs.thread_name(os.getpid(), tids[0]) == name
        found = procfs.stat(tids[0])
        assert found is not None
        assert (found.comm, found.parent) == (name, os.getppid())
    finally:
        done.set()
        thread.join()


def test_a_child_its_parent_and_when_it_began() -> None:
    child = subprocess.Popen(["sleep", "30"])
    try:
        found = procfs.stat(child.pid)
        mine = procfs.stat(os.getpid())
        assert found is not None
        assert mine is not None
        assert (found.comm, found.parent) == ("sleep", os.getpid())
        assert mine.start_ticks <= found.start_ticks
        assert list(procfs.ancestors(child.pid))[:3] == [child.pid, os.getpid(), os.getppid()]
        assert {child.pid, os.getpid()} <= set(procfs.pids())
    finally:
        child.kill()
        child.wait()


def test_mappings_of_files_with_offset_and_mode(tmp_path: Path) -> None:
    path = tmp_path / "a file (deleted) of\ttabs"
    path.write_bytes(b"x" * 3 * mmap.PAGESIZE)
    with path.open("rb") as file, mmap.mmap(
        file.fileno(), mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_EXEC, offset=mmap.PAGESIZE
    ):  # fmt: skip
        found = [m for m in procfs.file_mappings(os.getpid()) if m.inode == path.stat().st_ino]
        assert len(found) == 1
        mapping = found[0]
        assert (mapping.path, mapping.offset, mapping.executable) == (str(path), mmap.PAGESIZE, True)
        assert mapping.end - mapping.start == mmap.PAGESIZE
        # Removed and replaced: what is opened is what is mapped.
        path.unlink()
        path.write_bytes(b"other")
        again = next(m for m in procfs.file_mappings(os.getpid()) if m.start == mapping.start)
        assert again.path == str(path)
        assert again.key == mapping.key
        fd = procfs.open_mapping(os.getpid(), again)
        assert fd is not None
        assert os.read(fd, 3) == b"xxx"
        os.close(fd)


def test_anonymous_memory_is_no_file() -> None:
    with mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        assert not any(m.start <= address < m.end for m in procfs.file_mappings(os.getpid()))
    assert all(m.path.startswith("/") for m in procfs.file_mappings(os.getpid()))


def test_a_mapping_that_went_away_is_another_file_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "lib.so"
    path.write_bytes(b"x" * mmap.PAGESIZE)
    mapping = procfs.Mapping(0x1000, 0x2000, True, 0, b"00:00", path.stat().st_ino, str(path))
    fd = procfs.open_mapping(os.getpid(), mapping)
    assert fd is not None, "by its path, as the inode is the same"
    os.close(fd)
    before = len(os.listdir("/proc/self/fd"))
    other = procfs.Mapping(0x1000, 0x2000, True, 0, b"00:00", path.stat().st_ino + 1, str(path))
    assert procfs.open_mapping(os.getpid(), other) is None
    assert len(os.listdir("/proc/self/fd")) == before


def test_memory_as_far_as_it_can_be_read() -> None:
    # Two pages, the second of which may not be read.
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    start = libc.mmap(None, 2 * mmap.PAGESIZE, 3, 0x22, -1, 0)
    ctypes.memmove(start, b"abcdefgh", 8)
    libc.munmap(ctypes.c_void_p(start + mmap.PAGESIZE), mmap.PAGESIZE)
    assert procfs.read_memory(os.getpid(), start, 8) == b"abcdefgh"
    assert procfs.read_memory(os.getpid(), start + mmap.PAGESIZE - 4, 100) == b"\0" * 4
    for address in (0, start + mmap.PAGESIZE, 2**47, 2**63, 2**64 - 1, -1):
        assert procfs.read_memory(os.getpid(), address, 8) == b""


def test_containers_by_their_cgroup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digits = "0123456789abcdef" * 4
    cases = {
        "0::/user.slice/session-1.scope\n": "",
        f"0::/system.slice/docker-{digits}.scope\n": digits,
        f"0::/kubepods.slice/kubepods-burstable.slice/pod8e/cri-containerd-{digits}.scope\n": digits,
        f"12:pids:/docker/{digits}\n1:name=systemd:/docker/{digits}\n0::/\n": digits,
        f"0::/docker/{digits[:-1]}\n": "",
        f"0::/\udcff/docker/{digits}\n": digits,  # a name that is no text
    }
    for text, want in cases.items():
        monkeypatch.setattr(Path, "read_bytes", lambda _, text=text: os.fsencode(text))
        assert procfs.container_id(1) == want


def test_a_process_whose_first_thread_has_ended() -> None:
    """It runs on, and its other threads tell what it maps."""
    script = """
import ctypes, platform, sys, threading
def run():
    while b"Z" not in open("/proc/self/stat", "rb").read().rpartition(b")")[2].split()[0]:
        pass
    print(flush=True)
    sys.stdin.read()
threading.Thread(target=run).start()
ctypes.CDLL(None).syscall(60 if platform.machine() == "x86_64" else 93, 0)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        found = procfs.stat(child.pid)
        assert found is not None
        assert (found.state, found.ended) == ("Z", False)
        assert Path(f"/proc/{child.pid}/maps").read_bytes() == b""
        mapping = next(one for one in procfs.file_mappings(child.pid) if one.executable)
        fd = procfs.open_mapping(child.pid, mapping)
        assert fd is not None
        os.close(fd)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        found = procfs.stat(child.pid)
        assert found is not None
        assert found.ended
        assert procfs.maps(child.pid) == b""


def test_a_name_that_is_no_text_hides_no_filter() -> None:
    """The name of a process is in its status, and may be any bytes."""
    name = "import ctypes, sys; ctypes.CDLL(None).prctl(15, b'\\xff\\xfe', 0, 0, 0); "
    script = name + "print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert procfs.filters_system_calls(child.pid) is False
        child.communicate()


def test_seccomp_filters() -> None:
    assert not procfs.filters_system_calls(os.getpid())
    # PR_SET_NO_NEW_PRIVS, then a filter of one instruction that allows everything.
    script = """
import ctypes, struct, sys, time
libc = ctypes.CDLL(None)
code = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0x7FFF0000))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", 1, ctypes.addressof(code)))
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program, 0, 0) == 0
print(flush=True); sys.stdin.read()
"""
    child = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    try:
        child.stdout.readline()
        assert procfs.filters_system_calls(child.pid)
    finally:
        child.communicate()
