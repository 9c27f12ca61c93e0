#!/bin/sh
# Removes Cottage from the home folder. --images: the sandbox images of its Docker engine, too. --purge: those, what was
# downloaded and the settings. The node's key, which is the way to what it has earned, stays unless --key is given, which
# removes all of this.
set -eu

fail() {
  echo "Cottage: $1" >&2
  exit 1
}

images= purge= key=
for word; do
  case $word in
    --images) images=yes ;;
    --purge) images=yes purge=yes ;;
    --key) images=yes purge=yes key=yes ;;
    *) fail "$word is not known: --images, --purge or --key" ;;
  esac
done

opt=$HOME/.local/opt/cottage
share=${XDG_DATA_HOME:-$HOME/.local/share}
config=${XDG_CONFIG_HOME:-$HOME/.config}
node=$share/cottage/node
[ -x "$opt/cottage-agent" ] || fail "it is not installed in $opt"

set -- uninstall --yes
[ -n "$images" ] || set -- "$@" --keep-images
[ -n "$purge" ] || set -- "$@" --keep-data
[ -z "$key" ] || set -- "$@" --purge-keys
"$opt/cottage-agent" "$@" || fail "the agent did not end; what is said above, and then try again."

rm -f "$HOME/.local/bin/cottage" "$HOME/.local/bin/cottage-agent" "$share/applications/cottage.desktop" \
  "$config/autostart/cottage.desktop" "$config/systemd/user/cottage-agent.service" "$opt.installed"
if command -v update-desktop-database >/dev/null; then
  update-desktop-database "$share/applications" || true
fi
# What is left of the list without our entry is a headline, unless other programs have some.
known=$share/applications/mimeinfo.cache
[ ! -e "$known" ] || grep -q = "$known" || rm -f "$known"
find "$share/icons/hicolor" -path '*/apps/cottage.*' -delete 2>/dev/null || true
rm -rf "$opt" "$opt-versions"
if [ -e "$node/node.key" ]; then
  echo "Cottage is removed. The key of this node stays in $node; cottage node backup keeps it elsewhere."
else
  echo "Cottage is removed."
fi
