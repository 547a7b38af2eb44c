"""Faults made on fresh copies of real inputs, and what our commands make of them."""
