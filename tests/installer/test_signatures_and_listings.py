"""Signatures of the systems that packages are for, an AppImage's folder, and what stores want to know of a release."""

import datetime
import hashlib
import os
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from installer.desktop import build, codesign, listings

TODAY = datetime.date(2026, 11, 27)
URL = "https://example.org/packages"
NAMES = (codesign.KEY, codesign.PASSWORD, codesign.TIMESTAMP, codesign.IDENTITY, codesign.PROFILE)


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


def certificate(folder: Path, password: str) -> tuple[Path, Path]:
    """A certificate that signs programs and that nobody trusts: its PKCS #12 file, and itself."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "A test")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING]), critical=True)
        .sign(key, hashes.SHA256())
    )
    whole = pkcs12.serialize_key_and_certificates(
        b"test", key, made, None, serialization.BestAvailableEncryption(password.encode())
    )
    (folder / "key.p12").write_bytes(whole)
    (folder / "certificate.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    return folder / "key.p12", folder / "certificate.pem"


def windows_program() -> bytes:
    """The least that is a program for Windows: headers, and a section whose code returns (Microsoft's PE format)."""
    headers, code = 0x200, b"\xc3".ljust(0x200, b"\0")
    dos = b"MZ".ljust(0x3C, b"\0") + struct.pack("<I", 0x40)
    file = struct.pack("<HHIIIHH", 0x8664, 1, 0, 0, 0, 240, 0x22)
    optional = struct.pack("<HBBIIIIIQII", 0x20B, 0, 0, 0x200, 0, 0, 0x1000, 0x1000, 0x140000000, 0x1000, 0x200)
    sizes = (0, 0x2000, headers, 0, 3, 0, 1 << 20, 4096, 1 << 20, 4096, 0, 16)
    optional += struct.pack("<HHHHHHIIIIHHQQQQII", 6, 0, 0, 0, 6, 0, *sizes) + bytes(16 * 8)
    section = struct.pack("<8sIIIIIIHHI", b".text", 1, 0x1000, 0x200, headers, 0, 0, 0, 0, 0x60000020)
    return (dos + b"PE\0\0" + file + optional + section).ljust(headers, b"\0") + code


def verified(program: Path, authority: Path) -> bool:
    words = ("osslsigncode", "verify", "-CAfile", str(authority), "-in", str(program))
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(shutil.which("osslsigncode") is None, reason="Authenticode is tried with osslsigncode")
def test_a_program_for_windows_is_signed_and_a_changed_one_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, authority = certificate(tmp_path, "a password")
    program = tmp_path / "cottage.exe"
    program.write_bytes(windows_program())
    assert not verified(program, authority)
    monkeypatch.setenv(codesign.KEY, str(key))
    monkeypatch.setenv(codesign.PASSWORD, "a password")
    assert codesign.authenticode(program)
    assert verified(program, authority)
    content = bytearray(program.read_bytes())
    content[0x210] ^= 1
    program.write_bytes(content)
    assert not verified(program, authority)


@pytest.mark.skipif(shutil.which("osslsigncode") is None, reason="Authenticode is tried with osslsigncode")
def test_a_key_that_cannot_be_used_ends_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, _ = certificate(tmp_path, "a password")
    program = tmp_path / "cottage.exe"
    program.write_bytes(windows_program())
    before = program.read_bytes()
    monkeypatch.setenv(codesign.KEY, str(key))
    monkeypatch.setenv(codesign.PASSWORD, "another")
    with pytest.raises(codesign.SigningError, match="osslsigncode sign failed"):
        codesign.authenticode(program)
    monkeypatch.setenv(codesign.KEY, str(tmp_path / "gone.p12"))
    with pytest.raises(codesign.SigningError, match=r"gone\.p12, which is no file"):
        codesign.authenticode(program)
    assert program.read_bytes() == before


def test_without_keys_it_is_said_what_is_not_signed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert not codesign.authenticode(tmp_path / "a.exe", tmp_path / "b.exe")
    assert not codesign.apple_app(tmp_path / "Cottage.app", tmp_path / "rules")
    assert not codesign.notarised(tmp_path / "Cottage.dmg")
    assert capsys.readouterr().out.splitlines() == [
        "not signed: a.exe, b.exe: COTTAGE_AUTHENTICODE is not set",
        "not signed: Cottage.app: COTTAGE_APPLE_IDENTITY is not set",
        "not signed: Cottage.dmg: COTTAGE_APPLE_PROFILE is not set",
    ]


def apple(folder: Path, monkeypatch: pytest.MonkeyPatch, refuses: str = "") -> Path:
    """Stand-ins for Apple's tools, which run on macOS only: they keep what they were told, and one may refuse."""
    told = folder / "told"
    for name in ("codesign", "xcrun"):
        tool = folder / name
        tool.write_text(
            f'#!/bin/sh\necho {name} "$@" >> "{told}"\n'
            f'case "{name} $1" in "{refuses}") echo first; echo "it is invalid" >&2; exit 65;; esac\n'
        )
        tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv(codesign.IDENTITY, "Developer ID Application: A test")
    monkeypatch.setenv(codesign.PROFILE, "kept")
    return told


def test_for_macos_the_application_is_signed_and_the_image_looked_at_by_apple(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = apple(tmp_path, monkeypatch)
    rules = build.HERE / "macos" / "entitlements.plist"
    assert codesign.apple_app(tmp_path / "Cottage.app", rules)
    assert codesign.notarised(tmp_path / "Cottage.dmg")
    signed, checked, submitted, stapled = told.read_text().splitlines()
    assert f"--options runtime --timestamp --entitlements {rules}" in signed
    assert checked.startswith("codesign --verify --deep --strict")
    assert submitted == f"xcrun notarytool submit {tmp_path}/Cottage.dmg --keychain-profile kept --wait"
    assert stapled == f"xcrun stapler staple {tmp_path}/Cottage.dmg"


def test_what_apple_refuses_ends_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    apple(tmp_path, monkeypatch, refuses="xcrun notarytool")
    with pytest.raises(codesign.SigningError, match="xcrun notarytool failed: it is invalid"):
        codesign.notarised(tmp_path / "Cottage.dmg")


# --- one file that runs where it lies ---------------------------------------------------------------------------------


def test_an_appimages_folder_runs_both_programs_from_wherever_it_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = tmp_path / "cottage"
    bundle.mkdir()
    for name in build.PROGRAMS:
        (bundle / name).write_text(f'#!/bin/sh\necho {name} "$@"\n')
        (bundle / name).chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    made = build.appimage(bundle, tmp_path)
    assert "appimagetool is not installed" in capsys.readouterr().out
    moved = tmp_path / "a place" / "Cottage"
    moved.parent.mkdir()
    made.rename(moved)
    link = tmp_path / "Cottage.AppImage"
    link.symlink_to(moved / "AppRun")
    for words, said in (
        ((), "cottage\n"),
        (("--hidden",), "cottage --hidden\n"),
        (("agent", "-h"), "cottage-agent -h\n"),
    ):
        done = subprocess.run((str(link), *words), capture_output=True, text=True, check=True)
        assert done.stdout == said
    assert (moved / "cottage.png").read_bytes()[:4] == b"\x89PNG"
    assert "Exec=cottage %u" in (moved / "cottage.desktop").read_text()


@pytest.mark.skipif(
    shutil.which("desktop-file-validate") is None, reason="menu entries are read by desktop-file-validate"
)
def test_the_menus_entries_are_as_the_standard_has_them() -> None:
    entries = sorted((build.HERE / "debian").glob("*.desktop"))
    assert entries
    done = subprocess.run(("desktop-file-validate", *map(str, entries)), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


# --- what stores want to know -----------------------------------------------------------------------------------------


@pytest.fixture
def packages(tmp_path: Path) -> list[Path]:
    names = ("Cottage-Setup-0.2.0.exe", "Cottage-0.2.0-macos-arm64.dmg", "Cottage-0.2.0-macos-x86_64.dmg")
    for name in names:
        (tmp_path / name).write_bytes(name.encode())
    return [tmp_path / name for name in names]


def test_winget_is_told_the_installer_its_digest_and_how_it_installs(packages: list[Path]) -> None:
    made = listings.listings(packages, URL, URL, TODAY)
    folder = "winget/manifests/c/Cottage/Cottage/0.2.0/Cottage.Cottage"
    read: dict[str, Any] = {
        kind: yaml.safe_load(made[f"{folder}{kind}.yaml"]) for kind in ("", ".locale.en-US", ".installer")
    }
    for kind, document in read.items():
        assert (document["PackageIdentifier"], document["PackageVersion"]) == ("Cottage.Cottage", "0.2.0"), kind
    one = read[".installer"]
    assert (one["InstallerType"], one["Scope"], one["ReleaseDate"]) == ("nullsoft", "user", "2026-11-27")
    assert one["Installers"] == [
        {
            "Architecture": "x64",
            "InstallerUrl": f"{URL}/Cottage-Setup-0.2.0.exe",
            "InstallerSha256": hashlib.sha256(packages[0].read_bytes()).hexdigest().upper(),
        }
    ]


def test_homebrew_is_told_an_image_for_each_processor(packages: list[Path]) -> None:
    cask = listings.listings(packages, URL, URL, TODAY)["homebrew/Casks/cottage.rb"]
    for name, block in (("arm64", "on_arm"), ("x86_64", "on_intel")):
        assert f"{block} do" in cask
        assert f'url "{URL}/Cottage-0.2.0-macos-{name}.dmg"' in cask
    assert cask.count(" do\n") == cask.count("end\n"), "every block is closed"
    assert "depends_on arch" not in cask
    alone = listings.listings(packages[:2], URL, URL, TODAY)["homebrew/Casks/cottage.rb"]
    assert "depends_on arch: :arm64" in alone


@pytest.mark.skipif(shutil.which("appstreamcli") is None, reason="the metainfo is read by appstreamcli")
def test_software_centres_can_read_what_they_are_told(packages: list[Path], tmp_path: Path) -> None:
    file = tmp_path / f"{listings.APP}.metainfo.xml"
    file.write_text(listings.listings(packages, URL, URL, TODAY)[f"metainfo/{file.name}"])
    words = ("appstreamcli", "validate", "--no-net", "--explain", str(file))
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    "names",
    [
        ("Cottage-Setup-0.2.0.exe", "Cottage-0.3.0-macos-arm64.dmg"),
        ("cottage.exe",),
        ("Cottage-Setup-0.2.0.exe", "cottage_0.2.0_amd64.deb"),
    ],
)
def test_packages_that_are_not_of_one_release_are_refused(names: tuple[str, ...]) -> None:
    with pytest.raises(listings.ListingError, match="packages of one version"):
        listings.listings([Path(name) for name in names], URL, URL, TODAY)
