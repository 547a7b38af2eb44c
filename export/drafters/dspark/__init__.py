"""DSpark: a DFlash head that corrects its drafts one after another, and says how sure it is."""
