"""The options of `duoplda score` for a cohort, and how it is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from duoplda.cli._common import missing, one_of, say, usage

if TYPE_CHECKING:
    from duoplda.data import Recordings
    from duoplda.estimators.backend import Backend

File = Annotated[Path | None, typer.Option(help="Normalise scores with these embeddings, or `duoplda enroll`'s file.")]
Ids = Annotated[str | None, typer.Option(help="The same as --ids for --cohort.")]
Sessions = Annotated[Path | None, typer.Option(help="utt2sess of the cohort, where --sessions lacks it.")]
Speakers = Annotated[Path | None, typer.Option(help="utt2spk of cohort and trials: none may be in both.")]
Normalize = Annotated[str | None, typer.Option(help="z, t, s, as1 or as2, with --cohort.  [as1]")]
Top = Annotated[int | None, typer.Option(min=2, help="Members that a side selects in as1 and as2.  [300]")]


class CohortOptions(NamedTuple):
    """What was typed about the cohort."""

    path: Path | None
    ids: str | None
    sessions: Path | None
    speakers: Path | None
    normalize: str | None
    top: int | None

    def check(self) -> CohortOptions:
        """The options must go together."""
        if self.path is None and any(given is not None for given in self):
            usage("--cohort-ids, --cohort-sessions, --cohort-speakers, --normalize and --cohort-top need --cohort")
        one_of("--normalize", self.normalize, "z", "t", "s", "as1", "as2")
        return self

    def load(
        self,
        chain: Backend,
        read: Callable[[Path, str | None], Recordings],
        place: str | None,
        enrolled: Any,
        allow: bool,
        **labels: Any,
    ) -> dict[str, Any]:
        """The options of `duoplda.score`; none without a cohort. `enrolled` are recordings of models, if known."""
        if self.path is None:
            return {}
        from duoplda.estimators.scoring import enroll_recordings
        from duoplda.io import is_container, read_map
        from duoplda.trials.normalization import TOP, Cohort

        speaker = read_map(self.speakers, "speaker")
        if self.path.is_file() and is_container(self.path):
            if self.ids is not None or self.sessions is not None or labels["cosine"]:
                usage("--cohort is a file of enrolled sets: leave out --cohort-ids, --cohort-sessions and --cosine")
            sides = chain.load_sides(self.path, device=place)
        else:
            if self.sessions is not None:
                labels["session"] = read_map(self.sessions, "session")
            sides = enroll_recordings(chain, read(self.path, self.ids), **labels, device=place)
            if speaker is not None:
                unknown = [i for i in sides.ids.tolist() if i not in speaker]
                missing("recordings of the cohort have no speaker", unknown, allow)
        found = {"cohort": sides, "normalize": self.normalize or "as1", "cohort_top": self.top or TOP}
        Cohort(sides, speaker=speaker).refuse_shared("recordings of the enrolment", enrolled)
        say("normalised scores are no likelihood ratios, until `duoplda calibrate` has made them such")
        return found | {"speaker": speaker}
