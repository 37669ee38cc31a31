"""What architectures learn to infer: trained from scratch on worlds whose posterior is known, with equal budgets."""
