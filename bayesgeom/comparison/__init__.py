"""Who can accumulate, transport and bind: architectures trained and scored alike, beside what was published."""
