"""Tasks, one file each: wind tunnels with an exact posterior at every step, and text tasks for language models.

With an exact posterior:

    Bijection          a new permutation in each sequence; the last key has no value
    AssociativeRecall  a new one-to-one map: some pairs are stored, then queried
    HMM                a new hidden Markov model in each sequence
    StickyMarkov       one fixed ring; the belief is over its states
    Mess3, Process     a fixed generator of symbols with hidden states
    Product            two independent processes, whose symbols are paired
    DirichletMarkov    a new Markov chain in each sequence, or one of a finite pool
    ChangePoint        a source whose distribution changes at unknown times
    CausalGraph        rows of variables with a hidden graph; queries of interventions
    LinearRegression   points of a linear function that is new in each sequence
    Dice               rolls of a die, or a coin, of unknown bias in each sequence
    LinearGaussian     a hidden number that drifts, observed with noise, in bins
    ModularRecurrence  numbers that follow a recurrence modulo a number

In words, for language models:

    LabeledEvidence    lines with labels and a last word
    InContext          one of the tasks above, in words
    Prompts            your own texts, or the shipped prompts

Your own:

    labeled_texts      texts with labels, in place of a posterior
    from_functions     a function that draws sequences, and one that returns their exact probabilities

`WindTunnel` and `TextTask` are the base classes of new tasks. `help(bayesgeom.tasks.HMM)` describes one task.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
