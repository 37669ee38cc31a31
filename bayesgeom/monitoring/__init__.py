"""What a monitor is made of: what it measures, what it makes of that, what it keeps, and its report."""
