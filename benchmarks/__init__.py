"""Measurements of the operators beside other libraries and the machine's limits."""
