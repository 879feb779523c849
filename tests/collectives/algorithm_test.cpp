#include "sim/collectives/algorithm.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "sim/core/error.hpp"

namespace stepcast {
namespace {

constexpr double kNoCost = 0.0;

/// All sizes of group and message that every algorithm is held to; the sizes are no multiples of anything.
std::vector<CollectiveCall> calls() {
  std::vector<CollectiveCall> result;
  for (const int ranks : {1, 2, 3, 4, 5, 8, 13})
    for (const double elements : {1.0, 7.0, 1024.0, 3'000'001.0})
      for (const int root : {0, ranks - 1}) result.push_back({Bytes(4.0 * elements), ranks, root});
  return result;
}

/// Executes an algorithm without time: posts what may be posted, matches messages in order, ends steps in
/// order. True when every step of every rank ends.
struct Execution {
  explicit Execution(const Algorithm& which, const CollectiveCall& what) : algorithm(which), call(what) {
    const auto ranks = static_cast<std::size_t>(call.ranks);
    posted.resize(ranks);
    over.resize(ranks);
    open.resize(ranks);
    for (int rank = 0; rank < call.ranks; ++rank)
      open[static_cast<std::size_t>(rank)].resize(static_cast<std::size_t>(algorithm.steps(call, rank)));
  }

  bool run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (int rank = 0; rank < call.ranks; ++rank) moved = advance(rank) || moved;
    }
    bool complete = true;
    for (int rank = 0; rank < call.ranks; ++rank)
      complete = complete && over[static_cast<std::size_t>(rank)] == algorithm.steps(call, rank);
    return complete && sends.empty() && receives.empty();
  }

  bool advance(int rank) {
    const auto r = static_cast<std::size_t>(rank);
    bool moved = false;
    while (posted[r] < algorithm.steps(call, rank)) {
      const Exchange step = algorithm.step(call, rank, posted[r]);
      if (step.after >= over[r]) break;
      const int number = posted[r]++;
      if (step.to >= 0 && step.sent.count() > 0.0)
        match(sends, receives, {rank, step.to}, rank, number, step.sent);
      if (step.from >= 0 && step.received.count() > 0.0)
        match(receives, sends, {step.from, rank}, rank, number, step.received);
      moved = true;
    }
    while (over[r] < posted[r] && open[r][static_cast<std::size_t>(over[r])] == 0) {
      ++over[r];
      moved = true;
    }
    return moved;
  }

  struct Side {
    int rank = 0;
    int step = 0;
    Bytes size;
  };
  using Sides = std::map<std::pair<int, int>, std::deque<Side>>;

  void match(Sides& own, Sides& other, std::pair<int, int> pair, int rank, int step, Bytes size) {
    if (const auto found = other.find(pair); found != other.end()) {
      const Side side = found->second.front();
      found->second.pop_front();
      if (found->second.empty()) other.erase(found);
      sizes_agree = sizes_agree && side.size == size;
      --open[static_cast<std::size_t>(side.rank)][static_cast<std::size_t>(side.step)];
    } else {
      own[pair].push_back({rank, step, size});
      ++open[static_cast<std::size_t>(rank)][static_cast<std::size_t>(step)];
    }
  }

  const Algorithm& algorithm;
  const CollectiveCall call;
  std::vector<int> posted, over;
  std::vector<std::vector<int>> open;
  Sides sends, receives;
  bool sizes_agree = true;
};

TEST_CASE("in every algorithm sends and receives pair up, agree in size and never wait in a circle") {
  for (const auto& entry : algorithms().entries()) {
    for (const CollectiveCall& call : calls()) {
      INFO(entry.name << ", " << call.ranks << " ranks, " << call.message.count() << " B, root "
                      << call.root);
      Execution execution(entry.thing, call);
      CHECK(execution.run());
      CHECK(execution.sizes_agree);
    }
  }
}

TEST_CASE(
    "in every algorithm the bytes of a rank's messages sum to their closed form, and sent equals received") {
  for (const auto& entry : algorithms().entries()) {
    for (const CollectiveCall& call : calls()) {
      INFO(entry.name << ", " << call.ranks << " ranks, " << call.message.count() << " B, root "
                      << call.root);
      double all_sent = 0.0;
      double all_received = 0.0;
      for (int rank = 0; rank < call.ranks; ++rank) {
        double sent = 0.0;
        const int steps = entry.thing.steps(call, rank);
        for (int k = 0; k < steps; ++k) {
          const Exchange step = entry.thing.step(call, rank, k);
          CHECK(step.after < k);
          sent += step.sent.count();
          all_received += step.received.count();
        }
        CHECK(sent == Approx(entry.thing.sent(call, rank).count()));
        all_sent += sent;
      }
      CHECK(all_sent == Approx(all_received));
    }
  }
}

TEST_CASE("a collective moves at least the bytes that its result needs") {
  for (const auto& entry : algorithms().entries()) {
    if (!entry.thing.kind) continue;
    for (const CollectiveCall& call : calls()) {
      if (call.ranks == 1) continue;
      INFO(entry.name << ", " << call.ranks << " ranks, " << call.message.count() << " B");
      double all = 0.0;
      for (int rank = 0; rank < call.ranks; ++rank) all += entry.thing.sent(call, rank).count();
      const double n = call.ranks;
      const double message = call.message.count();
      double least = 0.0;
      switch (*entry.thing.kind) {
        case CollectiveKind::kAllReduce:
          least = 2.0 * (n - 1) * message;
          break;
        case CollectiveKind::kAllGather:
        case CollectiveKind::kReduceScatter:
        case CollectiveKind::kBroadcast:
          least = (n - 1) * message;
          break;
        case CollectiveKind::kGather:
        case CollectiveKind::kScatter:
          least = (n - 1) / n * message;
          break;
      }
      CHECK(all == Approx(least));
    }
  }
}

TEST_CASE("no collective takes time with one rank, or less time with more bytes or less bandwidth") {
  const LinkCost link{Seconds(1e-6), BytesPerSecond(1e9)};
  const LinkCost wide{Seconds(1e-6), BytesPerSecond(2e9)};
  for (const auto& entry : algorithms().entries()) {
    for (const int ranks : {1, 2, 3, 8, 64}) {
      INFO(entry.name << ", " << ranks << " ranks");
      const CollectiveCall small{Bytes(4096), ranks};
      const CollectiveCall large{Bytes(1e8), ranks};
      CHECK((entry.thing.time(small, link).count() == kNoCost) == (ranks == 1));
      CHECK(entry.thing.time(small, link) <= entry.thing.time(large, link));
      CHECK(entry.thing.time(large, wide) <= entry.thing.time(large, link));
    }
  }
}

TEST_CASE("ring all-reduce of 4 B over 4 ranks at 1 B/s and 1 s takes 12 s") {
  const LinkCost link{Seconds(1.0), BytesPerSecond(1.0)};
  CHECK(algorithms().find("all_reduce/ring").time({Bytes(4), 4}, link).count() == Approx(12.0));
}

TEST_CASE("gather of 4 B from 4 ranks at 1 B/s and 1 s takes 1 s for the way and 3 s for the three parts") {
  const LinkCost link{Seconds(1.0), BytesPerSecond(1.0)};
  CHECK(algorithms().find("gather/direct").time({Bytes(4), 4}, link).count() == Approx(4.0));
  CHECK(algorithms().find("scatter/direct").time({Bytes(4), 4}, link).count() == Approx(4.0));
}

TEST_CASE("broadcast of 2 B to 8 ranks at 1 B/s and 1 s takes three rounds of 3 s") {
  const LinkCost link{Seconds(1.0), BytesPerSecond(1.0)};
  CHECK(algorithms().find("broadcast/binomial").time({Bytes(2), 8}, link).count() == Approx(9.0));
}

TEST_CASE("Gloo's ring of one element over two ranks is two messages, one per phase") {
  const Algorithm& ring = algorithms().find("all_reduce/gloo_ring");
  const CollectiveCall call{Bytes(4), 2};
  int messages = 0;
  for (int rank = 0; rank < 2; ++rank)
    for (int k = 0; k < ring.steps(call, rank); ++k)
      if (ring.step(call, rank, k).sent > Bytes(0)) ++messages;
  CHECK(messages == 2);
}

TEST_CASE("Gloo's ring of 8 MiB over two ranks cuts each rank's 4 MiB into four segments of 1 MiB") {
  const Algorithm& ring = algorithms().find("all_reduce/gloo_ring");
  const CollectiveCall call{Bytes(8 * kMebi), 2};
  CHECK(ring.steps(call, 0) == 8);
  for (int k = 0; k < 8; ++k) {
    CHECK(ring.step(call, 0, k).sent.count() == kMebi);
    CHECK(ring.step(call, 0, k).reduce == (k < 4));
  }
  CHECK(ring.step(call, 0, 1).after == -1);  // two in flight
  CHECK(ring.step(call, 0, 2).after == 0);
  CHECK(ring.step(call, 0, 4).after == 3);  // phases are not fused
}

TEST_CASE("each kind has an ideal algorithm, and Gloo its own ring") {
  for (const CollectiveKind kind :
       {CollectiveKind::kAllReduce, CollectiveKind::kGather, CollectiveKind::kScatter,
        CollectiveKind::kBroadcast, CollectiveKind::kAllGather, CollectiveKind::kReduceScatter}) {
    CHECK(algorithm_for(kind, "").kind == kind);
    CHECK(algorithm_for(kind, "gloo").kind == kind);
  }
  CHECK(&algorithm_for(CollectiveKind::kAllReduce, "gloo") == &algorithms().find("all_reduce/gloo_ring"));
  CHECK(&algorithm_for(CollectiveKind::kAllReduce, "") == &algorithms().find("all_reduce/ring"));
  CHECK_THROWS_AS(algorithms().find("all_reduce/rign"), UsageError);
}

}  // namespace
}  // namespace stepcast
