"""What everything stands on: sites, trials, runs, edits, errors, files and plug-ins."""
