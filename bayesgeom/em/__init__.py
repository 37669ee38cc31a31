"""The sticky-chain experiment: is an EM-like schedule faster, or is it just the larger step?"""
