"""Break the code on purpose, one line at a time, and see whether the tests notice.

    make mutants                                   all of them
    python tools/mutants.py NAME ...               those whose names contain one of the words
    python tools/mutants.py --list                 their names

Each mutant replaces a piece of text, which must occur exactly once in its file, in a copy of the package, and runs the
tests that should notice. A mutant that survives is a hole in the tests. `tests/test_mutants.py` checks that every piece
of text is still there, so that the list stays current; it does not run them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "duoplda"


class Mutant(NamedTuple):
    """One change for the worse."""

    name: str
    file: str  # in the package
    before: str
    after: str
    tests: str  # arguments of pytest, separated by spaces


MUTANTS: list[Mutant] = [
    # -- model
    Mutant(
        "the memory of Anderson's acceleration is kept after a rejected step",
        "model/em.py",
        "anderson.forget()",
        "pass",
        "tests/test_em.py -k rejected",
    ),
    Mutant(
        "the mean moves against minimum divergence",
        "model/em.py",
        "mu = mu + V @ mu_y",
        "mu = mu - V @ mu_y",
        "tests/test_em.py -k monotone_by_itself",
    ),
    Mutant(
        "sums of a speaker are centred as if it had one session",
        "model/estep.py",
        "n[:, None] * (means[c] @ B)",
        "(means[c] @ B)",
        "tests/test_em.py -k dense_posterior",
    ),
    Mutant(
        "folds are of sessions, not of speakers",
        "model/accumulate.py",
        "ar.put(self.fold, speaker)[speaker]",
        "ar.put(self.fold, speaker)[ar.put(np.arange(len(speaker)), speaker) % len(self.fold)]",
        "tests/test_statistics.py -k folds_hold_whole_speakers",
    ),
    Mutant(
        "kinds are inferred without their prior",
        "model/posteriors.py",
        "joint.append(xp.log(priors[k]) - ",
        "joint.append(-",
        "tests/test_channels.py -k inferred",
    ),
    Mutant(
        "shrinkage changes the size of a covariance",
        "model/shrinkage.py",
        "share * max(size, 1e-12) * self.T",
        "share * self.T",
        "tests/test_shrinkage.py -k formula",
    ),
    Mutant(
        "the target's noise counts for all",
        "model/adaptation.py",
        "min(LARGEST_SHARE, f / (f + d))",
        "f / (f + d)",
        "tests/test_adaptation.py -k usual_shares",
    ),
    # -- trials
    Mutant(
        "a session that both sides share is counted twice",
        "trials/meeting.py",
        "return i, j, gain + Q3 - take(a.Q, i) - take(b.Q, j)",
        "return i, j, Q3 - take(a.Q, i) - take(b.Q, j)",
        "tests/test_llr.py -k share",
    ),
    Mutant(
        "a session that is enrolled in two parts stays two sessions",
        "trials/sides.py",
        "        if len(cell):\n",
        "        if False:\n",
        "tests/test_sides.py",
    ),
    Mutant(
        "the prior of a partition counts recordings",
        "trials/queue.py",
        "m = sides.n_sessions.astype(np.float64)",
        "m = (sides.counts @ sides.types.sum(axis=1)).astype(np.float64)",
        "tests/test_clustering.py -k difference_of_log_likelihoods",
    ),
    Mutant(
        "known speakers are merged as twins",
        "trials/clustering.py",
        "single = (gain <= 0)[same] | (items.owner >= 0)",
        "single = (gain <= 0)[same]",
        "tests/test_clustering.py -k known",
    ),
    Mutant(
        "clusters that must be apart forget it when they grow",
        "trials/queue.py",
        "            self.apart[other].add(a)\n",
        "",
        "tests/test_clustering.py -k cannot_link",
    ),
    Mutant(
        "adaptive s-norm 1 takes the lowest scores of the cohort",
        "trials/normalization.py",
        "S = xp.sort(S, axis=0)[S.shape[0] - k :, :]",
        "S = xp.sort(S, axis=0)[:k, :]",
        "tests/test_normalization.py -k formulas",
    ),
    Mutant(
        "a session that is alone in its occasion counts for less",
        "model/occasions.py",
        "return 1 / (1 + np.maximum(np.asarray(count, float) - 1, 0) * kappa)",
        "return 1 / (1 + np.asarray(count, float) * kappa)",
        "tests/test_occasions.py -k bit_for_bit",
    ),
    Mutant(
        "sessions of an occasion count in full beside what they count for",
        "trials/occasions.py",
        "np.subtract.at(alone, self.side, self.counts)",
        "pass",
        "tests/test_occasions.py -k likelihoods_to_powers",
    ),
    Mutant(
        "parts of a session meet as far as one of them counts",
        "trials/meeting.py",
        "weight = np.minimum(of_a[ca], of_b[cb])",
        "weight = np.maximum(of_a[ca], of_b[cb])",
        "tests/test_occasions.py -k likelihoods_to_powers",
    ),
    Mutant(
        "twice the ratio is expected of a trial",
        "trials/structure.py",
        "return np.asarray((apart - together) / 2)",
        "return np.asarray(apart - together)",
        "tests/test_structure.py -k mutual_information",
    ),
    Mutant(
        "speakers of a file are named as if the others were settled",
        "trials/identification.py",
        "exact = S < 25 and len(rivals) * S << S <= MOST_STEPS",
        "exact = False",
        "tests/test_identification.py -k speakers_of_one_file",
    ),
    Mutant(
        "a wrong name costs as much as a missed one",
        "trials/identification.py",
        "costs.wrong_name * (1 - P) - 1e-12",
        "costs.missed * (1 - P) - 1e-12",
        "tests/test_identification.py -k cost_least",
    ),
    # -- selection
    Mutant(
        "the penalty of the decision is ten times as large",
        "selection/decision.py",
        "penalty = np.array([0.015] * n + [0.15] * n_scales) / self",
        "penalty = np.array([0.15] * n + [1.5] * n_scales) / self",
        "tests/test_decision.py -k penalty",
    ),
    Mutant(
        "no level moves, whatever held-out speakers gain",
        "selection/adaptation.py",
        "return best if best.mean > best.error else gains[0]",
        "return gains[0]",
        "tests/test_adapt_backend.py -k level_that_has_changed",
    ),
    Mutant(
        "levels move that make held-out speakers less likely",
        "selection/adaptation.py",
        "best = max(gains, key=lambda gain: gain.mean)",
        "best = max(gains[1:], key=lambda gain: gain.mean)._replace(error=-1e9)",
        "tests/test_adapt_backend.py -k level_that_has_changed",
    ),
    Mutant(
        "sessions of unknown speakers move the levels above the noise as far as the noise",
        "model/adaptation.py",
        "return SessionShares(shares.noise, min(shares.speaker, LARGEST_SHARE) / 2)",
        "return SessionShares(shares.noise, min(shares.speaker, LARGEST_SHARE))",
        "tests/test_adaptation.py -k odds_of_the_usual",
    ),
    Mutant(
        "clusters lower the offset as far as speakers do",
        "selection/adaptation.py",
        "least = min(scale - 1, 0.0) if of_clusters else -OFFSET_LIMIT",
        "least = -OFFSET_LIMIT",
        "tests/test_adaptation.py -k clusters_lower",
    ),
    Mutant(
        "sessions that fall apart take what has not grown",
        "estimators/adaptation.py",
        "< LEAST_IN_COMPANY and self.levels.has_grown(target)",
        "< LEAST_IN_COMPANY",
        "tests/test_adapt_backend.py -k fall_apart",
    ),
    Mutant(
        "any gain of held-out speakers is enough for one kind more",
        "selection/cost.py",
        "return gain_in_errors(losses, others) > 2",
        "return gain_in_errors(losses, others) > 0",
        "tests/test_decision.py -k one_and_a_half",
    ),
    Mutant(
        "kinds that are no likelier are kept for what their trials save",
        "selection/channels.py",
        "return likelier and gain_in_errors",
        "return gain_in_errors",
        "tests/test_channels.py -k made_up",
    ),
    Mutant(
        "the kind of a recording does not follow from the rest of its session",
        "model/kinds.py",
        "z_session = z_others + z[k, now]",
        "z_session = z[k, now]",
        "tests/test_channels.py -k number_of_kinds",
    ),
    Mutant(
        "kinds are looked for by their means alone",
        "model/kinds.py",
        'STARTS = ("means", "lengths")',
        'STARTS = ("means",)',
        "tests/test_channels.py -k noise_alone",
    ),
    Mutant(
        "trials of held-out speakers are made by the kinds that were learnt",
        "selection/decision.py",
        "shaping = sample.without_kinds() if options.infer_kinds else sample",
        "shaping = sample",
        "tests/test_decision.py -k shape_the_trials",
    ),
    Mutant(
        "models of folds have seen the speakers of the fold",
        "selection/held_out.py",
        "Statistics.sum(bare[:i] + bare[i + 1 :])",
        "Statistics.sum(bare)",
        "tests/test_decision.py -k dense_ratios",
    ),
    Mutant(
        "a calibration by structure stays though it saves no more than chance",
        "selection/structure.py",
        "by_speaker.mean() <= by_speaker.std(ddof=1) / np.sqrt(M)",
        "by_speaker.mean() <= 0",
        "tests/test_structure.py -k standard_error",
    ),
    # -- evaluation
    Mutant(
        "a calibration weighs trials, not classes",
        "evaluation/calibration.py",
        "np.where(y, p * w / n_targets, (1 - p) * w / n_nontargets)",
        "w / (n_targets + n_nontargets)",
        "tests/test_calibration.py -k affine_undoes",
    ),
    Mutant(
        "the EER is not that of the convex hull",
        "evaluation/metrics.py",
        'blocks if method == "rocch" else bins',
        "bins",
        "tests/test_metrics.py -k convex_hull",
    ),
    Mutant(
        "the bootstrap draws the speakers of one side",
        "evaluation/resampling.py",
        "np.where(labels, times[a], times[a] * times[b])",
        "times[a]",
        "tests/test_metrics.py -k copying_the_speakers",
    ),
    Mutant(
        "side information is tested on speakers from whom it was learnt",
        "evaluation/quality.py",
        "learn = ~np.isin(a, (i, j)) & ~np.isin(b, (i, j))",
        "learn = ~held",
        "tests/test_quality.py -k without_the_two_folds",
    ),
    Mutant(
        "bounds are what the trials show, without an error more",
        "evaluation/support.py",
        "_errors_by_threshold(tally(*check_trials(scores, labels, weights)), 1.0)",
        "_errors_by_threshold(tally(*check_trials(scores, labels, weights)), 0.0)",
        "tests/test_support.py -k ratios_stop_to_pay",
    ),
    Mutant(
        "a calibration within bounds gives ratios beyond them",
        "evaluation/around.py",
        "np.clip(self.calibration_.transform(scores), self.lower_, self.upper_)",
        "self.calibration_.transform(scores)",
        "tests/test_calibration_around.py -k beyond_the_bounds",
    ),
    Mutant(
        "recordings of an enrolled session are tested",
        "evaluation/splitting.py",
        "tests = rows[~enrolled[rows]]",
        "tests = rows",
        "tests/test_split.py -k two_sides",
    ),
    # -- estimators
    Mutant(
        "lengths are 1, not the root of the number of dimensions",
        "estimators/preprocessing.py",
        "scale = xp.sqrt(X.shape[1] / squares)[:, None]",
        "scale = xp.sqrt(1 / squares)[:, None]",
        "tests/test_preprocessing.py -k length_norm",
    ),
    Mutant(
        "recordings of another domain go unnoticed",
        "estimators/domain.py",
        "tolerance = 0.06",
        "tolerance = 0.6",
        "tests/test_domain.py -k distance_of_the_mean",
    ),
    Mutant(
        "an interrupted training goes on with other data",
        "estimators/checkpoint.py",
        "if self._data is not None and self._data != self._data_now():",
        "if False:",
        "tests/test_cli_adapt.py -k something_else",
    ),
    Mutant(
        "models count as speakers where the distance is judged",
        "estimators/domain.py",
        "speakers = np.bincount(cluster(sample).labels, size)",
        "speakers = size",
        "tests/test_domain.py -k models_are_not_speakers",
    ),
    # -- io
    Mutant(
        "files are written in place",
        "io/_atomic.py",
        'temporary = final.parent / f".{final.name[:50]}.{secrets.token_hex(6)}.tmp"',
        "temporary = final",
        "tests/test_io_atomic.py -k at_the_end",
    ),
    Mutant(
        "speakers of another model are taken",
        "trials/sides.py",
        'if header.get("model") != fingerprint(model):',
        "if False:",
        "tests/test_sides.py -k old_sides",
    ),
    Mutant(
        "a vector of an archive that is cut short is filled up",
        "io/ark.py",
        "if base + value.end > size:",
        "if False:",
        "tests/test_io_errors.py -k wrong_archives",
    ),
    # -- diarization
    Mutant(
        "a collar is before and after a boundary together",
        "diarization/error_rate.py",
        "(edges - collar, edges + collar)",
        "(edges - collar / 2, edges + collar / 2)",
        "tests/test_der.py -k touch",
    ),
    Mutant(
        "turns are written by speaker",
        "diarization/rttm.py",
        "np.lexsort((speaker, turns.duration, turns.start, file))",
        "np.lexsort((turns.duration, turns.start, speaker, file))",
        "tests/test_io_rttm.py -k touch",
    ),
    Mutant(
        "the second half of windows counts twice",
        "diarization/windows.py",
        "np.clip(end - np.maximum(start, covered_until), 0, None).sum()",
        "np.clip(end - start, 0, None).sum()",
        "tests/test_diarization.py -k counts_every_second",
    ),
    Mutant(
        "the room is taken for a voice",
        "diarization/known.py",
        "mean *= np.where(n[:, None] > 1, room / (room + 1 / n[:, None]), 0.0)",
        "mean *= 0.0",
        "tests/test_diarization.py -k room",
    ),
    Mutant(
        "speakers get new numbers whenever the last minutes are looked at",
        "diarization/online.py",
        "numbers[current[matched]] = earlier[matched]",
        "pass",
        "tests/test_online.py -k those_of_the_file",
    ),
    Mutant(
        "a speaker of one short turn counts for less than a window",
        "diarization/known.py",
        "np.maximum(np.asarray(discount) * heard.counts.sum(axis=1), 1.0)",
        "np.asarray(discount) * heard.counts.sum(axis=1)",
        "tests/test_diarization.py -k dense_gaussians",
    ),
    # -- voices
    Mutant(
        "the room of a file is a part of each voice",
        "voices/registry.py",
        "gallery.sides, np.zeros(len(tests)), discount",
        "gallery.sides, None, discount",
        "tests/test_voices.py -k room",
    ),
    Mutant(
        "parts of a session that is joined are two sessions",
        "voices/sums.py",
        "StoredSums(self.types + other.types, self.gamma + other.gamma + shift, self.z + other.z)",
        "StoredSums(self.types + other.types, self.gamma + other.gamma, self.z + other.z)",
        "tests/test_voices.py -k joined_only_if_told",
    ),
    Mutant(
        "voices that have changed are read from the snapshot",
        "voices/snapshots.py",
        "kept = ~np.isin(members, later)",
        "kept = np.full(m, True)",
        "tests/test_voices.py -k snapshot",
    ),
    Mutant(
        "a voice is still found by the name that it had",
        "voices/gallery.py",
        "self.rows.pop(self.names[row], None)",
        "pass",
        "tests/test_voices.py -k removals_of_others",
    ),
    Mutant(
        "damaged sums of a registry are used",
        "voices/sums.py",
        'return None if checksum(*parts) == sum_of_row else "its checksum does not match"',
        "return None",
        "tests/test_voices.py -k damaged_rows",
    ),
    # -- audio
    Mutant(
        "all copies through a channel are alike",
        "audio/channels.py",
        '{name}".encode()',
        '".encode()',
        "tests/test_audio.py -k copies_depend",
    ),
    Mutant(
        "audio that is cut short is embedded",
        "audio/reading.py",
        "if left < length < UNKNOWN_BYTES:",
        "if False:",
        "tests/test_audio.py -k hostile",
    ),
    Mutant(
        "silence is somebody's voice",
        "audio/embedding.py",
        "                        if spoken >= LEAST_SPEECH:",
        "                        if True:",
        "tests/test_audio.py -k what_cannot_be_embedded",
    ),
    Mutant(
        "audio unlike the training gives no warning",
        "workflows/_audio.py",
        "        warn_of_quality(ranges, measured)",
        "        pass",
        "tests/test_cli_embed.py -k training_recordings",
    ),
    # -- case
    Mutant(
        "a case states a ratio beyond what its trials support",
        "case/assess.py",
        "stated = min(max(value, bounds.lower), bounds.upper)",
        "stated = value",
        "tests/test_case_assess.py -k beyond_a_bound",
    ),
    Mutant(
        "pairs of a case are calibrated by their own speakers",
        "case/calibration.py",
        "weights.append(np.where(out[trials.a] | out[trials.b], 0.0, weight))",
        "weights.append(weight)",
        "tests/test_case_assess.py -k calibrated_by_its_speakers",
    ),
    Mutant(
        "the bounds of a case are the wider ones",
        "case/validation.py",
        "upper = min(by_cost.upper, by_tails.upper)",
        "upper = max(by_cost.upper, by_tails.upper)",
        "tests/test_case_assess.py -k its_bounds",
    ),
    Mutant(
        "an adaptation sees the other speaker of a pair",
        "case/models.py",
        "return self.without(turn, (turn + 1) % self.n_groups)",
        "return self.without(turn)",
        "tests/test_case_assess.py -k judged",
    ),
    Mutant(
        "known and questioned sides of a pair share a session",
        "case/reference.py",
        "if not any(np.isin(label[known], label[questioned]).any() for label in labels):",
        "if True:",
        "tests/test_case_assess.py -k built_like",
    ),
    # -- service
    Mutant(
        "a token that may only read changes voices",
        "service/gate.py",
        'needed == "write" and token.scope != "write"',
        "False",
        "tests/test_service.py -k tokens_and_their_scopes",
    ),
    Mutant(
        "a page of another site may ask",
        "service/gate.py",
        "if needed and _from_another_site(headers, host):",
        "if False:",
        "tests/test_service.py -k pages_of_other_sites",
    ),
    # -- cli
    Mutant(
        "missing ids are an ordinary failure",
        "cli/_terminal.py",
        "MISSING_IDS = 3",
        "MISSING_IDS = 1",
        "tests/test_cli.py -k missing_ids_of_trials",
    ),
    Mutant(
        "an option that is not typed is None, whatever its default",
        "cli/_commands.py",
        "            return self.default\n",
        "            return None\n",
        "tests/test_cli_evaluate.py -k missing_scores",
    ),
    Mutant(
        "two options read one pipe",
        "cli/_commands.py",
        "if str(path) in first:",
        "if False:",
        "tests/test_io_pipes.py -k two_options",
    ),
]


def mutated(mutant: Mutant) -> str:
    """The text of the mutant's file, with the change."""
    text = (PACKAGE / mutant.file).read_text(encoding="utf-8")
    if text.count(mutant.before) != 1:
        raise ValueError(f"{mutant.name}: {mutant.before!r} occurs {text.count(mutant.before)} times in {mutant.file}")
    return text.replace(mutant.before, mutant.after)


def is_noticed(mutant: Mutant) -> bool:
    """Run the mutant's tests on a copy of the package with the change."""
    text = mutated(mutant)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "duoplda"
        shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
        (copy / mutant.file).write_text(text, encoding="utf-8")
        # The copy comes before the installed package, in the tests and in the commands that they start.
        environment = os.environ | {"PYTHONPATH": folder, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *mutant.tests.split()]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    if done.returncode not in (0, 1):  # 1: tests failed, as they should; others: pytest could not run them
        said = done.stdout[-2000:] + done.stderr[-2000:]
        raise RuntimeError(f"{mutant.name}: pytest exits with {done.returncode}\n{said}")
    return done.returncode == 1


def main(words: list[str]) -> int:
    """Run the mutants whose names contain one of the words; the exit status is 1 if one survives."""
    if words == ["--list"]:
        print(*(mutant.name for mutant in MUTANTS), sep="\n")
        return 0
    chosen = [mutant for mutant in MUTANTS if not words or any(word in mutant.name for word in words)]
    survivors = []
    for mutant in chosen:
        noticed = is_noticed(mutant)
        print(f"{'noticed ' if noticed else 'SURVIVES'}  {mutant.name}", flush=True)
        if not noticed:
            survivors.append(mutant.name)
    print(f"{len(chosen)} mutants, {len(survivors)} survive")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
