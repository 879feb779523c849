#include "sim/collectives/algorithm.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "sim/collectives/double_tree.hpp"

namespace stepcast::algorithm_test {
namespace {

constexpr double kNoCost = 0.0;

/// Groups and messages for every algorithm; the sizes are no multiples of anything.
std::vector<CollectiveCall> calls(const std::vector<double>& elements, double element_bytes = 4.0) {
  std::vector<CollectiveCall> result;
  for (const int ranks : {1, 2, 3, 4, 5, 6, 7, 8, 12, 13})
    for (const double count : elements)
      for (const int root : {0, ranks - 1})
        result.push_back({Bytes(element_bytes * count), ranks, root, element_bytes});
  return result;
}

std::string in_words(const std::string& name, const CollectiveCall& call) {
  return name + ", " + std::to_string(call.ranks) + " ranks, " + std::to_string(call.message.count()) +
         " B, root " + std::to_string(call.root);
}

/// Executes an algorithm without time: posts what may be posted, matches messages in order, ends steps in
/// order. Elements are numbers; what arrives replaces them, or is added.
struct Execution {
  using Element = std::uint64_t;

  Execution(const Algorithm& which, const CollectiveCall& what) : algorithm(which), call(what) {
    const auto ranks = static_cast<std::size_t>(call.ranks);
    posted.resize(ranks);
    over.resize(ranks);
    open.resize(ranks);
    arrays.resize(ranks);
    arrived.resize(ranks);
    for (int rank = 0; rank < call.ranks; ++rank) {
      const auto steps = static_cast<std::size_t>(algorithm.steps(call, rank));
      open[static_cast<std::size_t>(rank)].resize(steps);
      arrived[static_cast<std::size_t>(rank)].resize(steps);
    }
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
        match(sends, receives, {rank, step.to}, {rank, number, step.sent, cut(rank, step)});
      if (step.from >= 0 && step.received.count() > 0.0)
        match(receives, sends, {step.from, rank}, {rank, number, step.received, {}});
      moved = true;
    }
    while (over[r] < posted[r] && open[r][static_cast<std::size_t>(over[r])] == 0) {
      take(rank, over[r]++);
      moved = true;
    }
    return moved;
  }

  struct Side {
    int rank = 0;
    int step = 0;
    Bytes size;
    std::vector<Element> elements;
  };
  using Sides = std::map<std::pair<int, int>, std::deque<Side>>;

  void match(Sides& own, Sides& other, std::pair<int, int> pair, Side side) {
    const auto found = other.find(pair);
    if (found == other.end()) {
      ++open[static_cast<std::size_t>(side.rank)][static_cast<std::size_t>(side.step)];
      own[pair].push_back(std::move(side));
      return;
    }
    Side there = std::move(found->second.front());
    found->second.pop_front();
    if (found->second.empty()) other.erase(found);
    sizes_agree = sizes_agree && there.size == side.size;
    --open[static_cast<std::size_t>(there.rank)][static_cast<std::size_t>(there.step)];
    Side& sender = &own == &sends ? side : there;
    const Side& receiver = &own == &sends ? there : side;
    arrived[static_cast<std::size_t>(receiver.rank)][static_cast<std::size_t>(receiver.step)] =
        std::move(sender.elements);
  }

  /// What a rank sends in a step; nothing where arrays are not followed.
  [[nodiscard]] std::vector<Element> cut(int rank, const Exchange& step) const {
    const std::vector<Element>& array = arrays[static_cast<std::size_t>(rank)];
    if (array.empty()) return {};
    const auto at = [&](Bytes position) {
      return array.begin() + static_cast<std::ptrdiff_t>(element_at(position, call.element_bytes));
    };
    return {at(step.sent_at), at(step.sent_at + step.sent)};
  }

  void take(int rank, int number) {
    std::vector<Element>& array = arrays[static_cast<std::size_t>(rank)];
    const Exchange step = algorithm.step(call, rank, number);
    if (array.empty() || step.from < 0) return;
    const std::vector<Element>& elements =
        arrived[static_cast<std::size_t>(rank)][static_cast<std::size_t>(number)];
    const std::size_t begin = element_at(step.received_at, call.element_bytes);
    elements_agree = elements_agree && begin + elements.size() ==
                                           element_at(step.received_at + step.received, call.element_bytes);
    for (std::size_t i = 0; i < elements.size(); ++i) {
      Element& own = array.at(begin + i);
      own = elements[i] + (step.reduce ? own : 0);
    }
  }

  const Algorithm& algorithm;
  const CollectiveCall call;
  std::vector<int> posted, over;
  std::vector<std::vector<int>> open;
  std::vector<std::vector<Element>> arrays;                ///< by rank; empty: not followed
  std::vector<std::vector<std::vector<Element>>> arrived;  ///< by rank and step
  Sides sends, receives;
  bool sizes_agree = true;
  bool elements_agree = true;
};

/// What a rank contributes to an element of the sum: each of 13 ranks has four bits of its own, so that a sum
/// contains how often each is in it.
Execution::Element contribution(int rank) {
  return Execution::Element{1} << (4U * static_cast<unsigned>(rank));
}
Execution::Element everybody(int ranks) {
  Execution::Element sum = 0;
  for (int rank = 0; rank < ranks; ++rank) sum += contribution(rank);
  return sum;
}

/// Element `index` of what rank `owner` brings along, where nothing is added up.
Execution::Element mark(int owner, std::size_t index) {
  return static_cast<Execution::Element>(owner + 1) * 100'000'000 + index;
}

/// Arrays before and after a collective of each kind: algorithm.hpp.
struct Meaning {
  const CollectiveCall& call;
  CollectiveKind kind;

  [[nodiscard]] int block(std::size_t element) const {
    for (int number = call.ranks - 1; number > 0; --number)
      if (element >= element_at(call.message * number / call.ranks, call.element_bytes)) return number;
    return 0;
  }
  [[nodiscard]] Execution::Element before(int rank, std::size_t element) const {
    switch (kind) {
      case CollectiveKind::kAllReduce:
      case CollectiveKind::kReduceScatter:
        return contribution(rank);
      case CollectiveKind::kAllGather:
      case CollectiveKind::kGather:
        return block(element) == rank ? mark(rank, element) : 0;
      case CollectiveKind::kBroadcast:
      case CollectiveKind::kScatter:
        return rank == call.root ? mark(rank, element) : 0;
      case CollectiveKind::kAllToAll:
      case CollectiveKind::kShift:
        return mark(rank, element);
    }
    return 0;
  }
  /// True if the kind defines this element of this rank afterwards.
  [[nodiscard]] bool matters(int rank, std::size_t element) const {
    switch (kind) {
      case CollectiveKind::kReduceScatter:
      case CollectiveKind::kScatter:
        return block(element) == rank;
      case CollectiveKind::kGather:
        return rank == call.root;
      default:
        return true;
    }
  }
  [[nodiscard]] Execution::Element after(int rank, std::size_t element) const {
    switch (kind) {
      case CollectiveKind::kAllReduce:
      case CollectiveKind::kReduceScatter:
        return everybody(call.ranks);
      case CollectiveKind::kAllGather:
      case CollectiveKind::kGather:
        return mark(block(element), element);
      case CollectiveKind::kBroadcast:
      case CollectiveKind::kScatter:
        return mark(call.root, element);
      case CollectiveKind::kAllToAll:
        return mark((rank - block(element) + call.ranks) % call.ranks, element);
      case CollectiveKind::kShift:
        return mark((rank - 1 + call.ranks) % call.ranks, element);
    }
    return 0;
  }
};

TEST_CASE("in every algorithm sends and receives pair up, agree in size and never deadlock") {
  for (const auto& entry : algorithms().entries()) {
    for (const CollectiveCall& call : calls({1.0, 7.0, 1024.0, 3'000'001.0})) {
      INFO(in_words(entry.name, call));
      Execution execution(entry.value, call);
      CHECK(execution.run());
      CHECK(execution.sizes_agree);
    }
  }
}

TEST_CASE("after every algorithm each rank holds what its kind promises, with every contribution once") {
  for (const auto& entry : algorithms().entries()) {
    for (CollectiveCall call : calls({1.0, 7.0, 64.0, 2003.0}, 640.0)) {
      // Blocks of all_to_all are equal: a block of one rank becomes one of another.
      if (entry.value.kind == CollectiveKind::kAllToAll) call.message = call.message * call.ranks;
      const double elements = call.message.count() / call.element_bytes;
      INFO(in_words(entry.name, call));
      const Meaning meaning{call, entry.value.kind};
      Execution execution(entry.value, call);
      for (int rank = 0; rank < call.ranks; ++rank)
        for (std::size_t i = 0; i < static_cast<std::size_t>(elements); ++i)
          execution.arrays[static_cast<std::size_t>(rank)].push_back(meaning.before(rank, i));
      execution.run();
      CHECK(execution.elements_agree);
      int wrong = 0;
      for (int rank = 0; rank < call.ranks; ++rank)
        for (std::size_t i = 0; i < static_cast<std::size_t>(elements); ++i)
          if (meaning.matters(rank, i) &&
              execution.arrays[static_cast<std::size_t>(rank)][i] != meaning.after(rank, i))
            ++wrong;
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE(
    "in every algorithm the bytes of a rank's messages sum to their closed form, and sent equals received") {
  for (const auto& entry : algorithms().entries()) {
    for (const CollectiveCall& call : calls({1.0, 7.0, 1024.0, 3'000'001.0})) {
      INFO(in_words(entry.name, call));
      double all_sent = 0.0;
      double all_received = 0.0;
      for (int rank = 0; rank < call.ranks; ++rank) {
        double sent = 0.0;
        bool backwards = true;
        const int steps = entry.value.steps(call, rank);
        for (int k = 0; k < steps; ++k) {
          const Exchange step = entry.value.step(call, rank, k);
          backwards = backwards && step.after < k;
          sent += step.sent.count();
          all_received += step.received.count();
        }
        CHECK(backwards);
        CHECK(sent == Approx(entry.value.sent(call, rank).count()));
        all_sent += sent;
      }
      CHECK(all_sent == Approx(all_received));
    }
  }
}

TEST_CASE("a collective moves the bytes that its result needs, and only rings of all-to-all more") {
  for (const auto& entry : algorithms().entries()) {
    for (const CollectiveCall& call : calls({1.0, 7.0, 1024.0, 3'000'001.0})) {
      if (call.ranks == 1) continue;
      INFO(in_words(entry.name, call));
      double all = 0.0;
      for (int rank = 0; rank < call.ranks; ++rank) all += entry.value.sent(call, rank).count();
      const double n = call.ranks;
      const double message = call.message.count();
      double least = (n - 1) * message;
      if (entry.value.kind == CollectiveKind::kAllReduce) least *= 2.0;
      if (entry.value.kind == CollectiveKind::kGather || entry.value.kind == CollectiveKind::kScatter)
        least /= n;
      if (entry.value.kind == CollectiveKind::kShift) least = n * message;
      const bool detours = entry.name == "all_to_all/ring";
      CHECK(all == Approx(detours ? n / 2.0 * least : least));
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
      CHECK((entry.value.time(small, link).count() == kNoCost) == (ranks == 1));
      CHECK(entry.value.time(small, link) <= entry.value.time(large, link));
      CHECK(entry.value.time(large, wide) <= entry.value.time(large, link));
    }
  }
}

/// In seconds where a byte takes one, and a message one more.
double time_of(const std::string& name, const CollectiveCall& call) {
  const LinkCost link{Seconds(1.0), BytesPerSecond(1.0)};
  return algorithms().find(name).time(call, link).count();
}

TEST_CASE("ring all-reduce of 4 B over 4 ranks at 1 B/s and 1 s takes 12 s") {
  CHECK(time_of("all_reduce/ring", {Bytes(4), 4}) == Approx(12.0));
}

TEST_CASE("halving-doubling of 4 B at 1 B/s and 1 s takes 10 s over 4 ranks, and 10 s more over 5 and 6") {
  // Halves of 2 B and 1 B, twice: 2 (1 + 2) + 2 (1 + 1); folding in and out: 2 (1 + 4).
  CHECK(time_of("all_reduce/halving_doubling", {Bytes(4), 4}) == Approx(10.0));
  CHECK(time_of("all_reduce/halving_doubling", {Bytes(4), 5}) == Approx(20.0));
  CHECK(time_of("all_reduce/halving_doubling", {Bytes(4), 6}) == Approx(20.0));
}

TEST_CASE("two trees of 4 B at 1 B/s and 1 s swap halves twice over 2 ranks: 6 s, and take 18 s over 4") {
  CHECK(time_of("all_reduce/double_binary_tree", {Bytes(4), 2}) == Approx(6.0));
  CHECK(time_of("all_reduce/double_binary_tree", {Bytes(4), 4}) == Approx(18.0));
}

TEST_CASE("gather of 4 B from 4 ranks at 1 B/s and 1 s takes 1 s for the way and 3 s for the three parts") {
  CHECK(time_of("gather/direct", {Bytes(4), 4}) == Approx(4.0));
  CHECK(time_of("scatter/direct", {Bytes(4), 4}) == Approx(4.0));
}

TEST_CASE("all-to-all of 4 B over 4 ranks takes 4 s at once, 6 s in pairs and 9 s around a ring") {
  CHECK(time_of("all_to_all/direct", {Bytes(4), 4}) == Approx(4.0));
  CHECK(time_of("all_to_all/pairwise", {Bytes(4), 4}) == Approx(6.0));
  CHECK(time_of("all_to_all/ring", {Bytes(4), 4}) == Approx(9.0));
}

TEST_CASE("broadcast of 2 B to 8 ranks at 1 B/s and 1 s takes three rounds of 3 s") {
  CHECK(time_of("broadcast/binomial", {Bytes(2), 8}) == Approx(9.0));
}

TEST_CASE(
    "in Gloo's broadcast to 8 ranks the root sends to 1, 2 and 4, rank 1 to 3 and 5, and rank 4 to none") {
  const Algorithm& tree = algorithms().find("broadcast/binomial");
  const auto served = [&](int rank) {
    std::vector<int> peers;
    const CollectiveCall call{Bytes(4), 8};
    for (int k = 0; k < tree.steps(call, rank); ++k)
      if (const Exchange step = tree.step(call, rank, k); step.to >= 0) peers.push_back(step.to);
    return peers;
  };
  CHECK(served(0) == std::vector<int>{1, 2, 4});
  CHECK(served(1) == std::vector<int>{3, 5});
  CHECK(served(2) == std::vector<int>{6});
  CHECK(served(3) == std::vector<int>{7});
  CHECK(served(4).empty());
}

TEST_CASE("no member of the two trees sends to more than two or receives from more than two, up to 300") {
  for (int members = 2; members <= 300; ++members) {
    const TreeRounds trees = tree_rounds(members);
    CHECK(trees.edges.size() == 2 * static_cast<std::size_t>(members - 1));
    // At most 2 log2 n rounds up, of which every other one is an edge's own.
    CHECK(trees.last < 2 * std::ceil(std::log2(members)) + 2);
    std::map<std::pair<int, int>, int> at_once;  // by member, and round with its direction
    for (const TreeEdge& edge : trees.edges) {
      const int turn = edge.offset % trees.period;
      CHECK(++at_once[{edge.child, 2 * turn}] == 1);
      CHECK(++at_once[{edge.parent, 2 * turn + 1}] == 1);
    }
  }
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

}  // namespace
}  // namespace stepcast::algorithm_test
