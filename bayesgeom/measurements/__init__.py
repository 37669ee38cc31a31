"""What measures: each file holds a measurement, from what it needs and asks for to its report."""
