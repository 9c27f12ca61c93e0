#!/bin/sh
# Installs this distribution's Docker engine, starts it, and lets the user who asked use it. Run as root by pkexec, which says in
# PKEXEC_UID who that is. One word: apt, dnf, pacman or zypper. Lines that begin with @ are for the window.
#
# Exit codes: 2 not so; 10 packages; 11 the service; 12 the user; 20 all is done, and the user has to log in again first.
set -u
export LC_ALL=C DEBIAN_FRONTEND=noninteractive

[ "$#" -eq 1 ] && [ "$(id -u)" -eq 0 ] || exit 2
case ${PKEXEC_UID:-} in '' | *[!0-9]*) exit 2 ;; esac
user=$(getent passwd "$PKEXEC_UID" | cut -d: -f1)
[ -n "$user" ] || exit 2

echo "@packages"
# An engine that is here already, of whatever make, is left as it is: another one would take its place.
if command -v dockerd >/dev/null 2>&1; then
  echo "An engine is installed: $(command -v dockerd)"
else
  case $1 in
    apt)
      apt-get -o DPkg::Lock::Timeout=300 update || exit 10
      apt-get -o DPkg::Lock::Timeout=300 install -y --no-install-recommends docker.io acl || exit 10
      ;;
    dnf) dnf install -y moby-engine acl || exit 10 ;;
    pacman) pacman -S --needed --noconfirm docker acl || exit 10 ;;
    zypper) zypper --non-interactive install --no-recommends docker acl || exit 10 ;;
    *) exit 2 ;;
  esac
fi

echo "@service"
systemctl enable docker.service || exit 11
systemctl start docker.service || exit 11

echo "@user"
getent group docker >/dev/null || groupadd --system docker || exit 12
usermod -aG docker "$user" || exit 12
# A group counts from the next login on; until then this user alone is named at the engine's door.
setfacl -m "u:$user:rw" /run/docker.sock || exit 20
echo "@done"
