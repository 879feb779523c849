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

#include "runner/backend/float16_sum.hpp"
#include "runner/gloo/chosen_algorithm.hpp"
#include "runner/gloo/gloo_bytes.hpp"
#include "runner/gloo/gloo_connection.hpp"
#include "runner/gloo/gloo_ring.hpp"
#include "runner/gloo/posted_calls.hpp"
#include "runner/gloo/work_queue.hpp"

namespace stepcast {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kWorkers = 2;  ///< c10d's default: two collectives run at once, a third waits its turn

/// A send or receive under way: the bytes move on gloo's own thread, nobody waits in a queue.
class PostedWork : public Work {
 public:
  PostedWork(std::shared_ptr<GlooConnection> connection, std::string what, std::shared_ptr<PostedCall> call)
      : connection_(std::move(connection)), what_(std::move(what)), call_(std::move(call)) {}
  ~PostedWork() override { call_->release(); }
  PostedWork(const PostedWork&) = delete;
  PostedWork& operator=(const PostedWork&) = delete;
  PostedWork(PostedWork&&) = delete;
  PostedWork& operator=(PostedWork&&) = delete;

  void wait() override {
    connection_->guarded(what_, [&] { call_->wait(connection_->context()->getTimeout()); });
  }
  [[nodiscard]] bool done() const override { return call_->over(); }
  [[nodiscard]] Clock::time_point started() const override { return call_->started(); }
  [[nodiscard]] Clock::time_point ended() const override { return call_->ended(); }

 private:
  std::shared_ptr<GlooConnection> connection_;
  std::string what_;
  std::shared_ptr<PostedCall> call_;
};

/// result[i] = a[i] + b[i], as gloo's reductions call it.
using Sum = void (*)(void* result, const void* a, const void* b, std::size_t count);

/// Calls `function` with a value of the C++ type behind `type` and with its sum.
template <class Function>
void with_type(DataType type, Function function) {
  switch (type) {
    case DataType::kFloat16:
      return function(gloo::float16{}, Sum{&sum_float16});
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

class GlooBackend : public Backend {
 public:
  explicit GlooBackend(const BackendConfig& config)
      : connection_(std::make_shared<GlooConnection>(config)),
        algorithms_(config.algorithms),
        queue_(kWorkers) {
    for (const auto& [kind, name] : algorithms_)
      if (kind != CollectiveKind::kAllReduce && kind != CollectiveKind::kAllToAll)
        throw CapabilityError(std::string("--algorithm ") + to_text(kind) + "=" + name +
                              " can be predicted, not run");
  }
  GlooBackend(const GlooBackend& whole, const std::string& name, const std::vector<int>& ranks)
      : connection_(std::make_shared<GlooConnection>(*whole.connection_, name, ranks)),
        sent_(std::make_shared<SentBytes>(whole.sent_)),
        algorithms_(whole.algorithms_),
        queue_(kWorkers) {}

  ~GlooBackend() override {
    // Unfinished calls mean that this rank is giving up: its peers should learn at once.
    if (!queue_.idle()) connection_->abandon();
  }
  GlooBackend(const GlooBackend&) = delete;
  GlooBackend& operator=(const GlooBackend&) = delete;
  GlooBackend(GlooBackend&&) = delete;
  GlooBackend& operator=(GlooBackend&&) = delete;

  [[nodiscard]] int rank() const override { return connection_->rank(); }
  [[nodiscard]] int world_size() const override { return connection_->world_size(); }
  [[nodiscard]] int collectives_in_flight() const override { return kWorkers; }
  [[nodiscard]] std::uint64_t bytes_sent() const override { return sent_->count(); }

  std::unique_ptr<Backend> subgroup(const std::string& name, const std::vector<int>& ranks) override {
    auto group = std::make_unique<GlooBackend>(*this, name, ranks);
    // Who drops the group at once must not close a connection that its peer is still setting up.
    group->barrier();
    return group;
  }

  WorkPtr all_reduce(Array in_place) override {
    if (const Algorithm* chosen = chosen_for(CollectiveKind::kAllReduce))
      return by_messages(
          "all_reduce", in_place.bytes(), [c = connection_, s = sent_, in_place, chosen](std::uint32_t tag) {
            with_type(in_place.type, [&]<class T>(T, Sum sum) {
              run_algorithm(*c->context(), *chosen, {in_place.data, in_place.count, sizeof(T), sum}, tag, *s);
            });
          });
    return collective("all_reduce", {CollectiveKind::kAllReduce, in_place.bytes(), 0, size_of(in_place.type)},
                      [c = connection_, in_place](std::uint32_t tag) {
                        with_type(in_place.type, [&]<class T>(T, Sum sum) {
                          gloo::AllreduceOptions options(c->context());
                          options.setOutput(static_cast<T*>(in_place.data), in_place.count);
                          options.setReduceFunction(sum);
                          options.setTag(tag);
                          gloo::allreduce(options);
                        });
                      });
  }

  WorkPtr broadcast(Array in_place, int root) override {
    return collective("broadcast", {CollectiveKind::kBroadcast, in_place.bytes(), root},
                      [c = connection_, in_place, root](std::uint32_t tag) {
                        gloo::BroadcastOptions options(c->context());
                        options.setOutput(static_cast<char*>(in_place.data), in_place.bytes());
                        options.setRoot(root);
                        options.setTag(tag);
                        gloo::broadcast(options);
                      });
  }

  WorkPtr gather(Array in, Array out, int root) override {
    return collective("gather", {CollectiveKind::kGather, in.bytes() * ranks(), root},
                      [c = connection_, in, out, root](std::uint32_t tag) {
                        gloo::GatherOptions options(c->context());
                        options.setInput(static_cast<char*>(in.data), in.bytes());
                        if (c->rank() == root) options.setOutput(static_cast<char*>(out.data), out.bytes());
                        options.setRoot(root);
                        options.setTag(tag);
                        gloo::gather(options);
                      });
  }

  WorkPtr scatter(std::vector<Array> in, Array out, int root) override {
    return collective("scatter", {CollectiveKind::kScatter, out.bytes() * ranks(), root},
                      [c = connection_, in = std::move(in), out, root](std::uint32_t tag) {
                        gloo::ScatterOptions options(c->context());
                        if (c->rank() == root) {
                          std::vector<char*> parts;
                          for (const Array& part : in) parts.push_back(static_cast<char*>(part.data));
                          options.setInputs(parts, out.bytes());
                        }
                        options.setOutput(static_cast<char*>(out.data), out.bytes());
                        options.setRoot(root);
                        options.setTag(tag);
                        gloo::scatter(options);
                      });
  }

  WorkPtr all_gather(Array in, Array out) override {
    return collective("all_gather", {CollectiveKind::kAllGather, in.bytes() * ranks()},
                      [c = connection_, in, out](std::uint32_t tag) {
                        gloo::AllgatherOptions options(c->context());
                        options.setInput(static_cast<char*>(in.data), in.bytes());
                        options.setOutput(static_cast<char*>(out.data), out.bytes());
                        options.setTag(tag);
                        gloo::allgather(options);
                      });
  }

  WorkPtr reduce_scatter(Array in, Array out) override {
    assert(in.count == out.count * static_cast<std::size_t>(world_size()));
    return collective(
        "reduce_scatter", {CollectiveKind::kReduceScatter, in.bytes()},
        [c = connection_, in, out](std::uint32_t tag) {
          with_type(in.type, [&]<class T>(T, Sum sum) {
            ring_reduce_scatter(*c->context(), {in.data, out.data, out.count, sizeof(T), sum}, tag);
          });
        });
  }

  WorkPtr all_to_all(Array in, Array out) override {
    const std::size_t block = in.bytes() / ranks();
    if (const Algorithm* chosen = chosen_for(CollectiveKind::kAllToAll))
      return by_messages("all_to_all", block,
                         [c = connection_, s = sent_, in, out, block, chosen](std::uint32_t tag) {
                           run_all_to_all(*c->context(), *chosen, in.data, out.data, block, tag, *s);
                         });
    return collective("all_to_all", {CollectiveKind::kAllToAll, in.bytes()},
                      [c = connection_, in, out](std::uint32_t tag) {
                        gloo::AlltoallOptions options(c->context());
                        options.setInput(static_cast<char*>(in.data), in.bytes());
                        options.setOutput(static_cast<char*>(out.data), out.bytes());
                        options.setTag(tag);
                        gloo::alltoall(options);
                      });
  }

  WorkPtr send(Array data, int peer, std::uint32_t tag) override {
    return post("send to rank " + std::to_string(connection_->rank_of_job(peer)), true, data, peer, tag);
  }

  WorkPtr recv(Array data, int peer, std::uint32_t tag) override {
    return post("recv from rank " + std::to_string(connection_->rank_of_job(peer)), false, data, peer, tag);
  }

  WorkPtr submit(std::function<void()> task) override { return queue_.push(std::move(task)); }

  void barrier() override {
    push("barrier", 0, [c = connection_](std::uint32_t tag) {
      gloo::BarrierOptions options(c->context());
      options.setTag(tag);
      gloo::barrier(options);
    })->wait();
  }

 private:
  [[nodiscard]] std::size_t ranks() const { return static_cast<std::size_t>(world_size()); }

  /// What was chosen in place of gloo's own call; null: nothing.
  [[nodiscard]] const Algorithm* chosen_for(CollectiveKind kind) const {
    return algorithms_.count(kind) == 0 ? nullptr : &algorithm_for(kind, "gloo", algorithms_);
  }

  /// Queues a collective whose messages count themselves.
  template <class Call>
  WorkPtr by_messages(const char* name, std::size_t bytes, Call call) {
    if (bytes > 0) return push(name, 0, std::move(call));
    ++next_tag_;
    return queue_.push([] {});
  }

  /// Queues a collective. An empty array takes a tag, so that ranks agree, and moves nothing.
  template <class Call>
  WorkPtr collective(const char* name, const GlooMessage& message, Call call) {
    if (message.bytes == 0) {
      ++next_tag_;
      return queue_.push([] {});
    }
    return push(name, gloo_bytes_sent(message, rank(), world_size()), std::move(call));
  }

  /// Queues a call that sends `bytes` under the next tag.
  template <class Call>
  WorkPtr push(const char* name, std::uint64_t bytes, Call call) {
    const std::uint32_t tag = next_tag_++;
    return queue_.push([c = connection_, sent = sent_, name, bytes, tag, call = std::move(call)] {
      sent->add(bytes);
      c->guarded(name, [&] { call(tag); });
    });
  }

  WorkPtr post(std::string what, bool sends, Array data, int peer, std::uint32_t tag) {
    return connection_->guarded(what, [&] {
      auto call = std::make_shared<PostedCall>(
          connection_->context()->createUnboundBuffer(data.data, data.bytes()), sends);
      call->post(peer, tag);
      if (sends) sent_->add(data.bytes());
      posted_.add(call);
      return std::make_shared<PostedWork>(connection_, std::move(what), std::move(call));
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
     .thing = {.make = [](const BackendConfig& config) { return std::make_unique<GlooBackend>(config); },
               .library = "Gloo " + std::to_string(GLOO_VERSION_MAJOR) + "." +
                          std::to_string(GLOO_VERSION_MINOR) + "." + std::to_string(GLOO_VERSION_PATCH),
               .add = [](float* into, const float* from,
                         std::size_t count) { gloo::sum<float>(into, from, count); }}}};

}  // namespace
}  // namespace stepcast
