"""kdiff.agent.libraries: the files a command will map, found before it runs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from kdiff.agent import libraries
from kdiff.agent.libraries import command_files

PATH = {"PATH": os.environ["PATH"]}


@pytest.fixture(autouse=True)
def _no_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """This host's own CUDA libraries are not part of the answers."""
    monkeypatch.setattr(libraries, "_system", list)


def files(command: Sequence[str], environment: Mapping[str, str] = PATH) -> list[str]:
    found = command_files(command, environment)
    assert all(os.path.isfile(path) for path in found)
    assert len(set(found)) == len(found)
    return found


def compiled(path: Path, *options: str, source: str = "int main(void) { return 0; }") -> Path:
    text = path.with_suffix(".c")
    text.write_text(source)
    subprocess.run(["gcc", "-o", str(path), str(text), *options], check=True)
    return path


def script(path: Path, first: str) -> str:
    path.write_text(f"{first}\nexit 0\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def program(tmp_path: Path) -> str:
    return str(compiled(tmp_path / "program"))


def test_a_program_and_what_it_is_linked_with(tmp_path: Path) -> None:
    library = compiled(tmp_path / "libown.so", "-shared", "-fPIC", source="int own(void) { return 0; }")
    program = compiled(
        tmp_path / "program",
        str(library),
        f"-Wl,-rpath,{tmp_path}",
        source="int own(void); int main(void) { return own(); }",
    )
    found = files([str(program)])
    assert found[0] == str(program)
    assert str(library) in found
    assert any("/libc.so" in path for path in found)


def test_a_program_is_looked_for_in_path(tmp_path: Path, program: str) -> None:
    assert files(["program"], {"PATH": str(tmp_path)})[0] == program
    assert files(["no-such-program"], {"PATH": str(tmp_path)}) == []
    assert files([str(tmp_path / "no-such-program")]) == []


def test_a_link_is_followed_and_kept(tmp_path: Path, program: str) -> None:
    """pip's packages lie beside the link that a virtual environment's python is."""
    link = tmp_path / "link"
    link.symlink_to(program)
    assert {program, str(link)} <= set(files([str(link)]))


def test_pips_runtime_beside_the_interpreter(tmp_path: Path, program: str) -> None:
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(program)
    runtime = tmp_path / "venv/lib/python3.11/site-packages/nvidia/cuda_runtime/lib/libcudart.so.13"
    runtime.parent.mkdir(parents=True)
    runtime.touch()
    assert str(runtime) in files([str(python)])
    assert str(runtime) in files([script(tmp_path / "tool", f"#!{python}")])


def test_a_static_program_is_itself(tmp_path: Path) -> None:
    program = compiled(tmp_path / "static", "-static")
    assert files([str(program)]) == [str(program)]


@pytest.mark.parametrize(
    "first",
    ["#!{}", "#! {} -u", "#!/usr/bin/env program", "#!/usr/bin/env -S program -x", "#!/usr/bin/env -S A=b program"],
)
def test_scripts_lead_to_their_interpreter(tmp_path: Path, program: str, first: str) -> None:
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    tool = script(tmp_path / "tool", first.format(program))
    assert files([tool], environment)[0] == program
    assert files([script(tmp_path / "outer", f"#!{tool}")], environment)[0] == program, "a script's script"


def test_this_interpreter(tmp_path: Path) -> None:
    interpreter = tmp_path / "python"  # a first line can hold no path with a space
    interpreter.symlink_to(sys.executable)
    assert os.path.realpath(sys.executable) in files([script(tmp_path / "tool", f"#!{interpreter}")])


@pytest.mark.parametrize(
    "first", ["#!", "#! ", "#!/no/such/interpreter", "#!/usr/bin/env", "#!/usr/bin/env no-such", "exit"]
)
def test_scripts_that_lead_nowhere(tmp_path: Path, first: str) -> None:
    assert [f for f in files([script(tmp_path / "tool", first)]) if f != str(tmp_path / "tool")] == []


def test_a_script_that_is_its_own_interpreter_ends(tmp_path: Path) -> None:
    path = tmp_path / "tool"
    assert files([script(path, f"#!{path}")]) == []


def test_libraries_of_the_library_path(tmp_path: Path, program: str) -> None:
    folder = tmp_path / "lib [x]*"
    folder.mkdir()
    for name in ("libcuda.so.1", "libcudart.so.13.0.48", "libcudnn.so.9", "libother.so"):
        (folder / name).touch()
    (folder / "libcuda.so").mkdir()
    found = files([program], {**PATH, "LD_LIBRARY_PATH": f":{folder}:{tmp_path / 'none'}:"})
    assert sorted(Path(p).name for p in found if p.startswith(str(folder))) == ["libcuda.so.1", "libcudart.so.13.0.48"]


def test_a_broken_program_is_itself(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.write_bytes(b"\x7fELF" + b"\xff" * 200)
    broken.chmod(0o755)
    assert files([str(broken)]) == [str(broken)]


def test_the_systems_libraries_by_the_loaders_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    cache = tmp_path / "ldconfig"
    for name in ("libcuda.so.1", "libcudart.so.12"):
        (tmp_path / name).touch()
    cache.write_text(
        f"""#!/bin/sh
echo '4 libs found in cache'
echo '	libcudnn.so.9 (libc6,x86-64) => {tmp_path}/libcudnn.so.9'
echo '	libcudart.so.12 (libc6,x86-64) => {tmp_path}/libcudart.so.12'
echo '	libcuda.so.1 (libc6,x86-64) => {tmp_path}/libcuda.so.1'
echo '	libcuda.so (libc6,x86-64) => {tmp_path}/gone/libcuda.so'
"""
    )
    cache.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = files(["no-such-program"], {"PATH": str(tmp_path)})
    assert found == [f"{tmp_path}/libcudart.so.12", f"{tmp_path}/libcuda.so.1"]


# Faults


def test_a_quote_in_the_first_line(tmp_path: Path, program: str) -> None:
    assert files([script(tmp_path / "tool", f"#!{program} 'it")])[0] == program
