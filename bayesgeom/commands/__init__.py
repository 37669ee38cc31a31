"""The commands, one file each: their arguments, and what they do. Parsing them is `cli`'s."""
