"""What the tests of cases share: case files that are changed in one place."""

from pathlib import Path


def changed(path: Path, *changes: tuple[str, str], name: str = "changed.toml") -> Path:
    """Write a case file beside another with texts of it replaced, each of which must be there."""
    text = path.read_text()
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new, 1)
    other = path.with_name(name)
    other.write_text(text)
    return other
