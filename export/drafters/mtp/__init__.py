"""The MTP layer of a target's own checkpoint, which predicts one token more."""
