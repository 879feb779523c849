#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/alltoall.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/config.h>
#include <gloo/gather.h>
#include <gloo/scatter.h>

#include <cassert>
#include <utility>

#include "core/ranges.hpp"
#include "runner/backend/array_copies.hpp"
#include "runner/backend/backend.hpp"
#include "runner/backend/work_queue.hpp"
#include "runner/gloo/chosen_algorithm.hpp"
#include "runner/gloo/gloo_bytes.hpp"
#include "runner/gloo/gloo_connection.hpp"
#include "runner/gloo/posted_calls.hpp"

namespace stepcast {
namespace {

constexpr std::size_t kWorkers = 2;  ///< c10d's default: two collectives run at once, a third waits

/// Element type that Gloo lacks.
struct BFloat16 {
  std::uint16_t bits;
  friend bool operator<(const BFloat16& a, const BFloat16& b) { return a.value() < b.value(); }
  [[nodiscard]] float value() const {
    float result = 0.0F;
    two_byte_loops(DataType::kBFloat16)->widen(&result, &bits, 1.0F, 1);
    return result;
  }
};

/// Calls `function` with a value of the C++ type behind `type` and with its sum.
template <class Function>
void with_type(DataType type, Function function) {
  switch (type) {
    case DataType::kFloat16:
      return function(gloo::float16{}, two_byte_loops(type)->sum);
    case DataType::kBFloat16:
      return function(BFloat16{}, two_byte_loops(type)->sum);
    case DataType::kFloat32:
      return function(float{}, Sum{&gloo::sum<float>});
    case DataType::kFloat64:
      return function(double{}, Sum{&gloo::sum<double>});
    case DataType::kInt64:
      return function(std::int64_t{}, Sum{&gloo::sum<std::int64_t>});
    case DataType::kUInt8:
      return function(std::uint8_t{}, Sum{&gloo::sum<std::uint8_t>});
  }
}

/// Fills in the options of a call with one input and one output array. The input may be part of the output,
/// at `place`.
auto in_to_out(const Array& in, const Array& out, const void* place = nullptr) {
  return [in, out, place](auto& options) {
    if (in.data != place) options.setInput(static_cast<char*>(in.data), in.bytes());
    options.setOutput(static_cast<char*>(out.data), out.bytes());
  };
}

class GlooBackend : public Backend {
 public:
  explicit GlooBackend(const BackendConfig& config)
      : connection_(std::make_shared<GlooConnection>(config)),
        algorithms_(config.algorithms),
        queue_(kWorkers, kWorkers) {
    for (const auto& [kind, name] : algorithms_)
      if (kind != CollectiveKind::kAllReduce && kind != CollectiveKind::kAllToAll)
        throw CapabilityError("--algorithm {}={} can be predicted, not run", to_text(kind), name);
  }
  GlooBackend(const GlooBackend& whole, const std::string& name, const std::vector<int>& ranks)
      : connection_(std::make_shared<GlooConnection>(*whole.connection_, name, ranks)),
        sent_(std::make_shared<SentBytes>(whole.sent_)),
        algorithms_(whole.algorithms_),
        queue_(kWorkers, kWorkers) {}

  ~GlooBackend() override {
    // With unfinished calls this rank gives up: its peers should fail at once.
    if (!queue_.idle()) connection_->abandon();
  }
  GlooBackend& operator=(GlooBackend&&) = delete;

  [[nodiscard]] int rank() const override { return connection_->rank(); }
  [[nodiscard]] int world_size() const override { return connection_->world_size(); }
  [[nodiscard]] int collectives_in_flight() const override { return static_cast<int>(kWorkers); }
  [[nodiscard]] std::uint64_t bytes_sent() const override { return sent_->count(); }

  std::unique_ptr<Backend> subgroup(const std::string& name, const std::vector<int>& ranks) override {
    auto group = std::make_unique<GlooBackend>(*this, name, ranks);
    // A rank that drops the group at once must not close a connection that its peer is still opening.
    group->barrier();
    return group;
  }

  WorkPtr all_reduce(Array in_place) override { return reduce(in_place, false); }
  WorkPtr all_reduce_maximum(Array in_place) override { return reduce(in_place, true); }

  WorkPtr broadcast(Array in_place, int root) override {
    return push_call({CollectiveKind::kBroadcast, in_place.bytes(), root}, &gloo::broadcast,
                     [in_place](auto& options) {
                       options.setOutput(static_cast<char*>(in_place.data), in_place.bytes());
                     });
  }

  WorkPtr gather(Array in, Array out, int root) override {
    return push_call({CollectiveKind::kGather, in.bytes() * ranks(), root}, &gloo::gather,
                     [in, out, is_root = rank() == root](auto& options) {
                       options.setInput(static_cast<char*>(in.data), in.bytes());
                       if (is_root) options.setOutput(static_cast<char*>(out.data), out.bytes());
                     });
  }

  WorkPtr scatter(std::vector<Array> in, Array out, int root) override {
    auto parts = transformed(in, [](const Array& part) { return static_cast<char*>(part.data); });
    return push_call({CollectiveKind::kScatter, out.bytes() * ranks(), root}, &gloo::scatter,
                     [parts, out, is_root = rank() == root](auto& options) mutable {
                       if (is_root) options.setInputs(parts, out.bytes());
                       options.setOutput(static_cast<char*>(out.data), out.bytes());
                     });
  }

  WorkPtr all_gather(Array in, Array out) override {
    const void* const place = static_cast<char*>(out.data) + static_cast<std::size_t>(rank()) * in.bytes();
    return push_call({CollectiveKind::kAllGather, in.bytes() * ranks()}, &gloo::allgather,
                     in_to_out(in, out, place));
  }

  WorkPtr reduce_scatter(Array in, Array out) override {
    assert(in.count == out.count * ranks());
    return push({CollectiveKind::kReduceScatter, in.count * size_of(out.type)}, [c = connection_, in,
                                                                                 out](std::uint32_t tag) {
      with_type(out.type, [&]<class T>(T, Sum sum) {
        ring_reduce_scatter(*c->context(), {out.data, out.count, sizeof(T), sum}, in, out.type, tag);
      });
    });
  }

  WorkPtr all_to_all(Array in, Array out) override {
    const GlooMessage message{CollectiveKind::kAllToAll, in.bytes()};
    const Algorithm* const chosen = chosen_for(CollectiveKind::kAllToAll);
    if (chosen == nullptr) return push_call(message, &gloo::alltoall, in_to_out(in, out));
    return push(message, [c = connection_, s = sent_, in, out, chosen](std::uint32_t tag) {
      run_all_to_all(*c->context(), *chosen, in.data, out.data, in.bytes() / c->world_size(), tag, *s);
    });
  }

  WorkPtr shift(Array in, Array out) override {
    return push({CollectiveKind::kShift, in.bytes()}, [c = connection_, in, out](std::uint32_t tag) {
      ring_shift(*c->context(), in.data, out.data, in.bytes(), tag);
    });
  }

  WorkPtr send(Array data, int peer, std::uint32_t tag) override { return post(true, data, peer, tag); }
  WorkPtr recv(Array data, int peer, std::uint32_t tag) override { return post(false, data, peer, tag); }

  WorkPtr submit(std::function<void()> task) override { return queue_.push(std::move(task)); }

  void barrier() override {
    push_guarded("barrier", 0, [c = connection_](std::uint32_t tag) {
      gloo::BarrierOptions options(c->context());
      options.setTag(tag);
      gloo::barrier(options);
    })->wait();
  }

 private:
  [[nodiscard]] std::size_t ranks() const { return static_cast<std::size_t>(world_size()); }

  /// Algorithm in place of gloo's own call, which counts its messages itself; null: none.
  [[nodiscard]] const Algorithm* chosen_for(CollectiveKind kind) const {
    return algorithms_.contains(kind) ? &algorithm_for(kind, "gloo", algorithms_) : nullptr;
  }

  WorkPtr reduce(const Array& in_place, bool maximum) {
    return push({CollectiveKind::kAllReduce, in_place.bytes(), 0, size_of(in_place.type)},
                [c = connection_, s = sent_, in_place, maximum,
                 chosen = chosen_for(CollectiveKind::kAllReduce)](std::uint32_t tag) {
                  with_type(in_place.type, [&]<class T>(T, Sum sum) {
                    if (maximum) sum = &gloo::max<T>;
                    if (chosen != nullptr)
                      return run_algorithm(*c->context(), *chosen,
                                           {in_place.data, in_place.count, sizeof(T), sum}, tag, *s);
                    gloo::AllreduceOptions options(c->context());
                    options.setOutput(static_cast<T*>(in_place.data), in_place.count);
                    options.setReduceFunction(sum);
                    options.setTag(tag);
                    gloo::allreduce(options);
                  });
                });
  }

  /// Queues a call of gloo. \param fill fills in its options, except root and tag
  template <class Options, class Fill>
  WorkPtr push_call(const GlooMessage& message, void (*call)(Options&), Fill fill) {
    return push(message, [c = connection_, root = message.root, call, fill](std::uint32_t tag) mutable {
      Options options(c->context());
      if constexpr (requires { options.setRoot(root); }) options.setRoot(root);
      options.setTag(tag);
      fill(options);
      call(options);
    });
  }

  /// Queues a collective. An empty array uses a tag, so that ranks agree, and moves nothing.
  template <class Call>
  WorkPtr push(const GlooMessage& message, Call call) {
    if (message.bytes == 0) {
      ++next_tag_;
      return queue_.push([] {});
    }
    const bool counted = chosen_for(message.kind) != nullptr;
    return push_guarded(to_text(message.kind), counted ? 0 : gloo_bytes_sent(message, rank(), world_size()),
                        std::move(call));
  }

  /// Queues a call that sends `bytes` under the next tag.
  template <class Call>
  WorkPtr push_guarded(const char* name, std::uint64_t bytes, Call call) {
    const std::uint32_t tag = next_tag_++;
    return queue_.push([c = connection_, sent = sent_, name, bytes, tag, call = std::move(call)]() mutable {
      sent->add(bytes);
      c->guarded(name, [&] { call(tag); });
    });
  }

  WorkPtr post(bool sends, const Array& data, int peer, std::uint32_t tag) {
    const std::string what =
        (sends ? "send to rank " : "recv from rank ") + std::to_string(connection_->rank_of_job(peer));
    return connection_->guarded(what, [&] {
      const auto call = std::make_shared<PostedCall>(connection_, what, sends, data, peer, tag);
      if (sends) sent_->add(data.bytes());
      posted_.add(call);
      return WorkPtr(call.get(), [call, retired = posted_.retired()](Work*) { call->release(*retired); });
    });
  }

  std::shared_ptr<GlooConnection> connection_;  ///< shared with queued calls, which may outlive the backend
  std::shared_ptr<SentBytes> sent_ = std::make_shared<SentBytes>();
  AlgorithmChoice algorithms_;
  std::uint32_t next_tag_ = 0;
  WorkQueue queue_;
  PostedCalls posted_;
};

const Registration<BackendFactory> kGloo{
    backends(),
    {.name = "gloo",
     .description = "Gloo over TCP between processors, as c10d's ProcessGroupGloo uses it",
     .value = {.make = [](const BackendConfig& config) { return std::make_unique<GlooBackend>(config); },
               .library = "Gloo " + std::to_string(GLOO_VERSION_MAJOR) + "." +
                          std::to_string(GLOO_VERSION_MINOR) + "." + std::to_string(GLOO_VERSION_PATCH),
               .add = [](float* into, const float* from,
                         std::size_t count) { gloo::sum<float>(into, from, count); }}}};

}  // namespace
}  // namespace stepcast
