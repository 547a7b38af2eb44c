"""Faults around a command: files that vanish, full disks, little memory, signals."""
