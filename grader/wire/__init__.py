"""Defines what judge, supervisor and ranks share: frames, events and limits of the machine.

This package imports no other part of the grader.
"""
