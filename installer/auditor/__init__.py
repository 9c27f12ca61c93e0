"""How an auditor of the operator gets onto a machine of its own.

cottage-auditor.service   for /etc/systemd/system; options in /etc/cottage/auditor.env
"""
