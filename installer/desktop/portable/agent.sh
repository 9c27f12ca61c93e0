# For install.sh and uninstall.sh: ends the agent of this user, which hands over its work first, and starts it again.
stopped=

stop_agent() {
  lock=$share/cottage/node/agent.lock
  if [ ! -e "$lock" ] || flock --nonblock "$lock" true; then
    return 0
  fi
  pid=$(cat "$lock")
  stopped=$pid
  kill "$pid" 2>/dev/null || return 0
  waited=0
  until flock --nonblock "$lock" true; do
    [ "$waited" -lt 90 ] || fail "the agent (process $pid) does not end; end it and try again."
    sleep 1
    waited=$((waited + 1))
  done
}

start_agent() {
  setsid "$opt/cottage-agent" run >/dev/null 2>&1 </dev/null &
}
