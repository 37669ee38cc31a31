"""Own code against the library that could replace it: CPU seconds of both in one process, and how far results differ.

A ratio below 1 means that our code is faster. docs/architecture.md has the table and
the decisions.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

COUNTS = range(2, 9)


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    """CPU seconds of the second call, and what it returned; the first call warms up."""
    work()
    start = time.process_time()
    found = work()
    return time.process_time() - start, found


def row(name: str, own: float, library: float, difference: str) -> None:
    print(f"{name:42} {1e3 * own:9.1f} ms {1e3 * library:9.1f} ms {own / library:8.2f}   {difference}", flush=True)


def clouds(rng: np.random.Generator) -> torch.Tensor:
    """Twelve clouds of 500 points in 10 dimensions: what `belief_clusters` clusters of six layers."""
    centers = 3 * rng.normal(size=(12, 4, 10))
    owner = rng.integers(4, size=(12, 500))
    return torch.from_numpy(np.take_along_axis(centers, owner[..., None], axis=1) + rng.normal(size=(12, 500, 10)))


def k_means_rows(rng: np.random.Generator) -> None:
    from sklearn.cluster import KMeans
    from sklearn.metrics import adjusted_rand_score, silhouette_samples

    from bayesgeom.stats.clusters import adjusted_rand, k_means, meetings, point_silhouettes

    points = clouds(rng)
    plain = points.numpy()

    def of_sklearn() -> np.ndarray:
        fits = [[KMeans(k, n_init=2, max_iter=30, random_state=0).fit(own).labels_ for own in plain] for k in COUNTS]
        return np.array(fits)

    own, labels = seconds(lambda: k_means(points, COUNTS, n_starts=2, generator=torch.Generator().manual_seed(0)))
    library, theirs = seconds(of_sklearn)
    pairs = zip(labels.flatten(0, 1).numpy(), theirs.reshape(-1, 500), strict=True)
    same = np.mean([adjusted_rand_score(a, b) for a, b in pairs])
    row("k-means, 12 clouds, 7 counts, 2 starts", own, library, f"mean adjusted Rand of the two {same:.3f}")

    distances = torch.cdist(points, points)
    own, score = seconds(lambda: [point_silhouettes(distances, at, k) for at, k in zip(labels, COUNTS, strict=True)])
    square = distances.clone()
    square.diagonal(dim1=1, dim2=2).zero_()
    library, reference = seconds(
        lambda: [
            [silhouette_samples(d, at, metric="precomputed") for d, at in zip(square.numpy(), by_count, strict=True)]
            for by_count in labels.numpy()
        ]
    )
    worst = float(np.abs(np.stack([s.numpy() for s in score]) - np.array(reference)).max())
    row("silhouettes of those", own, library, f"largest difference {worst:.0e}")

    truth = rng.integers(5, size=500)
    rows = torch.nn.functional.one_hot(torch.from_numpy(truth)).double()[:, None]
    own, score = seconds(lambda: adjusted_rand(meetings(labels, rows)))
    library, reference = seconds(lambda: [[adjusted_rand_score(truth, at) for at in by] for by in labels.numpy()])
    worst = float(np.abs(score[:, 0].T.numpy() - np.array(reference)).max())
    row("adjusted Rand of those", own, library, f"largest difference {worst:.0e}; theirs takes no weights")


def spline_row(rng: np.random.Generator) -> None:
    from sklearn.preprocessing import SplineTransformer

    from bayesgeom.stats.regression import even_knots, natural_spline

    x = rng.gamma(2.0, size=3_072)
    knots = even_knots(x, 5)
    transformer = SplineTransformer(knots=knots[:, None], degree=3, extrapolation="linear", include_bias=False)
    own, basis = seconds(lambda: natural_spline(x, knots))
    library, theirs = seconds(lambda: transformer.fit_transform(x[:, None]))
    row("splines, 3,072 points, 5 knots", own, library, f"{basis.shape[1]} columns and {theirs.shape[1]}: not natural")


def pca_row(rng: np.random.Generator) -> None:
    from bayesgeom.stats.subspace import leading_coordinates

    wide = torch.from_numpy(rng.normal(size=(1_536, 2_048)) * np.geomspace(1, 0.01, 2_048)).float()

    def of_torch() -> torch.Tensor:
        centered = wide - wide.mean(dim=0)
        return wide @ torch.pca_lowrank(centered, q=192, center=False, niter=1)[2]

    before = torch.get_rng_state()
    own, along = seconds(lambda: leading_coordinates(wide, 192, n_fit=len(wide), seed=0))
    is_touched = [not torch.equal(before, torch.get_rng_state())]
    library, theirs = seconds(of_torch)
    is_touched.append(not torch.equal(before, torch.get_rng_state()))
    kept = [float(values.var(dim=0).sum() / wide.var(dim=0).sum()) for values in (along, theirs)]
    note = f"variance kept {kept[0]:.4f} and {kept[1]:.4f}; global random state moved: {is_touched}"
    row("192 axes of 1,536 × 2,048", own, library, note)


def read_out_rows(rng: np.random.Generator) -> None:
    """The read-out of an erased quantity: the package uses scikit-learn; `own` is the solve that it used before."""
    from sklearn.linear_model import Ridge

    from bayesgeom.interventions._evidence import PERMUTATIONS, STRENGTH
    from bayesgeom.stats.regression import ridge

    for n, d, n_components in ((9_728, 192, 1), (9_728, 192, 20), (3_300, 768, 5)):
        n_targets = n_components * (1 + PERMUTATIONS)
        x = rng.normal(size=(n, d)) * np.geomspace(1, 1e-3, d)
        x, y = x - x.mean(axis=0), rng.normal(size=(n, n_targets))
        points, values = torch.from_numpy(x), torch.from_numpy(y - y.mean(axis=0))
        strength = STRENGTH * float((x**2).sum()) / d
        own, weights = seconds(lambda p=points, v=values: p @ ridge(p.T @ p, p.T @ v, strength=STRENGTH))
        library, fitted = seconds(lambda x=x, y=y, a=strength: Ridge(alpha=a).fit(x, y).predict(x))
        worst = float(np.abs(weights.numpy() + y.mean(axis=0) - fitted).max())
        row(f"ridge of {n:,} × {d}, {n_targets} targets", own, library, f"largest difference {worst:.0e}")


def probe_read_out_rows(rng: np.random.Generator) -> None:
    """All linear maps of one layer in `belief_readout`, and their held-out R².

    Targets of the true beliefs and of five shuffles are read from the whole layer, true ones also from 20 random
    subspaces. `Ridge` reads all targets of the whole layer in one fit; each subspace is a fit of its own.
    """
    from bayesgeom.measurements._beliefs import N_SUBSPACES, SHUFFLES
    from bayesgeom.stats.subspace import random_subspaces

    for d, n_hypotheses in ((192, 20), (64, 5)):
        n, n_true = 3_072, 2 * n_hypotheses  # each belief, and whether the hypothesis is possible
        x = torch.from_numpy(rng.normal(size=(n, d)) * np.geomspace(1, 1e-2, d))
        true = rng.normal(size=(n, n_true)) + x.numpy() @ rng.normal(size=(d, n_true))
        y = torch.from_numpy(np.concatenate([true, *(rng.permuted(true, axis=0) for _ in range(SHUFFLES))], axis=1))
        x, y = ((own - own[: n // 2].mean(dim=0)).float() for own in (x, y))
        bases = random_subspaces(d, n_hypotheses, draws=N_SUBSPACES, seed=0)
        plain = (x.numpy(), y.numpy(), bases.float().numpy())
        own, ours = seconds(lambda given=(x, y, bases, n_true): r2_from_moments(*given))
        library, theirs = seconds(lambda given=(*plain, n_true): r2_of_ridge(*given))
        worst = float(np.abs(ours - theirs).max())
        fits = f"{1 + N_SUBSPACES} fits of {n // 2:,} × {d}, {n_hypotheses} hypotheses"
        row(fits, own, library, f"largest difference of R² {worst:.0e}")


def r2_from_moments(x: torch.Tensor, y: torch.Tensor, bases: torch.Tensor, n_true: int) -> np.ndarray:
    """R² of every target on the second half, then of the true ones from each subspace, as the probe computes them."""
    from bayesgeom.stats.regression import ridge, split_moments, squared_error
    from bayesgeom.stats.subspace import restricted

    moments = split_moments(x, y, len(x) // 2)
    within = ridge(restricted(moments.fit_gram, bases), bases.mT @ moments.fit_cross[:, :n_true])
    maps = torch.cat([ridge(moments.fit_gram, moments.fit_cross), *(bases @ within)], dim=1)
    targets = torch.tensor([*range(y.shape[1]), *[*range(n_true)] * len(bases)])
    power, cross = moments.score_power[targets], moments.score_cross[:, targets]
    return (1 - squared_error(maps, moments.score_gram, cross, power) / power).numpy()


def r2_of_ridge(x: np.ndarray, y: np.ndarray, bases: np.ndarray, n_true: int) -> np.ndarray:
    """The same by `Ridge`, with the same penalties."""
    from sklearn.linear_model import Ridge

    from bayesgeom.stats.regression import RIDGE

    n, found = len(x) // 2, []
    for features, targets in ((x, y), *((x @ basis, y[:, :n_true]) for basis in bases)):
        strength = RIDGE * float((features[:n] ** 2).sum()) / features.shape[1]
        error = targets[n:] - Ridge(alpha=strength).fit(features[:n], targets[:n]).predict(features[n:])
        found.append(1 - (error**2).sum(axis=0) / (targets[n:] ** 2).sum(axis=0))
    return np.concatenate(found)


def bootstrap_row(rng: np.random.Generator) -> None:
    from scipy.stats import bootstrap

    from bayesgeom.stats.bootstrap import mean_interval

    values = rng.lognormal(sigma=1.5, size=(128, 64))
    truth = np.exp(1.5**2 / 2)
    own, found = seconds(lambda: mean_interval(values.T, seed=0))
    settings = {"n_resamples": 1_000, "method": "BCa", "axis": 1}
    library, theirs = seconds(lambda: bootstrap((values,), np.mean, rng=np.random.default_rng(0), **settings))
    low, high = found
    shown = np.isfinite(low)
    ours = np.mean((low <= truth) & (truth <= high), where=shown) if shown.any() else np.nan
    ends = theirs.confidence_interval
    note = (
        f"cover {ours:.2f} of {shown.sum()} shown, and {np.mean((ends.low <= truth) & (truth <= ends.high)):.2f} of 128"
    )
    row("128 means of 64 lognormal values", own, library, note)


def text_rows() -> None:
    from io import StringIO

    from rich.console import Console
    from rich.table import Table

    from bayesgeom.core.text import aligned_table

    cells = [[f"quantity {i}", f"{i / 7:.4f}", f"{i / 9:.4f} … {i / 5:.4f}", "untrained networks"] for i in range(24)]

    def of_rich() -> str:
        table = Table(box=None, show_header=False)
        for _ in cells[0]:
            table.add_column()
        for line in cells:
            table.add_row(*line)
        console = Console(file=StringIO(), width=100)
        console.print(table)
        return console.file.getvalue()

    own, ours = seconds(lambda: "\n".join(aligned_table(cells)))
    library, theirs = seconds(of_rich)
    is_same = [line.split() for line in ours.splitlines()] == [line.split() for line in theirs.splitlines()]
    row("a table of 24 rows", own, library, f"same words: {is_same}")


def config_row() -> None:
    from pydantic import TypeAdapter

    from bayesgeom.models.config import config_from_dict
    from bayesgeom.models.native.transformer import TransformerConfig

    config = TransformerConfig(d_vocab=40, n_ctx=39, n_layers=6, n_heads=6, d_model=192, d_mlp=768)
    written = config.to_dict()
    sizes = {name: value for name, value in written.items() if name != "architecture"}
    adapter = TypeAdapter(TransformerConfig)
    own, ours = seconds(lambda: config_from_dict(written))
    library, theirs = seconds(lambda: adapter.validate_json(json.dumps(sizes), strict=True))
    assert ours == theirs == config
    wrong = {"an unknown size": {"n_layer": 6}, "n_layers=True": {"n_layers": True}, 'd_mlp="768"': {"d_mlp": "768"}}
    readers = {
        "own": lambda change: config_from_dict(written | change),
        "pydantic": lambda change: adapter.validate_json(json.dumps(sizes | change), strict=True),
    }
    refused = {
        name: [what for what, change in wrong.items() if refuses(read, change)] for name, read in readers.items()
    }
    row(
        "reading a model's config",
        own,
        library,
        "; ".join(f"{name} refuses {', '.join(found) or 'nothing'}" for name, found in refused.items()),
    )


def refuses(read: Callable[[dict[str, Any]], object], change: dict[str, Any]) -> bool:
    from pydantic import ValidationError

    from bayesgeom.core.errors import BayesGeomError

    try:
        read(change)
    except (BayesGeomError, ValidationError):
        return True
    return False


def imports(*modules: str) -> None:
    """CPU time that importing each module adds to a bare interpreter, least of three."""
    for module in modules:
        program = f"import time; t = time.process_time(); import {module}; print(time.process_time() - t)"
        runs = [
            subprocess.run((sys.executable, "-c", program), capture_output=True, text=True, check=True)
            for _ in range(3)
        ]
        print(f"import {module:35} {1e3 * min(float(run.stdout) for run in runs):9.1f} ms")


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    print(f"{'':42} {'own':>12} {'library':>12} {'ratio':>8}   difference")
    k_means_rows(rng)
    spline_row(rng)
    pca_row(rng)
    read_out_rows(rng)
    probe_read_out_rows(rng)
    bootstrap_row(rng)
    text_rows()
    config_row()
    libraries = ("tqdm.auto", "rich.progress", "rich.table", "pydantic", "sklearn.cluster", "sklearn.linear_model")
    imports("bayesgeom", *libraries)


if __name__ == "__main__":
    main()
