# Makes two devices of netacc-fabric, `near` and `far`, in the namespaces that this runs in, and executes its arguments there.
# Packets from one device to the address of the other leave by its own interface and arrive at the other's, so that one process
# may have both ends of a connection (as `round_trip` in tests/rdma/world.py).
set -e
library=$1
shift
mount -t tmpfs run /run
mount -t tmpfs classes /sys/class
fabric=/run/netacc-fabric
mkdir -p $fabric/devices $fabric/pages $fabric/cm_id $fabric/qp $fabric/lib
ln -s "$library" $fabric/lib/libibverbs.so.1
ln -s "$library" $fabric/lib/librdmacm.so.1

ip -batch - <<END
link set lo up
link add far index 50 address 02:00:00:00:00:01 mtu 9000 type veth peer name near index 55 address 02:00:00:00:00:02 mtu 9000
link set far up
link set near up
addr add 10.18.0.1/24 dev far
addr add 10.18.0.2/24 dev near
neigh replace 10.18.0.1 lladdr 02:00:00:00:00:01 dev near nud permanent
neigh replace 10.18.0.2 lladdr 02:00:00:00:00:02 dev far nud permanent
route add 10.18.0.1 dev near src 10.18.0.2 table 101
route add 10.18.0.2 dev far src 10.18.0.1 table 102
rule add pref 100 lookup local
rule add pref 50 iif lo to 10.18.0.1 lookup 101
rule add pref 50 oif near to 10.18.0.1 lookup 101
rule add pref 50 iif lo to 10.18.0.2 lookup 102
rule add pref 50 oif far to 10.18.0.2 lookup 102
rule del pref 0
END
# Ports of which 20000 more are ports as well.
echo "12000 31000" >/proc/sys/net/ipv4/ip_local_port_range
for interface in all far near; do
    echo 1 >/proc/sys/net/ipv4/conf/$interface/accept_local
    echo 0 >/proc/sys/net/ipv4/conf/$interface/rp_filter
done

device() {
    port=/sys/class/infiniband/$1/ports/1
    mkdir -p $port/hw_counters $port/gids /sys/class/infiniband_verbs/uverbs_$1
    echo "4: ACTIVE" >$port/state
    echo Ethernet >$port/link_layer
    echo "$3" >$port/gids/0
    echo "ib $2" >$fabric/devices/$1
}
device far 10.18.0.1 0000:0000:0000:0000:0000:ffff:0a12:0001
device near 10.18.0.2 0000:0000:0000:0000:0000:ffff:0a12:0002

LD_LIBRARY_PATH=$fabric/lib T_ADDRESS=10.18.0.1 exec "$@"
