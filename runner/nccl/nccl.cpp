#include <cassert>
#include <cmath>
#include <map>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "core/error.hpp"
#include "runner/backend/sent_bytes.hpp"
#include "runner/backend/work_queue.hpp"
#include "runner/nccl/nccl_work.hpp"

namespace stepcast {
namespace {

ncclDataType_t nccl_type(DataType type) {
  switch (type) {
    case DataType::kFloat16:
      return ncclFloat16;
    case DataType::kBFloat16:
      return ncclBfloat16;
    case DataType::kFloat32:
      return ncclFloat32;
    case DataType::kFloat64:
      return ncclFloat64;
    case DataType::kInt64:
      return ncclInt64;
    case DataType::kUInt8:
      return ncclUint8;
  }
  return ncclNumTypes;
}

/// Payload of one rank by the algorithm that forecasts assume for NCCL; NCCL does not report its choice.
/// \param bytes size of the whole array
std::uint64_t nccl_bytes_sent(CollectiveKind kind, std::size_t bytes, int rank, int ranks, int root) {
  if (ranks < 2) return 0;
  const CollectiveCall call{Bytes(static_cast<double>(bytes)), ranks, root, 1.0};
  return static_cast<std::uint64_t>(std::llround(algorithm_for(kind, "nccl").sent(call, rank).count()));
}

/// Device of one rank, shared by a backend and its subgroups.
struct NcclDevice {
  explicit NcclDevice(const BackendConfig& config)
      : number(config.device),
        job(std::make_shared<NcclJob>(config, FailureReports(config.store))),
        watch(number) {}
  const int number;
  std::shared_ptr<NcclJob> job;
  NcclWatch watch;
  std::shared_ptr<DeviceTimeline> timeline;
};

/// Messages from one rank to another have their own communicator, stream and thread: no order in which ranks
/// post them leads to a deadlock. The thread connects the peer at the first message; after that it only
/// enqueues calls.
struct NcclChannel {
  NcclMembers members;  ///< the sender first
  CudaStream stream = make_cuda_stream();
  std::shared_ptr<NcclCommunicator> communicator{};
  WorkQueue queue{0, 1};
};

/// Backend over NCCL. Every call waits on its own stream for the followed stream and does not block the host.
class NcclBackend : public Backend {
 public:
  /// \param lent by a backend that this one is a group of, else null
  NcclBackend(std::shared_ptr<NcclDevice> device, const NcclMembers& members,
              std::shared_ptr<SentBytes> whole)
      : device_(std::move(device)),
        communicator_(std::make_shared<NcclCommunicator>(device_->job, members)),
        stream_(make_cuda_stream()),
        sent_(std::make_shared<SentBytes>(std::move(whole))) {
    if (device_->timeline == nullptr) device_->timeline = std::make_shared<DeviceTimeline>(stream_.get());
    signal_ = memory(1);
  }

  /// With calls in flight this rank gives up: its peers should fail at once, and its device not wait.
  ~NcclBackend() override {
    if (last_ != nullptr && !last_->done()) communicator_->abandon();
    for (const auto& [ends, channel] : channels_)
      if (channel->communicator != nullptr && !idle(*channel)) channel->communicator->abandon();
  }
  NcclBackend& operator=(NcclBackend&&) = delete;

  [[nodiscard]] int rank() const override { return communicator_->members().own; }
  [[nodiscard]] int world_size() const override { return communicator_->members().size(); }
  [[nodiscard]] int collectives_in_flight() const override { return 1; }
  [[nodiscard]] std::uint64_t bytes_sent() const override { return sent_->count(); }

  std::unique_ptr<Backend> subgroup(const std::string& name, const std::vector<int>& ranks) override {
    NcclMembers members;
    members.own = -1;
    for (const int rank : ranks) {
      if (rank == this->rank()) members.own = members.size();
      members.ranks.push_back(rank_of_job(rank));
    }
    if (members.own < 0) throw std::logic_error("a rank makes a group '" + name + "' that it is not in");
    const std::string key = name + "/" + ranks_in_words(members.ranks, {});
    members.name = communicator_->members().name + "/" + key + "/" + std::to_string(groups_[key]++);
    enter();
    return std::make_unique<NcclBackend>(device_, members, sent_);
  }

  std::shared_ptr<void> memory(std::size_t bytes) override {
    enter();
    void* place = nullptr;
    require_cuda(cudaMalloc(&place, std::max<std::size_t>(bytes, 1)), "cudaMalloc");
    std::shared_ptr<void> owner(place, [](void* memory) { static_cast<void>(cudaFree(memory)); });
    clear(place, bytes);
    return owner;
  }
  void copy(void* to, const void* from, std::size_t bytes) override {
    enter();
    require_cuda(cudaMemcpy(to, from, bytes, cudaMemcpyDefault), "cudaMemcpy");
  }
  void clear(void* memory, std::size_t bytes) override {
    enter();
    require_cuda(cudaMemset(memory, 0, bytes), "cudaMemset");
  }
  void follow(StreamHandle stream) override { followed_ = static_cast<cudaStream_t>(stream); }
  void restart_clock() override {
    enter();
    device_->timeline->restart(stream_.get());
  }

  WorkPtr all_reduce(Array in_place) override { return reduce(in_place, ncclSum); }
  WorkPtr all_reduce_maximum(Array in_place) override { return reduce(in_place, ncclMax); }

  WorkPtr broadcast(Array in_place, int root) override {
    return push(CollectiveKind::kBroadcast, in_place.bytes(), root,
                [this, in_place, root](ncclComm_t communicator) {
                  return nccl_.broadcast(in_place.data, in_place.data, in_place.count,
                                         nccl_type(in_place.type), root, communicator, stream_.get());
                });
  }

  WorkPtr gather(Array in, Array out, int root) override {
    return push_grouped(
        CollectiveKind::kGather, in.bytes() * ranks(), root, [=, this](ncclComm_t communicator) {
          ncclResult_t result = send_part(in, root, communicator);
          for (int peer = 0; rank() == root && peer < world_size(); ++peer)
            result = worse(result, receive_part(out.part(static_cast<std::size_t>(peer) * in.count, in.count),
                                                peer, communicator));
          return result;
        });
  }

  WorkPtr scatter(std::vector<Array> in, Array out, int root) override {
    return push_grouped(
        CollectiveKind::kScatter, out.bytes() * ranks(), root, [=, this](ncclComm_t communicator) {
          ncclResult_t result = receive_part(out, root, communicator);
          for (int peer = 0; rank() == root && peer < world_size(); ++peer)
            result = worse(result, send_part(in[static_cast<std::size_t>(peer)], peer, communicator));
          return result;
        });
  }

  WorkPtr all_gather(Array in, Array out) override {
    return push(CollectiveKind::kAllGather, in.bytes() * ranks(), 0,
                [this, in, out](ncclComm_t communicator) {
                  return nccl_.all_gather(in.data, out.data, in.count, nccl_type(in.type), communicator,
                                          stream_.get());
                });
  }

  WorkPtr reduce_scatter(Array in, Array out) override {
    assert(in.count == out.count * ranks());
    return push(CollectiveKind::kReduceScatter, in.bytes(), 0, [this, in, out](ncclComm_t communicator) {
      return nccl_.reduce_scatter(in.data, out.data, out.count, nccl_type(in.type), ncclSum, communicator,
                                  stream_.get());
    });
  }

  WorkPtr all_to_all(Array in, Array out) override {
    return push_grouped(CollectiveKind::kAllToAll, in.bytes(), 0, [=, this](ncclComm_t communicator) {
      ncclResult_t result = ncclSuccess;
      const std::size_t count = in.count / ranks();
      for (int peer = 0; peer < world_size(); ++peer) {
        result = worse(result,
                       send_part(in.part(static_cast<std::size_t>(peer) * count, count), peer, communicator));
        result = worse(result, receive_part(out.part(static_cast<std::size_t>(peer) * count, count), peer,
                                            communicator));
      }
      return result;
    });
  }

  WorkPtr shift(Array in, Array out) override {
    return push_grouped(CollectiveKind::kShift, in.bytes(), 0, [=, this](ncclComm_t communicator) {
      const ncclResult_t result = send_part(in, (rank() + 1) % world_size(), communicator);
      return worse(result, receive_part(out, (rank() + world_size() - 1) % world_size(), communicator));
    });
  }

  WorkPtr send(Array data, int peer, std::uint32_t /*tag*/) override {
    sent_->add(data.bytes());
    return post({rank(), peer}, "send to rank " + std::to_string(rank_of_job(peer)), data);
  }
  WorkPtr recv(Array data, int peer, std::uint32_t /*tag*/) override {
    return post({peer, rank()}, "recv from rank " + std::to_string(rank_of_job(peer)), data);
  }

  WorkPtr submit(std::function<void()> task) override { return tasks_.push(std::move(task)); }

  void barrier() override {
    const Array signal{signal_.get(), 1, DataType::kUInt8};
    push_call("barrier", [this, signal](ncclComm_t communicator) {
      return nccl_.all_reduce(signal.data, signal.data, signal.count, ncclUint8, ncclMax, communicator,
                              stream_.get());
    })->wait();
  }

 private:
  using Call = std::function<ncclResult_t(ncclComm_t)>;
  struct Ends {
    int from = 0;
    int to = 0;
    auto operator<=>(const Ends&) const = default;
  };

  [[nodiscard]] std::size_t ranks() const { return static_cast<std::size_t>(world_size()); }
  [[nodiscard]] int rank_of_job(int rank) const {
    return communicator_->members().ranks.at(static_cast<std::size_t>(rank));
  }

  /// Sets the device of this rank for the calling thread.
  void enter() const { require_cuda(cudaSetDevice(device_->number), "cudaSetDevice"); }

  static bool idle(const NcclChannel& channel) {
    return channel.queue.idle() && cudaStreamQuery(channel.stream.get()) == cudaSuccess;
  }

  static ncclResult_t worse(ncclResult_t a, ncclResult_t b) {
    return a == ncclSuccess || a == ncclInProgress ? b : a;
  }

  ncclResult_t send_part(const Array& part, int peer, ncclComm_t communicator) {
    return nccl_.send(part.data, part.count, nccl_type(part.type), peer, communicator, stream_.get());
  }
  ncclResult_t receive_part(const Array& part, int peer, ncclComm_t communicator) {
    return nccl_.recv(part.data, part.count, nccl_type(part.type), peer, communicator, stream_.get());
  }

  WorkPtr reduce(const Array& in_place, ncclRedOp_t operation) {
    return push(CollectiveKind::kAllReduce, in_place.bytes(), 0, [=, this](ncclComm_t communicator) {
      return nccl_.all_reduce(in_place.data, in_place.data, in_place.count, nccl_type(in_place.type),
                              operation, communicator, stream_.get());
    });
  }

  /// An empty array moves nothing.
  WorkPtr push(CollectiveKind kind, std::size_t bytes, int root, Call call) {
    sent_->add(nccl_bytes_sent(kind, bytes, rank(), world_size(), root));
    return push_call(to_text(kind), bytes == 0 ? Call() : std::move(call));
  }

  /// NCCL starts the sends and receives of a group together.
  WorkPtr push_grouped(CollectiveKind kind, std::size_t bytes, int root, Call calls) {
    return push(kind, bytes, root, [this, calls = std::move(calls)](ncclComm_t communicator) {
      ncclResult_t result = nccl_.group_start();
      if (result == ncclSuccess) result = calls(communicator);
      return worse(result, nccl_.group_end());
    });
  }

  WorkPtr push_call(const std::string& what, const Call& call) {
    enter();
    auto work = std::make_shared<NcclWork>(what, device_->timeline);
    put_on_stream(*work, what, communicator_, stream_.get(), record_cuda_event(followed_), call);
    device_->watch.add(work);
    last_ = work;
    return work;
  }

  /// \param ready event that the stream waits for first
  static void put_on_stream(NcclWork& work, const std::string& what,
                            const std::shared_ptr<NcclCommunicator>& communicator, cudaStream_t stream,
                            const CudaEvent& ready, const Call& call) {
    try {
      require_cuda(cudaStreamWaitEvent(stream, ready.get(), 0), "cudaStreamWaitEvent");
      const CudaEvent start = record_cuda_event(stream);
      if (call) communicator->issue(what, call);
      work.issued(communicator, start, record_cuda_event(stream));
    } catch (const std::exception&) {
      work.refused(std::current_exception());
    }
  }

  WorkPtr post(const Ends& ends, const std::string& what, const Array& data) {
    enter();
    const std::shared_ptr<NcclChannel> channel = channel_of(ends);
    auto work = std::make_shared<NcclWork>(what, device_->timeline);
    channel->queue.push([device = device_, channel, work, what, data, sends = ends.from == rank(),
                         ready = record_cuda_event(followed_)] {
      static_cast<void>(cudaSetDevice(device->number));
      try {
        if (channel->communicator == nullptr)
          channel->communicator = std::make_shared<NcclCommunicator>(device->job, channel->members);
      } catch (const std::exception& error) {
        return work->refused(std::make_exception_ptr(RunError(lost_message(what, error.what()))));
      }
      put_on_stream(*work, what, channel->communicator, channel->stream.get(), ready,
                    [&](ncclComm_t communicator) {
                      const NcclLibrary& nccl = nccl_library();
                      const ncclDataType_t type = nccl_type(data.type);
                      if (sends)
                        return nccl.send(data.data, data.count, type, 1, communicator, channel->stream.get());
                      return nccl.recv(data.data, data.count, type, 0, communicator, channel->stream.get());
                    });
    });
    device_->watch.add(work);
    return work;
  }

  /// `rank 0: NCCL cannot connect ...` becomes `rank 0: recv from rank 1 failed: NCCL cannot connect ...`.
  static std::string lost_message(const std::string& what, const std::string& reason) {
    const std::size_t colon = reason.find(": ");
    if (colon == std::string::npos) return what + " failed: " + reason;
    return reason.substr(0, colon + 2) + what + " failed: " + reason.substr(colon + 2);
  }

  std::shared_ptr<NcclChannel> channel_of(const Ends& ends) {
    std::shared_ptr<NcclChannel>& channel = channels_[ends];
    if (channel == nullptr) {
      NcclMembers members;
      members.name =
          communicator_->members().name + "/" + std::to_string(ends.from) + " to " + std::to_string(ends.to);
      members.ranks = {rank_of_job(ends.from), rank_of_job(ends.to)};
      members.own = ends.from == rank() ? 0 : 1;
      channel = std::shared_ptr<NcclChannel>(new NcclChannel{.members = std::move(members)});
    }
    return channel;
  }

  const NcclLibrary& nccl_ = nccl_library();
  std::shared_ptr<NcclDevice> device_;
  std::shared_ptr<NcclCommunicator> communicator_;
  CudaStream stream_;
  std::shared_ptr<SentBytes> sent_;
  std::shared_ptr<void> signal_;  ///< one byte, for barriers
  cudaStream_t followed_ = nullptr;
  std::map<std::string, int> groups_;  ///< number of groups made under each name
  std::map<Ends, std::shared_ptr<NcclChannel>> channels_;
  std::shared_ptr<NcclWork> last_;
  WorkQueue tasks_{0, 1};
};

/// \throws CapabilityError without a GPU; UsageError if there are fewer than ranks on this host
void require_device(int device) {
  const int count = count_cuda_devices("--backend nccl: ");
  if (device >= count)
    throw UsageError("--backend nccl: rank " + std::to_string(device) +
                     " of this host has no GPU: there are " + std::to_string(count) + ", one per rank");
  require_cuda(cudaSetDevice(device), "cudaSetDevice");
}

std::unique_ptr<Backend> make_nccl(const BackendConfig& config) {
  if (!config.algorithms.empty())
    throw CapabilityError(
        "--algorithm: over NCCL it can be predicted, not run; set NCCL_ALGO to choose in NCCL");
  require_device(config.device);
  static_cast<void>(nccl_library());
  NcclMembers members{"nccl", std::vector<int>(static_cast<std::size_t>(config.world_size)), config.rank};
  std::iota(members.ranks.begin(), members.ranks.end(), 0);
  return std::make_unique<NcclBackend>(std::make_shared<NcclDevice>(config), members, nullptr);
}

const Registration<BackendFactory> kNccl{
    backends(),
    {.name = "nccl",
     .description = "NCCL between NVIDIA GPUs, one per rank",
     .value = {.make = make_nccl, .library = "NCCL " + nccl_version_text(NCCL_VERSION_CODE), .add = {}},
     .order = 1}};

}  // namespace
}  // namespace stepcast
