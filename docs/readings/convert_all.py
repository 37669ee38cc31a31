"""Bring committed checkpoints and reports to the present form: every converter and every correction, in order.

Run from the root of the repository:

    python docs/readings/convert_all.py

Each step converts what is still in the form before it and leaves everything else as it is, so that a report of schema 2
passes all of them, a present report none, and running the script again changes nothing. The first step that fails ends
the script. What each step does, and how it checks that no number is lost, is stated at the top of its file.
`tests/results/test_conversion.py` runs saved reports of schema 2 through the first step.
"""

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
STEPS = (  # in the order in which the forms changed, unless a line says otherwise
    ("convert.py", HERE),  # schema 2, with a field per interval end and baseline, to estimates
    ("add_sequence_scores.py",),  # single sequences of calibration: steps below know present fields alone
    ("rename_conditions.py",),  # models, conditions, laws: steps below know present names alone
    ("fold_companions.py",),  # ceilings and rates as baselines: likewise
    ("convert_names.py",),  # keys of checkpoints and reports
    ("withhold_whole_numbers.py",),  # intervals of whole-number statistics
    ("convert_fields.py", HERE),  # fields merged along axes
    ("extend_to_estimate.py",),  # intervals that excluded their estimate
    ("add_deciding_window.py",),  # the wider window observer among the baselines of calibration
    ("restate_verdicts.py",),  # interventions that are hardly decodable, or have one variance-matched control
    ("add_length_windows.py",),  # window observers among the baselines of `length-hmm`
    ("convert_relations.py",),  # names of two relations of the bijection; counts with their noun
    ("withhold_biased.py",),  # intervals that ended at their estimate
    ("withhold_kinks.py",),  # intervals of key overlaps where noise decides the size of many cosines
    ("withhold_outside.py",),  # intervals that reached a bound of their range
    ("withhold_silhouettes.py",),  # intervals of silhouettes with the distances fixed
    ("withhold_overlaps.py",),  # intervals of overlaps of fitted subspaces
    ("restate_falls.py",),  # falls of training curves, whose steps other trainings choose
    ("drop_greatest.py",),  # the largest entry of a field of its report
    ("add_speed_ratios.py",),  # paired speeds of `em-experiment`
    ("name_row_sources.py",),  # readings of the rows that a comparison copies
    ("add_read_out_window.py",),  # the belief of the last ten symbols among the baselines of belief read-outs
    ("restate_reasons.py",),  # words of the reasons of verdicts on interventions
    ("count_scored_positions.py",),  # scored positions instead of tokens in the figure of value manifolds
)


def main() -> int:
    """Run the steps; return the exit status of the first that fails, else 0."""
    for name, *arguments in STEPS:
        print(f"{name} …", flush=True)
        done = subprocess.run([sys.executable, HERE / name, *arguments], cwd=HERE.parents[1], check=False)
        if done.returncode:
            print(f"{name} failed with exit status {done.returncode}; later steps did not run.", file=sys.stderr)
            return done.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
