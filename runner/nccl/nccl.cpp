#include <cassert>
#include <cmath>
#include <map>
#include <utility>

#include "core/error.hpp"
#include "core/ranges.hpp"
#include "runner/backend/backend.hpp"
#include "runner/backend/work_queue.hpp"
#include "runner/nccl/nccl_work.hpp"

namespace stepcast {
namespace {

ncclDataType_t nccl_type(DataType type) {
  constexpr std::array kTypes{ncclFloat16, ncclBfloat16, ncclFloat32, ncclFloat64, ncclInt64, ncclUint8};
  return kTypes.at(static_cast<std::size_t>(type));
}

/// Device of one rank, shared by a backend and its subgroups.
struct NcclDevice {
  explicit NcclDevice(const BackendConfig& config)
      : job(std::make_shared<NcclJob>(config, FailureReports(config.store))), watch(config.device) {}
  std::shared_ptr<NcclJob> job;
  NcclWatch watch;
  std::shared_ptr<DeviceTimeline> timeline;
};

/// Messages from one rank to another have their own communicator, stream and thread: no order in which ranks
/// post them leads to a deadlock. The thread connects the peer at the first message; after that it only
/// enqueues calls.
struct NcclChannel {
  GroupMembers members;  ///< the sender first
  CudaStream stream = make_cuda_stream();
  std::shared_ptr<NcclCommunicator> communicator{};
  WorkQueue queue{0, 1};
};

/// Backend over NCCL. Every call waits on its own stream for the default stream and does not block the host.
class NcclBackend : public Backend {
 public:
  /// \param whole counter of the backend that this one is a group of, else null
  NcclBackend(std::shared_ptr<NcclDevice> device, const GroupMembers& members,
              std::shared_ptr<SentBytes> whole)
      : device_(std::move(device)),
        members_(members),
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

  [[nodiscard]] int rank() const override { return members_.own; }
  [[nodiscard]] int world_size() const override { return members_.size(); }
  [[nodiscard]] int collectives_in_flight() const override { return 1; }
  [[nodiscard]] std::uint64_t bytes_sent() const override { return sent_->count(); }

  std::unique_ptr<Backend> subgroup(const std::string& name, const std::vector<int>& ranks) override {
    enter();
    return std::make_unique<NcclBackend>(device_, members_.subgroup(name, ranks), sent_);
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
  void restart_clock() override {
    enter();
    device_->timeline->restart(stream_.get());
  }

  WorkPtr all_reduce(Array in_place) override { return reduce(in_place, ncclSum); }
  WorkPtr all_reduce_maximum(Array in_place) override { return reduce(in_place, ncclMax); }

  WorkPtr broadcast(Array in_place, int root) override {
    const auto& [data, count, type] = in_place;
    return push(CollectiveKind::kBroadcast, in_place.bytes(), root,
                on_stream(nccl_.broadcast, data, data, count, nccl_type(type), root));
  }

  WorkPtr gather(Array in, Array out, int root) override {
    return push_parts(CollectiveKind::kGather, in.bytes() * ranks(), root, {{in, root}},
                      rank() == root ? parts_of(out) : Parts());
  }

  WorkPtr scatter(std::vector<Array> in, Array out, int root) override {
    Parts sends;
    for (int peer = 0; rank() == root && peer < world_size(); ++peer) sends.emplace_back(in[peer], peer);
    return push_parts(CollectiveKind::kScatter, out.bytes() * ranks(), root, std::move(sends), {{out, root}});
  }

  WorkPtr all_gather(Array in, Array out) override {
    return push(CollectiveKind::kAllGather, in.bytes() * ranks(), 0,
                on_stream(nccl_.all_gather, in.data, out.data, in.count, nccl_type(in.type)));
  }

  WorkPtr reduce_scatter(Array in, Array out) override {
    assert(in.count == out.count * ranks());
    return push(CollectiveKind::kReduceScatter, in.bytes(), 0,
                on_stream(nccl_.reduce_scatter, in.data, out.data, out.count, nccl_type(in.type), ncclSum));
  }

  WorkPtr all_to_all(Array in, Array out) override {
    return push_parts(CollectiveKind::kAllToAll, in.bytes(), 0, parts_of(in), parts_of(out));
  }

  WorkPtr shift(Array in, Array out) override {
    return push_parts(CollectiveKind::kShift, in.bytes(), 0, {{in, (rank() + 1) % world_size()}},
                      {{out, (rank() + world_size() - 1) % world_size()}});
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
    push_call("barrier", on_stream(nccl_.all_reduce, signal_.get(), signal_.get(), 1, ncclUint8, ncclMax))
        ->wait();
  }

 private:
  using Call = std::function<ncclResult_t(ncclComm_t)>;
  using Parts = std::vector<std::pair<Array, int>>;  ///< messages and the ranks that they go to or come from
  struct Ends {
    int from = 0;
    int to = 0;
    auto operator<=>(const Ends&) const = default;
  };

  [[nodiscard]] std::size_t ranks() const { return static_cast<std::size_t>(world_size()); }
  [[nodiscard]] int rank_of_job(int rank) const { return members_.ranks.at(rank); }

  /// Sets the device of this rank for the calling thread.
  void enter() const { require_cuda(cudaSetDevice(device_->job->place.device), "cudaSetDevice"); }

  static bool idle(const NcclChannel& channel) {
    return channel.queue.idle() && cudaStreamQuery(channel.stream.get()) == cudaSuccess;
  }

  static ncclResult_t worse(ncclResult_t a, ncclResult_t b) {
    return a == ncclSuccess || a == ncclInProgress ? b : a;
  }

  /// Equal parts of an array, one for each rank.
  [[nodiscard]] Parts parts_of(const Array& whole) const {
    Parts parts;
    const std::size_t count = whole.count / ranks();
    for (int peer = 0; peer < world_size(); ++peer) parts.emplace_back(whole.part(peer * count, count), peer);
    return parts;
  }

  WorkPtr reduce(const Array& in_place, ncclRedOp_t operation) {
    const auto& [data, count, type] = in_place;
    return push(CollectiveKind::kAllReduce, in_place.bytes(), 0,
                on_stream(nccl_.all_reduce, data, data, count, nccl_type(type), operation));
  }

  /// Call of NCCL with these arguments on the communicator and the stream of the backend.
  template <class Function, class... Arguments>
  Call on_stream(Function function, Arguments... arguments) {
    return [=, this](ncclComm_t communicator) { return function(arguments..., communicator, stream_.get()); };
  }

  /// An empty array moves nothing. Counts bytes by the algorithm that forecasts assume for NCCL, which does
  /// not report its choice. \param bytes size of the whole array
  WorkPtr push(CollectiveKind kind, std::size_t bytes, int root, Call call) {
    const CollectiveCall whole{Bytes(static_cast<double>(bytes)), world_size(), root, 1.0};
    const double sent = world_size() < 2 ? 0.0 : algorithm_for(kind, "nccl").sent(whole, rank()).count();
    sent_->add(static_cast<std::uint64_t>(std::llround(sent)));
    return push_call(to_text(kind), bytes == 0 ? Call() : std::move(call));
  }

  /// NCCL starts the sends and receives of a group together.
  WorkPtr push_parts(CollectiveKind kind, std::size_t bytes, int root, Parts sends, Parts receives) {
    return push(kind, bytes, root,
                [this, sends = std::move(sends), receives = std::move(receives)](ncclComm_t communicator) {
                  ncclResult_t result = nccl_.group_start();
                  if (result != ncclSuccess) return worse(result, nccl_.group_end());
                  const auto add = [&](auto function, const Parts& parts) {
                    for (const auto& [part, peer] : parts)
                      result = worse(result, on_stream(function, part.data, part.count, nccl_type(part.type),
                                                       peer)(communicator));
                  };
                  add(nccl_.send, sends);
                  add(nccl_.recv, receives);
                  return worse(result, nccl_.group_end());
                });
  }

  WorkPtr push_call(const std::string& what, const Call& call) {
    enter();
    auto work = std::make_shared<NcclWork>(what, device_->timeline);
    put_on_stream(*work, what, communicator_, stream_.get(), record_cuda_event(nullptr), call);
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
      work.set_issued({communicator, start, record_cuda_event(stream)});
    } catch (const std::exception&) {
      work.set_issued({.error = std::current_exception()});
    }
  }

  WorkPtr post(const Ends& ends, const std::string& what, const Array& data) {
    enter();
    const std::shared_ptr<NcclChannel> channel = channel_of(ends);
    auto work = std::make_shared<NcclWork>(what, device_->timeline);
    channel->queue.push([device = device_, channel, work, what, data, sends = ends.from == rank(),
                         ready = record_cuda_event(nullptr)] {
      static_cast<void>(cudaSetDevice(device->job->place.device));
      try {
        if (channel->communicator == nullptr)
          channel->communicator = std::make_shared<NcclCommunicator>(device->job, channel->members);
      } catch (const std::exception& error) {
        return work->set_issued(
            {.error = std::make_exception_ptr(RunError(lost_message(what, error.what())))});
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
    return cached(channels_, ends, [&] {
      GroupMembers members{fmt::format("{}/{} to {}", members_.name, ends.from, ends.to),
                           {rank_of_job(ends.from), rank_of_job(ends.to)},
                           ends.from == rank() ? 0 : 1};
      return std::shared_ptr<NcclChannel>(new NcclChannel{.members = std::move(members)});
    });
  }

  const NcclLibrary& nccl_ = nccl_library();
  std::shared_ptr<NcclDevice> device_;
  GroupMembers members_;
  std::shared_ptr<NcclCommunicator> communicator_;
  CudaStream stream_;
  std::shared_ptr<SentBytes> sent_;
  std::shared_ptr<void> signal_;  ///< one byte, for barriers
  std::map<Ends, std::shared_ptr<NcclChannel>> channels_;
  std::shared_ptr<NcclWork> last_;
  WorkQueue tasks_{0, 1};
};

std::unique_ptr<Backend> make_nccl(const BackendConfig& config) {
  if (!config.algorithms.empty())
    throw CapabilityError(
        "--algorithm: over NCCL it can be predicted, not run; set NCCL_ALGO to choose in NCCL");
  enter_cuda_device("--backend nccl: ", config.device);
  static_cast<void>(nccl_library());
  const GroupMembers members{"nccl", all_ranks(config.world_size), config.rank};
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
