"""DFlash: what drafts answers a whole block of masks in one forward."""
