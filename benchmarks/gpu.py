"""`python -m benchmarks.gpu`: statistics, EM and scores on CUDA tensors, against bare torch products."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks.common import Row, table
from duoplda import PLDA, Statistics, em
from duoplda.model import checked


def best(function: Callable[[], Any], repeat: int = 5) -> float:
    function()
    times = []
    for _ in range(repeat):
        torch.cuda.synchronize()
        start = time.perf_counter()
        function()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times)


def main(device: str = "cuda") -> None:
    print(torch.__version__, torch.cuda.get_device_name())
    rows = []
    d, speakers, sessions, recordings = 512, 6000, 40, 4
    N = speakers * sessions * recordings
    speaker = np.repeat(np.arange(speakers), sessions * recordings)
    session = np.repeat(np.arange(speakers * sessions), recordings)
    X = torch.randn(N, d, dtype=torch.float64, device=device)
    F = X[: N // recordings]
    ours = best(lambda: Statistics.from_arrays(X, speaker, session), 3)
    floor = best(lambda: (X.T @ X, F.T @ F))
    rows.append(Row("one pass / X'X and F'F", f"{N} x {d}, double", ours, floor, 2.0))
    stats = Statistics.from_arrays(X, speaker, session)

    start = em.moment_start(stats, 150, 100)
    twenty = best(lambda: em.fit(stats, start, max_iter=20, tol=0), 2)
    rows.append(Row("20 EM iterations / one second", f"{speakers} speakers, 150/100", twenty, 1.0, 1.0))

    rng = np.random.default_rng(0)
    V, U = rng.standard_normal((d, 150)) / 12, rng.standard_normal((d, 100)) / 10
    parameters = rng.standard_normal(d), V, U, np.eye(d)
    model = checked(*parameters)
    plda = PLDA.from_parameters(*(torch.asarray(p, device=device) for p in (model.mu[0], V, U, model.W[0])))
    a, b = plda.enroll(X[:20_000], np.arange(20_000)), plda.enroll(X[:100_000], np.arange(100_000))
    left = torch.randn(20_000, 152, dtype=torch.float64, device=device)
    right = torch.randn(100_000, 152, dtype=torch.float64, device=device)
    ours = best(lambda: plda.llr(a, b))
    floor = best(lambda: left @ right.T)
    rows.append(Row("score matrix / product", "20k x 100k, ny=150", ours, floor, 1.3))
    print(table(rows))

    few = slice(0, 40_000)
    host, there = X[few].cpu().numpy(), X[few]
    cpu = PLDA(60, 40, max_iter=5, tol=0).fit(host, speaker[few], session=session[few])
    gpu = PLDA(60, 40, max_iter=5, tol=0).fit(there, speaker[few], session=session[few])
    worst = np.abs(gpu.noise_precision_.cpu().numpy() - cpu.noise_precision_).max() / np.abs(cpu.noise_precision_).max()
    print(f"CPU and GPU after 5 iterations: noise precisions differ by {worst:.1e} of the largest")


if __name__ == "__main__":
    import warnings

    warnings.simplefilter("ignore")
    main()
