"""How reports of schema 2 become reports of schema 3, whose numbers are estimates: one file per topic."""
