"""How far what was learned carries: to other lengths, to other names of the same hypotheses, to other noise."""
