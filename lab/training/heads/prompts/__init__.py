"""Prompts of many kinds, made of templates and word lists."""
