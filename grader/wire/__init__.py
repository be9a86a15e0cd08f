"""Defines what judge, supervisor and ranks share: frames, events and limits of the machine.

This package imports nothing else of the grader.
"""
