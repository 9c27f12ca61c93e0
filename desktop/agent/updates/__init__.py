"""New versions of this program: a signed manifest, a quiet download, and a restart that its owner asks for.

::

    manifest   what a release says of itself, and who may be believed
    release    which build this is, and how it was installed
    fetch      over HTTPS from one host, resumed where it was cut
    folder     versions side by side, and the link that names the one in use
    keeper     looks now and then, and has the new one ready
    setup      on Windows, an installer in the place of that folder
    restart    hands over: the new version must answer first, or the old one goes on
"""
