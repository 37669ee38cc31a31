"""What measurements return: reports, diagnoses, tables and pages."""
