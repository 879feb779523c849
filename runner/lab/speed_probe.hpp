#pragma once

namespace stepcast {

/// How fast this machine is now: the median time that the calling thread takes to copy 1 MiB to memory that
/// it has not touched for a while, of 101 copies. On a virtual machine it moves with what its host's other
/// guests do, and with it do the costs of sockets and of compute. Takes some 20 ms.
double seconds_to_copy_1_mib();

}  // namespace stepcast
