"""The generated page of interventions, and the committed verdicts that it shows."""

from dataclasses import replace
from pathlib import Path

import pytest

from bayesgeom.claims.subspace_page import FOLDER, MEASURED, NO_FIT, NOT_MEASURED, SINGLE, page
from bayesgeom.core.text import interval_text, number_text
from bayesgeom.interventions.onwards_report import OnwardsReport
from bayesgeom.interventions.report import AFTER, BEFORE, SHUFFLED, InterventionReport
from bayesgeom.interventions.verdicts import NOT_USED, UNDECIDED, USED
from bayesgeom.results.diagnosis import Diagnosis
from bayesgeom.results.storage import JSON
from bayesgeom.subspaces.fits import fit_from_text
from bayesgeom.subspaces.readout import FLOOR
from bayesgeom.tasks.base import task_from_config
from tests.pages import reading_script
from tests.structure.source import ROOT

pytestmark = pytest.mark.exhaustive  # loads all reports: about 6 s


@pytest.fixture(scope="module")
def committed() -> dict[str, InterventionReport | OnwardsReport]:
    """Every committed report below `FOLDER`, by its path."""
    found: dict[str, InterventionReport | OnwardsReport] = {}
    for path in sorted((ROOT / FOLDER).glob(f"*/*/{JSON}")):
        for report in Diagnosis.load(path.parent).values():
            assert isinstance(report, InterventionReport | OnwardsReport)
            found[str(path.parent.relative_to(ROOT / FOLDER))] = report
    assert len(found) > 100
    return found


def test_no_committed_layer_is_used_on_the_strength_of_one_variance_matched_control(
    committed: dict[str, InterventionReport | OnwardsReport],
) -> None:
    single = [
        (name, at, report.verdict_by_layer[at])
        for name, report in committed.items()
        if isinstance(report, InterventionReport)
        for at in report.layers
        if SINGLE in report.reason_by_layer[at]
    ]
    assert single and all(verdict != USED for *_, verdict in single)
    for name, at, _ in single:
        report = committed[name]
        assert isinstance(report, InterventionReport) and "(1, the whole complement, in layer" in report.where, (
            name,
            at,
        )


def test_no_committed_quantity_below_the_floor_is_called_not_used(
    committed: dict[str, InterventionReport | OnwardsReport],
) -> None:
    n_found = 0
    for name, report in committed.items():
        for at in report.layers:
            if report.verdict_by_layer[at] != NOT_USED:
                continue
            n_found += 1
            level = 0.0
            if isinstance(report, InterventionReport):
                level = max(float(report.r2.baseline(SHUFFLED).value[AFTER, at]), 0.0)
            assert float(report.r2.value[BEFORE, at]) >= level + FLOOR, (name, at)
    assert n_found


def test_the_page_says_what_the_reports_hold(committed: dict[str, InterventionReport | OnwardsReport]) -> None:
    text = (ROOT / FOLDER / "README.md").read_text(encoding="utf-8")
    assert page(ROOT / FOLDER) == text, f"run `bayesgeom reproduce --write-docs`; {MEASURED} may list a missing report"
    assert text.count("| R² shuffled |") == sum(isinstance(own, InterventionReport) for own in committed.values())
    assert text.count("| R² excess |") == sum(isinstance(own, OnwardsReport) for own in committed.values())
    assert "1 variance-matched control (the whole complement) in layers 1, 2" in text
    models = [report.provenance["model"] for report in committed.values()]
    sizes = {model["d_state"] for model in models if model["architecture"] == "mamba"}
    for where in (text, (ROOT / "docs/interventions.md").read_text(encoding="utf-8")):
        assert f" {min(sizes):,} to {max(sizes):,} numbers in " in where, "the sizes of Mamba states"


def test_the_page_says_which_uses_survive(
    committed: dict[str, InterventionReport | OnwardsReport], tmp_path: Path
) -> None:
    """Used in layers 1 and 2, and the same swap with everything held fixed, with position alone, or with nothing."""
    own = committed["recall-transformer/leace-entropy"]
    assert isinstance(own, InterventionReport)
    used = replace(own, verdict_by_layer=(UNDECIDED, USED, USED))
    reports = {
        "entropy": used,
        "entropy-given": replace(
            used, subspace="LEACE (entropy, given position and answer)", verdict_by_layer=(UNDECIDED, UNDECIDED, USED)
        ),
        "belief": replace(used, subspace="LEACE (belief)", quantity="belief"),
        "belief-given": replace(used, subspace="LEACE (belief, given position)", quantity="belief"),
        "elsewhere": replace(
            used,
            subspace="LEACE (belief, given position and answer)",
            where=f"carried, {used.where.partition(', ')[2]}",
        ),
        "covariance": replace(used, subspace="covariance (belief)", quantity="belief"),
        "trained": replace(used, subspace="trained swap (belief, rank 3)", quantity="belief"),
        "idle": replace(used, subspace="covariance (entropy)", verdict_by_layer=(UNDECIDED,) * 3),
    }
    for name, report in reports.items():
        Diagnosis.of(report).save(tmp_path / "recall-transformer" / name)
    uses = page(tmp_path).partition("## Uses")[2].partition("\n## ")[0]
    at = "resid_pre | scored positions | layers 1, 2 |"
    left = number_text(used.r2.value[AFTER, 1])
    assert f"| LEACE (entropy) | {at} undecided in layer 1 (R² left {left}); yes in layer 2 |" in uses
    assert f"| LEACE (belief) | {at} given position alone: yes in layers 1, 2 |" in uses
    assert f"| covariance (belief) | {at} {NOT_MEASURED} |" in uses
    assert f"| trained swap (belief, rank 3) | {at} {NO_FIT} |" in uses
    assert uses.count("| `recall-transformer` | LEACE") + uses.count("| `recall-transformer` | cov") == 3
    assert uses.count("| `recall-transformer` | trained swap") == 1


def test_the_page_lists_the_fits_that_were_not_measured(
    committed: dict[str, InterventionReport | OnwardsReport], tmp_path: Path
) -> None:
    for model, name in (("bijection-transformer", "entropy"), ("recall-transformer", "belief"), ("hmm-lstm", "belief")):
        Diagnosis.of(committed[f"{model}/leace-{name}"]).save(tmp_path / model / name)
    fits = page(tmp_path).partition("## Fits")[2].partition("\n## ")[0]
    assert f"| `bijection-transformer` |{' not identified |' * 3}{' not measured |' * 3}" in fits and "lstm" not in fits
    assert "- covariance of entropy: `recall-transformer`\n" in fits
    assert "- covariance of belief: `bijection-transformer`, `recall-transformer`\n" in fits


def test_every_effect_on_the_page_has_its_interval(committed: dict[str, InterventionReport | OnwardsReport]) -> None:
    lines = (ROOT / FOLDER / "README.md").read_text(encoding="utf-8").splitlines()
    names = [line.split(" | ")[1] if line.startswith("| ") else "" for line in lines]
    effects = [at for at, name in enumerate(names) if name in ("movement", "indirect", "KL increase (bits)")]
    assert len(effects) > 400 and all(names[at + 1] == "95 % interval" for at in effects)
    report = committed["hmm-s5/leace-belief"]
    assert isinstance(report, InterventionReport)
    low, high = (end[:, 0] for end in report.movement.ends)
    assert " ".join(f"[{interval_text(*ends)}]" for ends in zip(low, high, strict=True)) in "\n".join(lines)


def test_every_use_says_whether_it_survives(committed: dict[str, InterventionReport | OnwardsReport]) -> None:
    """Entropy by LEACE with everything held fixed; on `mess3-small` nothing is left then. Others with a part."""
    uses = (ROOT / FOLDER / "README.md").read_text(encoding="utf-8").partition("## Uses")[2].partition("\n## ")[0]
    assert uses.count(" given position alone: ") > 15 and NOT_MEASURED not in uses
    for name, report in committed.items():
        if name.endswith("/leace-entropy") and USED in report.verdict_by_layer and not name.startswith("mess3"):
            assert f"{name}-given-position+answer" in committed, name


def test_shares_of_the_belief_are_those_of_sequences_of_the_task(
    committed: dict[str, InterventionReport | OnwardsReport],
) -> None:
    """What position explains is the variance of the means at each position."""
    uses = (ROOT / FOLDER / "README.md").read_text(encoding="utf-8").partition("## Uses")[2].partition("\n## ")[0]
    trials = task_from_config(committed["mess3-small/leace-belief"].provenance["task"]).sample(256, seed=0)
    belief = trials.at_scored(trials.belief)
    explained = belief.mean(dim=0).var(dim=0, correction=0).sum() / belief.flatten(0, 1).var(dim=0, correction=0).sum()
    assert f"| `mess3-small` | 0.3 % | {100 * float(explained):.2g} % |" in uses


def test_every_committed_report_has_the_command_that_makes_it_again(
    committed: dict[str, InterventionReport | OnwardsReport],
) -> None:
    measuring = reading_script("measure_interventions")
    for name, report in committed.items():
        asked = measuring.command(name)
        subspace = fit_from_text(asked[asked.index("--subspace") + 1])
        assert isinstance(report, OnwardsReport) or subspace.label == report.subspace, name
    new = measuring.command("mess3-small/trained_swap-3-entropy")
    assert "--subspace trained_swap:3,entropy --kind swap --site resid_pre" in " ".join(new)
    assert measuring.form_of_name("x/leace-entropy-given-position+answer") == "leace:entropy,given=position+answer"
    with pytest.raises(SystemExit, match="No report mess3-small/frames below"):
        measuring.command("mess3-small/frames")
