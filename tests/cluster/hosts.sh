# Two virtual hosts with two soft-RoCE devices each, for run and for bench/; sourced. Needs $guest (what
# make-guest makes) and $folder (for sockets and for what the hosts and this machine share).
share=$folder/share
mkdir -p "$share"
declare -A machine=() # process of each host
commands=0
slow=${CLUSTER_SLOW:-1} # factor on all limits, for a machine that does something else too

# There may be one processor more than there is: QEMU emulates the only one of a machine without memory barriers
# and without locked instructions, though devices run in threads beside it. Then the guest's driver and a wire can
# each miss what the other has just written, and the wire stands still for good. Merged receive buffers stay off, as
# QEMU before 9.1 has another way to miss that the guest has made room.
start_host() { # number
  local n=$1 i side nics=() cores=${CLUSTER_CORES:-1}
  side=$([ "$n" = 1 ] && echo on || echo off)
  rm -f "$share/up.$n" "$folder"/{control,monitor}"$n".{in,out}
  mkfifo "$folder"/{control,monitor}"$n".{in,out}
  for i in 0 1 2; do
    nics+=(-netdev "stream,id=n$i,server=$side,addr.type=unix,addr.path=$folder/wire$i"
      -device "virtio-net-pci,netdev=n$i,mac=52:54:00:00:0$i:0$n,host_mtu=4200,mrg_rxbuf=off")
    [ "$n" = 2 ] || rm -f "$folder/wire$i"
  done
  qemu-system-x86_64 -accel tcg,thread=multi -cpu "${CLUSTER_CPU:-qemu64}" -smp "$cores,maxcpus=$((cores + 1))" -m 1536 \
    -nodefaults -no-reboot -display none \
    -kernel "$guest/kernel" -initrd "$guest/initramfs" \
    -append "console=ttyS0 quiet panic=-1 mitigations=off node=$n" \
    -virtfs local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap \
    -virtfs "local,path=$share,mount_tag=share,security_model=none" \
    -serial "file:$folder/console$n" -chardev "pipe,id=control,path=$folder/control$n" \
    -serial chardev:control -chardev "pipe,id=monitor,path=$folder/monitor$n" -mon chardev=monitor \
    "${nics[@]}" 2>>"$folder/console$n" &
  machine[$n]=$!
  # Whoever connects needs the other side's sockets.
  for i in $(seq $((600 * slow))); do
    [ -S "$folder/wire2" ] && return
    kill -0 "${machine[$n]}" 2>/dev/null || break
    sleep 0.1
  done
  echo "host $n makes no wires: $(tail -n 5 "$folder/console$n")" >&2
  return 1
}

await_hosts() { # those that were started
  local n tries ups
  for tries in $(seq $((600 * slow))); do
    ups=0
    for n in "${!machine[@]}"; do
      [ ! -e "$share/up.$n" ] || ups=$((ups + 1))
      kill -0 "${machine[$n]}" 2>/dev/null || { cat "$folder/console$n" >&2; return 1; }
    done
    [ $ups -lt ${#machine[@]} ] || return 0
    sleep 0.1
  done
  echo "the hosts do not boot" >&2
  tail -n 5 "$folder"/console[12] >&2
  return 1
}

start_hosts() {
  start_host 1 && start_host 2 && await_hosts
}

stop_hosts() {
  local n
  for n in "${!machine[@]}"; do
    kill -9 "${machine[$n]}" 2>/dev/null
    wait "${machine[$n]}" 2>/dev/null
  done
  machine=()
}

# Pulls or plugs the cable of a host's port: on or off. Taking the interface down instead would let the
# emulated wire fill up, and block the sender rather than lose what it sends.
cable() { # host, number of the interface, on or off
  echo "set_link n$2 $3" >"$folder/monitor$1.in"
}

begin_on() { # host, script: starts it there and sets $begun, its name
  commands=$((commands + 1))
  begun=command$commands
  printf '%s\n' "$2" >"$share/$begun"
  echo "$begun" >"$folder/control$1.in"
}

finish() { # name, seconds: the script's exit status, 124 if it takes too long
  local tries
  for tries in $(seq $(($2 * 20 * slow))); do
    [ -e "$share/$1.status" ] && return "$(cat "$share/$1.status")"
    sleep 0.05
  done
  return 124
}

on_host() { # host, script, seconds: runs it there and prints what it printed
  local code
  begin_on "$1" "$2"
  finish "$begun" "${3:-20}"
  code=$?
  cat "$share/$begun.out"
  return $code
}
