"""Finished models that answer programs and people.

engines      a process for each model that is asked, kept a while
completions  whose models there are, and who may ask how much
"""
