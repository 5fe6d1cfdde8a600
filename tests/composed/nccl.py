"""Composed lines of NCCL's log (INFO of INIT, NET and GRAPH), in the format of NCCL 2.18 to 2.27. Hosts, addresses and numbers are made up."""

CHANNEL = (
    "{host}:{pid}:{tid} [{gpu}] NCCL INFO Channel {channel:02d}/0 : {source}[{gpu}] -> {target}[{there}]{way}"
)

OPENING = """\
{host}:71:71 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>
{host}:71:71 [0] NCCL INFO NET/Plugin: No plugin found (libnccl-net.so)
{host}:71:90 [0] NCCL INFO {net}
{host}:71:90 [0] NCCL INFO Using network {network}
{host}:71:90 [0] NCCL INFO comm 0x55d0 rank 0 nranks 16 cudaDev 0 nvmlDev 0 busId 19000 commId 0x9e1f - Init START
{host}:71:90 [0] NCCL INFO Channel 00/08 :    0   1   2   3   4   5   6   7   8   9  10  11  12  13  14  15
{host}:71:90 [0] NCCL INFO Trees [0] 1/8/-1->0->-1 [1] 1/-1/-1->0->8
"""

IB = "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.1<0>"
SOCKET = "NET/Socket : Using [0]eth0:10.0.0.1<0>"

NVLINK = " via P2P/CUMEM"
SHARED = " via SHM/direct/direct"
INFINIBAND = " [send] via NET/IB/0/GDRDMA"
SOCKETS = " [send] via NET/Socket/0"
EFA = " [send] via NET/AWS Libfabric/0/GDRDMA"


def log(rank, *, between, inside, host="node01", per_node=8, channels=2):
    """What one rank writes: a ring over 2 nodes, with the way to the next rank inside the node, and between nodes."""
    net, network = (SOCKET, "Socket") if between is SOCKETS else (IB, "IB")
    target = (rank + 1) % (2 * per_node)
    way = inside if target // per_node == rank // per_node else between
    gpu = rank % per_node
    lines = [
        CHANNEL.format(
            host=host,
            pid=71 + gpu,
            tid=90 + gpu,
            gpu=gpu,
            channel=channel,
            source=rank,
            target=target,
            there=target % per_node,
            way=way,
        )
        for channel in range(channels)
    ]
    return OPENING.format(host=host, net=net, network=network) + "\n".join(lines) + "\n"
