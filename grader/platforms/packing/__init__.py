"""Packs the files for each platform into ``dist/platforms``. No zip contains this code."""
