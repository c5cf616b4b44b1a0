"""The token file, which says who may use the service.

A line is `NAME SCOPE TOKEN`, separated by spaces; empty lines and lines that begin with # are ignored:

    # name    scope  token
    reception read   9cFq0n4JX2u0H0cvW3Jm0Xy1t8Rk5ZsQ
    office    write  Yw7dK1m2eVQe6mB0p8rT4uN3zLhC5xAa

A `read` token may list and identify voices, and a `write` token may change them as well. Tokens are kept and compared
as SHA-256 hashes. A token that is sent is always compared with all, so that the time does not depend on it.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import stat
from dataclasses import dataclass

from duoplda.errors import DuopldaError
from duoplda.io.common import PathLike, bad, open_binary

SCOPES = ("read", "write")
SHORTEST_TOKEN = 32  # characters: 128 bits even where they are hexadecimal digits


@dataclass(frozen=True)
class Token:
    """One line of the file."""

    name: str  # the name in the audit log
    scope: str
    digest: bytes  # SHA-256 of the token


def read_tokens(path: PathLike) -> tuple[Token, ...]:
    """Read a token file. Others must not be able to read it, and nobody but its owner may be able to write it.

    Error messages do not show the tokens.
    """
    with open_binary(path) as f:
        mode = os.fstat(f.fileno()).st_mode
        if mode & (stat.S_IRWXO | stat.S_IWGRP):
            cause = f"may be read or changed by others (mode {stat.S_IMODE(mode):o})"
            raise bad(path, "", cause, "allow only its owner: chmod 600")
        lines = f.read(1 << 20).decode("utf-8", "replace").splitlines()
    tokens: dict[str, Token] = {}
    for number, line in enumerate(lines, 1):
        fields = line.split()
        if not fields or fields[0].startswith("#"):
            continue
        place = f"line {number}"
        if len(fields) != 3 or fields[1] not in SCOPES:
            raise bad(path, place, "is not `NAME read|write TOKEN`")
        name, scope, token = fields
        if not re.fullmatch(r"[\w.@-]{1,64}", name) or name in tokens:
            cause = "the name occurs twice, or has characters other than letters, digits, `.`, `@`, `-` and `_`"
            raise bad(path, place, cause)
        if not re.fullmatch(rf"[!-~]{{{SHORTEST_TOKEN},512}}", token):
            remedy = "make one: python -c 'import secrets; print(secrets.token_urlsafe(32))'"
            cause = f"the token has fewer than {SHORTEST_TOKEN} characters, or characters that are not ASCII"
            raise bad(path, place, cause, remedy)
        tokens[name] = Token(name, scope, hashlib.sha256(token.encode()).digest())
    if not tokens:
        raise bad(path, "", "has no tokens", "write a line `NAME read|write TOKEN`")
    return tuple(tokens.values())


def token_of(header: bytes | None, tokens: tuple[Token, ...]) -> Token | None:
    """Find the token of an Authorization header; None if it is not one of them."""
    scheme, _, sent = (header or b"").partition(b" ")
    digest = hashlib.sha256(sent.strip()).digest()
    same = [token for token in tokens if hmac.compare_digest(token.digest, digest)]
    return same[0] if same and scheme.lower() == b"bearer" else None


def check_reach(loopback: bool, host: str, tokens: tuple[Token, ...]) -> None:
    """Refuse to listen where other machines can reach the service and no tokens are needed."""
    if not loopback and not tokens:
        raise DuopldaError(
            f"{host} can be reached from other machines: give a `token_file`, or listen on 127.0.0.1 only"
        )
