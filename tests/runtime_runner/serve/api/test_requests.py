"""A body with a wrong parameter is refused in one line that says what the parameter may be."""

from typing import Any

import pytest
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from eagle_aot.runtime_runner.serve.api.errors import first_problem
from eagle_aot.runtime_runner.serve.api.requests import CompletionRequest

STRING = "Input should be a valid string"


@pytest.mark.parametrize(("body", "line", "param"), [
    ({}, "prompt: Field required", "prompt"),
    ({"prompt": 1}, f"prompt: {STRING} or Input should be a valid list", "prompt"),
    ({"prompt": []}, f"prompt: {STRING} or List should have at least 1 item", "prompt"),
    (
        {"prompt": "a", "chain_len": "x"},
        "chain_len: Input should be a valid integer or",
        "chain_len",
    ),
    ({"prompt": "a", "max_tokens": -1}, "max_tokens: Input should be greater", "max_tokens"),
    ({"prompt": "a", "no-such": 1}, "no-such: no such parameter here", "no-such"),
    *(
        ({"prompt": "a", "logprobs": n}, "logprobs: Input should be", "logprobs")
        for n in (-1, 6, True, "2")
    ),
])  # fmt: skip
def test_an_error_says_what_a_parameter_may_be(body: dict[str, Any], line: str, param: str) -> None:
    with pytest.raises(ValidationError) as raised:
        CompletionRequest.model_validate({"model": "tiny"} | body)
    errors = raised.value.errors()
    problems = [{**problem, "loc": ("body", *problem["loc"])} for problem in errors]
    error = first_problem(RequestValidationError(problems))
    assert str(error).startswith(line) and error.status == 400
    assert error.param == param
