#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/registry.hpp"
#include "runner/control/host_identity.hpp"
#include "runner/control/store.hpp"
#include "sim/collectives/algorithm.hpp"

/// Interface of a communication library: asynchronous collectives and messages of raw memory. `gloo`
/// implements it on CPUs, `nccl` on NVIDIA GPUs. Texts and results use the ControlPlane.
namespace stepcast {

/// A cudaStream_t; null is the default stream of the device.
using StreamHandle = void*;

/// kFloat16 is IEEE 754 half precision, kBFloat16 the upper half of a float32. Sums are rounded after every
/// addition.
enum class DataType : std::uint8_t { kFloat16, kBFloat16, kFloat32, kFloat64, kInt64, kUInt8 };
std::size_t size_of(DataType type);

/// `count` elements of memory that the caller keeps alive until the Work is done.
struct Array {
  void* data = nullptr;
  std::size_t count = 0;
  DataType type = DataType::kFloat32;
  [[nodiscard]] std::size_t bytes() const { return count * size_of(type); }
  [[nodiscard]] Array part(std::size_t begin, std::size_t elements) const {
    return {static_cast<char*>(data) + begin * size_of(type), elements, type};
  }
};

/// Asynchronous call.
class Work {
 public:
  virtual ~Work() = default;
  /// Blocks until done. \throws RunError that names the peer or the ranks that did not answer.
  virtual void wait() = 0;
  /// Makes `stream` wait for this call before work that is enqueued later, without blocking the caller if the
  /// library supports it. A call that fails is aborted and lets the stream go on; wait() throws the error.
  /// \throws RunError
  virtual void precede(StreamHandle stream) {
    static_cast<void>(stream);
    wait();
  }
  /// True after the call has ended, with or without success. Never blocks, never throws.
  [[nodiscard]] virtual bool done() const = 0;
  /// Time at which the backend began and ended the call (steady clock); valid after wait() or if done(). A
  /// collective begins when a communication thread takes it, a send or receive when it is posted. A receive
  /// ends when its last byte is in memory, a send when the kernel has taken its last byte.
  [[nodiscard]] virtual std::chrono::steady_clock::time_point started() const = 0;
  [[nodiscard]] virtual std::chrono::steady_clock::time_point ended() const = 0;
};
using WorkPtr = std::shared_ptr<Work>;

/// Collectives over all ranks, issued in the same order on every rank. The backend runs up to
/// `collectives_in_flight()` at a time. Reductions are sums. On a device, calls wait for all work that is on
/// the default stream, which LibTorch uses, at the time they are issued.
class Backend {
 public:
  virtual ~Backend() = default;
  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int world_size() const = 0;
  [[nodiscard]] virtual int collectives_in_flight() const = 0;
  /// Bytes of payload that this rank has passed to the transport so far, for collectives that have begun and
  /// sends that are posted, of this backend and its subgroups: the closed form of each algorithm. A single
  /// rank sends nothing.
  [[nodiscard]] virtual std::uint64_t bytes_sent() const = 0;

  /// Backend over `ranks`, distinct ranks of this one that include it. Its rank() is the index in `ranks`;
  /// errors name ranks by their numbers in the whole job. Every member calls it with the same arguments, in
  /// the same order if a rank is in several groups; others do not call. Its collectives run concurrently with
  /// those of this backend, which it may outlive. For Gloo a group of n ranks costs every member n - 1 TCP
  /// connections, two communication threads, and up to one 10 ms tick of gloo's loop per peer; it shares the
  /// device thread of this backend. \throws RunError
  virtual std::unique_ptr<Backend> subgroup(const std::string& name, const std::vector<int>& ranks) = 0;

  /// Zeroed memory for arrays: of this host, or of the device of the rank. \throws RunError
  virtual std::shared_ptr<void> memory(std::size_t bytes);
  /// Copies between such memory and host memory, after all work on the default stream; returns when it is
  /// done. \throws RunError
  virtual void copy(void* to, const void* from, std::size_t bytes);
  /// Zeroes such memory, in the same way.
  virtual void clear(void* memory, std::size_t bytes);

  /// Compares the clock of the device with that of the host, for this backend and its subgroups; to be called
  /// before timed work. \pre no call is in flight, and the times of all earlier calls have been read
  virtual void restart_clock() {}

  virtual WorkPtr all_reduce(Array in_place) = 0;
  /// All-reduce of the maximum of each element.
  virtual WorkPtr all_reduce_maximum(Array in_place) = 0;
  virtual WorkPtr broadcast(Array in_place, int root) = 0;
  /// On root `out` has world_size * in.count elements; other ranks ignore it.
  virtual WorkPtr gather(Array in, Array out, int root) = 0;
  /// On root `in[r]` is sent to rank r; arrays may share memory. On other ranks `in` is empty.
  virtual WorkPtr scatter(std::vector<Array> in, Array out, int root) = 0;
  /// `in` may be this rank's part of `out`.
  virtual WorkPtr all_gather(Array in, Array out) = 0;
  /// `in` has world_size * out.count elements; rank r receives the sum of part r over all ranks. If `in` has
  /// another type than `out` (float32 or bfloat16), it is converted before it is sent, in memory of the
  /// backend; not by `nccl`.
  virtual WorkPtr reduce_scatter(Array in, Array out) = 0;
  /// Both have one block per rank: block r of `in` is sent to rank r, block r of `out` comes from it.
  virtual WorkPtr all_to_all(Array in, Array out) = 0;
  /// Ring: `in` is sent to the next rank, `out` comes from the previous one.
  virtual WorkPtr shift(Array in, Array out) = 0;
  /// Sends and receives occupy no communication thread and end in any order: many receives may be posted
  /// early. Messages with equal tag between two ranks arrive in order. Gloo matches messages by tag, and a
  /// send ends after the peer has posted the receive. NCCL has no tags: each direction is received in the
  /// order in which it is sent, and a short send may end before it is received.
  virtual WorkPtr send(Array data, int peer, std::uint32_t tag) = 0;
  virtual WorkPtr recv(Array data, int peer, std::uint32_t tag) = 0;
  /// Runs `task` on the communication thread, which measures the overhead of a call.
  virtual WorkPtr submit(std::function<void()> task) = 0;
  virtual void barrier() = 0;
};

/// Ranks of a backend.
struct GroupMembers {
  std::string name;                     ///< of their keys in the store
  std::vector<int> ranks;               ///< their numbers in the job
  int own = 0;                          ///< index of this rank
  std::map<std::string, int> groups{};  ///< number of groups made under each name

  [[nodiscard]] int size() const { return static_cast<int>(ranks.size()); }
  /// Number of this rank in the job.
  [[nodiscard]] int own_in_job() const { return ranks.at(own); }
  /// Numbers of the other ranks in the job.
  [[nodiscard]] std::vector<int> others() const;
  /// Members of Backend::subgroup(). Groups of equal name are distinguished by their ranks, equal ones by
  /// their number. \throws std::logic_error if this rank is not in the group
  [[nodiscard]] GroupMembers subgroup(const std::string& group, const std::vector<int>& indices);
};

/// Payload handed to the transport, counted for a group and for the groups that it is part of.
class SentBytes {
 public:
  explicit SentBytes(std::shared_ptr<SentBytes> whole = nullptr) : whole_(std::move(whole)) {}
  void add(std::uint64_t bytes) {
    count_ += bytes;
    if (whole_ != nullptr) whole_->add(bytes);
  }
  [[nodiscard]] std::uint64_t count() const { return count_; }

 private:
  std::shared_ptr<SentBytes> whole_;
  std::atomic<std::uint64_t> count_{0};
};

struct BackendConfig {
  int rank = 0, world_size = 1;
  std::string interface;  ///< network interface; "": loopback if all ranks are on one host
  std::chrono::milliseconds timeout{60'000};
  std::shared_ptr<Store> store;
  std::string master_addr;            ///< host of rank 0; without `interface` the one that reaches it is used
  std::vector<HostIdentity> hosts{};  ///< by rank; empty: all ranks are on this host
  /// Algorithms of collectives in place of the library's own.
  AlgorithmChoice algorithms{};
  int device = 0;  ///< of this host, for `nccl`: index of the rank on its host
};

struct BackendFactory {
  std::function<std::unique_ptr<Backend>(const BackendConfig&)> make;
  std::string library;  ///< with its version: `Gloo 0.5.0`
  /// into[i] += from[i] by the code of the backend's reductions; empty if a device reduces.
  std::function<void(float* into, const float* from, std::size_t count)> add;
};
Registry<BackendFactory>& backends();

/// Backend of that name. \throws UsageError for an unknown name; CapabilityError for `nccl` if this program
/// was built without it
const BackendFactory& find_backend(const std::string& name);

}  // namespace stepcast
