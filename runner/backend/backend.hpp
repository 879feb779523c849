#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/registry.hpp"
#include "runner/control/host_identity.hpp"
#include "runner/control/store.hpp"
#include "sim/collectives/algorithm.hpp"

/// What the runner needs of a communication library: collectives and messages of raw memory, asynchronous. `gloo`
/// implements it on CPUs, `nccl` on NVIDIA GPUs. What is no tensor (texts, results) takes the ControlPlane.
namespace stepcast {

/// A queue of a device, in which one thing runs after the other: a cudaStream_t. Null is the device's default stream.
using DeviceStream = void*;

/// kFloat16 is IEEE 754 half precision, kBFloat16 the upper half of a float32: their sums are rounded to them after every
/// addition.
enum class DataType : std::uint8_t { kFloat16, kBFloat16, kFloat32, kFloat64, kInt64, kUInt8 };
std::size_t size_of(DataType type);

/// `count` elements of memory that the caller keeps alive until the Work is done.
struct Array {
  void* data = nullptr;
  std::size_t count = 0;
  DataType type = DataType::kFloat32;
  [[nodiscard]] std::size_t bytes() const { return count * size_of(type); }
};

/// A call under way.
class Work {
 public:
  virtual ~Work() = default;
  /// Blocks until done. \throws RunError that names the peer or the ranks that did not answer.
  virtual void wait() = 0;
  /// What is put on `stream` from now on runs after this call; the host goes on, where the library can do that.
  /// A call that fails is aborted and lets the stream go on: the error comes from wait(). \throws RunError
  virtual void precede(DeviceStream stream) {
    static_cast<void>(stream);
    wait();
  }
  /// Whether it is over, with or without success. Never blocks, never throws: errors come from wait().
  [[nodiscard]] virtual bool done() const = 0;
  /// When the backend began and ended it (steady clock); valid after wait() or once done(). A collective
  /// begins when a communication thread takes it, a send or receive when it is posted. A receive ends when
  /// its last byte is in memory, a send when the kernel has taken its last byte.
  [[nodiscard]] virtual std::chrono::steady_clock::time_point started() const = 0;
  [[nodiscard]] virtual std::chrono::steady_clock::time_point ended() const = 0;
};
using WorkPtr = std::shared_ptr<Work>;

/// Collectives over all ranks. Calls are issued in the same order on every rank; the backend runs as many at
/// a time as `collectives_in_flight()`. Reductions are sums.
class Backend {
 public:
  virtual ~Backend() = default;
  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int world_size() const = 0;
  [[nodiscard]] virtual int collectives_in_flight() const = 0;
  /// Bytes of payload that this rank has handed to the transport so far, by collectives that have begun and
  /// sends that are posted, of this backend and of its subgroups: the closed form of each algorithm as the
  /// library runs it. A single rank sends nothing.
  [[nodiscard]] virtual std::uint64_t bytes_sent() const = 0;

  /// A backend over `ranks` of this one, distinct, this one among them; its rank() is the index there, and
  /// its errors name ranks by their numbers in the whole job. Every member calls it with the same arguments,
  /// in the same order if a rank is in several; others do not call. Its collectives run beside those of this
  /// backend. It may outlive this backend. For Gloo a group of n ranks costs every member n - 1 TCP
  /// connections, two communication threads, and connecting, which waits for up to one 10 ms tick of gloo's
  /// loop per peer; the device's thread is shared with this backend. \throws RunError
  virtual std::unique_ptr<Backend> subgroup(const std::string& name, const std::vector<int>& ranks) = 0;

  /// Zeroed memory as its arrays need it: of this host, or of the rank's device. \throws RunError
  virtual std::shared_ptr<void> memory(std::size_t bytes);
  /// Copies between such memory and this host's, either way, after all that is on the default stream; returns when
  /// it is done. \throws RunError
  virtual void copy(void* to, const void* from, std::size_t bytes);
  /// Zeroes such memory, likewise.
  virtual void clear(void* memory, std::size_t bytes);
  /// Calls from now on read and write their arrays after all that is on `stream` when they are issued. At first it
  /// is the default stream, on which LibTorch computes. Where arrays are this host's memory it means nothing.
  virtual void follow(DeviceStream stream) { static_cast<void>(stream); }

  /// Before what is timed, where calls are timed by a device: compares its clock with the host's, of this backend and its
  /// subgroups. \pre nothing is under way, and the times of all calls before have been read
  virtual void restart_clock() {}

  virtual WorkPtr all_reduce(Array in_place) = 0;
  /// The same with the largest of each element in place of the sum.
  virtual WorkPtr all_reduce_maximum(Array in_place) = 0;
  virtual WorkPtr broadcast(Array in_place, int root) = 0;
  /// On root `out` holds world_size * in.count elements; elsewhere it is ignored.
  virtual WorkPtr gather(Array in, Array out, int root) = 0;
  /// On root `in[r]` goes to rank r; arrays may be the same memory. Elsewhere `in` is empty.
  virtual WorkPtr scatter(std::vector<Array> in, Array out, int root) = 0;
  /// `in` may be this rank's place in `out`.
  virtual WorkPtr all_gather(Array in, Array out) = 0;
  /// `in` holds world_size * out.count elements; rank r receives the sum of everybody's part r. Of another type (of float32
  /// and bfloat16) than `out`, they are converted before they travel, in memory of the backend's; not by `nccl`.
  virtual WorkPtr reduce_scatter(Array in, Array out) = 0;
  /// Both hold one block per rank: block r of `in` goes to rank r, block r of `out` comes from it.
  virtual WorkPtr all_to_all(Array in, Array out) = 0;
  /// Around a ring: `in` goes to the next rank, `out` comes from the one before, the last rank's from the first's.
  virtual WorkPtr shift(Array in, Array out) = 0;
  /// Sends and receives occupy no communication thread and end in any order: many receives may be posted
  /// early. Messages with equal tag between two ranks arrive in order. Gloo tells messages by their tags, and a
  /// send ends only once the peer has posted the receive. NCCL has no tags: what one rank sends another is received
  /// in the order in which it is sent, each direction by itself, and a short send may end before it is received.
  virtual WorkPtr send(Array data, int peer, std::uint32_t tag) = 0;
  virtual WorkPtr recv(Array data, int peer, std::uint32_t tag) = 0;
  /// Runs `task` on the communication thread: what handing over a call costs without communicating.
  virtual WorkPtr submit(std::function<void()> task) = 0;
  virtual void barrier() = 0;
};

struct BackendConfig {
  int rank = 0;
  int world_size = 1;
  std::string interface;  ///< network interface; "" chooses: loopback when all ranks are on one host
  std::chrono::milliseconds timeout{60'000};
  std::shared_ptr<Store> store;
  std::string master_addr;  ///< where rank 0 runs; the interface that reaches it is taken when none is named
  std::vector<HostIdentity> hosts{};  ///< by rank; empty: all ranks are on this host
  /// What its collectives are made of, message by message, in place of the library's own.
  AlgorithmChoice algorithms{};
  int device =
      0;  ///< of this host, where the library drives devices: the rank's number among those of the host
};

struct BackendFactory {
  std::function<std::unique_ptr<Backend>(const BackendConfig&)> make;
  std::string library;  ///< with its version: `Gloo 0.5.0`
  /// into[i] += from[i], by the very code that the backend's reductions run; empty where that is a device's.
  std::function<void(float* into, const float* from, std::size_t count)> add;
};
Registry<BackendFactory>& backends();

/// The backend of that name. \throws UsageError for an unknown name; CapabilityError for `nccl` where this program was
/// built without it
const BackendFactory& find_backend(const std::string& name);

}  // namespace stepcast
