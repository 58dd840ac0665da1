"""What schemathesis makes up from the API's own description: no server errors, and answers as they are described."""

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.mark.parametrize("n", [pytest.param(20, marks=pytest.mark.long), pytest.param(300, marks=pytest.mark.nightly)])
def test_responses_conform_to_the_openapi_schema(url, n):
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    asked = set()
    for got in schema.get_all_operations():
        operation = got.ok()

        @settings(
            max_examples=n, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
        )
        @given(case=operation.as_strategy())
        def check(case: schemathesis.Case) -> None:
            case.call_and_validate(checks=CHECKS)

        check()
        asked.add(operation.path)
    assert {"/translate", "/detect", "/inference", "/v1/audio/translations", "/v1/completions"} <= asked
