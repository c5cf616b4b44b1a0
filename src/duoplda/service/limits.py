"""The limits of the service, for one request and for many at a time."""

from dataclasses import dataclass, fields

from duoplda.errors import DuopldaError


@dataclass(frozen=True)
class Limits:
    """Limits that no request can exceed.

    >>> Limits(max_rows=0)
    Traceback (most recent call last):
    duoplda.errors.DuopldaError: `max_rows` must be a whole number from 1 on, not 0
    """

    max_body: int = 8  # megabytes of a body
    max_rows: int = 2000  # recordings of a request
    max_requests: int = 32  # requests at a time; further ones are answered 429 at once
    timeout: int = 30  # seconds in which a body must come in, and as many in which it must be answered
    threads: int = 4  # requests that are worked on at a time; the others of `max_requests` wait

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, int) or value < 1:
                raise DuopldaError(f"`{field.name}` must be a whole number from 1 on, not {value!r}")
