"""The provider's program as one thing to double-click: a folder with two executables, and a Debian package of it."""
