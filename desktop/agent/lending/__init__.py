"""When this computer lends: what is known of it, what its owner wants, and what follows.

``rules``, ``facts``, ``policy`` and ``words`` are pure: no clock, no sensors. ``keeper`` applies them.
"""
