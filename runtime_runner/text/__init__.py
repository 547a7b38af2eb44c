"""From token ids, one after the other, to the text that a reader sees."""
