#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runner/nccl/nccl_library.hpp"
#include "tests/nccl/stand_in.hpp"

namespace stepcast::stand_in {

void count_thing(int more);
int current_device();

namespace {

enum class Kind : std::uint8_t { kAllReduce, kBroadcast, kAllGather, kReduceScatter };

struct Part {
  Kind kind = Kind::kAllReduce;
  const void* in = nullptr;
  void* out = nullptr;
  std::size_t count = 0;
  ncclDataType_t type = ncclFloat32;
  ncclRedOp_t operation = ncclSum;
  int root = 0;
};

/// A message that is sent and not yet received.
struct Offer {
  const void* data = nullptr;
  std::size_t bytes = 0;
  bool taken = false;
};

/// What the ranks of one communicator share.
struct Meeting {
  explicit Meeting(int ranks) : size(ranks) {}
  const int size;
  std::mutex mutex;
  std::condition_variable changed;
  int joined = 0;
  int finished = 0;
  std::map<std::uint64_t, std::map<int, Part>> calls;  ///< by their number, then by rank
  std::map<std::uint64_t, int> left;                   ///< of calls that are computed: who has still to leave
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<Offer>>> offers;  ///< by sender and receiver
};

struct Communicator {
  std::shared_ptr<Meeting> meeting;
  int rank = 0;
  int device = 0;
  std::uint64_t next = 0;
  bool finalized = false;
  std::shared_ptr<std::atomic<bool>> aborted = std::make_shared<std::atomic<bool>>(false);
};

Communicator& of(ncclComm_t communicator) { return *reinterpret_cast<Communicator*>(communicator); }

std::mutex meetings_mutex;
std::map<std::uint64_t, std::weak_ptr<Meeting>> meetings;
std::uint64_t next_id = 1;
std::map<int, ncclResult_t> errors;
std::atomic<int> collective_time_ms{0};
std::atomic<int> running{0};

std::size_t bytes_of(ncclDataType_t type) {
  switch (type) {
    case ncclUint8:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclFloat32:
      return 4;
    case ncclFloat64:
    case ncclInt64:
      return 8;
    default:
      throw std::logic_error("the stand-in does not know this type");
  }
}

template <class T>
void combine(const std::map<int, Part>& parts, std::size_t begin, std::size_t count, std::vector<T>& result) {
  result.assign(count, T{});
  bool first = true;
  for (const auto& [rank, part] : parts) {
    const T* values = static_cast<const T*>(part.in) + begin;
    for (std::size_t i = 0; i < count; ++i) {
      const T sum = static_cast<T>(result[i] + values[i]);
      result[i] = first ? values[i] : part.operation == ncclMax ? std::max(result[i], values[i]) : sum;
    }
    first = false;
  }
}

template <class T>
void compute_as(const std::map<int, Part>& parts) {
  const Part& one = parts.begin()->second;
  std::vector<T> whole;
  if (one.kind == Kind::kAllReduce) combine<T>(parts, 0, one.count, whole);
  if (one.kind == Kind::kReduceScatter) combine<T>(parts, 0, one.count * parts.size(), whole);
  if (one.kind == Kind::kBroadcast) {
    const T* data = static_cast<const T*>(parts.at(one.root).in);
    whole.assign(data, data + one.count);
  }
  if (one.kind == Kind::kAllGather)
    for (const auto& [rank, part] : parts) {
      const T* data = static_cast<const T*>(part.in);
      whole.insert(whole.end(), data, data + part.count);
    }
  for (const auto& [rank, part] : parts) {
    const T* from = whole.data();
    if (one.kind == Kind::kReduceScatter) from += static_cast<std::size_t>(rank) * part.count;
    const std::size_t count = one.kind == Kind::kAllGather ? whole.size() : part.count;
    if (count != 0) std::memcpy(part.out, from, count * sizeof(T));
  }
}

void compute(const std::map<int, Part>& parts) {
  const Part& one = parts.begin()->second;
  const bool adds = one.kind == Kind::kAllReduce || one.kind == Kind::kReduceScatter;
  if (bytes_of(one.type) == 2 && !adds) return compute_as<std::uint16_t>(parts);  // moved as they are
  switch (one.type) {
    case ncclUint8:
      return compute_as<std::uint8_t>(parts);
    case ncclFloat32:
      return compute_as<float>(parts);
    case ncclFloat64:
      return compute_as<double>(parts);
    case ncclInt64:
      return compute_as<std::int64_t>(parts);
    default:
      throw std::logic_error("the stand-in does not add this type");
  }
}

/// The last one to come computes for all; who is aborted leaves without a result, as a kernel does.
ncclResult_t meet(ncclComm_t communicator, const Part& part, cudaStream_t stream) {
  Communicator& own = of(communicator);
  launch(stream, [meeting = own.meeting, aborted = own.aborted, rank = own.rank, number = own.next++, part] {
    ++running;
    std::this_thread::sleep_for(std::chrono::milliseconds(collective_time_ms));
    --running;
    std::unique_lock lock(meeting->mutex);
    std::map<int, Part>& parts = meeting->calls[number];
    parts[rank] = part;
    if (static_cast<int>(parts.size()) == meeting->size) {
      compute(parts);
      meeting->left[number] = meeting->size;
      meeting->changed.notify_all();
    }
    meeting->changed.wait(lock, [&] { return meeting->left.contains(number) || *aborted; });
    if (!meeting->left.contains(number)) {
      meeting->calls[number].erase(rank);
    } else if (--meeting->left[number] == 0) {
      meeting->calls.erase(number);
    }
  });
  return ncclInProgress;
}

struct Message {
  ncclComm_t communicator;
  bool sends;
  void* data;
  std::size_t bytes;
  int peer;
  cudaStream_t stream;
};

thread_local int group_depth = 0;
thread_local std::vector<Message> grouped;

/// All of a group move together: what is sent is offered before anything is received.
void exchange(const std::vector<Message>& messages) {
  const Communicator& own = of(messages.front().communicator);
  launch(messages.front().stream, [meeting = own.meeting, aborted = own.aborted, rank = own.rank, messages] {
    std::unique_lock lock(meeting->mutex);
    std::vector<std::pair<int, std::shared_ptr<Offer>>> offers;
    for (const Message& message : messages)
      if (message.sends) {
        offers.emplace_back(message.peer, std::make_shared<Offer>(Offer{message.data, message.bytes}));
        meeting->offers[{rank, message.peer}].push_back(offers.back().second);
      }
    meeting->changed.notify_all();
    for (const Message& message : messages) {
      if (message.sends) continue;
      auto& waiting = meeting->offers[{message.peer, rank}];
      meeting->changed.wait(lock, [&] { return !waiting.empty() || *aborted; });
      if (*aborted) break;
      const std::shared_ptr<Offer> offer = waiting.front();
      waiting.pop_front();
      if (message.bytes != 0) std::memcpy(message.data, offer->data, message.bytes);
      offer->taken = true;
      meeting->changed.notify_all();
    }
    for (const auto& [peer, offer] : offers) {
      meeting->changed.wait(lock, [&, one = offer] { return one->taken || *aborted; });
      if (!offer->taken) std::erase(meeting->offers[{rank, peer}], offer);
    }
  });
}

ncclResult_t post(const Message& message) {
  if (group_depth > 0)
    grouped.push_back(message);
  else
    exchange({message});
  return ncclInProgress;
}

ncclResult_t get_version(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

ncclResult_t get_unique_id(ncclUniqueId* id) {
  const std::scoped_lock lock(meetings_mutex);
  std::memset(id->internal, 0, sizeof id->internal);
  std::memcpy(id->internal, &next_id, sizeof next_id);
  ++next_id;
  return ncclSuccess;
}

ncclResult_t init(ncclComm_t* communicator, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
  if (config->blocking != 0) return ncclInvalidArgument;
  std::uint64_t number = 0;
  std::memcpy(&number, id.internal, sizeof number);
  auto own = std::make_unique<Communicator>();
  own->rank = rank;
  own->device = current_device();
  {
    const std::scoped_lock lock(meetings_mutex);
    own->meeting = meetings[number].lock();
    if (own->meeting == nullptr) meetings[number] = own->meeting = std::make_shared<Meeting>(ranks);
  }
  const std::scoped_lock lock(own->meeting->mutex);
  ++own->meeting->joined;
  *communicator = reinterpret_cast<ncclComm_t>(own.release());
  count_thing(1);
  return ncclInProgress;
}

ncclResult_t async_error(ncclComm_t communicator, ncclResult_t* state) {
  const Communicator& own = of(communicator);
  {
    const std::scoped_lock lock(meetings_mutex);
    const auto error = errors.find(own.device);
    *state = error == errors.end() ? ncclSuccess : error->second;
  }
  const std::scoped_lock lock(own.meeting->mutex);
  if (own.meeting->joined < own.meeting->size || (own.finalized && own.meeting->finished < own.meeting->size))
    *state = ncclInProgress;
  return ncclSuccess;
}

ncclResult_t finalize(ncclComm_t communicator) {
  Communicator& own = of(communicator);
  const std::scoped_lock lock(own.meeting->mutex);
  own.finalized = true;
  ++own.meeting->finished;
  return ncclInProgress;
}

ncclResult_t abort(ncclComm_t communicator) {
  Communicator* const own = &of(communicator);
  {
    const std::scoped_lock lock(own->meeting->mutex);
    *own->aborted = true;
    own->meeting->changed.notify_all();
  }
  delete own;
  count_thing(-1);
  return ncclSuccess;
}

ncclResult_t destroy(ncclComm_t communicator) { return abort(communicator); }

const char* error_string(ncclResult_t result) {
  return result == ncclRemoteError ? "remote process exited or there was a network error"
                                   : "an error of the stand-in";
}

ncclResult_t group_start() {
  ++group_depth;
  return ncclSuccess;
}
ncclResult_t group_end() {
  if (--group_depth > 0) return ncclSuccess;
  const std::vector<Message> messages = std::exchange(grouped, {});
  if (!messages.empty()) exchange(messages);
  return ncclInProgress;
}

ncclResult_t all_reduce(const void* in, void* out, std::size_t count, ncclDataType_t type,
                        ncclRedOp_t operation, ncclComm_t communicator, cudaStream_t stream) {
  return meet(communicator, {Kind::kAllReduce, in, out, count, type, operation}, stream);
}
ncclResult_t broadcast(const void* in, void* out, std::size_t count, ncclDataType_t type, int root,
                       ncclComm_t communicator, cudaStream_t stream) {
  return meet(communicator, {Kind::kBroadcast, in, out, count, type, ncclSum, root}, stream);
}
ncclResult_t all_gather(const void* in, void* out, std::size_t count, ncclDataType_t type,
                        ncclComm_t communicator, cudaStream_t stream) {
  return meet(communicator, {Kind::kAllGather, in, out, count, type}, stream);
}
ncclResult_t reduce_scatter(const void* in, void* out, std::size_t count, ncclDataType_t type,
                            ncclRedOp_t operation, ncclComm_t communicator, cudaStream_t stream) {
  return meet(communicator, {Kind::kReduceScatter, in, out, count, type, operation}, stream);
}
ncclResult_t send(const void* data, std::size_t count, ncclDataType_t type, int peer, ncclComm_t communicator,
                  cudaStream_t stream) {
  return post({communicator, true, const_cast<void*>(data), count * bytes_of(type), peer, stream});
}
ncclResult_t recv(void* data, std::size_t count, ncclDataType_t type, int peer, ncclComm_t communicator,
                  cudaStream_t stream) {
  return post({communicator, false, data, count * bytes_of(type), peer, stream});
}

}  // namespace

void slow_collectives(std::chrono::milliseconds each) { collective_time_ms = static_cast<int>(each.count()); }
int running_collectives() { return running; }

void set_asynchronous_error(int device, ncclResult_t error) {
  const std::scoped_lock lock(meetings_mutex);
  if (error == ncclSuccess)
    errors.erase(device);
  else
    errors[device] = error;
}

}  // namespace stepcast::stand_in

namespace stepcast {

const NcclLibrary& nccl_library() {
  using namespace stand_in;
  static const NcclLibrary calls{get_version,       get_unique_id,   init,           finalize,
                                 stand_in::destroy, stand_in::abort, async_error,    error_string,
                                 group_start,       group_end,       all_reduce,     broadcast,
                                 all_gather,        reduce_scatter,  stand_in::send, stand_in::recv};
  return calls;
}

std::string nccl_version_text(int version) { return "stand-in " + std::to_string(version); }

}  // namespace stepcast
