"""What of Qt and the system goes into the bundle on each platform. ``cottage.spec`` runs with it where PyInstaller does. Pure."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

# Never needed by either executable, however their dependencies reach it.
NEITHER = (
    "tkinter",
    "unittest",
    "pydoc_data",
    "lib2to3",
    "setuptools",
    "pkg_resources",
    "pip",
    "wheel",
    "pytest",
    "numpy",
    "scipy",
    "torch",
    "transformers",
    "PIL",
    "xmlrpc",
    "test",
    "IPython",
    "PySide6.QtQml",
    "PySide6.QtQuick",
    "PySide6.QtOpenGL",
    "PySide6.QtOpenGLWidgets",
)
NOT_IN_WINDOW = ("ssl", "_ssl", "asyncio", "aiohttp", "sqlite3")
# An agent in a cluster is no program of a desktop, and its library has 26 MB.
NOT_IN_AGENT = ("PySide6", "shiboken6", "desktop.agent.cluster", "kubernetes_asyncio")
_UNUSED = (
    r"Quick|Qml|QmlModels|QmlMeta|QmlWorkerScript|VirtualKeyboard|VirtualKeyboardQml|Pdf|WaylandEglClientHwIntegration"
)
_OTHER_LANGUAGES = r"translations/(?!qtbase_(de|en)\.)"


@dataclass(frozen=True)
class PlatformParts:
    """One platform's.

    Attributes:
        plugins: Qt's plug-ins that a program of widgets needs; all others are left out.
        drop: files that nothing here uses.
        strip: symbols are taken out of binaries; on macOS that would break their signatures, and Windows has no ``strip``.
        console: the window's executable belongs to a console; on Windows that would open one.
        app: an application folder is made beside, as macOS wants it.
    """

    plugins: tuple[str, ...]
    drop: re.Pattern[str]
    strip: bool
    console: bool
    app: bool = False


PARTS = {
    "linux": PlatformParts(
        (
            "platforms/libqxcb",
            "platforms/libqoffscreen",
            "platforms/libqwayland",
            "xcbglintegrations/libqxcb-glx",
            "imageformats/libqsvg",
            "iconengines/libqsvg",
            "platformthemes/libqxdgdesktopportal",
            "wayland-shell-integration/libxdg-shell",
            "wayland-decoration-client/libbradient",
        ),
        re.compile(
            rf"libQt6({_UNUSED}|EglFs\w*)\.so"
            # GTK, with all that it pulls in, comes with a theme plug-in that is left out.
            r"|^lib(gtk-3|gdk-3|atk|cairo|pango|gdk_pixbuf|epoxy|harfbuzz|thai|datrie|fribidi|pixman|tiff|jbig|deflate|webp|jpeg"
            r"|Lerc|zstd|xml2|mount|blkid|selinux|gmodule|gio|gobject|glib|fontconfig|freetype|X(i|composite|damage|cursor|inerama"
            r"|randr|fixes|ext|render)\.)"
            # The system's own: bundled ones of a newer system do not load on an older one.
            rf"|^lib(stdc\+\+|gcc_s|expat)\.so|{_OTHER_LANGUAGES}"
        ),
        strip=True,
        console=True,
    ),
    "win32": PlatformParts(
        (
            "platforms/qwindows",
            "platforms/qoffscreen",
            "styles/qmodernwindowsstyle",
            "imageformats/qsvg",
            "imageformats/qico",
            "iconengines/qsvgicon",
        ),
        re.compile(rf"Qt6({_UNUSED}|OpenGL)\.dll|opengl32sw\.dll|{_OTHER_LANGUAGES}"),
        strip=False,
        console=False,
    ),
    "darwin": PlatformParts(
        (
            "platforms/libqcocoa",
            "platforms/libqoffscreen",
            "styles/libqmacstyle",
            "imageformats/libqsvg",
            "imageformats/libqicns",
            "iconengines/libqsvgicon",
        ),
        re.compile(rf"Qt({_UNUSED}|OpenGL)(\.framework|$)|{_OTHER_LANGUAGES}"),
        strip=False,
        console=False,
        app=True,
    ),
}


def kept(names: Iterable[str], parts: PlatformParts) -> set[str]:
    """Of files, named by their places in the bundle, those that go into it."""
    found = set()
    for name in names:
        place = name.replace("\\", "/")
        unused = "/plugins/" in place and not any(plugin in place for plugin in parts.plugins)
        if not unused and not parts.drop.search(place):
            found.add(name)
    return found
