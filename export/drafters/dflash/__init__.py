"""DFlash: a head that predicts all masks of a block in one forward."""
