"""How often 95 % intervals hold the truth: `python -m benchmarks.intervals [CASES]` for the metrics of `measure`.

Each case has ten or thirty new speakers with three recordings, all trials between them, and 200 resamples. Ratios are
exact, so that the truth is known from many speakers: minCllr is the Cllr of these ratios, and the calibration loss is
what a wrong scale and offset add to it. Beside the intervals of `bootstrap` stand those by quantiles of the resampled
values alone.
"""

from __future__ import annotations

import sys

import numpy as np

from duoplda import PLDA, metrics

D = 6
NAMES = ("eer", "cllr", "min_cllr", "calibration_loss")


def draw(rng: np.random.Generator, n_speakers: int, noise: float) -> tuple[np.ndarray, ...]:
    """Exact ratios of all trials of new speakers, whether they are target trials, and the speakers of both sides."""
    plda = PLDA.from_parameters(np.zeros(D), np.eye(D), None, np.eye(D) / noise)
    speaker = np.repeat(np.arange(n_speakers), 3)
    X = rng.normal(size=(n_speakers, D))[speaker] + np.sqrt(noise) * rng.normal(size=(len(speaker), D))
    sides = plda.enroll(X, np.arange(len(X)))
    one, two = np.triu_indices(len(X), 1)
    return plda.llr(sides, sides)[one, two], speaker[one] == speaker[two], speaker[one], speaker[two]


def main() -> None:
    cases = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    kept = [metrics.metric_names().index(name) for name in NAMES]
    rng = np.random.default_rng(0)
    print(f"{'share of intervals that hold the truth':58}", *(f"{name:>17}" for name in NAMES))
    for noise in (0.3, 0.8):
        llr, label, *_ = draw(rng, 600, noise)
        least = metrics.cllr(llr, label)
        for scale, offset in ((1.0, 0.0), (1.5, 1.0)):
            bits = metrics.cllr(scale * llr + offset, label)
            truth = np.array([metrics.eer(llr, label), bits, least, bits - least])
            for n_speakers in (10, 30):
                held = np.zeros((2, len(NAMES)))
                for _ in range(cases):
                    scores, *trials = draw(rng, n_speakers, noise)
                    result = metrics.bootstrap(metrics.measure, scale * scores + offset, *trials, n_resamples=200)
                    ranked = np.sort(result.values, axis=0)
                    for row, ends in zip(held, ((ranked[5], ranked[-6]), (result.low, result.high)), strict=True):
                        low, high = (end[kept] for end in ends)
                        row += (low <= truth) & (truth <= high)
                what = f"noise {noise:g}, scale {scale:g}, offset {offset:g}, {n_speakers} speakers"
                for way, row in zip(("quantiles", "bootstrap"), held / cases, strict=True):
                    print(f"{what:47}  {way}", *(f"{share:17.2f}" for share in row), flush=True)


if __name__ == "__main__":
    main()
