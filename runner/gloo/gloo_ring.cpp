#include "runner/gloo/gloo_ring.hpp"

#include <gloo/transport/unbound_buffer.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

namespace stepcast {
namespace {

constexpr std::size_t kLargestSegment = std::size_t{1} << 20U;
constexpr std::uint64_t kSlotPrefix = 0x41;  ///< gloo's own collectives use 0x01 to 0x08

/// One call: the segments of all steps are numbered through; segment i belongs to step i / segments_.
class RingReduceScatter {
 public:
  RingReduceScatter(gloo::Context& context, const ReduceScatterCall& call, std::uint32_t tag)
      : call_(call),
        rank_(static_cast<std::size_t>(context.rank)),
        world_size_(static_cast<std::size_t>(context.size)),
        part_bytes_(call.count * call.element_size),
        slot_(kSlotPrefix << 56U | static_cast<std::uint64_t>(tag) << 24U) {
    segments_ = std::max<std::size_t>(2, (part_bytes_ + kLargestSegment - 1) / kLargestSegment);
    segment_elements_ = (call.count + segments_ - 1) / segments_;
    partial_ = scratch(2 * part_bytes_);
    // Gloo takes a mutable pointer for sends too, and only reads there.
    own_buffer_ = context.createUnboundBuffer(const_cast<void*>(call.in), world_size_ * part_bytes_);
    partial_buffer_ = context.createUnboundBuffer(partial_, 2 * part_bytes_);
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
  /// Memory that stays with the thread: fresh memory of this size costs as much as the ring itself.
  static char* scratch(std::size_t bytes) {
    static thread_local std::vector<char> memory;
    if (memory.size() < bytes) memory.resize(bytes);
    return memory.data();
  }

  [[nodiscard]] std::size_t step(std::size_t i) const { return i / segments_; }
  [[nodiscard]] std::size_t first_element(std::size_t i) const {
    return std::min(i % segments_ * segment_elements_, call_.count);
  }
  [[nodiscard]] std::size_t elements(std::size_t i) const {
    return std::min(segment_elements_, call_.count - first_element(i));
  }
  [[nodiscard]] std::size_t offset(std::size_t i) const { return first_element(i) * call_.element_size; }
  [[nodiscard]] std::size_t bytes(std::size_t i) const { return elements(i) * call_.element_size; }
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
    const char* own = static_cast<const char*>(call_.in) + part * part_bytes_ + offset(i);
    char* received = partial_ + partial_offset(i);
    char* result = step(i) + 2 == world_size_ ? static_cast<char*>(call_.out) + offset(i) : received;
    call_.sum(result, received, own, elements(i));
  }

  const ReduceScatterCall& call_;
  std::size_t rank_, world_size_, part_bytes_;
  std::uint64_t slot_;
  std::size_t segments_ = 0;
  std::size_t segment_elements_ = 0;
  char* partial_ = nullptr;
  std::unique_ptr<gloo::transport::UnboundBuffer> own_buffer_, partial_buffer_;
};

}  // namespace

void ring_reduce_scatter(gloo::Context& context, const ReduceScatterCall& call, std::uint32_t tag) {
  if (context.size == 1) {
    std::memcpy(call.out, call.in, call.count * call.element_size);
    return;
  }
  RingReduceScatter(context, call, tag).run();
}

}  // namespace stepcast
