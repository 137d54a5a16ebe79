"""The published schemas: sound, strict, versioned, printed, and the same as the documents and their page."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import schemas
from command_line import kdiff

from captures import AFTER, BEFORE, TwoWindows, launches, spread
from kdiff.analysis import output_argo, output_json
from kdiff.analysis.command_schema import SchemaName, schema
from kdiff.analysis.report import Report
from kdiff.analysis.verdict import Verdict

PAGE = Path(__file__).parents[2] / "docs" / "json.md"


def parts(node: Any) -> Iterator[dict[str, Any]]:
    """Every object in a schema."""
    if isinstance(node, dict):
        yield node
        for value in node.values():
            yield from parts(value)
    elif isinstance(node, list):
        for value in node:
            yield from parts(value)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    windows = TwoWindows(tmp_path_factory.mktemp("schema"))
    for window, scale in ((BEFORE, 1), (AFTER, 2)):
        times = spread(window.from_ns, window.to_ns, 4_001)
        windows.add("cuda_events", launches("gelu", times, completion_ns=10_000 * scale))
    return windows.compare(all_metrics=True)


@pytest.mark.parametrize("name", SchemaName)
def test_a_schema_is_one_of_2020_12_and_printed(
    name: SchemaName, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = kdiff(monkeypatch, capsys, "schema", name.value)
    assert (told.code, told.err, told.out) == (0, "", schema(name))
    document = json.loads(told.out)
    jsonschema.Draft202012Validator.check_schema(document)
    assert document["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    version = document["properties"]["schema"]["const"]
    assert re.fullmatch(r"kdiff(-\w+)?/\d+", version)
    assert document["$id"] == f"urn:kdiff:schema:{version}"


def test_the_schema_without_a_name_is_that_of_a_comparison(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert kdiff(monkeypatch, capsys, "schema").out == schema(SchemaName.COMPARISON)


@pytest.mark.parametrize("name", SchemaName)
def test_every_object_is_closed_and_complete(name: SchemaName) -> None:
    for part in parts(json.loads(schema(name))):
        if part.get("type") == "object" and "properties" in part:
            assert part["additionalProperties"] is False
            assert part["required"] == list(part["properties"])


@pytest.mark.parametrize("name", [SchemaName.COMPARISON, SchemaName.ARGO, SchemaName.HISTORY])
def test_the_verdicts_are_those_there_are(name: SchemaName) -> None:
    assert json.loads(schema(name))["$defs"]["verdict"]["enum"] == [verdict.value for verdict in Verdict]


def test_a_field_without_a_schema_fails(report: Report) -> None:
    document = output_json.document(report)
    for place in (document, document["kernels"][0], document["before"], document["kernels"][0]["queue"]):
        place["novel"] = 1
        with pytest.raises(jsonschema.ValidationError, match="'novel' was unexpected"):
            schemas.check(SchemaName.COMPARISON, document)
        del place["novel"]
    del document["kernels"][0]["margin"]
    with pytest.raises(jsonschema.ValidationError, match="'margin' is a required property"):
        schemas.check(SchemaName.COMPARISON, document)


def test_documents_of_tests_are_held_to_their_schema(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    """What conftest.py sees to, for the whole suite."""
    with monkeypatch.context() as broken:
        broken.setattr(output_json, "finite", lambda _value: "no number")
        with pytest.raises(jsonschema.ValidationError):
            output_json.render(report)
    assert schemas.check_text(output_argo.render(report))["verdict"] == "REGRESSED"


def test_keys_come_in_the_order_of_the_schema(report: Report) -> None:
    defs = json.loads(schema(SchemaName.COMPARISON))
    document = output_json.document(report)
    assert list(document) == list(defs["properties"])
    assert list(document["kernels"][0]) == list(defs["$defs"]["kernel"]["properties"])
    assert list(output_argo.document(report)) == list(json.loads(schema(SchemaName.ARGO))["properties"])


@pytest.mark.parametrize("name", SchemaName)
def test_every_key_is_documented(name: SchemaName) -> None:
    page = PAGE.read_text(encoding="utf-8")
    keys = {key for part in parts(json.loads(schema(name))) for key in part.get("properties", {})}
    if name is SchemaName.KERNELS:  # the page leads to the SQL for these
        keys = {"schema", "store", "lost", "loss", "coverage", "kernels", "excess_n", "excess_p50_ns", "excess_p99_ns"}
    missing = {key for key in keys - {verdict.value for verdict in Verdict} if f"`{key}`" not in page}
    assert missing == set()
