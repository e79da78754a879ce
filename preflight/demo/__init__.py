"""A cluster that is not there: simulated nodes behind real SSH, for newcomers and for trials.

All is real but the machines: logins, agents, checks and the report. A node answers from its
recording, and so do the functions by which nodes talk to each other.
"""
