"""Fleets beyond memory: files in, a folder of files out, resumable."""
