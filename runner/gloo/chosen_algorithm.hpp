#pragma once

#include <gloo/context.h>
#include <gloo/transport/unbound_buffer.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "runner/backend/array_copies.hpp"
#include "runner/backend/backend.hpp"
#include "sim/collectives/algorithm.hpp"

namespace stepcast {

/// result[i] = a[i] + b[i], or the larger of both, with the signature of gloo's reductions.
using Sum = void (*)(void* result, const void* a, const void* b, std::size_t count);

/// Array of one rank, in blocks and in place, as in sim/collectives/algorithm.hpp.
struct ArrayInPlace {
  void* data = nullptr;
  std::size_t count = 0, element_size = 0;
  Sum sum = nullptr;
};

/// Gloo's own collectives use 0x01 to 0x08.
enum SlotPrefix : std::uint64_t { kRing = 0x41, kSteps = 0x42, kShift = 0x43 };

inline std::uint64_t slot_of(SlotPrefix prefix, std::uint32_t tag) {
  return prefix << 56U | static_cast<std::uint64_t>(tag) << 24U;
}

/// Memory that stays with the thread after use: fresh memory costs as much as the messages.
class Scratch {
 public:
  Scratch() = default;
  explicit Scratch(std::size_t bytes) {
    if (!spare().empty()) {
      memory_ = std::move(spare().back());
      spare().pop_back();
    }
    if (memory_.size() < bytes) memory_.resize(bytes);
  }
  ~Scratch() {
    if (!memory_.empty()) spare().push_back(std::move(memory_));
  }
  Scratch(Scratch&&) = default;
  Scratch& operator=(Scratch&&) = default;

  [[nodiscard]] char* data() { return memory_.data(); }
  [[nodiscard]] bool empty() const { return memory_.empty(); }

 private:
  static std::vector<std::vector<char>>& spare() {
    static thread_local std::vector<std::vector<char>> memory;
    return memory;
  }

  std::vector<char> memory_;
};

struct AlgorithmRun {
  gloo::Context& context;
  const Algorithm& algorithm;
  const ArrayInPlace& array;
  const std::uint64_t slot;
  SentBytes& sent;

  void run() {
    while (over < steps) {
      post();
      finish(open.front());
      open.pop_front();
      ++over;
    }
  }

  using Buffer = std::unique_ptr<gloo::transport::UnboundBuffer>;

  /// Whole elements of the array.
  struct Part {
    std::size_t begin = 0, count = 0;
    [[nodiscard]] bool overlaps(const Part& other) const {
      return begin < other.begin + other.count && other.begin < begin + count;
    }
  };
  /// A step under way.
  struct Posted {
    Part received;
    bool reduce = false;
    Scratch scratch;  ///< empty: arrives in its place
    Buffer send, receive;
  };

  [[nodiscard]] Part part(Bytes at, Bytes size) const {
    const std::size_t begin = element_at(at, call.element_bytes);
    return {begin, element_at(at + size, call.element_bytes) - begin};
  }
  [[nodiscard]] char* memory(const Part& part) const {
    return static_cast<char*>(array.data) + part.begin * array.element_size;
  }
  [[nodiscard]] std::size_t bytes(const Part& part) const { return part.count * array.element_size; }

  void post() {
    for (; begun < steps; ++begun) {
      const Exchange step = algorithm.step(call, context.rank, begun);
      if (step.after >= over) return;
      open.push_back(start(step));
    }
  }

  Posted start(const Exchange& step) {
    Posted posted;
    posted.reduce = step.reduce;
    const Part sends = step.to < 0 ? Part{} : part(step.sent_at, step.sent);
    posted.received = step.from < 0 ? Part{} : part(step.received_at, step.received);
    if (posted.received.count > 0) {
      const std::size_t size = bytes(posted.received);
      const bool aside = step.reduce || sends.overlaps(posted.received);
      if (aside) posted.scratch = Scratch(size);
      posted.receive =
          context.createUnboundBuffer(aside ? posted.scratch.data() : memory(posted.received), size);
      posted.receive->recv(step.from, slot, 0, size);
    }
    if (sends.count > 0) {
      posted.send = context.createUnboundBuffer(memory(sends), bytes(sends));
      posted.send->send(step.to, slot, 0, bytes(sends));
      sent.add(bytes(sends));
    }
    return posted;
  }

  void finish(Posted& posted) {
    if (posted.receive != nullptr) posted.receive->waitRecv();
    if (posted.send != nullptr) posted.send->waitSend();
    if (posted.scratch.empty()) return;
    char* own = memory(posted.received);
    if (posted.reduce)
      array.sum(own, own, posted.scratch.data(), posted.received.count);
    else
      std::memcpy(own, posted.scratch.data(), bytes(posted.received));
  }

  const CollectiveCall call{Bytes(static_cast<double>(array.count * array.element_size)), context.size, 0,
                            static_cast<double>(array.element_size)};
  const int steps = algorithm.steps(call, context.rank);
  int begun = 0, over = 0;
  std::deque<Posted> open{};
};

/// One call: the segments of all steps are numbered through; segment i belongs to step i / segments_.
class RingReduceScatter {
 public:
  RingReduceScatter(gloo::Context& context, const ArrayInPlace& out, const void* in, std::uint32_t tag)
      : out_(out),
        in_(in),
        rank_(context.rank),
        world_size_(context.size),
        part_bytes_(out.count * out.element_size),
        slot_(slot_of(kRing, tag)),
        partial_(2 * part_bytes_) {
    segments_ = std::max<std::size_t>(2, (part_bytes_ + kLargestSegment - 1) / kLargestSegment);
    segment_elements_ = (out.count + segments_ - 1) / segments_;
    // Gloo takes a mutable pointer for sends too, and only reads there.
    own_buffer_ = context.createUnboundBuffer(const_cast<void*>(in), world_size_ * part_bytes_);
    partial_buffer_ = context.createUnboundBuffer(partial_.data(), 2 * part_bytes_);
  }

  void run() {
    const std::size_t total = (world_size_ - 1) * segments_;
    send(0);
    receive(0);
    receive(1);
    for (std::size_t i = 0; i < total; ++i) {
      if (i + 1 < total) send(i + 1);
      if (bytes(i) > 0) partial_buffer_->waitRecv();
      add(i);
      // The memory that segment i + 2 arrives in was last sent by a segment up to i.
      if (bytes(i) > 0) sent_from(i)->waitSend();
      if (i + 2 < total) receive(i + 2);
    }
  }

 private:
  static constexpr std::size_t kLargestSegment = std::size_t{1} << 20U;

  [[nodiscard]] std::size_t step(std::size_t i) const { return i / segments_; }
  [[nodiscard]] std::size_t first_element(std::size_t i) const {
    return std::min(i % segments_ * segment_elements_, out_.count);
  }
  [[nodiscard]] std::size_t elements(std::size_t i) const {
    return std::min(segment_elements_, out_.count - first_element(i));
  }
  [[nodiscard]] std::size_t offset(std::size_t i) const { return first_element(i) * out_.element_size; }
  [[nodiscard]] std::size_t bytes(std::size_t i) const { return elements(i) * out_.element_size; }
  /// The part that rank_ sends in step `step`; it receives the one before.
  [[nodiscard]] std::size_t part_sent(std::size_t step) const {
    return (rank_ + 2 * world_size_ - 1 - step) % world_size_;
  }
  [[nodiscard]] std::size_t partial_offset(std::size_t i) const {
    return step(i) % 2 * part_bytes_ + offset(i);
  }
  [[nodiscard]] gloo::transport::UnboundBuffer* sent_from(std::size_t i) const {
    return step(i) == 0 ? own_buffer_.get() : partial_buffer_.get();
  }

  void send(std::size_t i) {
    if (bytes(i) == 0) return;
    const std::size_t from =
        step(i) == 0 ? part_sent(0) * part_bytes_ + offset(i) : partial_offset(i - segments_);
    sent_from(i)->send(static_cast<int>((rank_ + 1) % world_size_), slot_, from, bytes(i));
  }

  void receive(std::size_t i) {
    if (bytes(i) == 0) return;
    const auto from = static_cast<int>((rank_ + world_size_ - 1) % world_size_);
    partial_buffer_->recv(from, slot_, partial_offset(i), bytes(i));
  }

  void add(std::size_t i) {
    const std::size_t part = part_sent(step(i) + 1);
    const char* own = static_cast<const char*>(in_) + part * part_bytes_ + offset(i);
    char* received = partial_.data() + partial_offset(i);
    char* result = step(i) + 2 == world_size_ ? static_cast<char*>(out_.data) + offset(i) : received;
    out_.sum(result, received, own, elements(i));
  }

  const ArrayInPlace& out_;
  const void* in_;
  std::size_t rank_, world_size_, part_bytes_;
  std::uint64_t slot_;
  std::size_t segments_ = 0, segment_elements_ = 0;
  Scratch partial_;
  std::unique_ptr<gloo::transport::UnboundBuffer> own_buffer_, partial_buffer_;
};

/// Executes the steps of `algorithm` over tagged messages: the steps that sim/replay simulates, each posted
/// when those before it are over. A message uses scratch memory if it is added, or if it arrives where the
/// same step still sends from. Counts sent bytes in `sent`. \throws gloo::IoException
inline void run_algorithm(gloo::Context& context, const Algorithm& algorithm, const ArrayInPlace& array,
                          std::uint32_t tag, SentBytes& sent) {
  AlgorithmRun{context, algorithm, array, slot_of(kSteps, tag), sent}.run();
}

/// All-to-all by `algorithm`: `in` and `out` have one block of `block_bytes` per rank, by rank.
inline void run_all_to_all(gloo::Context& context, const Algorithm& algorithm, const void* in, void* out,
                           std::size_t block_bytes, std::uint32_t tag, SentBytes& sent) {
  const auto ranks = static_cast<std::size_t>(context.size);
  const auto rank = static_cast<std::size_t>(context.rank);
  // Block j is for rank r + j, and after it from rank r - j.
  Scratch turned(ranks * block_bytes);
  const auto block = [&](std::size_t number) { return turned.data() + number * block_bytes; };
  for (std::size_t j = 0; j < ranks; ++j)
    std::memcpy(block(j), static_cast<const char*>(in) + (rank + j) % ranks * block_bytes, block_bytes);
  run_algorithm(context, algorithm, {turned.data(), ranks, block_bytes}, tag, sent);
  for (std::size_t j = 0; j < ranks; ++j)
    std::memcpy(static_cast<char*>(out) + (rank + ranks - j) % ranks * block_bytes, block(j), block_bytes);
}

/// Sends `bytes` at `in` to the next rank while as many arrive at `out` from the previous one. \throws
/// gloo::IoException
inline void ring_shift(gloo::Context& context, const void* in, void* out, std::size_t bytes,
                       std::uint32_t tag) {
  if (context.size == 1) return void(std::memcpy(out, in, bytes));
  // Gloo takes a mutable pointer for sends too, and only reads there.
  const auto sent = context.createUnboundBuffer(const_cast<void*>(in), bytes);
  const auto received = context.createUnboundBuffer(out, bytes);
  received->recv((context.rank + context.size - 1) % context.size, slot_of(kShift, tag));
  sent->send((context.rank + 1) % context.size, slot_of(kShift, tag));
  received->waitRecv();
  sent->waitSend();
}

/// Ring reduce-scatter of `in`, one part per rank of the size of `out`, which Gloo lacks:
///
///     n - 1 steps; in step s rank r sends its partial sum of part (r - 1 - s) mod n to rank r + 1 and adds
///     the array of rank r - 1 to its own part (r - 2 - s) mod n; after the last step it has the sum
///     of part r.
///
/// Parts are sent in at least two segments of at most 1 MiB, with two receives posted ahead, so that one
/// segment is sent while another is added: the geometry of gloo::allreduce. Bytes sent per rank: (n - 1) *
/// part. `in` of another type than `type`, that of `out`, is converted first. \throws gloo::IoException
inline void ring_reduce_scatter(gloo::Context& context, const ArrayInPlace& out, const Array& in,
                                DataType type, std::uint32_t tag) {
  if (in.type != type) {
    Scratch memory(in.count * out.element_size);
    const Array converted{memory.data(), in.count, type};
    copy_scaled(converted, in, 1.0);
    return ring_reduce_scatter(context, out, converted, type, tag);
  }
  if (context.size == 1)
    std::memcpy(out.data, in.data, out.count * out.element_size);
  else
    RingReduceScatter(context, out, in.data, tag).run();
}

}  // namespace stepcast
