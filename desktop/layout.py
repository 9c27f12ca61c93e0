"""Names of an installation's folders and files, which agent and window both know: they never import each other."""

LINK, VERSIONS, PREVIOUS = "cottage", "cottage-versions", "previous"
NOTE = "installed"  # Beside the program: "VERSION WHEN".
