"""Errors as problem details (RFC 9457), in the words of the library."""

from __future__ import annotations

import json
import re
from http import HTTPStatus

from pydantic import BaseModel, Field

from duoplda.errors import DuopldaError, MissingIds, printable
from duoplda.io.received import TooLarge
from duoplda.voices.store import StoreError

PROBLEM_TYPE = "application/problem+json"


class ProblemDetails(BaseModel):
    """An error in the form of RFC 9457."""

    type: str = "about:blank"
    title: str = Field(examples=["Not Found"])
    status: int = Field(examples=[404])
    detail: str = Field(description="The cause and the remedy.", examples=["there is no voice 'anne'"])
    instance: str = Field(description="The id of the request, as in the log.")


class Problem(Exception):
    """An answer other than success: its status, the cause and the remedy, and headers."""

    def __init__(self, status: int, detail: str, headers: dict[str, str] | None = None):
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = headers or {}

    def body(self, request_id: str) -> bytes:
        """Return the body of the answer, with the id that the request has in the log."""
        title = HTTPStatus(self.status).phrase
        instance = f"urn:uuid:{request_id}"
        content = ProblemDetails(title=title, status=self.status, detail=self.detail, instance=instance)
        return json.dumps(content.model_dump()).encode()


def problem_of(error: Exception) -> Problem:
    """Turn an error into an answer. Only a caller's mistake is explained; the message of any other stays in the log."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, TooLarge):
        return Problem(413, _words(error))
    if isinstance(error, StoreError):
        return Problem(503, _words(error), {"retry-after": "5"})
    if isinstance(error, MissingIds):
        return Problem(404, _words(error))
    if isinstance(error, DuopldaError):
        return Problem(422, _words(error))
    return Problem(500, "the service failed; its log has the cause, under the id that `instance` gives")


def _words(error: DuopldaError) -> str:
    """The library's message on one line, without the backticks around names."""
    return printable(" ".join(re.sub(r"`(\w+)`", r"\1", str(error)).split()))
