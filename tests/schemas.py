"""Holds every JSON document that kdiff makes in tests to the schema that is shipped with it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from unittest import mock

from jsonschema import Draft202012Validator

from kdiff.analysis import history, history_output, listing, output_argo, output_json
from kdiff.analysis.command_schema import SchemaName, schema


@cache
def validator(name: SchemaName) -> Draft202012Validator:
    return Draft202012Validator(json.loads(schema(name)))


def check(name: SchemaName, document: Any) -> None:
    """Raises ValidationError; numbers that are no JSON are refused too."""
    validator(name).validate(json.loads(json.dumps(document, allow_nan=False)))


def check_text(text: str) -> Any:
    """The document, checked against the schema of its name."""
    document = json.loads(text)
    names = {json.loads(schema(name))["properties"]["schema"]["const"]: name for name in SchemaName}
    check(names[document["schema"]], document)
    return document


@contextmanager
def held() -> Iterator[None]:
    """While it lasts no document can be made in this process that its schema does not describe."""

    def checked(name: SchemaName, make: Callable[..., Any], read: Callable[[Any], Any]) -> Callable[..., Any]:
        def making(*arguments: Any) -> Any:
            made = make(*arguments)
            check(name, read(made))
            return made

        return making

    def as_it_is(made: Any) -> Any:
        return made

    places: tuple[tuple[Any, str, SchemaName, Callable[[Any], Any]], ...] = (
        (output_json, "document", SchemaName.COMPARISON, as_it_is),
        (output_argo, "document", SchemaName.ARGO, as_it_is),
        (listing, "as_json", SchemaName.KERNELS, json.loads),
        (history, "as_json", SchemaName.HISTORY, json.loads),
        (history_output, "as_json", SchemaName.CALIBRATE, json.loads),
    )
    patches = [
        mock.patch.object(module, attribute, checked(name, getattr(module, attribute), read))
        for module, attribute, name, read in places
    ]
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in patches:
            patch.stop()
