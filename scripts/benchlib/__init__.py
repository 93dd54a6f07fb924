"""Measures programs on kernel TCP and under NetACC, in turn, on one machine."""
