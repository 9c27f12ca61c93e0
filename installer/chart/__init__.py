"""A Helm chart of a network's servers; docs/how-to/kubernetes.md says how, and has every value.

Chart.yaml           its name and version
values.yaml          each value and its default
values.schema.json   what each value may be, and what it means: Helm refuses others, and ``table`` makes the page's table of it
templates/           the objects; _checks.tpl refuses values that do not go together
files/alerts.yaml    ../coordinator/alerts.yaml once more: a chart cannot read beyond its folder
"""
