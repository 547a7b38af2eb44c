"""Read how public EAGLE-3 heads are stored: names, layouts, flags, taps, geometry."""
