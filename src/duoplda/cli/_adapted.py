"""What an adaptation did, in words."""

from typing import Any


def words(story: dict[str, Any]) -> list[str]:
    """`Backend.adapted_` as lines for people; an adaptation before this one comes last."""
    counts = ", ".join(f"{n:,} {what}" for what, n in story["target"].items())
    why = story["reasons"]
    lines = [f"adapted to: {counts} (method {story['method']}: {why['method']})"]
    who = next((what for what in ("clusters", "speakers", "sessions") if what in story["target"]), "recordings")
    moved = f"the mean went {100 * story['centre']:.1f} % of the way ({why['centre']})"
    lines.append(f"target: at a squared distance of {story['distance']:.4g} from the source; {moved}")
    for key, what in (("chosen", f"shares that held-out {who} choose"), ("shares", "shares of the target")):
        if story.get(key):
            values = ", ".join(f"{name} {share:.3g}" for name, share in story[key].items())
            lines.append(f"{what}: {values}" + f" ({why['shares']})" * (key == "shares"))
    for tried in story.get("partitions", ()):
        cost = f", cost of held-out trials {tried['cost']:.4f}" if "cost" in tried else ""
        lines.append(f"partition by {tried['by']}, trust {tried['trust']:g}: {tried['clusters']:,} clusters{cost}")
    found = story["calibration"]
    values = ", ".join(f"{name} {found[name]:.4g}" for name in ("scale", "offset", "cost") if name in found)
    lines.append("calibration after adaptation: " + (f"{values}, " if values else "") + found["reason"])
    lines += [f"note: {note}" for note in story["notes"]]
    if "before" in story:
        lines += [f"before that, {line}" for line in words(story["before"])]
    return lines


def origin(provenance: dict[str, Any], prefix: str = "") -> list[str]:
    """Where a model comes from, as lines; those of an adaptation say so."""
    lines = []
    for name, value in provenance.items():
        if name in ("adaptation", "before") and isinstance(value, dict):
            lines += origin(value, f"{prefix}{name} ")
        elif isinstance(value, dict):
            lines += [f"{prefix}{name}: {k} {v}" for k, v in value.items()]
        elif value is not None:
            lines.append(f"{prefix}{name}: {value}")
    return lines
