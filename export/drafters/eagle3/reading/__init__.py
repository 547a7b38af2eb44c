"""How public heads say what they are: names, layouts, flags, taps, vocabulary, RoPE."""
