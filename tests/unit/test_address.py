"""Addresses of servers: what is read, what is refused, and that no form of one shows the password."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest
from command_line import kdiff
from hypothesis import given, settings
from hypothesis import strategies as st

from kdiff.agent.command_ship import require_directory
from kdiff.agent.metrics import place
from kdiff.queries.address import Address, is_address, masked
from kdiff.queries.errors import StoreError
from kdiff.queries.store import open_store

SECRET = "s3cret-pa:ss/w@rd"


def parse(text: str, **environ: str) -> Address:
    return Address.parse(text, environ)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("clickhouse://h", "clickhouse://default@h:8123/kdiff"),
        ("clickhouses://h/", "clickhouses://default@h:8443/kdiff"),
        ("CLICKHOUSE://ann@h:1/db", "clickhouse://ann@h:1/db"),
        ("clickhouse://a%40b@h/my%20db", "clickhouse://a%40b@h:8123/my%20db"),
        ("clickhouse://[fd00::1]:99,h2,h3:5/db", "clickhouse://default@[fd00::1]:99,h2:8123,h3:5/db"),
        ("clickhouse://h\x1b[31m/db", "clickhouse://default@h\\x1b[31m:8123/db"),
    ],
)
def test_what_is_left_out_has_its_default(text: str, shown: str) -> None:
    if "\x1b" in text:  # brackets are for IPv6 alone
        with pytest.raises(StoreError, match="names no host"):
            parse(text)
    else:
        assert str(parse(text)) == shown


def test_options() -> None:
    address = parse("clickhouses://h/db?cluster=main&ca=/etc/ca.pem&timeout=7&cert=/c&key=/k")
    assert (address.cluster, address.ca, address.timeout_s, address.cert, address.key) == (
        "main",
        "/etc/ca.pem",
        7,
        "/c",
        "/k",
    )
    assert parse("clickhouse://h").timeout_s == 300


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("http://h:8123", "is no address of a server: write clickhouse://user@host:8123/kdiff"),
        ("clickhouse://", "names no host"),
        ("clickhouse://,h", "names no host"),
        ("clickhouse://h:0/db", "a port is 1 to 65535"),
        ("clickhouse://h:99999", "a port is 1 to 65535"),
        ("clickhouse://h:http", "names no host"),
        ("clickhouse://fd00::1/db", "names no host"),
        ("clickhouse://@h", "no valid user"),
        ("clickhouse://a%3Ab@h", "no valid user"),
        ("clickhouse://h/a/b", "more than a database"),
        ("clickhouse://h/a#b", "more than a database"),
        ("clickhouse://h/db?cluser=x", "unknown option cluser: known are cluster="),
        ("clickhouse://h/db?cluster=", "must give cluster= one value"),
        ("clickhouse://h/db?timeout=1&timeout=2", "must give timeout= one value"),
        ("clickhouse://h/db?timeout=-1", "1 to 86400 seconds"),
        ("clickhouse://h/db?ca=/x", "write clickhouses://"),
        ("clickhouses://h/db?cert=/x", "both cert=PATH and key=PATH"),
    ],
)
def test_what_is_wrong_is_said(text: str, words: str) -> None:
    with pytest.raises(StoreError) as caught:
        parse(text)
    assert words in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "text",
    [
        f"clickhouse://u:{SECRET}@h/db",
        f"clickhouse://u:{SECRET}@h:nonsense/db",
        f"clickhouse://u:{SECRET}?{SECRET}@h",
        f"clickhouse://h/db?password={SECRET}",
        f"clickhouse://h/db?cluster=x&Passwd={SECRET}",
        f"http://u:{SECRET}@h",
        f"clickhouse://u:{SECRET}@h,@h2/a/b?x=y",
    ],
)
def test_a_password_in_the_address_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(StoreError) as caught:
        parse(text)
    for part in (SECRET, "s3cret", "w@rd", "w%40rd"):
        assert part not in str(caught.value)


def test_the_password_comes_from_the_environment_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text(f"{SECRET}\n")
    assert parse("clickhouse://h").password == ""
    for address in (
        parse("clickhouse://h", KDIFF_CLICKHOUSE_PASSWORD=SECRET),
        parse("clickhouse://h", KDIFF_CLICKHOUSE_PASSWORD_FILE=str(file)),
    ):
        assert address.password == SECRET
        assert SECRET not in f"{address} {address!r}"
    with pytest.raises(StoreError, match="both set"):
        parse("clickhouse://h", KDIFF_CLICKHOUSE_PASSWORD="x", KDIFF_CLICKHOUSE_PASSWORD_FILE=str(file))
    file.write_bytes(b"\xff")
    for path, reason in ((file, "not UTF-8"), (tmp_path / "none", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(StoreError, match=reason):
            parse("clickhouse://h", KDIFF_CLICKHOUSE_PASSWORD_FILE=str(path))


@given(
    st.text(st.characters(exclude_characters=":/?@"), min_size=1),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters=":"), min_size=1),
)
def test_any_text_is_an_address_or_one_printable_sentence(host: str, user: str) -> None:
    said = ""
    try:
        address = parse(f"clickhouse://{quote(user, safe='')}@{host}/db", KDIFF_CLICKHOUSE_PASSWORD=SECRET)
    except StoreError as error:
        said = str(error)
    else:
        said = str(address)
        assert address.user == user
    assert said.isprintable()


@pytest.mark.parametrize("text", ["./a", "/a://b", "a:b", "", "1://x", "~"])
def test_a_path_is_no_address(text: str) -> None:
    assert not is_address(text)


def test_a_password_is_masked_where_the_colon_of_the_scheme_is_forgotten() -> None:
    with pytest.raises(StoreError, match=r"clickhouse//u:\*\*\*@h is no address"):
        Address.parse("clickhouse//u:sEcr3t@h", {})
    with pytest.raises(StoreError, match=r"clickhouse:\*\*\*@h is no address"):
        Address.parse("clickhouse:u:sEcr3t@h", {})


@pytest.mark.parametrize("text", ["clickhouse:u:PW@h", "Clickhouses:h", "u:PW@h:8123/kdiff", "http:u:PW@h"])
def test_what_may_hold_a_password_is_no_path_unless_it_is_one(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert is_address(text)
    with pytest.raises(StoreError, match="is no address of a server") as caught:
        open_store(text)
    assert "PW" not in str(caught.value)
    monkeypatch.chdir(tmp_path)
    Path("host:spool@noon").mkdir()
    assert not is_address("host:spool@noon")


MARK = "hunter2"


@settings(max_examples=500, deadline=None)
@given(
    st.one_of(
        st.sampled_from(["clickhouse:", "clickhouse://", "clickhouse://u:", "clickhouse//u:", "http://u:", "u:", ":"]),
        st.text(alphabet="abc:/@?&=%#.,[]-_ \x1b", max_size=12).map(lambda text: f"clickhouse://{text}:"),
        st.text(max_size=12).map(lambda text: f"{text}:"),
    ),
    st.one_of(st.text(alphabet="ab1:/@?&=%#.,[] \\\n'", max_size=8), st.text(max_size=8)),
    st.one_of(st.text(alphabet="ab1:/@?&=%#.,[] \\\n'", max_size=8), st.text(max_size=8)),
    st.one_of(
        st.sampled_from(["@h", "@h:8123/kdiff?x=1", "@h:0", "@", "@[", "@h/a/b", "@h?timeout=x", "@h,@i", "@h?pass=1"]),
        st.text(max_size=12).map(lambda text: f"@{text}"),
    ),
    st.booleans(),
)
def test_a_secret_between_a_colon_and_an_at_is_never_repeated(
    before: str, first: str, last: str, after: str, encoded: bool
) -> None:
    secret = f"{first}{MARK}{last}"
    text = f"{before}{quote(secret, safe='') if encoded else secret}{after}"
    said = [masked(text)]
    for attempt in (parse, open_store, place, lambda text: require_directory(Path(text))):
        try:
            attempt(text)
        except (StoreError, ValueError, OSError) as error:
            said.append(str(error))
        else:
            if attempt is parse:  # a valid address, whose user may be shown
                return
    assert not any(MARK in line for line in said)
    assert all(line.isprintable() for line in said)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--before", "clickhouse:u:s3cret@h", "--after", "now"),
        ("--before", "clickhouse://u:s3cret@h", "--after", "now"),
        ("--before=clickhouse://u:s3cret@h", "--after=now"),
        ("clickhouse://u:s3cret@h",),
        ("kernels", "clickhouses://u:s3cret@h"),
        ("kernels", "--window", "ClickHouse://u:s3cret@h"),
        ("migrate", "clickhouse://u:s3cret@h"),
        ("--before", "1", "--after", "2", "--map", "clickhouse://u:s3cret@h"),
    ],
)
def test_kdiff_repeats_no_password_wherever_it_stands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    done = kdiff(monkeypatch, capsys, *arguments)
    assert done.code == 2
    assert "s3cret" not in done.out + done.err
    assert done.err.startswith("kdiff: the address ") or "is no address of a server" in done.err
    assert done.err.count("\n") == 1
