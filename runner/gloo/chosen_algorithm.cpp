#include "runner/gloo/chosen_algorithm.hpp"

#include <gloo/transport/unbound_buffer.h>

#include <cstring>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

namespace stepcast {
namespace {

constexpr std::uint64_t kStepSlots = 0x42;  ///< gloo's own collectives use 0x01 to 0x08, ours 0x41

using Memory = std::vector<char>;

/// Memory that stays with the thread: fresh memory costs as much as the messages.
Memory take_scratch(std::vector<Memory>& spare, std::size_t bytes) {
  Memory memory;
  if (!spare.empty()) {
    memory = std::move(spare.back());
    spare.pop_back();
  }
  if (memory.size() < bytes) memory.resize(bytes);
  return memory;
}
std::vector<Memory>& spare_scratch() {
  static thread_local std::vector<Memory> spare;
  return spare;
}

class AlgorithmRun {
 public:
  AlgorithmRun(gloo::Context& context, const Algorithm& algorithm, const ArrayInPlace& array,
               std::uint64_t slot, SentBytes& sent)
      : context_(context),
        algorithm_(algorithm),
        array_(array),
        call_{Bytes(static_cast<double>(array.count * array.element_size)), context.size, 0,
              static_cast<double>(array.element_size)},
        slot_(slot),
        sent_(sent),
        steps_(algorithm.steps(call_, context.rank)) {}

  void run() {
    while (over_ < steps_) {
      post();
      finish(open_.front());
      open_.pop_front();
      ++over_;
    }
  }

 private:
  using Buffer = std::unique_ptr<gloo::transport::UnboundBuffer>;

  /// Whole elements of the array.
  struct Part {
    std::size_t begin = 0;
    std::size_t count = 0;
    [[nodiscard]] bool overlaps(const Part& other) const {
      return begin < other.begin + other.count && other.begin < begin + count;
    }
  };
  /// A step under way.
  struct Posted {
    Part received;
    bool reduce = false;
    Memory scratch;  ///< empty: arrives in its place
    Buffer send, receive;
  };

  [[nodiscard]] Part part(Bytes at, Bytes size) const {
    const std::size_t begin = element_at(at, call_.element_bytes);
    return {begin, element_at(at + size, call_.element_bytes) - begin};
  }
  [[nodiscard]] char* memory(const Part& part) const {
    return static_cast<char*>(array_.data) + part.begin * array_.element_size;
  }
  [[nodiscard]] std::size_t bytes(const Part& part) const { return part.count * array_.element_size; }

  void post() {
    for (; posted_ < steps_; ++posted_) {
      const Exchange step = algorithm_.step(call_, context_.rank, posted_);
      if (step.after >= over_) return;
      open_.push_back(start(step));
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
      if (aside) posted.scratch = take_scratch(spare_scratch(), size);
      posted.receive =
          context_.createUnboundBuffer(aside ? posted.scratch.data() : memory(posted.received), size);
      posted.receive->recv(step.from, slot_, 0, size);
    }
    if (sends.count > 0) {
      posted.send = context_.createUnboundBuffer(memory(sends), bytes(sends));
      posted.send->send(step.to, slot_, 0, bytes(sends));
      sent_.add(bytes(sends));
    }
    return posted;
  }

  void finish(Posted& posted) {
    if (posted.receive != nullptr) posted.receive->waitRecv();
    if (posted.send != nullptr) posted.send->waitSend();
    if (posted.scratch.empty()) return;
    char* own = memory(posted.received);
    if (posted.reduce)
      array_.sum(own, own, posted.scratch.data(), posted.received.count);
    else
      std::memcpy(own, posted.scratch.data(), bytes(posted.received));
    spare_scratch().push_back(std::move(posted.scratch));
  }

  gloo::Context& context_;
  const Algorithm& algorithm_;
  const ArrayInPlace& array_;
  const CollectiveCall call_;
  const std::uint64_t slot_;
  SentBytes& sent_;
  const int steps_;
  int posted_ = 0;
  int over_ = 0;
  std::deque<Posted> open_;
};

}  // namespace

void run_algorithm(gloo::Context& context, const Algorithm& algorithm, const ArrayInPlace& array,
                   std::uint32_t tag, SentBytes& sent) {
  const std::uint64_t slot = kStepSlots << 56U | static_cast<std::uint64_t>(tag) << 24U;
  AlgorithmRun(context, algorithm, array, slot, sent).run();
}

void run_all_to_all(gloo::Context& context, const Algorithm& algorithm, const void* in, void* out,
                    std::size_t block_bytes, std::uint32_t tag, SentBytes& sent) {
  const auto ranks = static_cast<std::size_t>(context.size);
  const auto rank = static_cast<std::size_t>(context.rank);
  // Block j is for rank r + j, and after it from rank r - j.
  Memory turned = take_scratch(spare_scratch(), ranks * block_bytes);
  const auto block = [&](std::size_t number) { return turned.data() + number * block_bytes; };
  for (std::size_t j = 0; j < ranks; ++j)
    std::memcpy(block(j), static_cast<const char*>(in) + (rank + j) % ranks * block_bytes, block_bytes);
  run_algorithm(context, algorithm, {turned.data(), ranks, block_bytes}, tag, sent);
  for (std::size_t j = 0; j < ranks; ++j)
    std::memcpy(static_cast<char*>(out) + (rank + ranks - j) % ranks * block_bytes, block(j), block_bytes);
  spare_scratch().push_back(std::move(turned));
}

}  // namespace stepcast
