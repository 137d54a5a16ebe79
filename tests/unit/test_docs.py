"""The documentation: its command lines parse, its links lead somewhere, and what it quotes is what is said."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from kdiff.agent.cli import app as agent_app
from kdiff.analysis.cli import app as kdiff_app

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
COMMANDS: dict[str, Any] = {
    "kdiff": typer.main.get_command(kdiff_app),
    "kdiff-agent": typer.main.get_command(agent_app),
}


def lines(page: Path) -> Iterator[str]:
    """Lines of shell in the page's blocks, those that go on joined; of a console block those after a prompt."""
    for language, block in BLOCK.findall(page.read_text(encoding="utf-8")):
        for line in block.replace("\\\n", " ").splitlines():
            if language in ("sh", "bash", "shell"):
                yield line.strip()
            elif language == "console" and line.startswith("$ "):
                yield line.removeprefix("$ ")


def words(line: str) -> list[str]:
    """The first command of a line of shell, without settings before it and what is done with its output."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    found: list[str] = []
    for word in lexer:
        if set(word) <= set("|&;<>"):
            break
        if found or not re.match(r"[A-Z_]+=", word):
            found.append(word)
    return found


def command_lines() -> list[tuple[str, str]]:
    """(page, line) of every line that runs one of the commands."""
    return [
        (str(page.relative_to(ROOT)), line)
        for page in PAGES
        for line in lines(page)
        if re.match(r"([A-Z_]+=\S* )*\S*\bkdiff(-agent)?\s", line) and Path(words(line)[0]).name in COMMANDS
    ]


def parse(line: str) -> None:
    """Parses a command line as the command does, running nothing."""
    name, *arguments = words(line)
    command = COMMANDS[Path(name).name]
    if arguments and arguments[0] in command.commands:
        command, arguments = command.commands[arguments[0]], arguments[1:]
    elif not arguments or not arguments[0].startswith("-"):
        raise ValueError(f"no subcommand of {name}: {arguments}")
    command.make_context(name, arguments)


@pytest.mark.parametrize(("page", "line"), command_lines())
def test_command_lines_parse(page: str, line: str) -> None:
    try:
        parse(line)
    except Exception as error:
        pytest.fail(f"{page}: {line}: {getattr(error, 'message', error)}")


def test_the_check_of_command_lines_sees_them_and_can_fail() -> None:
    pages = {page for page, _ in command_lines()}
    assert {"README.md", "docs/guide-agent.md", "docs/guide-kdiff.md"} <= pages
    for wrong in ("kdiff --befor a --after b", "kdiff-agent rekord", "kdiff --format yaml", "kdiff kernels --jason"):
        with pytest.raises(Exception, match=r"."):
            parse(wrong)


@pytest.mark.parametrize("name", ["calibrate", "gate", "history", "schema"])
def test_examples_of_the_help_parse(name: str) -> None:
    [example] = re.findall(r"Example:\s+(kdiff .*)", COMMANDS["kdiff"].commands[name].help)
    assert example.startswith(f"kdiff {name} ")
    parse(example)


def options(command: Any) -> set[str]:
    return {option for parameter in command.params for option in parameter.opts if option.startswith("--")}


@pytest.mark.parametrize(
    ("page", "command"),
    [
        *(("docs/guide-agent.md", COMMANDS["kdiff-agent"].commands[name]) for name in ("record", "run", "ship")),
        ("docs/guide-kdiff.md", COMMANDS["kdiff"]),
        ("docs/guide-kdiff.md", COMMANDS["kdiff"].commands["kernels"]),
        ("docs/guide-kdiff.md", COMMANDS["kdiff"].commands["import"]),
        ("docs/guide-kdiff.md", COMMANDS["kdiff"].commands["gate"]),
        ("docs/guide-kdiff.md", COMMANDS["kdiff"].commands["history"]),
        ("docs/guide-kdiff.md", COMMANDS["kdiff"].commands["calibrate"]),
        ("docs/guide-store.md", COMMANDS["kdiff"].commands["export"]),
        ("docs/guide-store.md", COMMANDS["kdiff"].commands["delete"]),
        ("docs/guide-store.md", COMMANDS["kdiff"].commands["migrate"]),
    ],
)
def test_every_option_is_documented(page: str, command: Any) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert {option for option in options(command) if not re.search(rf"{option}\b", text)} == set()


# ---- links and targets ----


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if re.match(r"\w+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert not broken


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))
    named = set()
    for page in PAGES:
        named.update(re.findall(r"(?:^|`)make ([a-z]+)", page.read_text(encoding="utf-8"), re.MULTILINE))
    assert {"demo", "test", "bench"} <= named <= targets


def test_every_make_target_says_what_it_does() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.findall(r"^[a-z]+:(?!.*## \w).*$", makefile, re.MULTILINE) == []


# ---- what is said ----

SAID = {"docs/guide-agent.md": ("agent",), "docs/guide-store.md": ("queries", "analysis")}


def messages(*folders: str) -> list[str]:
    """Every string in the sources of some packages; what is filled in is a NUL."""
    found = []
    for path in (path for folder in folders for path in (ROOT / folder).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else "\0" for part in node.values]
                found.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return found


def quoted_messages() -> Iterator[tuple[str, str]]:
    """(page, piece of a message) in the first column of the tables of symptoms."""
    for page in SAID:
        text = (ROOT / page).read_text(encoding="utf-8")
        table = text[text.index("| message or symptom |") :]
        for row in re.findall(r"^\| (.+?) \| ", table, re.MULTILINE)[1:]:
            for quote in re.findall(r"`([^`]+(?:``[^`]+)*)`", row):
                yield from ((page, part.strip()) for part in quote.split("...") if part.strip())


@pytest.mark.parametrize(("page", "quote"), list(quoted_messages()))
def test_quoted_messages_are_what_is_said(page: str, quote: str) -> None:
    assert any(quote in message for message in messages(*SAID[page]))
