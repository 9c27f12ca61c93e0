"""``python -m installer.desktop.listings``: what winget, Homebrew and AppStream want to know of the packages of one version.

::

    ... --url https://example.org/cottage --to build/listings Cottage-Setup-0.1.0.exe Cottage-0.1.0-macos-arm64.dmg

``--url``: the folder on the web that has the packages. Each file that is made says what it was made of; nothing is sent anywhere.
The folder has the shape of winget's community repository, of a Homebrew tap, and of ``/usr/share/metainfo``.
"""

import argparse
import hashlib
import re
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from xml.sax.saxutils import escape

import yaml

from common.errors import UrlError
from common.urls import parse_url

PACKAGE = "Cottage.Cottage"  # Publisher and program, as winget names them.
APP = "network.cottage.desktop"  # As macOS and AppStream do.
NAME, SUMMARY = "Cottage", "Lend your graphics card to a training network"
ABOUT = (
    "Cottage lends a home computer's graphics card to a training network while nobody needs it. Jobs run in containers without "
    "a network of their own, work is checked, and what is found right is paid."
)
LICENCE, SCHEMA = "Apache-2.0", "1.9.0"
_SETUP = re.compile(r"Cottage-Setup-(\d+\.\d+\.\d+)\.exe")
_IMAGE = re.compile(r"Cottage-(\d+\.\d+\.\d+)-macos-(arm64|x86_64)\.dmg")


class ListingError(ValueError):
    """There is nothing to list, or packages of several versions."""


def main() -> int:
    """Write the listings; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True, help="where the packages lie")
    parser.add_argument("--home", default="", help="the program's page; where the packages lie unless it is given")
    parser.add_argument("--to", type=Path, required=True, help="the folder for what is made")
    parser.add_argument("packages", type=Path, nargs="+")
    options = parser.parse_args()
    try:
        url = str(parse_url(options.url, ("https",))).rstrip("/")
        for path, text in listings(options.packages, url, options.home or url, datetime.now(UTC).date()).items():
            made = options.to / path
            made.parent.mkdir(parents=True, exist_ok=True)
            made.write_text(text, encoding="utf-8")
            sys.stdout.write(f"{made}\n")
    except (ListingError, UrlError, OSError) as error:
        sys.stderr.write(f"listings: {error}\n")
        return 1
    return 0


def listings(packages: Sequence[Path], url: str, home: str, today: date) -> dict[str, str]:
    """What is made, by its path.

    Raises:
        ListingError: a package has a name that says nothing, or they are of several versions.
    """
    setups = {found[1]: package for package in packages if (found := _SETUP.fullmatch(package.name))}
    images = {(found[1], found[2]): package for package in packages if (found := _IMAGE.fullmatch(package.name))}
    versions = sorted({*setups, *(version for version, _ in images)})
    if len(versions) != 1 or len(setups) + len(images) != len(packages):
        names = ", ".join(sorted(package.name for package in packages))
        raise ListingError(
            f"{names}: give packages of one version, named Cottage-Setup-VERSION.exe or Cottage-VERSION-macos-SYSTEM.dmg"
        )
    version = versions[0]
    made = {f"metainfo/{APP}.metainfo.xml": metainfo(version, home, today)}
    if setups:
        made |= winget(version, setups[version], url, home, today)
    if images:
        made["homebrew/Casks/cottage.rb"] = cask(version, {cpu: image for (_, cpu), image in images.items()}, url, home)
    return made


def winget(version: str, setup: Path, url: str, home: str, today: date) -> dict[str, str]:
    """The three documents of a package in winget's community repository."""
    folder = f"winget/manifests/c/{PACKAGE.replace('.', '/')}/{version}"
    common: dict[str, object] = {"PackageIdentifier": PACKAGE, "PackageVersion": version}
    described: dict[str, object] = {
        "PackageLocale": "en-US",
        "Publisher": NAME,
        "PublisherUrl": home,
        "PackageName": NAME,
        "PackageUrl": home,
        "License": LICENCE,
        "ShortDescription": f"{SUMMARY}.",
        "Description": ABOUT,
        "Moniker": "cottage",
        "Tags": ["gpu", "training", "federated-learning"],
    }
    installer: dict[str, object] = {
        "InstallerType": "nullsoft",
        "Scope": "user",
        "InstallModes": ["interactive", "silent"],
        "UpgradeBehavior": "install",
        "Protocols": ["cottage"],
        "ReleaseDate": today.isoformat(),
        "AppsAndFeaturesEntries": [{"DisplayName": NAME, "ProductCode": NAME}],
        "Installers": [
            {"Architecture": "x64", "InstallerUrl": f"{url}/{setup.name}", "InstallerSha256": _sha256(setup).upper()}
        ],
    }
    return {
        f"{folder}/{PACKAGE}.yaml": _manifest("version", common | {"DefaultLocale": "en-US"}),
        f"{folder}/{PACKAGE}.locale.en-US.yaml": _manifest("defaultLocale", common | described),
        f"{folder}/{PACKAGE}.installer.yaml": _manifest("installer", common | installer),
    }


def _manifest(kind: str, content: Mapping[str, object]) -> str:
    whole = {**content, "ManifestType": kind, "ManifestVersion": SCHEMA}
    schema = f"# yaml-language-server: $schema=https://aka.ms/winget-manifest.{kind}.{SCHEMA}.schema.json\n\n"
    return schema + yaml.safe_dump(whole, sort_keys=False, allow_unicode=True, width=1000)


def cask(version: str, images: Mapping[str, Path], url: str, home: str) -> str:
    """A cask of Homebrew for the disk images that there are."""
    names = {"arm64": "arm", "x86_64": "intel"}
    lines = ['cask "cottage" do', f'  version "{version}"', ""]
    for cpu, image in sorted(images.items()):
        lines += [
            f"  on_{names[cpu]} do",
            f'    sha256 "{_sha256(image)}"',
            f'    url "{url}/{image.name}"',
            "  end",
            "",
        ]
    if len(images) == 1:
        lines += [f"  depends_on arch: :{next(iter(images))}", ""]
    lines += [
        f'  name "{NAME}"',
        f'  desc "{SUMMARY}"',
        f'  homepage "{home}"',
        "",
        '  depends_on macos: ">= :ventura"',
        "",
        f'  app "{NAME}.app"',
        "",
        f'  uninstall quit: "{APP}"',
        "  zap trash: [",
        '    "~/Library/Application Support/cottage",',
        '    "~/Library/Caches/cottage",',
        "  ]",
        "end",
    ]
    return "\n".join(lines) + "\n"


def metainfo(version: str, home: str, today: date) -> str:
    """AppStream's description of the program, which software centres show."""
    return f"""<?xml version="1.0" encoding="UTF-8"?>
<component type="desktop-application">
  <id>{APP}</id>
  <metadata_license>CC0-1.0</metadata_license>
  <project_license>{LICENCE}</project_license>
  <name>{NAME}</name>
  <summary>{escape(SUMMARY)}</summary>
  <description>
    <p>{escape(ABOUT)}</p>
  </description>
  <launchable type="desktop-id">cottage.desktop</launchable>
  <url type="homepage">{escape(home)}</url>
  <developer_name>{NAME}</developer_name>
  <provides>
    <binary>cottage</binary>
    <binary>cottage-agent</binary>
  </provides>
  <content_rating type="oars-1.1"/>
  <releases>
    <release version="{version}" date="{today.isoformat()}"/>
  </releases>
</component>
"""


def _sha256(file: Path) -> str:
    with file.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


if __name__ == "__main__":
    sys.exit(main())
