"""DFlash2: a DFlash head with convolutions along its block, which chooses a path of candidates."""
