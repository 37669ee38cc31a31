"""Charts: forms that know axes and units and draw stored numbers; they know no probe."""
